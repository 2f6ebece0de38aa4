//! Options of `strata check`.

use crate::values::whole;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options of `strata check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// The CPU that this is, a preset or a file of strata calibrate.
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub cpu: String,

    /// Pairs of native runs, one without huge pages and one with them, from 2 to 10.
    #[arg(long, value_name = "N", default_value = "5", value_parser = whole::<u8>(2, 10))]
    pub pairs: u8,

    /// Write the result as JSON here as well; - is the standard output, in place of the text.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,

    /// The program, after --.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
