//! What pictures of `strata top` have in common, whatever they show.

use crate::failure::Failure;
use crate::inspect_args::TopArgs;
use crate::output::Target;
use std::io::{self, IsTerminal};

/// Where the cursor goes before a picture, and what is cleared: from there to the end. No other
/// state of the terminal is touched, so that ending at any moment leaves it clean.
pub const HOME: &str = "\x1b[H\x1b[J";

/// Where Prometheus text goes, if anywhere.
pub fn metrics(args: &TopArgs) -> Result<Option<Target>, Failure> {
    let target = args.prometheus.as_deref().map(Target::named);
    match &target {
        Some(Target::Stdout) => {
            Err(Failure::usage("the pictures go to the standard output: give --prometheus a file"))
        }
        Some(target) => target.check().map(|()| Some(target.clone())),
        None => Ok(None),
    }
}

/// How many pictures there are to be; without end if `None`: on a terminal, and where `log` lines are
/// shown instead.
pub fn pictures(args: &TopArgs, log: bool) -> Option<u64> {
    match args.count {
        _ if args.once => Some(1),
        Some(count) => Some(count),
        None if log || io::stdout().is_terminal() => None,
        None => Some(1),
    }
}
