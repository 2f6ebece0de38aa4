//! From where on windows of a sampled stream count, after a gap.
//!
//! A TLB of 64 entries is as it would be after some thousand instructions, a last-level cache of many MiB after many
//! million. So misses of each array count from where it is warm, and what a program does by itself counts from the
//! end of the gap. What warms up one array shows what another does, and estimates are known the better for it.

use strata_hardware::{ByLevel, HardwareCounters};
use strata_stream::Array;

/// Places from which windows count: so many instructions after the end of a gap, and where the window itself begins.
pub(crate) const STARTS: [u64; 11] = {
    let mut starts = [0; 11];
    let mut at = 1;
    while at < starts.len() - 1 {
        starts[at] = 50_000 << (at - 1);
        at += 1;
    }
    starts[10] = u64::MAX;
    starts
};

/// The place where windows themselves begin.
pub(crate) const WINDOW: usize = STARTS.len() - 1;

/// Counters that depend on the same arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What the program does, whatever the hardware has.
    Program,
    /// Misses of the first-level TLB.
    FirstTlb,
    /// Misses of the second-level TLB, and walks.
    Walks,
    /// Data that the second-level cache and those before it have or do not have.
    Caches,
    /// Data that the last-level cache does not have.
    LastCache,
}

impl Part {
    pub(crate) const ALL: [Self; 5] =
        [Self::Program, Self::FirstTlb, Self::Walks, Self::Caches, Self::LastCache];

    /// The arrays that it depends on. Walks read through the caches, and nearly all of what they read is in the
    /// second level.
    fn arrays(self) -> &'static [Array] {
        match self {
            Self::Program => &[],
            Self::FirstTlb => &[Array::L1Tlb],
            Self::Walks => &[Array::L1Tlb, Array::L2Tlb, Array::L2Cache],
            Self::Caches => &[Array::L2Cache],
            Self::LastCache => &[Array::LastLevelCache],
        }
    }
}

/// What trials showed of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shown {
    after: u64,
    over: f64,
    under: f64,
    guessed: f64,
}

/// By how much the misses of a part may be off, as arrays were not warm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Off {
    /// Misses that may be too many, relative to them.
    pub(crate) over: f64,
    /// Misses that may be too few, relative to them.
    pub(crate) under: f64,
    /// Misses in all that may be too few, besides.
    pub(crate) guessed: f64,
}

impl Off {
    /// By as much as the worst of some arrays.
    fn worst(arrays: impl Iterator<Item = Shown>) -> Self {
        arrays.fold(Self::default(), |off, shown| Self {
            over: off.over.max(shown.over),
            under: off.under.max(shown.under),
            guessed: off.guessed.max(shown.guessed),
        })
    }
}

/// What is known of how warm arrays are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Warmth {
    shown: [Option<Shown>; Array::ALL.len()],
}

impl Warmth {
    /// Trials showed this of an array; see [`strata_stream::Event::Warmed`].
    pub(crate) fn tell(&mut self, array: Array, after: u64, [over, under, guessed]: [u64; 3]) {
        let [over, under] = [over, under].map(|millionths| millionths as f64 / 1e6);
        let guessed = guessed as f64;
        self.shown[array as usize] = Some(Shown { after, over, under, guessed });
    }

    fn of(&self, part: Part) -> impl Iterator<Item = Shown> {
        part.arrays().iter().filter_map(|array| self.shown[*array as usize])
    }

    /// Where the counters of a part begin to count, in [`STARTS`]: without trials where windows do.
    pub(crate) fn start(&self, part: Part) -> usize {
        if self.shown.iter().all(Option::is_none) {
            return WINDOW;
        }
        let after = self.of(part).map(|shown| shown.after).max();
        // Nothing is known of an array that the CPU does not have.
        let after = after.unwrap_or(if part == Part::Program { 0 } else { u64::MAX });
        STARTS.iter().position(|start| *start >= after).unwrap_or(WINDOW)
    }

    /// By how much the cycles of walks may be too few besides, relative to them, where the last-level cache misses so often:
    /// page tables that caches do not have any more, or not yet, are taken for there as data is.
    pub(crate) fn under_page_tables(&self, misses: f64) -> f64 {
        let [own, lines] = [Part::Walks, Part::LastCache].map(|part| self.off(part));
        (lines.under + lines.guessed / misses.max(1.0) - own.under).max(0.0)
    }

    /// By how much the misses of a part may be off.
    pub(crate) fn off(&self, part: Part) -> Off {
        Off::worst(self.of(part))
    }

    /// By how much the number of walks may be off, whatever they find in caches.
    pub(crate) fn off_walks(&self) -> Off {
        let tlbs = [Array::L1Tlb, Array::L2Tlb].map(|array| self.shown[array as usize]);
        Off::worst(tlbs.into_iter().flatten())
    }
}

/// Counters of which each part was counted from its own place on.
pub(crate) fn composed(of: impl Fn(Part) -> HardwareCounters) -> HardwareCounters {
    let [program, tlb, walks, caches, last] = Part::ALL.map(of);
    let HardwareCounters { accesses, loads, stores, page_crossings, .. } = program;
    let l1_misses = tlb.l1_misses;
    // Each level is asked for what the one before it did not have.
    let lines = program.data.total();
    let memory = last.data.memory;
    let beyond_l2 = (caches.data.l3 + caches.data.memory).max(memory);
    let beyond_l1 = (caches.data.l2 + caches.data.l3 + caches.data.memory).max(beyond_l2);
    let mut data = program.data;
    (data.l1, data.l2) = (lines.saturating_sub(beyond_l1), beyond_l1 - beyond_l2);
    (data.l3, data.memory) = (beyond_l2 - memory, memory);
    HardwareCounters {
        accesses,
        loads,
        stores,
        page_crossings,
        l1_misses,
        l2_hits: l1_misses.saturating_sub(walks.l2_misses),
        data,
        // Page faults correct each count by itself, and may leave more hits than there are reads.
        l4_data: last.l4_data.min(memory),
        ..walks
    }
}

/// Of counters those of walks that did not end in a fault, with the misses that they are for.
pub(crate) fn walks_of(counters: &HardwareCounters) -> HardwareCounters {
    HardwareCounters {
        instructions: 0,
        accesses: 0,
        loads: 0,
        stores: 0,
        page_crossings: 0,
        l1_misses: 0,
        l2_hits: 0,
        faulted_walks: 0,
        faulted_walk_refs: 0,
        faulted_walk_cycles: 0,
        data: ByLevel::default(),
        l4_data: 0,
        charged: Default::default(),
        ..counters.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_count_from_where_the_last_of_their_arrays_is_warm() {
        let mut warmth = Warmth::default();
        let starts = |warmth: &Warmth| Part::ALL.map(|part| warmth.start(part));
        assert_eq!(starts(&warmth), [WINDOW; 5], "nobody has tried");
        warmth.tell(Array::L1Tlb, 50_000, [0; 3]);
        assert_eq!(starts(&warmth), [0, 1, 1, WINDOW, WINDOW]);
        warmth.tell(Array::L2Cache, 60_000, [0; 3]);
        warmth.tell(Array::L2Tlb, 400_000, [0; 3]);
        warmth.tell(Array::LastLevelCache, u64::MAX - 1, [0; 3]);
        assert_eq!(starts(&warmth), [0, 1, 4, 2, WINDOW]);
        assert_eq!(STARTS.map(|start| start / 50_000)[..5], [0, 1, 2, 4, 8]);
    }

    #[test]
    fn a_part_is_off_by_as_much_as_the_worst_of_its_arrays() {
        let mut warmth = Warmth::default();
        warmth.tell(Array::L1Tlb, 0, [10_000, 0, 0]);
        warmth.tell(Array::L2Tlb, 0, [0, 250_000, 0]);
        warmth.tell(Array::LastLevelCache, 0, [0, 0, 7]);
        assert_eq!(warmth.off(Part::Walks), Off { over: 0.01, under: 0.25, guessed: 0.0 });
        warmth.tell(Array::L2Cache, 0, [30_000, 350_000, 0]);
        assert_eq!(warmth.off(Part::Walks), Off { over: 0.03, under: 0.35, guessed: 0.0 });
        assert_eq!(warmth.off_walks(), Off { over: 0.01, under: 0.25, guessed: 0.0 });
        warmth.tell(Array::L2Cache, 0, [0, 0, 0]);
        assert_eq!(warmth.off(Part::LastCache), Off { guessed: 7.0, ..Off::default() });
        assert_eq!(warmth.off(Part::Program), Off::default());
        assert_eq!(warmth.under_page_tables(100.0), 0.0);
        warmth.tell(Array::LastLevelCache, 0, [500_000, 350_000, 7]);
        let besides_its_own = warmth.under_page_tables(100.0);
        assert!((besides_its_own - 0.17).abs() < 1e-9, "{besides_its_own}");
    }

    #[test]
    fn levels_of_composed_counters_are_asked_for_what_the_one_before_did_not_have() {
        let counted = |l1, l2, l3, memory| HardwareCounters {
            accesses: l1 + l2 + l3 + memory,
            l1_misses: l2,
            l2_misses: memory,
            data: ByLevel { l1, l2, l3, memory },
            ..HardwareCounters::default()
        };
        // All from the same place: the same.
        let same = HardwareCounters { l2_hits: 30, ..counted(1000, 40, 20, 10) };
        assert_eq!(composed(|_| same.clone()), same);
        let found = composed(|part| match part {
            Part::Program => counted(2000, 0, 0, 0),
            Part::FirstTlb => counted(0, 50, 0, 0),
            Part::Walks => counted(0, 0, 0, 9),
            Part::Caches => counted(0, 300, 40, 20),
            // More than the level before it did not have.
            Part::LastCache => counted(0, 0, 0, 70),
        });
        assert_eq!((found.accesses, found.l1_misses), (2000, 50));
        assert_eq!((found.l2_misses, found.l2_hits), (9, 41));
        assert_eq!(found.data, ByLevel { l1: 1640, l2: 290, l3: 0, memory: 70 });
    }
}
