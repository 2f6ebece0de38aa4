//! Options of `strata calibrate`.

use crate::values::positive;
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Options of `strata calibrate`.
#[derive(Args, Clone, Debug)]
pub struct CalibrateArgs {
    /// Write the CPU here, for --cpu; - is the standard output. The curves go to standard error.
    #[arg(short, long, value_name = "FILE.toml", default_value = "-")]
    pub output: PathBuf,

    /// Name of the CPU.
    #[arg(long, value_name = "NAME", default_value = "here")]
    pub name: String,

    /// Largest chain of loads, at least 64M; it is taken twice [default: 4G, or a third of the memory
    /// available].
    #[arg(long, value_name = "SIZE", value_parser = strata_text::parse_size)]
    pub most: Option<u64>,

    /// Rounds of each size, of which the quickest counts.
    #[arg(long, value_name = "N", default_value = "7", value_parser = positive)]
    pub rounds: NonZeroUsize,
}
