//! References by where they were served.

use strata_counters::counters;

counters! {
    /// Where a reference was served.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ByLevel {
        /// First-level data cache.
        l1: u64, "l1";
        /// Second-level cache.
        l2: u64, "l2";
        /// Last-level cache.
        l3: u64, "l3";
        /// Memory, or a cache at it.
        memory: u64, "memory";
    }
}

impl ByLevel {
    /// References in all.
    pub fn total(&self) -> u64 {
        self.l1 + self.l2 + self.l3 + self.memory
    }
}
