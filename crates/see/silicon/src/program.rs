//! A program run natively, in turns with huge pages and without.

use crate::counters::{Counters, Counts};
use nix::sys::prctl::set_thp_disable;
use nix::sys::resource::{UsageWho, getrusage};
use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Where the kernel says for which memory it takes huge pages.
const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Has glibc's allocator ask for huge pages (glibc 2.35, `malloc/malloc.c`): where the kernel takes them on
/// advice only, nothing else of an unmodified program asks.
const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// How often a running program's huge pages are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Student's t for a two-sided interval of 95 %, by degrees of freedom from 1.
const STUDENT: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];

/// Why a program's runs cannot be compared. Each names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel takes no huge pages.
    #[error(
        "the kernel takes no huge pages, so there is nothing to compare; write madvise to {ENABLED}"
    )]
    Never,
    /// What it takes is not known.
    #[error("cannot read {ENABLED}: {0}; use a kernel with transparent huge pages")]
    Unknown(std::io::Error),
    /// They cannot be forbidden for a while.
    #[error("cannot forbid huge pages to a program: {0}; use Linux 3.15 or later")]
    Forbid(nix::errno::Errno),
    /// The program does not start.
    #[error("cannot run '{name}': {cause}; give a program that runs by itself")]
    Start {
        /// The program.
        name: String,
        /// Why not.
        cause: std::io::Error,
    },
    /// It does not end well.
    #[error("'{name}' ended with {status}; give a program and arguments that end with status 0")]
    Status {
        /// The program.
        name: String,
        /// How it ended.
        status: ExitStatus,
    },
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// Seconds of processors, the program's and the kernel's for it, with what its children took.
    pub cpu: f64,
    /// Seconds from start to end.
    pub wall: f64,
    /// Most bytes of it that were seen in huge pages at a time.
    pub huge_bytes: u64,
    /// What hardware counted, where it may be asked.
    pub counts: Option<Counts>,
}

/// Runs in pairs.
#[derive(Clone, Debug, PartialEq)]
pub struct Pairs {
    /// Each without huge pages, then with.
    pub all: Vec<[Timed; 2]>,
    /// Huge pages are for memory that a program asks them for, which glibc's allocator was told to do.
    pub on_advice: bool,
    /// Why hardware's counters were not read; `None` if they were.
    pub uncounted: Option<String>,
}

/// How many times as fast, with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Geometric mean over the pairs.
    pub mean: f64,
    /// Where it lies with 95 % confidence, if the logarithms of the pairs' ratios are normally distributed.
    pub interval: [f64; 2],
}

impl Pairs {
    /// How many times as fast the program is with huge pages, by what `of` a run says.
    pub fn ratio(&self, of: impl Fn(&Timed) -> f64) -> Ratio {
        let logs = self.all.iter().map(|[without, with]| (of(without) / of(with)).ln());
        let logs: Vec<f64> = logs.collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let student = STUDENT[(logs.len() - 2).min(STUDENT.len() - 1)];
        let half = student * (variance / count).sqrt();
        Ratio { mean: mean.exp(), interval: [(mean - half).exp(), (mean + half).exp()] }
    }
}

/// Runs a program `pairs` times without huge pages and as often with them, in turns, after once for warmth.
/// Its standard input is empty, its output thrown away.
///
/// # Errors
/// [`ProgramError`].
///
/// # Panics
/// With fewer than 2 pairs, which have no interval.
pub fn run_pairs(program: &[OsString], pairs: usize) -> Result<Pairs, ProgramError> {
    assert!(pairs >= 2, "an interval takes two pairs");
    let enabled = fs::read_to_string(ENABLED).map_err(ProgramError::Unknown)?;
    if enabled.contains("[never]") {
        return Err(ProgramError::Never);
    }
    let on_advice = enabled.contains("[madvise]");
    let mut counters = Counters::open();
    let uncounted = counters.as_ref().err().map(ToString::to_string);
    let mut timed = |huge: bool| {
        // What this process forbids itself, its children are forbidden (prctl(2), PR_SET_THP_DISABLE).
        set_thp_disable(!huge).map_err(ProgramError::Forbid)?;
        let timed = time(program, on_advice, counters.as_mut().ok());
        set_thp_disable(false).map_err(ProgramError::Forbid)?;
        timed
    };
    timed(true)?;
    let mut all = Vec::new();
    for _ in 0..pairs {
        let without = timed(false)?;
        all.push([without, timed(true)?]);
    }
    Ok(Pairs { all, on_advice, uncounted })
}

fn time(
    program: &[OsString],
    on_advice: bool,
    mut counters: Option<&mut Counters>,
) -> Result<Timed, ProgramError> {
    let name = || program[0].to_string_lossy().into_owned();
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if on_advice {
        command.env(TUNABLES.0, TUNABLES.1);
    }
    let mut counted = || counters.as_mut().and_then(|counters| counters.read().ok());
    let counted_before = counted();
    let (before, start) = (children(), Instant::now());
    let mut child = command.spawn().map_err(|cause| ProgramError::Start { name: name(), cause })?;
    let smaps = format!("/proc/{}/smaps_rollup", child.id());
    let mut huge_bytes = 0;
    let status = loop {
        let ended =
            child.try_wait().map_err(|cause| ProgramError::Start { name: name(), cause })?;
        if let Some(status) = ended {
            break status;
        }
        huge_bytes = huge_bytes.max(in_huge_pages(&fs::read_to_string(&smaps).unwrap_or_default()));
        thread::sleep(LOOK_EVERY);
    };
    let (wall, cpu) = (start.elapsed().as_secs_f64(), children() - before);
    if !status.success() {
        return Err(ProgramError::Status { name: name(), status });
    }
    let counts = counted().zip(counted_before).map(|(now, before)| now.since(before));
    Ok(Timed { cpu, wall, huge_bytes, counts })
}

/// Seconds that children which have ended took of processors.
fn children() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return 0.0 };
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Bytes in huge pages, of a file `smaps_rollup`.
fn in_huge_pages(smaps: &str) -> u64 {
    let line = smaps.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ratios: &[f64]) -> Pairs {
        let run = |cpu| Timed { cpu, wall: 1.0, huge_bytes: 0, counts: None };
        let all = ratios.iter().map(|ratio| [run(*ratio), run(1.0)]).collect();
        Pairs { all, on_advice: true, uncounted: None }
    }

    #[test]
    fn the_interval_is_students_of_logarithms() {
        let same = pairs(&[1.2, 1.2, 1.2]).ratio(|timed| timed.cpu);
        assert!((same.mean - 1.2).abs() < 1e-12 && same.interval[1] - same.interval[0] < 1e-12);
        // Logarithms -a, 0, a have the deviation a; t of two degrees is 4.303.
        let found = pairs(&[1.0 / 1.1, 1.0, 1.1]).ratio(|timed| timed.cpu);
        let half = 4.303 * 1.1_f64.ln() / 3.0_f64.sqrt();
        assert!((found.mean - 1.0).abs() < 1e-12);
        assert!((found.interval[1] - half.exp()).abs() < 1e-9, "{found:?}");
        assert!((found.interval[0] - (-half).exp()).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn huge_pages_are_read_of_the_rollup() {
        let text = "Rss: 9000 kB\nAnonHugePages:      6144 kB\nShmemPmdMapped: 0 kB\n";
        assert_eq!((in_huge_pages(text), in_huge_pages("")), (6 << 20, 0));
    }

    #[test]
    fn a_program_that_is_not_there_or_fails_is_named() {
        let run = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            time(&words, false, None).unwrap_err().to_string()
        };
        assert!(run(&["/nonexistent/program"]).contains("cannot run '/nonexistent/program'"));
        assert!(run(&["false"]).contains("'false' ended with exit status: 1"));
    }
}
