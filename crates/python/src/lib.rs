//! Strata for Python: the command line's options and words, results as Python has them.
//!
//! What a user imports is `python/strata`; this is what it is made of. Options come as JSON, and go through
//! the command line's own parser (`strata::inside`), so that nothing here knows what an option means.

mod arrow;
mod error;
mod policy;
mod recording;
mod runs;
mod sweep;
mod table;
mod wait;

use pyo3::prelude::*;

/// Has what the command line would write on standard error logged.
fn log(message: &str) {
    let logged = Python::try_attach(|py| {
        let logger = py.import("logging")?.call_method1("getLogger", ("strata",))?;
        logger.call_method1("warning", ("%s", message)).map(drop)
    });
    if !matches!(logged, Some(Ok(()))) {
        eprintln!("strata: {message}");
    }
}

#[pymodule]
mod _strata {
    #[pymodule_export]
    use crate::error::StrataError;
    #[pymodule_export]
    use crate::policy::{Fault, Feedback, KernelView, MoveAsked, Position, StackView};
    #[pymodule_export]
    use crate::recording::recording;
    #[pymodule_export]
    use crate::runs::{kind, page, run, sentences, table, version};
    #[pymodule_export]
    use crate::sweep::{Sweep, run_point, user_cache};
    #[pymodule_export]
    use crate::table::Table;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn begin(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        strata::complain::listen(crate::log);
        Ok(())
    }
}
