//! Reads of the data caches, made in batches.
//!
//! Nothing that translates an address depends on what the data caches hold. So reads, the walker's
//! and the data's, are first noted in program order, and made later: all of a batch in the
//! first-level cache, then those that missed in the second level, then the rest in the last level.
//! Each level sees its reads in program order, so the outcome is that of one read after the other.
//! But one set's tags need not be at hand before the next set's are asked for, no branch depends on
//! a hit, and what the last level will be asked is known well ahead.

use crate::access::CpuId;
use crate::by_level::ByLevel;
use crate::cache::{Cache, NO_LINE};
use crate::counters::{HardwareCounters, Level};
use crate::cpu::Cpu;
use crate::llc::{Llc, Owner};
use crate::model::CpuModel;
use crate::positions::WalkPosition;
use crate::read::{CAPACITY, Hits, NO_HITS, Read, class};

/// What the data caches of a CPU model cost, and who asks them.
pub(crate) struct ReadRules {
    /// The walker reads through the first-level cache.
    through_l1d: bool,
    /// Cycles, by [`Level`].
    latency: [u64; 5],
}

impl ReadRules {
    pub(crate) fn new(model: &CpuModel) -> Self {
        let cache = &model.cache;
        Self {
            through_l1d: model.walk.through_l1d,
            latency: [&cache.l1d, &cache.l2, &cache.llc, &cache.l4]
                .map(|level| u64::from(level.cycles))
                .into_iter()
                .chain([u64::from(cache.memory_cycles)])
                .collect::<Vec<_>>()
                .try_into()
                .expect("there are five"),
        }
    }
}

/// Reads noted and not made yet, in program order.
pub(crate) struct Reads {
    noted: Box<[Read; CAPACITY]>,
    len: usize,
    /// What the second level dropped for each read that missed it; kept for its memory.
    victims: Box<[u64; CAPACITY]>,
    /// What each level served of the reads being made; all zero between two batches.
    served: Box<[Hits; LEVELS]>,
}

impl Reads {
    pub(crate) fn new() -> Self {
        let victims = Box::new([NO_LINE; CAPACITY]);
        let served = Box::new([NO_HITS; LEVELS]);
        Self { noted: Box::new([Read::NONE; CAPACITY]), len: 0, victims, served }
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
            *read = read.faulted();
        }
    }

    /// Makes all reads noted. Every level that misses is filled. No level is told what another
    /// drops: they are neither inclusive nor exclusive.
    pub(crate) fn make(
        &mut self,
        [l1d, l2]: [&mut Cache; 2],
        last_level: impl FnOnce(&mut [Read], &mut Hits) -> usize,
        at_memory: AtMemory<'_>,
        rules: &ReadRules,
        counters: &mut HardwareCounters,
    ) {
        let Self { noted, len, served, .. } = self;
        let mut reads = &mut noted[..std::mem::take(len)];
        for (cache, level) in [(l1d, Level::L1), (l2, Level::L2)] {
            let data_only = level == Level::L1 && !rules.through_l1d;
            let missed = cache.read(reads, data_only, &mut served[level as usize]);
            reads = &mut reads[..missed];
        }
        let missed = last_level(reads, &mut served[Level::Llc as usize]);
        at_memory.make(&mut reads[..missed], served);
        account_all(served, rules, counters);
    }

    /// The same with a last level that is filled by what the second levels drop. The reads are of this
    /// CPU.
    pub(crate) fn make_with_victims(
        &mut self,
        cpu: &mut Cpu,
        llc: &mut Llc,
        at_memory: AtMemory<'_>,
        rules: &ReadRules,
    ) {
        let Self { noted, len, victims, served } = self;
        let mut reads = &mut noted[..std::mem::take(len)];
        let Cpu { l1d, l2, counters, owner, .. } = cpu;
        let missed = l1d.read(reads, !rules.through_l1d, &mut served[Level::L1 as usize]);
        reads = &mut reads[..missed];
        let missed = l2.read_telling(reads, &mut served[Level::L2 as usize], &mut victims[..]);
        reads = &mut reads[..missed];
        let missed = llc.take(*owner, reads, &victims[..missed], &mut served[Level::Llc as usize]);
        at_memory.make(&mut reads[..missed], served);
        account_all(served, rules, counters);
    }

    /// The same with a last level that includes all private caches: a line that drops out of it leaves
    /// those of every CPU, so that each read is made before the next one. The reads are of CPU `who`.
    pub(crate) fn make_inclusive(
        &mut self,
        cpus: &mut [Cpu],
        who: CpuId,
        llc: &mut Llc,
        at_memory: AtMemory<'_>,
        rules: &ReadRules,
    ) {
        let (who, owner) = (who.0 as usize, cpus[who.0 as usize].owner);
        let Self { noted, len, served, .. } = self;
        let (mut victims, mut left) = (0, 0);
        for at in 0..std::mem::take(len) {
            let one = &mut noted[at..=at];
            let Cpu { l1d, l2, .. } = &mut cpus[who];
            if l1d.read(one, !rules.through_l1d, &mut served[Level::L1 as usize]) == 0
                || l2.read(one, false, &mut served[Level::L2 as usize]) == 0
            {
                continue;
            }
            let drop = |line| {
                for cpu in &mut *cpus {
                    victims += u64::from(cpu.l1d.remove(line)) + u64::from(cpu.l2.remove(line));
                }
            };
            let missed = llc.read_telling(owner, one, &mut served[Level::Llc as usize], drop);
            let read = one[0];
            noted[left] = read;
            left += missed;
        }
        at_memory.make(&mut noted[..left], served);
        llc.book_inclusion_victims(owner, victims);
        account_all(served, rules, &mut cpus[who].counters);
    }
}

/// Levels of the hierarchy.
const LEVELS: usize = Level::ALL.len();

/// What is behind the last level: memory, and a cache at it, if there is one.
pub(crate) struct AtMemory<'a> {
    pub(crate) cache: Option<&'a mut Llc>,
    /// Whom the cache is filled for.
    pub(crate) owner: Owner,
}

impl AtMemory<'_> {
    /// Makes reads that no cache of the processor has.
    #[inline]
    fn make(self, reads: &mut [Read], served: &mut [Hits; LEVELS]) {
        let Self { cache, owner } = self;
        let left = match cache {
            Some(cache) => cache.read(owner, reads, &mut served[Level::L4 as usize]),
            None => reads.len(),
        };
        for read in &reads[..left] {
            served[Level::Memory as usize][read.class()] += 1;
        }
    }
}

/// Counts the reads that each level served, and forgets them.
#[inline]
fn account_all(served: &mut [Hits; LEVELS], rules: &ReadRules, counters: &mut HardwareCounters) {
    for level in Level::ALL {
        account(level, &mut served[level as usize], rules.latency[level as usize], counters);
    }
}

/// Counts the reads that one level served, and forgets them.
#[inline]
fn account(level: Level, served: &mut Hits, latency: u64, counters: &mut HardwareCounters) {
    let data = u64::from(std::mem::take(&mut served[class::DATA as usize]));
    counters.data.add(level, data);
    if level == Level::L4 {
        counters.l4_data += data;
    }
    let (positions, _) = served.as_chunks_mut::<{ class::OF_POSITION }>();
    let counted = positions.iter_mut().zip(&mut counters.walk_positions).enumerate().skip(1);
    // Of all positions, by what walks were for and how they ended; and those of the second stage.
    let (mut of_kind, mut nested) = ([0; class::OF_POSITION], 0);
    for (position, (reads, place)) in counted {
        if *reads == [0; class::OF_POSITION] {
            continue;
        }
        let reads = std::mem::take(reads).map(u64::from);
        let all: u64 = reads.iter().sum();
        place.add(level, all);
        nested += if WalkPosition::is_nested(position) { all } else { 0 };
        of_kind.iter_mut().zip(reads).for_each(|(sum, reads)| *sum += reads);
    }
    let all: u64 = of_kind.iter().sum();
    if level == Level::L4 {
        counters.l4_walks += all;
    }
    let of = |bit: u64| -> u64 {
        (0..).zip(of_kind).filter(|(kind, _)| kind & bit != 0).map(|(_, reads)| reads).sum()
    };
    let (stores, faulted) = (of(class::STORE), of(class::FAULTED));
    counters.page_walker_loads_dtlb.add(level, all - nested);
    counters.page_walker_loads_ept_dtlb.add(level, nested);
    counters.ept_walk_cycles += nested * latency;
    counters.dtlb_load_misses_walk_duration += (all - stores) * latency;
    counters.dtlb_store_misses_walk_duration += stores * latency;
    counters.walk_cycles += (all - faulted) * latency;
    counters.faulted_walk_cycles += faulted * latency;
}

impl ByLevel {
    fn add(&mut self, level: Level, reads: u64) {
        match level {
            Level::L1 => self.l1 += reads,
            Level::L2 => self.l2 += reads,
            Level::Llc => self.l3 += reads,
            Level::L4 | Level::Memory => self.memory += reads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuModel;
    use crate::geometry::CacheGeometry;
    use crate::llc::{LlcDesign, LlcFill, LlcOptions};
    use crate::naive::NaiveSets;
    use proptest::prelude::*;

    /// The levels where there is no cache at the memory.
    const WITHOUT_L4: [Level; 4] = [Level::L1, Level::L2, Level::Llc, Level::Memory];

    fn no_l4() -> AtMemory<'static> {
        AtMemory { cache: None, owner: Owner::default() }
    }

    /// Reads of some walk.
    const WALK: u64 = class::walk(WalkPosition { guest: 1, nested: 0 });

    /// Data, and each position for loads and stores, completed or not.
    fn class() -> impl Strategy<Value = u64> {
        let walk =
            (0u8..6, 0u8..6, 0..class::OF_POSITION as u64).prop_map(|(guest, nested, kind)| {
                match class::walk(WalkPosition { guest, nested }) {
                    class::DATA => class::DATA,
                    position => position | kind,
                }
            });
        prop_oneof![1 => Just(class::DATA), 2 => walk]
    }

    /// One read after the other, each through the levels in turn.
    struct OneByOne {
        levels: [NaiveSets; 3],
        through_l1d: bool,
    }

    impl OneByOne {
        fn read(&mut self, line: u64, is_data: bool) -> usize {
            let first = usize::from(!is_data && !self.through_l1d);
            for level in first..3 {
                if self.levels[level].lookup(line, line + 1).is_some() {
                    return level;
                }
                self.levels[level].fill(line, line + 1, 0);
            }
            3
        }
    }

    proptest! {
        #[test]
        fn batches_are_served_as_one_read_after_the_other(
            through_l1d in any::<bool>(),
            batches in prop::collection::vec(
                (prop::collection::vec((0u64..80, class()), 1..60), any::<bool>()),
                1..12,
            ),
        ) {
            let geometry = |lines: u64| CacheGeometry { bytes: lines * 64, ways: 4, cycles: 1 };
            let sizes = [8, 16, 48].map(geometry);
            let mut model = CpuModel::preset(CpuModel::DEFAULT).expect("it exists");
            model.walk.through_l1d = through_l1d;
            let rules = ReadRules::new(&model);
            let [mut l1d, mut l2, mut llc] = sizes.map(|size| Cache::new(&size));
            let levels = sizes.map(|size| NaiveSets::new(size.sets() as usize, 4));
            let mut twin = OneByOne { levels, through_l1d };
            let (mut reads, mut counters) = (Reads::new(), HardwareCounters::default());
            let mut expected = HardwareCounters::default();
            for (batch, faults) in batches {
                for &(line, class) in &batch {
                    reads.note(line, class);
                    let level = WITHOUT_L4[twin.read(line, class == class::DATA)];
                    let position = class as usize / class::OF_POSITION;
                    let cycles = rules.latency[level as usize];
                    if class == class::DATA {
                        expected.data.add(level, 1);
                        continue;
                    }
                    expected.walk_positions[position].add(level, 1);
                    if WalkPosition::is_nested(position) {
                        expected.page_walker_loads_ept_dtlb.add(level, 1);
                        expected.ept_walk_cycles += cycles;
                    } else {
                        expected.page_walker_loads_dtlb.add(level, 1);
                    }
                    match class & class::STORE {
                        0 => expected.dtlb_load_misses_walk_duration += cycles,
                        _ => expected.dtlb_store_misses_walk_duration += cycles,
                    }
                    match class & class::FAULTED {
                        0 => expected.walk_cycles += cycles,
                        _ => expected.faulted_walk_cycles += cycles,
                    }
                }
                if faults {
                    // A walk that ends in a fault, of one read.
                    let from = reads.len();
                    let position = WalkPosition { guest: 4, nested: 0 };
                    reads.note(1 << 20, class::walk(position));
                    reads.faulted(from);
                    let level = WITHOUT_L4[twin.read(1 << 20, false)];
                    expected.walk_positions[position.index()].add(level, 1);
                    let cycles = rules.latency[level as usize];
                    expected.page_walker_loads_dtlb.add(level, 1);
                    expected.dtlb_load_misses_walk_duration += cycles;
                    expected.faulted_walk_cycles += cycles;
                }
                reads.make(
                    [&mut l1d, &mut l2],
                    |reads, hits| llc.read(reads, false, hits),
                    no_l4(),
                    &rules,
                    &mut counters,
                );
                prop_assert_eq!(&counters, &expected);
            }
        }

        /// No private cache ever has a line that the last level does not; and with one whose lines never
        /// drop out it is as if it were not inclusive.
        #[test]
        fn an_inclusive_last_level_holds_what_private_caches_hold(
            through_l1d in any::<bool>(),
            large in any::<bool>(),
            batches in prop::collection::vec(
                (0usize..3, prop::collection::vec((0u64..80, any::<bool>()), 1..60)),
                1..20,
            ),
        ) {
            let geometry = |lines: u64| CacheGeometry { bytes: lines * 64, ways: 4, cycles: 1 };
            let mut model = CpuModel::preset(CpuModel::DEFAULT).expect("it exists");
            model.walk.through_l1d = through_l1d;
            model.cache.l1d = geometry(8);
            model.cache.l2 = geometry(16);
            let rules = ReadRules::new(&model);
            let options = LlcOptions {
                design: LlcDesign { inclusive: true, ..LlcDesign::default() },
                ..LlcOptions::default()
            };
            let size = geometry(if large { 128 } else { 24 });
            let mut llc = Llc::new(&size, &options);
            let mut plain = Llc::new(&size, &LlcOptions::default());
            let mut cpus = [0; 3].map(|_| Cpu::new(&model));
            let mut others = [0; 3].map(|_| Cpu::new(&model));
            let mut reads = Reads::new();
            for (cpu, batch) in batches {
                let note = |reads: &mut Reads| {
                    for &(line, is_data) in &batch {
                        reads.note(line, if is_data { class::DATA } else { WALK });
                    }
                };
                note(&mut reads);
                reads.make_inclusive(&mut cpus, CpuId(cpu as u32), &mut llc, no_l4(), &rules);
                for line in 0..80 {
                    let held = cpus.iter().any(|cpu| cpu.l1d.holds(line) || cpu.l2.holds(line));
                    prop_assert!(!held || llc.holds(line), "line {line}");
                }
                note(&mut reads);
                let Cpu { l1d, l2, counters, owner, .. } = &mut others[cpu];
                let last = |reads: &mut [Read], hits: &mut Hits| plain.read(*owner, reads, hits);
                reads.make([l1d, l2], last, no_l4(), &rules, counters);
                if large {
                    prop_assert_eq!(&cpus[cpu].counters, &others[cpu].counters);
                }
            }
            prop_assert!(!large || llc.counters(Owner(0)).inclusion_victims == 0);
        }

        /// Filled by victims, the last level holds what the second one dropped and nobody has read
        /// since: with one CPU no line is in both, and served reads are those of a plain list.
        #[test]
        fn victims_of_the_second_level_fill_the_last(
            batches in prop::collection::vec(
                prop::collection::vec((0u64..80, any::<bool>()), 1..60), 1..20),
            through_l1d in any::<bool>(),
            classify in any::<bool>(),
        ) {
            let geometry = |lines: u64| CacheGeometry { bytes: lines * 64, ways: 4, cycles: 1 };
            let mut model = CpuModel::preset(CpuModel::DEFAULT).expect("it exists");
            model.walk.through_l1d = through_l1d;
            model.cache.l1d = geometry(8);
            model.cache.l2 = geometry(16);
            let rules = ReadRules::new(&model);
            let design = LlcDesign { fill: LlcFill::Victims, ..LlcDesign::default() };
            let options = LlcOptions { design, classify, ..LlcOptions::default() };
            let mut llc = Llc::new(&geometry(24), &options);
            let mut cpu = Cpu::new(&model);
            let mut reads = Reads::new();
            let mut lists: [Vec<Vec<u64>>; 3] = [2, 4, 6].map(|sets| vec![Vec::new(); sets]);
            // Looks a line up in a level and moves it to the front; whether it was there, and what drops out.
            let mut served = [0u64; 4];
            for batch in batches {
                for &(line, is_data) in &batch {
                    reads.note(line, if is_data { class::DATA } else { WALK });
                    let mut use_line = |level: usize| {
                        let sets = lists[level].len() as u64;
                        let set = &mut lists[level][(line % sets) as usize];
                        let was_there = set.contains(&line);
                        set.retain(|other| *other != line);
                        set.insert(0, line);
                        (was_there, (set.len() > 4).then(|| set.pop()).flatten())
                    };
                    if (is_data || through_l1d) && use_line(0).0 {
                        served[0] += 1;
                        continue;
                    }
                    let (hit, victim) = use_line(1);
                    if hit {
                        served[1] += 1;
                        continue;
                    }
                    let last = &mut lists[2];
                    let set = &mut last[(line % 6) as usize];
                    let before = set.len();
                    set.retain(|other| *other != line);
                    served[if set.len() < before { 2 } else { 3 }] += 1;
                    if let Some(victim) = victim {
                        let set = &mut last[(victim % 6) as usize];
                        set.retain(|other| *other != victim);
                        set.insert(0, victim);
                        set.truncate(4);
                    }
                }
                reads.make_with_victims(&mut cpu, &mut llc, no_l4(), &rules);
                for line in 0..80 {
                    prop_assert!(!(cpu.l2.holds(line) && llc.holds(line)), "line {line}");
                }
            }
            let data = &cpu.counters.data;
            let walks = &cpu.counters.page_walker_loads_dtlb;
            let all = [data.l1 + walks.l1, data.l2 + walks.l2, data.l3 + walks.l3, data.memory + walks.memory];
            prop_assert_eq!(all, served);
        }
    }

    /// A direct-mapped cache at the memory, larger than the levels above it: what it has is not memory's to serve,
    /// and counts as what the last level lacks all the same.
    #[test]
    fn a_cache_at_the_memory_serves_what_the_last_level_lacks() {
        let mut model = CpuModel::preset(CpuModel::DEFAULT).expect("it exists");
        let geometry = |lines: u64, ways| CacheGeometry { bytes: lines * 64, ways, cycles: 1 };
        model.cache.l1d = geometry(8, 8);
        model.cache.l2 = geometry(16, 8);
        model.cache.llc = geometry(32, 8);
        model.cache.l4 = CacheGeometry { cycles: 100, ..geometry(256, 1) };
        for inclusive in [false, true] {
            let options = LlcOptions {
                design: LlcDesign { inclusive, ..LlcDesign::default() },
                classify: true,
                ..LlcOptions::default()
            };
            let mut machine =
                crate::Machine::with_llc(&model, crate::Misaligned::Splinter, &options)
                    .expect("it can be");
            let cpu = machine.add_cpu();
            let read = |machine: &mut crate::Machine, lines: &[u64]| {
                for line in lines {
                    machine.note_read(*line);
                }
                machine.make_reads(cpu);
            };
            // 100 lines of which two share a set of it: these miss each time.
            let lines: Vec<u64> = (0..99).chain([256 + 7]).collect();
            for _ in 0..3 {
                read(&mut machine, &lines);
            }
            let found = machine.l4_use(Owner::default()).expect("it is there");
            assert_eq!(found.counters.reads, 300);
            assert_eq!(found.counters.misses, 100 + 2 * 2);
            assert_eq!((found.counters.data.cold, found.counters.data.conflict), (100, 4));
            assert_eq!(found.held_bytes, 99 * 64);
            let counters = machine.counters(cpu);
            assert_eq!((counters.data.memory, counters.l4_data), (300, 196));
            let exposed = 1.0 - model.core.data_overlap;
            let memory = 104.0 * f64::from(model.cache.memory_cycles) * exposed;
            let cycles = machine.breakdown(cpu);
            assert_eq!(cycles.memory, memory);
            assert!((cycles.data - memory - 196.0 * 100.0 * exposed).abs() < 1e-6);
        }
    }

    /// What fits both levels together fits; filled by misses the last level holds the second's lines again.
    #[test]
    fn victims_add_the_second_level_to_the_last() {
        let model = {
            let mut model = CpuModel::preset(CpuModel::DEFAULT).expect("it exists");
            let geometry = |lines: u64| CacheGeometry { bytes: lines * 64, ways: 8, cycles: 1 };
            model.cache = crate::model::Caches {
                l1d: geometry(8),
                l2: geometry(64),
                llc: geometry(128),
                ..model.cache
            };
            model
        };
        let rules = ReadRules::new(&model);
        let misses = |fill| {
            let design = LlcDesign { fill, ..LlcDesign::default() };
            let options = LlcOptions { design, ..LlcOptions::default() };
            let mut llc = Llc::new(&model.cache.llc, &options);
            let mut cpu = Cpu::new(&model);
            let mut reads = Reads::new();
            for _ in 0..10 {
                for line in 0..64 + 128 {
                    reads.note(line, class::DATA);
                }
                match fill {
                    LlcFill::Victims => {
                        reads.make_with_victims(&mut cpu, &mut llc, no_l4(), &rules)
                    }
                    LlcFill::Misses => {
                        let Cpu { l1d, l2, counters, owner, .. } = &mut cpu;
                        let last =
                            |reads: &mut [Read], hits: &mut Hits| llc.read(*owner, reads, hits);
                        reads.make([l1d, l2], last, no_l4(), &rules, counters);
                    }
                }
            }
            cpu.counters.data.memory
        };
        assert_eq!(misses(LlcFill::Victims), 64 + 128);
        assert_eq!(misses(LlcFill::Misses), 10 * (64 + 128));
    }
}
