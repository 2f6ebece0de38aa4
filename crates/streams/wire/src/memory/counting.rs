//! Instructions by block, where nothing else is wanted.

use super::Wire;
use super::header::Counted;
use std::sync::atomic::Ordering::*;
use strata_phases::BUCKETS;

impl Wire {
    /// The producers are to count blocks in intervals of so many instructions, and to tell of nothing else that
    /// happens in them. Before any of them starts.
    pub fn count(&self, interval: u64) {
        self.header().counted.0.interval.store(interval, Relaxed);
    }

    /// Instructions of the intervals in which blocks are counted, if they are.
    pub fn counting(&self) -> Option<u64> {
        let interval = self.header().counted.0.interval.load(Relaxed);
        (interval > 0).then_some(interval)
    }

    /// Adds instructions to a bucket of blocks.
    pub fn add_block(&self, bucket: usize, instructions: u64) {
        self.header().counted.0.blocks[bucket % BUCKETS].fetch_add(instructions, Relaxed);
    }

    /// Instructions after which the present interval is over.
    pub fn interval_end(&self) -> u64 {
        let Counted { interval, over, .. } = &self.header().counted.0;
        (over.load(Acquire) + 1).saturating_mul(interval.load(Relaxed))
    }

    /// Ends the intervals that are over where the clock shows `clock`, and gives how many; 0 when another
    /// thread did so before.
    pub fn end_intervals(&self, clock: u64) -> u64 {
        let Counted { interval, over, .. } = &self.header().counted.0;
        let now = clock / interval.load(Relaxed).max(1);
        now.saturating_sub(over.fetch_max(now, AcqRel))
    }

    /// Takes what was counted: buckets that are not empty, each with its instructions.
    pub fn take_blocks(&self) -> Vec<(usize, u64)> {
        let blocks = self.header().counted.0.blocks.iter().enumerate();
        blocks
            .filter(|(_, count)| count.load(Relaxed) > 0)
            .map(|(bucket, count)| (bucket, count.swap(0, Relaxed)))
            .collect()
    }
}
