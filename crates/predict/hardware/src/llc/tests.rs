//! The last-level cache against slow twins, and against itself.

use super::*;
use crate::cache::Cache;
use crate::read::{NO_HITS, class};
use proptest::prelude::*;
use std::collections::BTreeSet;
use strata_colours::SliceHash;

/// A cache of this design and no more.
fn of(design: LlcDesign) -> LlcOptions {
    LlcOptions { design, ..LlcOptions::default() }
}

/// A way of a set: line, owner, and when it was used last.
type Way = Option<(u64, u16, u64)>;

/// One line after the other, every way looked at.
struct Naive {
    options: LlcOptions,
    geometry: CacheGeometry,
    sets: Vec<Vec<Way>>,
    /// By mask: lines in order of use, and all that were ever read.
    full: Vec<(u64, Vec<u64>, BTreeSet<u64>)>,
    time: u64,
    counters: Vec<LlcCounters>,
}

impl Naive {
    fn new(geometry: CacheGeometry, options: &LlcOptions, owners: usize) -> Self {
        let ways = vec![None; geometry.ways as usize];
        let counters = LlcCounters { evicted: vec![0; owners], ..LlcCounters::default() };
        Self {
            options: options.clone(),
            geometry,
            sets: vec![ways; geometry.sets() as usize],
            full: Vec::new(),
            time: 0,
            counters: vec![counters; owners],
        }
    }

    fn mask(&self, owner: Owner) -> u64 {
        let mask = self.options.masks.get(usize::from(owner.0)).copied().flatten();
        mask.map_or(u64::MAX >> (64 - self.geometry.ways), WayMask::bits)
    }

    /// Lines of the fully associative cache of this owner in order of use, and all ever read.
    fn full(&mut self, owner: Owner) -> (&mut Vec<u64>, &mut BTreeSet<u64>) {
        let mask = self.mask(owner);
        if !self.full.iter().any(|(other, ..)| *other == mask) {
            self.full.push((mask, Vec::new(), BTreeSet::new()));
        }
        let (_, list, seen) = self.full.iter_mut().find(|(other, ..)| *other == mask).unwrap();
        (list, seen)
    }

    /// The fully associative cache reads a line, which it keeps or not; whether it had it, and whether the
    /// line is new.
    fn read_full(&mut self, owner: Owner, line: u64, keeps: bool) -> (bool, bool) {
        let lines = self.geometry.sets() as usize * self.mask(owner).count_ones() as usize;
        let (list, seen) = self.full(owner);
        let is_held = list.contains(&line);
        list.retain(|other| *other != line);
        if keeps {
            list.insert(0, line);
            list.truncate(lines);
        }
        (is_held, seen.insert(line))
    }

    fn set(&mut self, line: u64) -> &mut Vec<Way> {
        let set = self.options.design.index(&self.geometry).set(line) as usize;
        &mut self.sets[set]
    }

    fn count(&mut self, owner: Owner, is_data: bool, hit: bool, (is_held, is_new): (bool, bool)) {
        let classify = self.options.classify;
        let counters = &mut self.counters[usize::from(owner.0)];
        counters.reads += 1;
        counters.misses += u64::from(!hit);
        if hit {
            counters.lucky_hits += u64::from(classify && !is_held);
        } else if classify {
            let causes = if is_data { &mut counters.data } else { &mut counters.walks };
            match (is_held, is_new) {
                (true, _) => causes.conflict += 1,
                (false, false) => causes.capacity += 1,
                (false, true) => causes.cold += 1,
            }
        }
    }

    /// Whether it was there, and which line dropped out.
    fn read(&mut self, owner: Owner, line: u64, is_data: bool) -> (bool, Option<u64>) {
        let full = self.read_full(owner, line, true);
        let (hit, dropped) = self.put(owner, line);
        self.count(owner, is_data, hit, full);
        (hit, dropped)
    }

    /// Whether it was there, and is no more.
    fn take(&mut self, owner: Owner, line: u64, is_data: bool) -> bool {
        let full = self.read_full(owner, line, false);
        let way = self.set(line).iter_mut().find(|way| way.is_some_and(|way| way.0 == line));
        let hit = way.and_then(Option::take).is_some();
        self.count(owner, is_data, hit, full);
        hit
    }

    /// The second level of an owner's CPU drops a line.
    fn fill(&mut self, owner: Owner, line: u64) {
        let (_, seen) = self.full(owner);
        let was_seen = seen.contains(&line);
        self.read_full(owner, line, true);
        if !was_seen {
            self.full(owner).1.remove(&line);
        }
        self.put(owner, line);
    }

    /// Puts a line in unless it is there; whether it was, and which one dropped out.
    fn put(&mut self, owner: Owner, line: u64) -> (bool, Option<u64>) {
        self.time += 1;
        let (mask, time) = (self.mask(owner), self.time);
        let ways = self.set(line);
        if let Some((_, _, used)) = ways.iter_mut().flatten().find(|way| way.0 == line) {
            *used = time;
            return (true, None);
        }
        let may_fill = (0..ways.len()).filter(|way| mask >> way & 1 != 0);
        let way = may_fill.min_by_key(|way| ways[*way].map_or(0, |(.., used)| used)).unwrap();
        let before = ways[way].replace((line, owner.0, time));
        if let Some((_, of, _)) = before {
            self.counters[usize::from(owner.0)].evicted[usize::from(of)] += 1;
        }
        (false, before.map(|(line, ..)| line))
    }
}

fn geometry(sets: u64, ways: u32) -> CacheGeometry {
    CacheGeometry { bytes: sets * u64::from(ways) * 64, ways, cycles: 1 }
}

/// The design with this hash, and a cache of at least so many sets, in as many slices as it knows.
fn sliced(hash: SliceHash, slices: u32, sets: u64, ways: u32) -> (LlcDesign, CacheGeometry) {
    let known = if hash == SliceHash::Skylake { 20 } else { slices };
    let sets = sets * u64::from(known / slices);
    (LlcDesign { hash, slices: known, ..LlcDesign::default() }, geometry(sets, ways))
}

fn mask(first: u32, count: u32) -> WayMask {
    WayMask::new((0..count).map(|bit| 1 << (first + bit)).sum()).unwrap()
}

/// Any mask of a cache with so many ways, or none.
fn masks(ways: u32) -> impl Strategy<Value = Option<WayMask>> {
    prop::option::of(
        (0..ways, 1..=ways).prop_map(move |(first, count)| mask(first, count.min(ways - first))),
    )
}

/// Lines near each other, and in the same set.
fn lines(sets: u64, most: usize) -> impl Strategy<Value = Vec<u64>> {
    let line = (0..3 * sets, 0u64..40).prop_map(move |(near, far)| near + far * sets);
    prop::collection::vec(line, 1..most)
}

/// Which of the reads hit, and what dropped out, in order.
fn read_all(llc: &mut Llc, owner: Owner, lines: &[u64]) -> (usize, Vec<u64>, Vec<u64>) {
    let mut reads: Vec<Read> = lines.iter().map(|line| Read::new(*line, class::DATA)).collect();
    let (mut hits, mut dropped) = (NO_HITS, Vec::new());
    let left = llc.read_telling(owner, &mut reads, &mut hits, |line| dropped.push(line));
    (left, reads[..left].iter().map(|read| read.line()).collect(), dropped)
}

proptest! {
    #[test]
    fn it_equals_its_naive_twin(
        (ways, masks) in (1u32..=28).prop_flat_map(|ways| {
            (Just(ways), prop::collection::vec(masks(ways), 0..4))
        }),
        sets in prop_oneof![Just(8u64), Just(16), Just(24)],
        hash in prop::sample::select(&SliceHash::ALL[..]),
        classify in any::<bool>(),
        batches in prop::collection::vec((0u16..3, lines(8, 60), any::<bool>()), 1..40),
    ) {
        let (design, geometry) = sliced(hash, 4, sets, ways);
        let options = LlcOptions { design, masks, classify };
        let mut llc = Llc::new(&geometry, &options);
        llc.admit(Owner(2));
        let mut naive = Naive::new(geometry, &options, 3);
        for (owner, lines, is_data) in batches {
            let owner = Owner(owner);
            let class = if is_data { class::DATA } else { class::STORE };
            let mut reads: Vec<Read> = lines.iter().map(|line| Read::new(*line, class)).collect();
            let (mut hits, mut dropped) = (NO_HITS, Vec::new());
            let left = llc.read_telling(owner, &mut reads, &mut hits, |line| dropped.push(line));
            let (mut missed, mut expected) = (Vec::new(), Vec::new());
            for line in &lines {
                let (hit, out) = naive.read(owner, *line, is_data);
                expected.extend(out);
                if !hit {
                    missed.push(Read::new(*line, class));
                }
            }
            prop_assert_eq!(&reads[..left], &missed[..]);
            prop_assert_eq!(dropped, expected);
            prop_assert_eq!(hits[class as usize] as usize, lines.len() - left);
        }
        for owner in 0..3 {
            let counters = llc.counters(Owner(owner));
            prop_assert_eq!(counters, &naive.counters[usize::from(owner)]);
            let held = llc.sets.held().iter().filter(|(.., of)| of.0 == owner).count();
            prop_assert_eq!(llc.lines(Owner(owner)), held as u64);
            if classify {
                let causes = counters.data.total() + counters.walks.total();
                prop_assert_eq!(causes, counters.misses);
            }
        }
    }

    /// Whatever the second levels drop, also what is there already or was never read.
    #[test]
    fn filled_by_victims_it_equals_its_naive_twin(
        (ways, masks) in (1u32..=28).prop_flat_map(|ways| {
            (Just(ways), prop::collection::vec(masks(ways), 0..4))
        }),
        sets in prop_oneof![Just(8u64), Just(16), Just(24)],
        hash in prop::sample::select(&SliceHash::ALL[..]),
        classify in any::<bool>(),
        batches in prop::collection::vec(
            (0u16..3, lines(8, 60), lines(8, 60), any::<bool>()),
            1..40,
        ),
    ) {
        let (design, geometry) = sliced(hash, 4, sets, ways);
        let design = LlcDesign { fill: LlcFill::Victims, ..design };
        let options = LlcOptions { design, masks, classify };
        let mut llc = Llc::new(&geometry, &options);
        llc.admit(Owner(2));
        let mut naive = Naive::new(geometry, &options, 3);
        for (owner, lines, dropped, is_data) in batches {
            let owner = Owner(owner);
            let class = if is_data { class::DATA } else { class::STORE };
            let mut reads: Vec<Read> = lines.iter().map(|line| Read::new(*line, class)).collect();
            let dropped = dropped.into_iter().map(|line| if line % 3 == 0 { NO_LINE } else { line });
            let victims: Vec<u64> =
                dropped.chain(std::iter::repeat(NO_LINE)).take(lines.len()).collect();
            let mut hits = NO_HITS;
            let left = llc.take(owner, &mut reads, &victims, &mut hits);
            let mut missed = Vec::new();
            for (line, victim) in lines.iter().zip(&victims) {
                if !naive.take(owner, *line, is_data) {
                    missed.push(Read::new(*line, class));
                }
                if *victim != NO_LINE {
                    naive.fill(owner, *victim);
                }
            }
            prop_assert_eq!(&reads[..left], &missed[..]);
            prop_assert_eq!(hits[class as usize] as usize, lines.len() - left);
        }
        for owner in 0..3 {
            let counters = llc.counters(Owner(owner));
            prop_assert_eq!(counters, &naive.counters[usize::from(owner)]);
            let held = llc.sets.held().iter().filter(|(.., of)| of.0 == owner).count();
            prop_assert_eq!(llc.lines(Owner(owner)), held as u64);
        }
    }

    #[test]
    fn with_nothing_asked_for_it_is_the_plain_cache(
        sets in 1u64..20,
        ways in prop_oneof![1u32..28, 30u32..=64],
        batches in prop::collection::vec(lines(16, 100), 1..10),
    ) {
        let geometry = geometry(sets, ways);
        let mut plain = Cache::new(&geometry);
        let mut llc = Llc::new(&geometry, &LlcOptions::default());
        for lines in batches {
            let mut reads: Vec<Read> =
                lines.iter().map(|line| Read::new(*line, class::DATA)).collect();
            let (mut of_plain, mut of_llc) = (NO_HITS, NO_HITS);
            let mut same = reads.clone();
            let left = plain.read(&mut reads, false, &mut of_plain);
            let left_too = llc.read(Owner(0), &mut same, &mut of_llc);
            prop_assert_eq!(&reads[..left], &same[..left_too]);
            prop_assert_eq!(of_plain, of_llc);
        }
    }

    /// Under LRU any ways; under tree-PLRU a power of two of them, from the lowest on.
    #[test]
    fn some_ways_of_a_cache_are_a_cache_of_so_many_ways(
        (ways, first, count) in (1u32..=64).prop_flat_map(|ways| (Just(ways), 0..ways))
            .prop_flat_map(|(ways, first)| (Just(ways), Just(first), 1..=ways - first)),
        tree in any::<bool>(),
        hash in prop::sample::select(&SliceHash::ALL[..]),
        classify in any::<bool>(),
        batches in prop::collection::vec(lines(8, 200), 1..10),
    ) {
        let (first, count) = if tree { (0, 1 << count.ilog2()) } else { (first, count) };
        let replacement = if tree { Replacement::TreePlru } else { Replacement::Lru };
        let [(design, geometry), (_, smaller)] = [ways, count].map(|ways| sliced(hash, 2, 8, ways));
        let design = LlcDesign { replacement, ..design };
        let options = LlcOptions { design, classify, ..LlcOptions::default() };
        let masked =
            LlcOptions { masks: vec![Some(mask(first, count))], ..options.clone() };
        let mut some = Llc::new(&geometry, &masked);
        let mut whole = Llc::new(&smaller, &options);
        for lines in batches {
            let found = read_all(&mut some, Owner(0), &lines);
            prop_assert_eq!(found, read_all(&mut whole, Owner(0), &lines));
        }
        prop_assert_eq!(some.counters(Owner(0)), whole.counters(Owner(0)));
    }

    #[test]
    fn one_set_has_no_conflicts(ways in 1u32..=64, lines in lines(50, 400)) {
        let options = LlcOptions { classify: true, ..LlcOptions::default() };
        let mut llc = Llc::new(&geometry(1, ways), &options);
        read_all(&mut llc, Owner(0), &lines);
        let counters = llc.counters(Owner(0));
        prop_assert_eq!((counters.data.conflict, counters.lucky_hits), (0, 0));
        let distinct: BTreeSet<_> = lines.iter().collect();
        prop_assert_eq!(counters.data.cold, distinct.len() as u64);
    }

    /// The victim of tree-PLRU is never the way used last, and of the mask.
    #[test]
    fn the_tree_spares_the_way_used_last(
        ways in 2u32..=64,
        lines in prop::collection::vec(0u64..200, 1..400),
    ) {
        let options = of(LlcDesign { replacement: Replacement::TreePlru, ..LlcDesign::default() });
        let mut llc = Llc::new(&geometry(1, ways), &options);
        let mut last = None;
        for line in lines {
            let (_, _, dropped) = read_all(&mut llc, Owner(0), &[line]);
            prop_assert!(last.is_none_or(|last| !dropped.contains(&last)));
            last = Some(line);
        }
    }
}

/// Four ways, the textbook's example: after 0 1 2 3 the tree points to way 0; after another use of 0 to
/// way 2, where LRU has way 1.
#[test]
fn tree_and_lru_differ_where_they_should() {
    for (replacement, expected) in [(Replacement::TreePlru, 2), (Replacement::Lru, 1)] {
        let options = of(LlcDesign { replacement, ..LlcDesign::default() });
        let mut llc = Llc::new(&geometry(1, 4), &options);
        let (_, _, dropped) = read_all(&mut llc, Owner(0), &[0, 1, 2, 3, 0, 4]);
        assert_eq!(dropped, [expected], "{replacement:?}");
    }
}

#[test]
fn what_cannot_be_is_told_with_a_remedy() {
    let good = CacheGeometry { bytes: 20 << 20, ways: 20, cycles: 50 };
    let l2 = CacheGeometry { bytes: 256 << 10, ways: 8, cycles: 12 };
    let no_l4 = CacheGeometry { bytes: 0, ways: 1, cycles: 0 };
    let message = |options: LlcOptions, geometry: &CacheGeometry| {
        options.check(&l2, geometry, &no_l4).unwrap_err().to_string()
    };
    let plain = LlcOptions::default;
    let intel = |slices| of(LlcDesign { hash: SliceHash::Intel, slices, ..LlcDesign::default() });
    assert_eq!(intel(8).check(&l2, &good, &no_l4), Ok(()));
    assert!(message(intel(20), &good).contains("1, 2, 4 and 8 slices, not 20; take hash even"));
    let skylake = of(LlcDesign { hash: SliceHash::Skylake, slices: 18, ..LlcDesign::default() });
    assert!(message(skylake, &good).contains("published for 20 slices, not 18; take hash even"));
    let even = |slices| of(LlcDesign { hash: SliceHash::Even, slices, ..LlcDesign::default() });
    assert!(message(even(7), &good).contains("16384 sets in 7 slices"));
    assert!(message(even(0), &good).contains("16384 sets in 0 slices"));
    let wide = LlcOptions { masks: vec![None, Some(mask(10, 11))], ..plain() };
    assert!(message(wide, &good).contains("0x1ffc00 reaches beyond the 20 ways"));
    let inclusive = of(LlcDesign { inclusive: true, ..LlcDesign::default() });
    let none = CacheGeometry { bytes: 0, ..good };
    assert!(message(inclusive, &none).contains("choose a CPU that has one"));
    assert_eq!(plain().check(&l2, &none, &no_l4), Ok(()));
    let large = CacheGeometry { bytes: 2 << 30, ways: 16, cycles: 50 };
    let classify = LlcOptions { classify: true, ..plain() };
    assert!(message(classify, &large).contains("up to 1024 MiB, and it has 2048"));
    let victims = LlcDesign { fill: LlcFill::Victims, ..LlcDesign::default() };
    let both = of(LlcDesign { inclusive: true, ..victims });
    assert!(message(both, &good).contains("set cache.llc_design.inclusive=false or"));
    let alone = of(victims).check(&none, &good, &no_l4).unwrap_err().to_string();
    assert!(alone.contains("without a second level"), "{alone}");
}
