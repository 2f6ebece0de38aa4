//! What is known of the sampling of a guest's stream.

use crate::sampling::{Seen, Strata};
use rustc_hash::FxHashMap;
use strata_hardware::CpuId;
use strata_stream::Tid;

/// What a guest knows of the sampling of its stream.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    /// `None` for a stream that is whole so far.
    pub(super) strata: Option<Box<Strata>>,
    /// Counted on each CPU before each place from which the present window may count, as far as they were reached.
    pub(super) opened: Vec<Vec<Seen>>,
    /// Instructions since the gap, while they warm up a window.
    pub(super) warming: Option<u64>,
    /// Whether the present interval has had its window.
    pub(super) has_window: bool,
    /// Whether estimates are those of the last batch: only the end of an interval changes them.
    pub(super) seen: bool,
    /// Instructions in gaps.
    pub(super) skipped: u64,
    /// Those of each CPU.
    pub(super) skipped_on: FxHashMap<CpuId, u64>,
    /// Page faults of each CPU.
    pub(super) faults_on: FxHashMap<CpuId, u64>,
    /// Instructions that each thread retired in the present gap.
    pub(super) in_gap: FxHashMap<Tid, u64>,
    /// Pages touched first in gaps that threads were to have touched and were not taken to; below 0 for too many.
    pub(super) owed: FxHashMap<Tid, f64>,
    /// Cycles of the hardware that first touches took on a CPU in the present gap: part of what the gap takes there.
    pub(super) touching: FxHashMap<CpuId, f64>,
    /// Parts of cycles of gaps that have not passed.
    pub(super) rest: f64,
}

impl Sampling {
    /// Whether the stream is not whole.
    pub(super) fn is_sampled(&self) -> bool {
        self.strata.is_some()
    }

    /// What a reader must know of it, of a stream of so many instructions.
    pub(super) fn notes(&self, instructions: u64) -> Vec<String> {
        let strata = self.strata.iter();
        strata.filter_map(|strata| strata.note(instructions)).collect()
    }
}
