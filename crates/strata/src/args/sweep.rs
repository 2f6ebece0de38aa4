//! Options of `strata sweep`.

use crate::values::positive;
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Options of `strata sweep`.
#[derive(Args, Clone, Debug)]
pub struct SweepArgs {
    /// Options as in a configuration file, and a table 'grid' with a list of values for each that has
    /// several.
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,

    /// Most points to run at once; fewer where memory is short [default: one per core].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub jobs: Option<NonZeroUsize>,

    /// Keep results here, and take those that are here already [default: strata/sweeps in the user's
    /// cache].
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Run all anew, and keep nothing.
    #[arg(long, conflicts_with = "cache")]
    pub fresh: bool,

    /// Write every result as JSON; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a row for each run, with every figure, as comma-separated values; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write the table here [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
