//! Where a stream comes from, and `strata record`, which keeps one.

use crate::sample::Sample;
use crate::values::whole;
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where the stream comes from.
#[derive(Args, Clone, Debug, Default)]
pub struct Input {
    /// A recording, a ChampSim or CloudSuite trace (raw, .gz, .xz) or valgrind lackey output; - is
    /// the standard input.
    #[arg(value_name = "TRACE")]
    pub trace: Option<PathBuf>,

    /// A generator, such as random:size=1GiB,accesses=50M; see 'strata list workloads'. Or a prepared
    /// workload, such as prepared:redis; see 'strata workloads prepare --list'.
    #[arg(long, value_name = "SPEC")]
    pub workload: Option<String>,

    /// The format of the trace; detected when not given.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,

    /// Accesses to pass over first. 'strata run' lets the first touch of each page have its effect on
    /// memory, 'strata record' leaves them out [default: 0].
    #[arg(long, value_name = "N", value_parser = strata_text::parse_count)]
    pub skip: Option<u64>,

    /// Accesses to count or record at most, after those skipped and the warm-up; then a live program
    /// runs on unobserved.
    #[arg(long, value_name = "N", value_parser = limit)]
    pub limit: Option<u64>,

    /// Begin and end where the program says so, by the marks of docs/examples/strata.h; --skip,
    /// --warmup and --limit count from there.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub marked: Option<bool>,

    /// A program to run live, after --.
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl Input {
    /// The files that it names, each with what it is. A program without a directory is looked for
    /// elsewhere.
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        let program = self.program.first().map(Path::new);
        let named = program.filter(|path| path.components().count() > 1 || path.is_absolute());
        let trace = self.trace.as_deref().filter(|path| *path != Path::new("-"));
        let trace = trace.map(|path| ("the trace", path));
        trace.into_iter().chain(named.map(|path| ("the program", path))).collect()
    }
}

/// Options of `strata record`.
#[derive(Args, Clone, Debug)]
pub struct RecordArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub input: Input,

    /// Record windows of the stream, and what happens between them: auto, phases, or lengths in instructions as
    /// 'strata run' takes them.
    #[arg(long, value_name = "auto|phases|LENGTHS")]
    pub sample: Option<Sample>,

    /// Seed of where windows lie [default: 1].
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0, u64::MAX), requires = "sample")]
    pub seed: Option<u64>,

    /// The recording to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

fn limit(text: &str) -> Result<u64, String> {
    match strata_text::parse_count(text)? {
        0 => Err("nothing would be left; give a number, or leave it out for all".to_owned()),
        count => Ok(count),
    }
}
