//! What `--sample` does not go with.

use crate::args::{self, RunArgs};
use crate::failure::Failure;
use crate::prepared;
use crate::sample::Sample;

/// Refuses options of a recording that does not hold all of a stream.
///
/// # Errors
/// When there is one, with what to do.
pub fn check_recording(sample: Option<Sample>, input: &args::Input) -> Result<(), Failure> {
    let args = RunArgs { sample, input: input.clone(), ..RunArgs::default() };
    check(&args)
}

/// Refuses options whose results cannot be estimated from windows.
///
/// # Errors
/// When there is one, with what to do.
pub fn check(args: &RunArgs) -> Result<(), Failure> {
    match (args.sample, refused(args)) {
        (Some(_), Some((option, why))) => Err(Failure::usage(format!(
            "--sample does not go with {option} ({why}); leave one of them out"
        ))),
        _ => Ok(()),
    }
}

/// The first option given whose results cannot be estimated from windows, and why; of a recording that holds only
/// windows as well.
pub fn refused(args: &RunArgs) -> Option<(&'static str, &'static str)> {
    let input = &args.input;
    let is_marked = input.marked == Some(true);
    let is_prepared = input.workload.as_deref().is_some_and(prepared::is_recorded);
    let refused = [
        (!args.vm.is_empty(), "--vm", "windows of several streams do not meet"),
        (args.tables.is_some(), "--tables", "captured tables are of a short recording"),
        (args.llc.as_deref() == Some("cpu"), "--llc cpu", "sets and owners are not estimated"),
        (args.llc_ways.is_some(), "--llc-ways", "owners of ways are not estimated"),
        (args.llc_misses == Some(true), "--llc-misses", "causes of misses are not estimated"),
        (args.request_load.is_some(), "--request-load", "requests may lie in gaps"),
        (args.warmup.is_some_and(|n| n > 0), "--warmup", "windows have their own, warm="),
        (input.skip.is_some_and(|n| n > 0), "--skip", "accesses in gaps are not counted"),
        (input.limit.is_some(), "--limit", "accesses in gaps are not counted"),
        (
            is_marked && is_prepared,
            "a prepared workload",
            "what comes before its mark would be sampled too",
        ),
        (is_marked, "--marked", "what comes before a mark would be sampled too"),
    ];
    refused.into_iter().find(|(given, ..)| *given).map(|(_, option, why)| (option, why))
}
