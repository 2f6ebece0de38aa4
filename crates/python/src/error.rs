//! What went wrong, as exceptions with the words of the command line.

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use strata::failure::{Failure, USAGE};

pyo3::create_exception!(strata, StrataError, PyException, "Something asked for could not be done.");

/// `ValueError` for what makes no sense, [`StrataError`] for what did not work.
pub fn failed(failure: Failure) -> PyErr {
    match failure.status {
        USAGE => PyValueError::new_err(failure.message),
        _ => StrataError::new_err(failure.message),
    }
}
