//! The command `strata`.

mod closed;
mod out_of_memory;

use std::process::ExitCode;

fn main() -> ExitCode {
    out_of_memory::watch_threads();
    strata::main(&strata_engine::catalogue(), std::env::args_os())
}
