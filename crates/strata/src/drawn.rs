//! Results to look at: the page of each, with what the tables say in words.

use crate::failure::Failure;
use crate::verdict;
use strata_engine::Report;
use strata_view::{Verdict, ViewError};

/// The page of a result of `strata run`; `json` is how it is written.
///
/// # Errors
/// When it cannot be drawn.
pub fn of_run(report: &Report, json: &str) -> Result<String, Failure> {
    let verdicts: Vec<Verdict> = report
        .by_stack()
        .into_iter()
        .map(|(stack, runs)| Verdict {
            of: stack.name().to_owned(),
            sentences: verdict::sentences(&runs),
        })
        .collect();
    strata_view::page(json, &verdicts).map_err(|error| undrawn(&error))
}

/// The page of any other result.
///
/// # Errors
/// When it cannot be drawn.
pub fn of(json: &str) -> Result<String, Failure> {
    strata_view::page(json, &[]).map_err(|error| undrawn(&error))
}

/// A result of `strata run` as a trace for Perfetto.
///
/// # Errors
/// When it has no states over time.
pub fn trace_events(json: &str) -> Result<Vec<u8>, Failure> {
    strata_view::trace_events(json).map_err(|error| undrawn(&error))
}

/// The exits of a result of `strata run` as folded stacks.
///
/// # Errors
/// When it cannot be read.
pub fn folded(json: &str) -> Result<String, Failure> {
    strata_view::folded(json).map_err(|error| undrawn(&error))
}

fn undrawn(error: &ViewError) -> Failure {
    Failure::failed(format!("the result cannot be drawn: {error}"))
}
