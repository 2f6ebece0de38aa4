//! Reads of the data caches, made in batches.
//!
//! Nothing that translates an address depends on what the data caches hold. So reads, the walker's
//! and the data's, are first noted in program order, and made later: all of a batch in the
//! first-level cache, then those that missed in the second level, then the rest in the last level.
//! Each level sees its reads in program order, so the outcome is that of one read after the other.
//! But one set's tags need not be at hand before the next set's are asked for, no branch depends on
//! a hit, and what the last level will be asked is known well ahead.

use crate::cache::Cache;
use crate::counters::{ByLevel, Counters, Level};
use crate::walker::WalkRules;

/// Bits of a read that say what it is for, below the number of the line.
const CLASS_BITS: u32 = 4;

/// Number of classes, the unused ones included.
const CLASSES: usize = 1 << CLASS_BITS;

/// Reads noted at most.
const CAPACITY: usize = 512;

/// What a read is for: 0 is an entry of the guest's table, for a load that completes.
pub(crate) mod class {
    /// An entry of the second stage.
    pub(crate) const NESTED: u64 = 1;
    /// The walk is for a store.
    pub(crate) const STORE: u64 = 2;
    /// The walk ended in a fault.
    pub(crate) const FAULTED: u64 = 4;
    /// Data; no other bit is set.
    pub(crate) const DATA: u64 = 8;
}

/// A line to be read, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read(u64);

impl Read {
    #[inline(always)]
    pub(crate) fn new(line: u64, class: u64) -> Self {
        Self(line << CLASS_BITS | class)
    }

    #[inline(always)]
    pub(crate) fn line(self) -> u64 {
        self.0 >> CLASS_BITS
    }

    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        self.0 as usize % CLASSES
    }

    #[inline(always)]
    pub(crate) fn is_data(self) -> bool {
        self.0 & class::DATA != 0
    }
}

/// How many reads of each class a level had.
pub(crate) type Hits = [u32; CLASSES];

/// Reads noted and not made yet, in program order.
pub(crate) struct Reads {
    noted: Box<[Read; CAPACITY]>,
    len: usize,
}

impl Reads {
    pub(crate) fn new() -> Self {
        Self { noted: Box::new([Read(0); CAPACITY]), len: 0 }
    }

    /// Whether this many more can be noted.
    #[inline]
    pub(crate) fn has_room(&self, reads: usize) -> bool {
        self.len + reads <= CAPACITY
    }

    /// Notes the read of a line, by its physical address divided by the line size.
    #[inline(always)]
    pub(crate) fn note(&mut self, line: u64, class: u64) {
        self.noted[self.len] = Read::new(line, class);
        self.len += 1;
    }

    /// How many are noted.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The walk whose reads begin at number `from` ended in a fault.
    pub(crate) fn faulted(&mut self, from: usize) {
        for read in &mut self.noted[from..self.len] {
            read.0 |= class::FAULTED;
        }
    }

    /// Makes all reads noted. Every level that misses is filled. No level is told what another
    /// drops: they are neither inclusive nor exclusive.
    pub(crate) fn make(
        &mut self,
        [l1d, l2, llc]: [&mut Cache; 3],
        rules: &WalkRules,
        counters: &mut Counters,
    ) {
        let mut reads = &mut self.noted[..self.len];
        self.len = 0;
        let mut served = [[0; CLASSES]; 4];
        for (cache, level) in [(l1d, Level::L1), (l2, Level::L2), (llc, Level::Llc)] {
            let skipped = if level == Level::L1 && !rules.through_l1d { !class::DATA } else { 0 };
            let missed = cache.read(reads, skipped as usize % CLASSES, &mut served[level as usize]);
            reads = &mut reads[..missed];
        }
        for read in reads {
            served[Level::Memory as usize][read.class()] += 1;
        }
        for level in Level::ALL {
            account(level, &served[level as usize], rules.latency[level as usize], counters);
        }
    }
}

/// Counts the reads that one level served.
#[inline]
fn account(level: Level, served: &Hits, latency: u64, counters: &mut Counters) {
    counters.data.add(level, served[class::DATA as usize].into());
    let walks = &served[..class::DATA as usize];
    if *walks == [0; class::DATA as usize] {
        return;
    }
    let of = |wanted: u64, bit: u64| -> u64 {
        let of_kind = (0..).zip(walks).filter(|(class, _)| class & bit == wanted);
        of_kind.map(|(_, reads)| u64::from(*reads)).sum()
    };
    let (guest, nested) = (of(0, class::NESTED), of(class::NESTED, class::NESTED));
    counters.page_walker_loads_dtlb.add(level, guest);
    counters.page_walker_loads_ept_dtlb.add(level, nested);
    counters.ept_walk_cycles += nested * latency;
    counters.dtlb_load_misses_walk_duration += of(0, class::STORE) * latency;
    counters.dtlb_store_misses_walk_duration += of(class::STORE, class::STORE) * latency;
    counters.walk_cycles += of(0, class::FAULTED) * latency;
    counters.faulted_walk_cycles += of(class::FAULTED, class::FAULTED) * latency;
}

impl ByLevel {
    fn add(&mut self, level: Level, reads: u64) {
        match level {
            Level::L1 => self.l1 += reads,
            Level::L2 => self.l2 += reads,
            Level::Llc => self.l3 += reads,
            Level::Memory => self.memory += reads,
        }
    }
}
