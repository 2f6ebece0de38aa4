//! What is counted, and under which name Linux perf knows it.

use crate::by_level::ByLevel;
use crate::positions::{PositionUse, Skipped, WalkPosition};
use strata_counters::counters;

/// Kinds of software cost that the engine books on a CPU; see [`crate::Machine::charge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Charge {
    /// Page faults handled by the guest kernel.
    Fault = 0,
    /// Exits to a hypervisor, whatever the reason.
    Exit = 1,
    /// Background work: scanning, promotion, migration.
    Background = 2,
    /// TLB shootdowns: interrupts sent and received.
    Shootdown = 3,
}

impl Charge {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Fault, Self::Exit, Self::Background, Self::Shootdown];
}

/// A level of the memory hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    L1 = 0,
    L2 = 1,
    Llc = 2,
    L4 = 3,
    Memory = 4,
}

impl Level {
    /// Every level, the nearest first.
    pub(crate) const ALL: [Self; 5] = [Self::L1, Self::L2, Self::Llc, Self::L4, Self::Memory];
}

counters! {
    /// Hits and misses of a walk cache.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HitMiss {
        /// Lookups that found something.
        hits: u64, "hits";
        /// Lookups that did not.
        misses: u64, "misses";
    }
}

counters! {
    /// Counters of one CPU. Names are those of Linux perf's events (on Haswell and Broadwell) where
    /// there is one; the others begin with `strata`.
    ///
    /// An access that faults counts when it completes, once. The walk that found the fault did
    /// happen: its references and cycles are under `faulted_*`, and in everything that a CPU counts
    /// by reference ([`HardwareCounters::walk_positions`], `page_walker_loads_*`). So
    /// `walk_refs + faulted_walk_refs` is the sum of the positions and of the page walker loads.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HardwareCounters {
        /// Instructions retired.
        instructions: u64, "instructions";
        /// Completed accesses.
        accesses: u64;
        /// Completed loads.
        loads: u64, "mem_uops_retired.all_loads";
        /// Completed stores.
        stores: u64, "mem_uops_retired.all_stores";
        /// Accesses with bytes on two pages; each needs two translations.
        page_crossings: u64, "strata.page_crossings";
        /// Translations that missed the first-level data TLB.
        l1_misses: u64;
        /// Translations that missed the first-level data TLB and that the second level had
        /// (`dtlb_*_misses.stlb_hit`).
        l2_hits: u64, "strata.tlb_l2_hits";
        /// Translations that missed both levels of TLB (`dtlb_*_misses.miss_causes_a_walk`).
        l2_misses: u64;
        /// Those of `l2_misses` that loaded a translation which the CPU had not used before and others may have, while the
        /// second level held all that the CPU had used.
        first_loads: u64;
        /// Completed walks: one for each of `l2_misses`, and `dirty_walks`.
        walks: u64;
        /// Walks made because a store met an entry with a clear dirty flag (SDM volume 3A, section
        /// 4.8: the flag in memory must be set by the first store).
        dirty_walks: u64, "strata.dirty_walks";
        /// References of completed walks.
        walk_refs: u64;
        /// Cycles of completed walks: latencies of their references and of walk caches that hit.
        walk_cycles: u64;
        /// Walks that ended in a fault.
        faulted_walks: u64, "strata.faulted_walks";
        /// References of walks that ended in a fault.
        faulted_walk_refs: u64, "strata.faulted_walk_refs";
        /// Cycles of walks that ended in a fault.
        faulted_walk_cycles: u64, "strata.faulted_walk_cycles";
        /// Cycles of walks for loads, faulted ones included.
        dtlb_load_misses_walk_duration: u64, "dtlb_load_misses.walk_duration";
        /// Cycles of walks for stores, faulted ones included.
        dtlb_store_misses_walk_duration: u64, "dtlb_store_misses.walk_duration";
        /// The part of the walk durations spent in the second stage. On Skylake, `walk_active`
        /// excludes it and `ept.walk_pending` counts it; here the Haswell convention holds for every
        /// preset: the walk durations include it.
        ept_walk_cycles: u64, "ept.walk_cycles";
        /// References of walks to the guest's table, by where they were served.
        page_walker_loads_dtlb: ByLevel, "page_walker_loads.dtlb";
        /// References of walks to the second stage, by where they were served.
        page_walker_loads_ept_dtlb: ByLevel, "page_walker_loads.ept_dtlb";
        /// References of walks by position, by where they were served; see
        /// [`HardwareCounters::positions`].
        walk_positions: [ByLevel; WalkPosition::COUNT];
        /// What walk caches saved walks, by how far they led.
        skipped: Skipped;
        /// Guest paging-structure caches: one lookup a walk.
        pwc: HitMiss, "strata.pwc";
        /// Nested paging-structure caches: one lookup a nested walk.
        npwc: HitMiss, "strata.nested_pwc";
        /// Nested TLB: one lookup for every guest physical address a walk needs.
        ntlb: HitMiss, "strata.ntlb";
        /// Writes that set an accessed or dirty flag in the guest's table.
        guest_flag_writes: u64, "strata.guest_flag_writes";
        /// Writes that set an accessed or dirty flag in the second stage.
        second_stage_flag_writes: u64, "strata.second_stage_flag_writes";
        /// TLB fills by entry size: 4 KiB, 2 MiB, 1 GiB.
        fills: [u64; 3];
        /// Fills whose entry is smaller than the guest's page, because the second stage maps smaller.
        splintered_fills: u64, "strata.splintered_fills";
        /// Walks whose translation was not held, because the sizes differ and the machine does not
        /// cache such translations.
        unfilled_walks: u64;
        /// Cache lines of accesses, by where they were served; `mem_load_uops_retired.{l1,l2,l3}_hit`
        /// and `.l3_miss`, with stores.
        data: ByLevel, "strata.data";
        /// Those of `data.memory` that a cache at the memory served.
        l4_data: u64;
        /// References of walks that a cache at the memory served.
        l4_walks: u64;
        /// Cycles booked with [`crate::Machine::charge`], in the order of [`Charge::ALL`].
        charged: [u64; 4];
    }
}

impl HardwareCounters {
    /// What became of each position, in the order of a walk; those that no walk came to are left out.
    pub fn positions(&self) -> impl Iterator<Item = (WalkPosition, PositionUse)> + '_ {
        let skipped = self.skipped.by_position();
        WalkPosition::all()
            .map(move |position| {
                let read = self.walk_positions[position.index()];
                (position, PositionUse { read, ..skipped[position.index()] })
            })
            .filter(|(_, found)| *found != PositionUse::default())
    }

    /// Cycles booked under this kind.
    pub fn charged(&self, kind: Charge) -> u64 {
        self.charged[kind as usize]
    }

    /// Mean references of a completed walk; 0 without walks.
    pub fn refs_per_walk(&self) -> f64 {
        if self.walks == 0 { 0.0 } else { self.walk_refs as f64 / self.walks as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_that_perf_gives_them() {
        let mut counters = HardwareCounters { loads: 3, ..HardwareCounters::default() };
        counters.page_walker_loads_ept_dtlb.l3 = 2;
        counters.npwc.misses = 5;
        let named = counters.named();
        let value = |name: &str| named.iter().find(|c| c.name == name).map(|c| c.value);
        assert_eq!(value("mem_uops_retired.all_loads"), Some(3));
        assert_eq!(value("page_walker_loads.ept_dtlb_l3"), Some(2));
        assert_eq!(value("strata.nested_pwc_misses"), Some(5));
    }
}
