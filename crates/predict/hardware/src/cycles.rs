//! The account of cycles: what the counters cost.

use crate::counters::HardwareCounters;
use crate::model::CpuModel;

/// Cycles of one CPU, or of all, by what they went to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cycles {
    /// Instructions x `core.base_cpi`.
    pub base: f64,
    /// Latency of data beyond the first-level cache x (1 - `core.data_overlap`).
    pub data: f64,
    /// The part of `data` that only memory could serve, and no cache at it.
    pub memory: f64,
    /// First-level TLB misses x `tlb.l2_hit_cycles`: the second level is looked up before anything
    /// else, whether it hits or not. (Intel's top-down metric adds it for hits only, and leaves it
    /// out of `walk_duration`.)
    pub tlb: f64,
    /// Completed walks x (1 - `core.walk_overlap`).
    pub walk: f64,
    /// Walks that ended in a fault, likewise.
    pub faulted_walk: f64,
    /// Booked, in the order of [`crate::Charge::ALL`].
    pub charged: [f64; 4],
}

impl Cycles {
    /// The sum of all parts.
    pub fn total(&self) -> f64 {
        let charged: f64 = self.charged.iter().sum();
        self.base + self.data + self.tlb + self.walk + self.faulted_walk + charged
    }

    /// Share of cycles in page walks, 0 to 1; 0 when there are no cycles.
    pub fn walk_share(&self) -> f64 {
        let total = self.total();
        if total == 0.0 { 0.0 } else { (self.walk + self.faulted_walk) / total }
    }
}

/// Constants of the cycle account.
pub(crate) struct Account {
    base_cpi: f64,
    data_exposed: f64,
    walk_exposed: f64,
    tlb_l2_hit: f64,
    l2: f64,
    llc: f64,
    l4: f64,
    memory: f64,
}

impl Account {
    pub(crate) fn new(model: &CpuModel) -> Self {
        Self {
            base_cpi: model.core.base_cpi,
            data_exposed: 1.0 - model.core.data_overlap,
            walk_exposed: 1.0 - model.core.walk_overlap,
            tlb_l2_hit: model.tlb.l2_hit_cycles.into(),
            l2: model.cache.l2.cycles.into(),
            llc: model.cache.llc.cycles.into(),
            l4: model.cache.l4.cycles.into(),
            memory: model.cache.memory_cycles.into(),
        }
    }

    /// What the counters cost. A hit in the first-level cache is part of the base CPI.
    pub(crate) fn cycles(&self, counters: &HardwareCounters) -> Cycles {
        let of_l4 = counters.l4_data as f64 * self.l4;
        let memory = (counters.data.memory - counters.l4_data) as f64 * self.memory;
        let of_llc = counters.data.l3 as f64 * self.llc;
        let data = counters.data.l2 as f64 * self.l2 + of_llc + of_l4 + memory;
        Cycles {
            base: counters.instructions as f64 * self.base_cpi,
            data: data * self.data_exposed,
            memory: memory * self.data_exposed,
            tlb: counters.l1_misses as f64 * self.tlb_l2_hit,
            walk: counters.walk_cycles as f64 * self.walk_exposed,
            faulted_walk: counters.faulted_walk_cycles as f64 * self.walk_exposed,
            charged: counters.charged.map(|cycles| cycles as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_once_and_memory_as_part_of_data() {
        let cycles = Cycles {
            base: 1.0,
            data: 2.0,
            memory: 2.0,
            tlb: 4.0,
            walk: 8.0,
            faulted_walk: 16.0,
            charged: [32.0, 64.0, 128.0, 256.0],
        };
        assert_eq!(cycles.total(), 511.0);
        assert_eq!(cycles.walk_share(), 24.0 / 511.0);
        assert_eq!(Cycles::default().walk_share(), 0.0, "of nothing");
    }
}
