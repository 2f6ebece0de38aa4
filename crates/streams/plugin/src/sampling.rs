//! How far the process is by the clock of all processes, and whether it is in a gap of a sampled stream.
//!
//! The clock counts instructions of all threads of all processes. A thread looks at it where a translated
//! block says so (`abi`), no earlier than the next edge can be.

use crate::slots::SERIAL_INSTRUCTIONS;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use strata_stream::{Edge, Placed, Sampling, Schedule};
use strata_wire::Wire;

/// Whether there is a clock to be looked at: the stream is sampled, or blocks are counted.
static SAMPLED: AtomicBool = AtomicBool::new(false);

/// Whether the process is in a gap, so that its accesses are not observed.
static IN_GAP: AtomicBool = AtomicBool::new(false);

/// Count of the one thread's instructions at which to look at the clock next.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);

/// Instructions between two looks while there are other processes, whose edges are to be noticed.
const LOOK: u64 = 1 << 14;

/// Forks from one process to the next that have a lock of their own.
const GENERATIONS: usize = 256;

/// Whether there is a clock to be looked at.
pub fn is_sampled() -> bool {
    SAMPLED.load(Relaxed)
}

/// Whether the process is in a gap.
pub fn is_in_gap() -> bool {
    IN_GAP.load(Relaxed)
}

/// The process is in a gap from now on, or no more.
pub fn set_in_gap(in_gap: bool) {
    IN_GAP.store(in_gap, Relaxed);
}

/// There is a clock to be looked at.
pub fn set_sampled() {
    SAMPLED.store(true, Relaxed);
}

/// The one thread is to look at the clock at so many instructions.
pub fn look_at(instructions: u64) {
    NEXT_LOOK.store(instructions, Relaxed);
}

/// Whether the one thread is to look at the clock.
#[inline(always)]
pub fn is_look_due() -> bool {
    SERIAL_INSTRUCTIONS.load(Relaxed) >= NEXT_LOOK.load(Relaxed)
}

/// What a look at the clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing to be done.
    Nothing,
    /// The next edge is passed by the calling thread, which is to tell of it.
    Passed(Edge),
    /// Another process is in a gap, or no more, and this one not yet.
    Lags,
}

/// The schedule, as far as the process knows that it was passed.
#[derive(Debug)]
pub struct Progress {
    sampling: Sampling,
    /// What is known, by forks between the program and this process: another thread may hold the lock when one
    /// forks, so that the child takes a new one.
    known: Box<[OnceLock<Mutex<Known>>]>,
    forks: AtomicUsize,
    /// Instructions of the one thread that are in the clock.
    told: AtomicU64,
}

#[derive(Debug)]
struct Known {
    schedule: Schedule,
    /// Whether the consumer places the intervals.
    adaptive: bool,
    passed: u64,
    /// Whether a gap follows the last edge passed.
    in_gap: bool,
}

impl Known {
    /// Notices edges that other processes have passed.
    fn catch_up(&mut self, wire: &Wire) {
        if self.adaptive {
            // What was placed long ago is not remembered, and need not be: each interval has its edges.
            while self.passed != wire.edges_passed() {
                if !self.jump(wire) && !wire.places() {
                    return;
                }
            }
            return;
        }
        while self.passed < wire.edges_passed() {
            self.advance();
        }
    }

    /// Gives whether it got there: if not, more edges were passed meanwhile, or nobody places intervals any more.
    fn jump(&mut self, wire: &Wire) -> bool {
        const EDGES: [Edge; 4] = [Edge::Interval, Edge::Warm, Edge::Window, Edge::Gap];
        let passed = wire.edges_passed();
        let number = passed / EDGES.len() as u64;
        let next = EDGES[passed as usize % EDGES.len()];
        let placed = match (next, number) {
            (Edge::Interval, 0) => Some(self.schedule.present()),
            (Edge::Interval, _) => wire.placed(number - 1).map(|before| Placed {
                number,
                start: before.start.saturating_add(before.length),
                ..before
            }),
            _ => wire.placed(number),
        };
        let Some(placed) = placed else { return false };
        self.schedule.jump(placed, next);
        self.passed = passed;
        self.in_gap = passed > 0 && matches!(next, Edge::Interval | Edge::Warm);
        true
    }

    fn advance(&mut self) -> Edge {
        let (_, edge) = self.schedule.peek();
        self.schedule.advance();
        self.passed += 1;
        self.in_gap = matches!(edge, Edge::Interval | Edge::Gap);
        edge
    }
}

impl Progress {
    /// At the beginning of the schedule, or as far as `wire` says.
    pub fn new(sampling: Sampling, wire: &Wire) -> Self {
        let known = (0..GENERATIONS).map(|_| OnceLock::new()).collect();
        let forks = AtomicUsize::new(0);
        let progress = Self { sampling, known, forks, told: AtomicU64::new(0) };
        set_sampled();
        set_in_gap(progress.known(wire).in_gap);
        wire.begin_process();
        progress
    }

    fn known(&self, wire: &Wire) -> MutexGuard<'_, Known> {
        let forks = self.forks.load(Relaxed).min(GENERATIONS - 1);
        let known = self.known[forks].get_or_init(|| {
            let (schedule, adaptive) = (Schedule::new(self.sampling), self.sampling.adaptive);
            let mut known = Known { schedule, adaptive, passed: 0, in_gap: false };
            known.catch_up(wire);
            Mutex::new(known)
        });
        known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the child of a fork, which is in the part of the stream that its parent is in.
    pub fn fork(&self, wire: &Wire) {
        self.forks.fetch_add(1, Relaxed);
        drop(self.known(wire));
        self.told.store(SERIAL_INSTRUCTIONS.load(Relaxed), Relaxed);
        NEXT_LOOK.store(0, Relaxed);
    }

    /// Whether a gap follows the last edge that is known to be passed.
    pub fn is_gap_next(&self, wire: &Wire) -> bool {
        self.known(wire).in_gap
    }

    /// Adds `instructions` to the clock, and those of a lone thread. Gives what it shows then.
    pub fn tell(&self, wire: &Wire, instructions: u64) -> u64 {
        let now = SERIAL_INSTRUCTIONS.load(Relaxed);
        let more = now - self.told.swap(now, Relaxed);
        wire.advance(instructions + more)
    }

    /// Looks at the clock, to which `instructions` are added besides those of a lone thread.
    pub fn look(&self, wire: &Wire, instructions: u64) -> Found {
        let now = SERIAL_INSTRUCTIONS.load(Relaxed);
        let clock = self.tell(wire, instructions);
        let mut known = self.known(wire);
        known.catch_up(wire);
        if known.in_gap != is_in_gap() {
            NEXT_LOOK.store(now, Relaxed);
            return Found::Lags;
        }
        let (at, edge) = known.schedule.peek();
        if clock >= at
            && edge == Edge::Interval
            && known.adaptive
            && let Some(placed) = wire.await_placed(known.schedule.present().number)
        {
            known.schedule.place(placed);
        }
        if clock >= at && wire.pass_edge(known.passed) {
            NEXT_LOOK.store(now, Relaxed);
            return Found::Passed(known.advance());
        }
        let far = if wire.is_lone() { u64::MAX } else { LOOK };
        NEXT_LOOK.store(now.saturating_add(at.saturating_sub(clock).min(far)), Relaxed);
        Found::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn edges_of_intervals_that_nobody_places_any_more_are_not_waited_for() {
        let (wire, _file) = Wire::create().unwrap();
        let sampling =
            Sampling { interval: 1000, window: 10, warm: 10, whole: 100, adaptive: true, seed: 1 };
        let progress = Progress::new(sampling, &wire);
        wire.detach();
        // Another process goes on.
        (0..9).for_each(|passed| assert!(wire.pass_edge(passed)));
        let (done, looked) = channel();
        std::thread::spawn(move || {
            progress.look(&wire, 1);
            // Nobody waits for it any more if it took long.
            let _ = done.send(());
        });
        looked.recv_timeout(Duration::from_secs(10)).expect("it comes back");
    }
}
