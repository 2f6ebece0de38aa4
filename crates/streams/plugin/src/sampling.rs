//! How far the process is by the clock of all processes, and whether it is in a gap of a sampled stream.
//!
//! The clock counts instructions of all threads of all processes. A thread looks at it where a translated
//! block says so (`abi`), no earlier than the next edge can be.

use crate::slots::SERIAL_INSTRUCTIONS;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use strata_stream::{Edge, Sampling, Schedule};
use strata_wire::Wire;

/// Whether the stream is sampled.
static SAMPLED: AtomicBool = AtomicBool::new(false);

/// Whether the process is in a gap, so that its accesses are not observed.
static IN_GAP: AtomicBool = AtomicBool::new(false);

/// Count of the one thread's instructions at which to look at the clock next.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);

/// Instructions between two looks while there are other processes, whose edges are to be noticed.
const LOOK: u64 = 1 << 14;

/// Whether the stream is sampled.
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
    Lags {
        /// Whether that one is in a gap.
        in_gap: bool,
    },
}

/// The schedule, as far as the process knows that it was passed.
#[derive(Debug)]
pub struct Progress {
    known: Mutex<Known>,
    /// Instructions of the one thread that are in the clock.
    told: AtomicU64,
}

#[derive(Debug)]
struct Known {
    schedule: Schedule,
    passed: u64,
    /// Whether a gap follows the last edge passed.
    in_gap: bool,
}

impl Known {
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
        let schedule = Schedule::new(sampling);
        let mut known = Known { schedule, passed: 0, in_gap: false };
        while known.passed < wire.edges_passed() {
            known.advance();
        }
        SAMPLED.store(true, Relaxed);
        set_in_gap(known.in_gap);
        wire.begin_process();
        Self { known: Mutex::new(known), told: AtomicU64::new(0) }
    }

    /// In the child of a fork, which has what its parent knew.
    pub fn fork(&self, wire: &Wire) {
        wire.begin_process();
        self.told.store(SERIAL_INSTRUCTIONS.load(Relaxed), Relaxed);
        NEXT_LOOK.store(0, Relaxed);
    }

    /// Looks at the clock, to which `instructions` are added besides those of a lone thread.
    pub fn look(&self, wire: &Wire, instructions: u64) -> Found {
        let now = SERIAL_INSTRUCTIONS.load(Relaxed);
        let more = now - self.told.swap(now, Relaxed);
        let clock = wire.advance(instructions + more);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.in_gap;
        while known.passed < wire.edges_passed() {
            known.advance();
        }
        if known.in_gap != is_in_gap() && known.in_gap != before {
            NEXT_LOOK.store(now, Relaxed);
            return Found::Lags { in_gap: known.in_gap };
        }
        let (at, _) = known.schedule.peek();
        if clock >= at && wire.pass_edge(known.passed) {
            NEXT_LOOK.store(now, Relaxed);
            return Found::Passed(known.advance());
        }
        let far = if wire.is_lone() { u64::MAX } else { LOOK };
        NEXT_LOOK.store(now.saturating_add(at.saturating_sub(clock).min(far)), Relaxed);
        Found::Nothing
    }
}
