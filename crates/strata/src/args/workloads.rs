//! Options of `strata workloads`.

use clap::{Args, Subcommand};

/// What `strata workloads` does.
#[derive(Clone, Debug, Subcommand)]
pub enum WorkloadsCommand {
    /// Record the workloads of these names, or all, that are not recorded yet; 'strata run --workload
    /// prepared:NAME' runs one.
    Prepare(PrepareArgs),
}

/// Options of `strata workloads prepare`.
#[derive(Args, Clone, Debug)]
pub struct PrepareArgs {
    /// The workloads [default: all].
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Do nothing but say what there is, which published program it stands for, and how large it is.
    #[arg(long)]
    pub list: bool,

    /// Install the Debian packages that are missing, as root.
    #[arg(long)]
    pub install: bool,

    /// Record anew what is recorded already.
    #[arg(long)]
    pub again: bool,
}
