//! One clock for all processes, and the intervals of a sampled stream.

use super::Wire;
use super::header::{PLACED, STREAM};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use strata_stream::{Placed, Sampling};

impl Wire {
    /// The producers are to sample. Before any of them starts.
    pub fn sample(&self, sampling: &Sampling) {
        let Sampling { interval, window, warm, whole, adaptive, seed } = *sampling;
        let lengths = [interval, window, warm, whole, adaptive.into(), seed];
        let known = &self.header().sampled.0.lengths;
        known.iter().zip(lengths).for_each(|(known, length)| known.store(length, Relaxed));
    }

    /// How the producers are to sample, if they are.
    pub fn sampling(&self) -> Option<Sampling> {
        let lengths = &self.header().sampled.0.lengths;
        let [interval, window, warm, whole, adaptive, seed] =
            [0, 1, 2, 3, 4, 5].map(|at| lengths[at].load(Relaxed));
        let adaptive = adaptive != 0;
        (interval > 0).then_some(Sampling { interval, window, warm, whole, adaptive, seed })
    }

    /// An interval is placed.
    pub fn place(&self, placed: Placed) {
        let [tag, start, length, gap, warm] =
            &self.header().sampled.0.placed[placed.number as usize % PLACED];
        start.store(placed.start, Relaxed);
        length.store(placed.length, Relaxed);
        gap.store(placed.gap, Relaxed);
        warm.store(placed.warm, Relaxed);
        tag.store(placed.number + 1, Release);
    }

    /// The interval of this number as it was placed, if it was, and not long ago.
    pub fn placed(&self, number: u64) -> Option<Placed> {
        let [tag, start, length, gap, warm] =
            &self.header().sampled.0.placed[number as usize % PLACED];
        (tag.load(Acquire) == number + 1).then(|| Placed {
            number,
            start: start.load(Relaxed),
            length: length.load(Relaxed),
            gap: gap.load(Relaxed),
            warm: warm.load(Relaxed),
        })
    }

    /// The same, waiting for it as long as somebody is there who places intervals.
    pub fn await_placed(&self, number: u64) -> Option<Placed> {
        let begun = Instant::now();
        loop {
            if let Some(placed) = self.placed(number) {
                return Some(placed);
            }
            if self.wanted() != STREAM
                || begun.elapsed() > Duration::from_millis(50) && !self.consumer_runs()
            {
                return None;
            }
            self.wake_consumer();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Whether somebody is there who places intervals.
    pub fn places(&self) -> bool {
        self.wanted() == STREAM && self.consumer_runs()
    }

    /// Adds instructions to the clock of all processes, and reads it.
    pub fn advance(&self, instructions: u64) -> u64 {
        self.header().sampled.0.clock.fetch_add(instructions, Relaxed) + instructions
    }

    /// How many edges of the schedule were passed.
    #[inline]
    pub fn edges_passed(&self) -> u64 {
        self.header().sampled.0.passed.load(Acquire)
    }

    /// Passes the edge after `passed`; `false` when another thread did so before.
    pub fn pass_edge(&self, passed: u64) -> bool {
        let edges = &self.header().sampled.0.passed;
        edges.compare_exchange(passed, passed + 1, AcqRel, Relaxed).is_ok()
    }

    /// A process begins.
    pub fn begin_process(&self) {
        self.header().sampled.0.processes.fetch_add(1, Relaxed);
    }

    /// Whether there was never a second process, so that the clock is that of one.
    pub fn is_lone(&self) -> bool {
        self.header().sampled.0.processes.load(Relaxed) <= 1
    }
}
