//! The command `strata`.

mod closed;
mod exhausted;

use std::process::ExitCode;

fn main() -> ExitCode {
    strata::main(&strata_engine::catalogue(), std::env::args_os())
}
