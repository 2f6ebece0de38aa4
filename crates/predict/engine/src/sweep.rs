//! Many runs over one stream, in as few readings of it as memory allows.

use crate::pass::{Conditions, Ended, pass};
use crate::{Built, Progress, Run, RunResult, SetupError, Stop, memory};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{num::NonZeroUsize, thread};
use strata_stream::{Source, SourceError, WorkloadInfo};

/// Builds one machine for a workload.
pub type Build<'a> = Box<dyn Fn(&WorkloadInfo) -> Built + Sync + 'a>;

/// A workload could not be opened. One line: cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);

/// Opens the stream, from its beginning, each time it is called.
pub type Open<'a> = Box<dyn FnMut() -> Result<Box<dyn Source>, OpenError> + 'a>;

/// What to run over what.
pub struct Sweep<'a> {
    /// What is known of the workload before it is opened.
    pub workload: WorkloadInfo,
    /// Opens the stream; called once if it is not replayable.
    pub open: Open<'a>,
    /// Whether the stream can be read again. A live program's cannot, so all its runs go
    /// together.
    pub replayable: bool,
    /// The machines, in the order of the report.
    pub builds: Vec<Build<'a>>,
    /// Most machines to hold at once; `None` chooses by the footprint and the memory available.
    pub at_once: Option<NonZeroUsize>,
    /// Threads to consume with; `None` takes one per core.
    pub threads: Option<NonZeroUsize>,
    /// Bytes of memory all machines may take together; `None` measures what is available.
    pub memory_limit: Option<u64>,
    /// Ends the sweep early.
    pub stop: &'a Stop,
    /// Where to tell how far it is.
    pub progress: &'a Progress,
}

/// What a sweep found.
#[derive(Debug)]
pub struct Swept {
    /// The workload, with what became known by reading it.
    pub workload: WorkloadInfo,
    /// The results, in the order of [`Sweep::builds`]; runs never begun are missing, which
    /// happens only to a sweep cut short.
    pub runs: Vec<RunResult>,
    /// Why the results do not cover the whole workload, if they do not.
    pub cut_short: Option<CutShort>,
}

/// Why a sweep ended before the stream did.
#[derive(Debug)]
pub enum CutShort {
    /// Somebody asked it to stop.
    Stopped,
    /// The stream could not be read further.
    Failed(SourceError),
}

/// A sweep could not begin.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A machine could not be built.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The workload could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Runs everything. The results depend on the stream and the machines alone, not on the number of
/// threads nor on how many machines are held at once.
///
/// # Errors
/// When a machine cannot be built or the workload cannot be opened.
pub fn sweep(mut sweep: Sweep<'_>) -> Result<Swept, SweepError> {
    let total = sweep.builds.len();
    let threads = sweep.threads.map_or_else(cores, NonZeroUsize::get);
    let memory_limit = sweep.memory_limit.or_else(memory::usable).filter(|_| sweep.replayable);
    let at_once = match (sweep.replayable, sweep.at_once) {
        (false, _) => total,
        (true, Some(jobs)) => jobs.get(),
        (true, None) => {
            let each = sweep.workload.footprint_bytes.map(memory::estimate);
            memory::runs_at_once(total, each, memory_limit)
        }
    };
    let mut results: Vec<Option<RunResult>> = (0..total).map(|_| None).collect();
    let mut waiting: Vec<usize> = (0..total).collect();
    let mut workload = sweep.workload.clone();
    let mut cut_short = None;
    while !waiting.is_empty() && cut_short.is_none() {
        let now: Vec<usize> = waiting.drain(..at_once.clamp(1, waiting.len())).collect();
        sweep.progress.begin_pass(waiting.len().div_ceil(at_once.max(1)) + 1);
        let runs = match build(&sweep, &now, threads) {
            Err(SetupError::Stopped) => {
                cut_short = Some(CutShort::Stopped);
                break;
            }
            built => built?,
        };
        let mut source = (sweep.open)()?;
        let conditions =
            Conditions { threads, stop: sweep.stop, progress: sweep.progress, memory_limit };
        let (found, ended) = pass(&mut *source, runs, &conditions);
        workload = source.info();
        cut_short = match ended {
            Ended::Complete => None,
            Ended::Stopped => Some(CutShort::Stopped),
            Ended::Failed(error) => Some(CutShort::Failed(error)),
        };
        for (&index, mut result) in now.iter().zip(found) {
            if let Some(result) = &mut result {
                result.partial |= cut_short.is_some();
            }
            results[index] = result;
        }
        // Those given up for want of memory go first in the next reading.
        let again = now.into_iter().filter(|&index| results[index].is_none());
        waiting.splice(..0, again);
        // A damaged stream ends at the same place every time, and the runs still to come are
        // worth having up to there.
        if matches!(cut_short, Some(CutShort::Failed(_))) && !waiting.is_empty() {
            cut_short = None;
        }
    }
    Ok(Swept { workload, runs: results.into_iter().flatten().collect(), cut_short })
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Builds machines side by side: filling the memory of a large one takes a while.
fn build(
    sweep: &Sweep<'_>,
    now: &[usize],
    threads: usize,
) -> Result<Vec<Box<dyn Run>>, SetupError> {
    let Sweep { builds, workload, progress, .. } = sweep;
    let next = AtomicUsize::new(0);
    let built = Mutex::new(now.iter().map(|_| None).collect::<Vec<_>>());
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, now.len().max(1)) {
            scope.spawn(|| {
                while let Some((place, &index)) = {
                    let place = next.fetch_add(1, Relaxed);
                    now.get(place).map(|index| (place, index))
                } {
                    progress.begin_setup(index);
                    let run = builds[index](workload);
                    built.lock().expect("nothing panics with the lock held")[place] = Some(run);
                }
            });
        }
    });
    progress.end_setup();
    let built = built.into_inner().expect("nothing panics with the lock held");
    built.into_iter().map(|run| run.expect("every index was taken")).collect()
}
