//! What is counted, and under which name Linux perf knows it.

use serde::Serialize;
use std::fmt;
use std::ops::AddAssign;

/// Kinds of software cost that the engine books on a CPU; see [`crate::Machine::charge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
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

/// Place of a reference in a two-dimensional walk.
///
/// ```text
///            n4    n3    n2    n1    G
///   gL4     g4n4  g4n3  g4n2  g4n1   g4
///   ...
///   gL1     g1n4  g1n3  g1n2  g1n1   g1
///   data    dn4   dn3   dn2   dn1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalkPosition {
    /// Guest level whose entry is wanted, 5 to 1; 0 for the data itself.
    pub guest: u8,
    /// Level of the second stage that is read, 5 to 1; 0 for the guest entry itself.
    pub nested: u8,
}

const COLUMNS: usize = 6;

impl WalkPosition {
    /// Number of places, the unused one of the data included.
    pub const COUNT: usize = COLUMNS * COLUMNS;

    /// Place in an array over all positions.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.guest as usize * COLUMNS + self.nested as usize
    }

    /// Every position in the order of a walk.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..COLUMNS as u8).rev().flat_map(|guest| {
            let last = if guest == 0 { 1 } else { 0 };
            (last..COLUMNS as u8).rev().map(move |nested| Self { guest, nested })
        })
    }
}

impl fmt::Display for WalkPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.guest, self.nested) {
            (0, nested) => write!(f, "dn{nested}"),
            (guest, 0) => write!(f, "g{guest}"),
            (guest, nested) => write!(f, "g{guest}n{nested}"),
        }
    }
}

/// Where a reference was served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByLevel {
    /// First-level data cache.
    pub l1: u64,
    /// Second-level cache.
    pub l2: u64,
    /// Last-level cache.
    pub l3: u64,
    /// Memory.
    pub memory: u64,
}

impl ByLevel {
    /// References in all.
    pub fn total(&self) -> u64 {
        self.l1 + self.l2 + self.l3 + self.memory
    }
}

/// A level of the memory hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    L1 = 0,
    L2 = 1,
    Llc = 2,
    Memory = 3,
}

impl Level {
    /// Every level, the nearest first.
    pub(crate) const ALL: [Self; 4] = [Self::L1, Self::L2, Self::Llc, Self::Memory];
}

/// Hits and misses of a walk cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HitMiss {
    /// Lookups that found something.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
}

/// Counters of one CPU. Each says which event of Linux perf (Haswell and Broadwell names) it
/// mirrors, where there is one.
///
/// An access that faults counts when it completes, once. The walk that found the fault did
/// happen: its references and cycles are under `faulted_*`, and in everything that a CPU counts by
/// reference ([`Counters::walk_positions`], `page_walker_loads_*`). So
/// `walk_refs + faulted_walk_refs` is the sum of the positions and of the page walker loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// `instructions`: as booked with [`crate::Machine::retire`].
    pub instructions: u64,
    /// Completed accesses.
    pub accesses: u64,
    /// `mem_uops_retired.all_loads`: completed loads.
    pub loads: u64,
    /// `mem_uops_retired.all_stores`: completed stores.
    pub stores: u64,
    /// Accesses with bytes on two pages; each needs two translations.
    pub page_crossings: u64,
    /// Translations that missed the first-level data TLB.
    pub l1_misses: u64,
    /// Of those, the ones the second level had (`dtlb_*_misses.stlb_hit`).
    pub l2_hits: u64,
    /// Translations that missed both levels of TLB (`dtlb_*_misses.miss_causes_a_walk`).
    pub l2_misses: u64,
    /// Completed walks: one for each of `l2_misses`, and `dirty_walks`.
    pub walks: u64,
    /// Walks made because a store met an entry with a clear dirty flag (SDM volume 3A, section
    /// 4.8: the flag in memory must be set by the first store).
    pub dirty_walks: u64,
    /// References of completed walks.
    pub walk_refs: u64,
    /// Cycles of completed walks: latencies of their references and of walk caches that hit.
    pub walk_cycles: u64,
    /// Walks that ended in a fault.
    pub faulted_walks: u64,
    /// References of walks that ended in a fault.
    pub faulted_walk_refs: u64,
    /// Cycles of walks that ended in a fault.
    pub faulted_walk_cycles: u64,
    /// `dtlb_load_misses.walk_duration`: cycles of walks for loads, faulted ones included.
    pub dtlb_load_misses_walk_duration: u64,
    /// `dtlb_store_misses.walk_duration`: the same for stores.
    pub dtlb_store_misses_walk_duration: u64,
    /// `ept.walk_cycles`: the part of the two above spent in the second stage. On Skylake,
    /// `walk_active` excludes it and `ept.walk_pending` counts it; here the Haswell convention
    /// holds for every preset: the walk durations include it.
    pub ept_walk_cycles: u64,
    /// `page_walker_loads.dtlb_{l1,l2,l3,memory}`: references to the guest's table.
    pub page_walker_loads_dtlb: ByLevel,
    /// `page_walker_loads.ept_dtlb_{l1,l2,l3,memory}`: references to the second stage.
    pub page_walker_loads_ept_dtlb: ByLevel,
    /// References by position; see [`Counters::positions`].
    #[serde(serialize_with = "positions_by_name")]
    pub walk_positions: [u64; WalkPosition::COUNT],
    /// Guest paging-structure caches: one lookup a walk.
    pub pwc: HitMiss,
    /// Nested paging-structure caches: one lookup a nested walk.
    pub npwc: HitMiss,
    /// Nested TLB: one lookup for every guest physical address a walk needs.
    pub ntlb: HitMiss,
    /// Writes that set an accessed or dirty flag in the guest's table.
    pub guest_flag_writes: u64,
    /// Writes that set an accessed or dirty flag in the second stage.
    pub second_stage_flag_writes: u64,
    /// TLB fills by entry size: 4 KiB, 2 MiB, 1 GiB.
    pub fills: [u64; 3],
    /// Fills whose entry is smaller than the guest's page, because the second stage maps smaller.
    pub splintered_fills: u64,
    /// Walks whose translation was not held, because the sizes differ and the machine does not
    /// cache such translations.
    pub unfilled_walks: u64,
    /// Where the cache lines of accesses were served; `mem_load_uops_retired.{l1,l2,l3}_hit` and
    /// `.l3_miss`, with stores.
    pub data: ByLevel,
    /// Cycles booked with [`crate::Machine::charge`], in the order of [`Charge::ALL`].
    pub charged: [u64; 4],
}

fn positions_by_name<S: serde::Serializer>(
    counts: &[u64; WalkPosition::COUNT],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(
        WalkPosition::all()
            .map(|position| (position.to_string(), counts[position.index()]))
            .filter(|(_, count)| *count > 0),
    )
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            instructions: 0,
            accesses: 0,
            loads: 0,
            stores: 0,
            page_crossings: 0,
            l1_misses: 0,
            l2_hits: 0,
            l2_misses: 0,
            walks: 0,
            dirty_walks: 0,
            walk_refs: 0,
            walk_cycles: 0,
            faulted_walks: 0,
            faulted_walk_refs: 0,
            faulted_walk_cycles: 0,
            dtlb_load_misses_walk_duration: 0,
            dtlb_store_misses_walk_duration: 0,
            ept_walk_cycles: 0,
            page_walker_loads_dtlb: ByLevel::default(),
            page_walker_loads_ept_dtlb: ByLevel::default(),
            walk_positions: [0; WalkPosition::COUNT],
            pwc: HitMiss::default(),
            npwc: HitMiss::default(),
            ntlb: HitMiss::default(),
            guest_flag_writes: 0,
            second_stage_flag_writes: 0,
            fills: [0; 3],
            splintered_fills: 0,
            unfilled_walks: 0,
            data: ByLevel::default(),
            charged: [0; 4],
        }
    }
}

impl Counters {
    /// References by position, in the order of a walk, those never read left out.
    pub fn positions(&self) -> impl Iterator<Item = (WalkPosition, u64)> + '_ {
        WalkPosition::all()
            .map(|position| (position, self.walk_positions[position.index()]))
            .filter(|(_, count)| *count > 0)
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

impl AddAssign<&Self> for ByLevel {
    fn add_assign(&mut self, other: &Self) {
        self.l1 += other.l1;
        self.l2 += other.l2;
        self.l3 += other.l3;
        self.memory += other.memory;
    }
}

impl AddAssign<&Self> for HitMiss {
    fn add_assign(&mut self, other: &Self) {
        self.hits += other.hits;
        self.misses += other.misses;
    }
}

impl AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        // Taken apart, so that a field added later cannot be forgotten here.
        let Self {
            instructions,
            accesses,
            loads,
            stores,
            page_crossings,
            l1_misses,
            l2_hits,
            l2_misses,
            walks,
            dirty_walks,
            walk_refs,
            walk_cycles,
            faulted_walks,
            faulted_walk_refs,
            faulted_walk_cycles,
            dtlb_load_misses_walk_duration,
            dtlb_store_misses_walk_duration,
            ept_walk_cycles,
            page_walker_loads_dtlb,
            page_walker_loads_ept_dtlb,
            walk_positions,
            pwc,
            npwc,
            ntlb,
            guest_flag_writes,
            second_stage_flag_writes,
            fills,
            splintered_fills,
            unfilled_walks,
            data,
            charged,
        } = self;
        *instructions += other.instructions;
        *accesses += other.accesses;
        *loads += other.loads;
        *stores += other.stores;
        *page_crossings += other.page_crossings;
        *l1_misses += other.l1_misses;
        *l2_hits += other.l2_hits;
        *l2_misses += other.l2_misses;
        *walks += other.walks;
        *dirty_walks += other.dirty_walks;
        *walk_refs += other.walk_refs;
        *walk_cycles += other.walk_cycles;
        *faulted_walks += other.faulted_walks;
        *faulted_walk_refs += other.faulted_walk_refs;
        *faulted_walk_cycles += other.faulted_walk_cycles;
        *dtlb_load_misses_walk_duration += other.dtlb_load_misses_walk_duration;
        *dtlb_store_misses_walk_duration += other.dtlb_store_misses_walk_duration;
        *ept_walk_cycles += other.ept_walk_cycles;
        *page_walker_loads_dtlb += &other.page_walker_loads_dtlb;
        *page_walker_loads_ept_dtlb += &other.page_walker_loads_ept_dtlb;
        add_each(walk_positions, &other.walk_positions);
        *pwc += &other.pwc;
        *npwc += &other.npwc;
        *ntlb += &other.ntlb;
        *guest_flag_writes += other.guest_flag_writes;
        *second_stage_flag_writes += other.second_stage_flag_writes;
        add_each(fills, &other.fills);
        *splintered_fills += other.splintered_fills;
        *unfilled_walks += other.unfilled_walks;
        *data += &other.data;
        add_each(charged, &other.charged);
    }
}

fn add_each<const N: usize>(sums: &mut [u64; N], others: &[u64; N]) {
    for (sum, other) in sums.iter_mut().zip(others) {
        *sum += other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_the_names_of_the_papers() {
        let names: Vec<_> = WalkPosition::all().map(|position| position.to_string()).collect();
        assert_eq!(names.len(), 35, "5 levels on 5");
        assert_eq!(&names[..7], ["g5n5", "g5n4", "g5n3", "g5n2", "g5n1", "g5", "g4n5"]);
        assert_eq!(names.last().map(String::as_str), Some("dn1"));
    }

    #[test]
    fn sums_add_every_field() {
        let mut one = Counters { accesses: 3, fills: [1, 2, 3], ..Counters::default() };
        one.walk_positions[7] = 5;
        one.data.memory = 2;
        let mut sum = one.clone();
        sum += &one;
        assert_eq!((sum.accesses, sum.fills, sum.data.memory), (6, [2, 4, 6], 4));
        assert_eq!(sum.walk_positions[7], 10);
    }
}
