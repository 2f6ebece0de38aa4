//! Runs, and what can be made of their results.

use crate::error::{self, StrataError};
use crate::policy::{Given, Policies};
use crate::table::Table;
use crate::wait::wait;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use strata::failure::Failure;
use strata::inside::{self, Asked};
use strata_view::Kind;

/// Options from JSON.
pub fn options(json: &str) -> PyResult<toml::Table> {
    serde_json::from_str(json).map_err(|error| {
        error::failed(Failure::usage(format!(
            "an option has a value that none takes: {error}; give texts, numbers, True or False, and lists"
        )))
    })
}

/// Does what `strata run` does: gives the JSON, the hash of the input, and what failed on the way.
#[pyfunction]
pub fn run(
    py: Python<'_>,
    options_json: &str,
    policies: Vec<Given>,
) -> PyResult<(String, Option<String>, Option<String>)> {
    let options = options(options_json)?;
    let stop = Arc::new(AtomicBool::new(false));
    let policies = Policies::new(policies, stop.clone());
    let catalogue = policies.catalogue()?;
    let flag = stop.clone();
    let found = wait(py, &stop, move || Asked::of(options, None)?.run(&catalogue, flag))?;
    policies.trouble(py)?;
    let found = found.map_err(error::failed)?;
    Ok((found.json, found.input_sha256, found.failed))
}

/// The page of a result.
#[pyfunction]
pub fn page(py: Python<'_>, json: &str) -> PyResult<String> {
    py.detach(|| inside::page(json)).map_err(error::failed)
}

/// What a result of a run says in words.
#[pyfunction]
pub fn sentences(json: &str) -> PyResult<Vec<String>> {
    inside::sentences(json).map_err(error::failed)
}

/// Results of runs as one table, each with the hash of its input if that is known.
#[pyfunction]
pub fn table(results: Vec<(String, Option<String>)>) -> PyResult<Table> {
    Table::of_runs(&results)
}

/// Which command wrote a result.
#[pyfunction]
pub fn kind(json: &str) -> PyResult<&'static str> {
    match strata_view::kind(json).map_err(|error| StrataError::new_err(error.to_string()))? {
        Kind::Run => Ok("run"),
        Kind::Join => Ok("join"),
        Kind::Lab => Ok("lab"),
        Kind::Paper => Ok("paper"),
    }
}

/// What it was built from.
#[pyfunction]
pub fn version() -> &'static str {
    strata::version::LINE
}
