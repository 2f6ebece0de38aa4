//! Options of `strata scan`, `strata join`, `strata top` and `strata bill`.

use crate::results::ResultArgs;
use clap::Args;
use std::path::PathBuf;
use strata_remote::{Place, Route};

/// Options of `strata scan`.
#[derive(Args, Clone, Debug)]
pub struct ScanArgs {
    /// Write the snapshot here; - is the standard output. Without it only the summary is shown.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// First watch for so many seconds which memory VMs use, and show the cache colours of that, too.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub hot: Option<f64>,

    /// Give snapshots of this layer to 'strata join --from', until Ctrl-C, and lead it on to this layer's VMs: on
    /// vsock, vsock:PORT or unix:PATH.
    #[arg(
        long,
        value_name = "PLACE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "vsock",
        value_parser = Place::to_listen,
        requires = "key",
        conflicts_with = "output"
    )]
    pub serve: Option<Place>,

    /// The key that whoever asks must know: a file of 16 to 4096 bytes, the same at both ends.
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub key: Option<PathBuf>,

    /// Read /proc and /sys below this directory.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

/// Options of `strata join`.
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// The snapshots, the guest's first, the host's last; - is the standard input. With --from those of the layers
    /// below; none is this layer as it is now.
    #[arg(value_name = "SNAPSHOT", required_unless_present = "from", num_args = 1..)]
    pub snapshots: Vec<PathBuf>,

    /// Ask these layers for their snapshots, the guest first: vsock:CID, where 'strata scan --serve' runs, and
    /// vsock:CID/CID for a VM in that VM; or unix:PATH.
    #[arg(long, value_name = "PLACE,...", value_delimiter = ',', requires = "key")]
    pub from: Vec<Route>,

    /// The key that these layers know, too: a file of 16 to 4096 bytes.
    #[arg(long, value_name = "FILE", requires = "from")]
    pub key: Option<PathBuf>,

    /// The VM in each snapshot below the guest's, from the top [default: found by UUID or memory].
    #[arg(long, value_name = "PID|NAME|UUID")]
    pub vm: Vec<String>,

    /// Write a page to look at: everything found, as pictures, in one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Add every huge page of the guest through all layers to the JSON; --html does.
    #[arg(long)]
    pub detail: bool,

    /// Where it goes.
    #[command(flatten)]
    pub results: ResultArgs,

    /// Estimate what it would gain if all huge pages of the guest were well aligned.
    #[arg(long)]
    pub gain: bool,

    /// The CPU to estimate with, a preset or a file [default: broadwell-e5-2620v4].
    #[arg(long, value_name = "PRESET|FILE", requires = "gain")]
    pub cpu: Option<String>,

    /// Join even where the snapshots do not seem to belong together.
    #[arg(long)]
    pub force: bool,
}

/// Options of `strata top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Seconds between two pictures.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub interval: f64,

    /// Pictures to show before ending [default: without end; one when not on a terminal].
    #[arg(short = 'n', long, value_name = "N", value_parser = crate::values::whole::<u64>(1, u64::MAX))]
    pub count: Option<u64>,

    /// Show one picture and end.
    #[arg(short = '1', long, conflicts_with = "count")]
    pub once: bool,

    /// Write Prometheus text with each picture, for the textfile collector.
    #[arg(long, value_name = "FILE")]
    pub prometheus: Option<PathBuf>,

    /// Show the exits of VMs instead: by level and reason, with the time they take. As root.
    #[arg(long, conflicts_with = "hot")]
    pub exits: bool,

    /// A line for each VM instead of pictures.
    #[arg(short, long, requires = "exits")]
    pub log: bool,

    /// A line for each VM, level and reason as CSV instead of pictures.
    #[arg(short, long, requires = "exits", conflicts_with = "log")]
    pub csv: bool,

    /// First watch for so many seconds which memory VMs use, and show the cache colours of that, too.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub hot: Option<f64>,

    /// Read /proc and /sys below this directory.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

/// Options of `strata bill`.
#[derive(Args, Clone, Debug)]
pub struct BillArgs {
    /// Seconds to watch.
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub time: f64,

    /// Show a bill that was written by --json, instead of watching.
    #[arg(long, value_name = "FILE", conflicts_with = "time")]
    pub read: Option<PathBuf>,

    /// Show these VMs only; may be repeated.
    #[arg(long, value_name = "PID|NAME")]
    pub vm: Vec<String>,

    /// Where it goes.
    #[command(flatten)]
    pub results: ResultArgs,

    /// Read /proc and /sys below this directory.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "give seconds from 0.1 to 86400".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_reasonable() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "NaN", "x", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
