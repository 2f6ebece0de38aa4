//! What the options say is to be run.

use crate::args;
use crate::failure::Failure;
use crate::workload::Input;
use strata_workloads::{Format, Part};

/// What part of the stream the options ask for.
pub fn part(given: &args::Input) -> Part {
    let marked = given.marked.unwrap_or(false);
    Part { marked, skip: given.skip.unwrap_or(0), limit: given.limit }
}

/// The one input the options name.
///
/// # Errors
/// When they name none or several.
pub fn input(given: args::Input) -> Result<Input, Failure> {
    let format: Option<Format> = match &given.format {
        Some(name) => Some(name.parse().map_err(Failure::usage)?),
        None => None,
    };
    let chosen = match (given.trace, given.workload, given.program) {
        (Some(path), None, program) if program.is_empty() => Input::Trace(path, format),
        (None, Some(spec), program) if program.is_empty() => Input::named(&spec)?,
        (None, None, program) if !program.is_empty() => Input::Live(program),
        (None, None, _) => {
            return Err(Failure::usage(
                "nothing to run; give a program after --, a trace, or --workload SPEC",
            ));
        }
        (Some(_), None, _) => return Err(two("a trace and a program")),
        (None, Some(_), _) => return Err(two("--workload and a program")),
        (Some(_), Some(_), _) => return Err(two("--workload and a trace")),
    };
    if format.is_some() && !matches!(chosen, Input::Trace(..)) {
        return Err(Failure::usage("--format is for traces; leave it out"));
    }
    Ok(chosen)
}

fn two(what: &str) -> Failure {
    Failure::usage(format!("{what} are given; choose one"))
}
