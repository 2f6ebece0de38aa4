//! What a recording says of itself.

use crate::error::StrataError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Arc;

/// What is known of a recording or a trace before it is run.
#[pyfunction]
pub fn recording<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyDict>> {
    let opened = py.detach(|| {
        let source = strata_workloads::open(&path, None, &Arc::default());
        source.map(|source| source.info()).map_err(|error| error.to_string())
    });
    let info = opened.map_err(StrataError::new_err)?;
    let about = PyDict::new(py);
    about.set_item("name", info.name)?;
    about.set_item("kind", info.kind)?;
    about.set_item("argv", info.argv)?;
    about.set_item("accesses", info.accesses)?;
    about.set_item("footprint_bytes", info.footprint_bytes)?;
    about.set_item("exit_status", info.exit_status)?;
    about.set_item("notes", info.notes)?;
    Ok(about)
}
