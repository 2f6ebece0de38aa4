//! The command `strata-agent`: the first process of a layer, or one of the lab's workloads.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() == 1 { strata_agent::init::run() } else { strata_agent::work::main() }
}
