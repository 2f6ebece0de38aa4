//! Several hosts, each with its VMs, run side by side.

use crate::simulation::host::HostSetup;
use crate::simulation::together::{Host, HostError, HostOutcome, OpenVm};
use crate::{Progress, SetupError, Stop};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

/// What to run.
pub struct Hosts<'a> {
    /// The hosts.
    pub setups: &'a [HostSetup],
    /// Opens the streams; every host reads its own.
    pub open: &'a OpenVm<'a>,
    /// Most hosts to run at once.
    pub at_once: NonZeroUsize,
    /// Ends them early.
    pub stop: &'a Stop,
    /// Where to tell how far they are.
    pub progress: &'a Progress,
}

/// Runs every host. What happens on one depends on its setup and its streams alone. Those that were
/// not begun when somebody asked to stop are `None`.
///
/// # Errors
/// That of the first host in their order that could not be run.
pub fn run_hosts(hosts: &Hosts<'_>) -> Result<Vec<Option<HostOutcome>>, HostError> {
    let Hosts { setups, open, at_once, stop, progress } = hosts;
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(setups.iter().map(|_| None).collect::<Vec<_>>());
    progress.begin_pass(1);
    let one = |index: usize| {
        progress.begin_setup(index);
        let host = Host::new(&setups[index], *open, stop);
        progress.end_setup();
        host?.run(stop, progress)
    };
    thread::scope(|scope| {
        for _ in 0..at_once.get().min(setups.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    if index >= setups.len() {
                        break;
                    }
                    let outcome = one(index);
                    outcomes.lock().expect("nothing panics with the lock held")[index] =
                        Some(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("nothing panics with the lock held").into_iter();
    let begun = outcomes.map(|outcome| match outcome.expect("every host was run") {
        Err(HostError::Setup(SetupError::Stopped)) => Ok(None),
        outcome => outcome.map(Some),
    });
    begun.collect()
}
