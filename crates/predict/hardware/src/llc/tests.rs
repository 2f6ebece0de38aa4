//! The last-level cache against slow twins, and against itself.

use super::*;
use crate::cache::Cache;
use crate::machine::{Machine, Misaligned};
use crate::model::CpuModel;
use crate::read::{NO_HITS, class};
use proptest::prelude::*;
use std::collections::BTreeSet;
use strata_colours::SliceHash;

/// A cache of this design and no more.
fn of(design: LlcDesign) -> LlcOptions {
    LlcOptions { design, ..LlcOptions::default() }
}

/// A way of a set: line and owner.
type Way = Option<(u64, u16)>;

/// What a set knows of its ways, as the policy is described, way by way.
#[derive(Clone)]
struct NaiveOrder {
    replacement: Replacement,
    /// When each was used last.
    used: Vec<u64>,
    /// Tree-PLRU: by level, whether the upper half of each node is next.
    tree: Vec<Vec<bool>>,
    /// MRU: 1 where a way was not used. QLRU: ages.
    bits: Vec<u8>,
}

impl NaiveOrder {
    fn new(replacement: Replacement, ways: usize) -> Self {
        let levels = ways.next_power_of_two().ilog2();
        let tree = (0..levels).map(|level| vec![false; 1 << level]).collect();
        let bits = vec![if replacement == Replacement::Mru { 1 } else { 3 }; ways];
        Self { replacement, used: vec![0; ways], tree, bits }
    }

    /// Ages rise. `used` is the way whose line was used.
    fn update(&mut self, qlru: &Qlru, used: Option<usize>, mask: &[usize]) {
        let others: Vec<usize> = mask.iter().copied().filter(|way| Some(*way) != used).collect();
        let oldest = |ways: &[usize]| ways.iter().map(|way| self.bits[*way]).max().unwrap_or(3);
        let step = u8::from(oldest(mask) < 3);
        let (ways, by) = match qlru.update {
            QlruUpdate::All => (mask.to_vec(), 3 - oldest(mask)),
            QlruUpdate::Others => (others.clone(), 3 - oldest(&others)),
            QlruUpdate::AllByOne => (mask.to_vec(), step),
            QlruUpdate::OthersByOne => (others, step),
        };
        ways.iter().for_each(|way| self.bits[*way] += by);
    }

    /// The line in a way is used; the rest of what a policy does after that.
    fn touch(&mut self, way: usize, time: u64, mask: &[usize]) {
        self.used[way] = time;
        let mut node = way;
        for level in self.tree.iter_mut().rev() {
            level[node / 2] = node.is_multiple_of(2);
            node /= 2;
        }
        if self.replacement == Replacement::Mru {
            self.bits[way] = 0;
            if mask.iter().all(|way| self.bits[*way] == 0) {
                mask.iter().for_each(|other| self.bits[*other] = u8::from(*other != way));
            }
        }
    }

    fn hit(&mut self, way: usize, time: u64, mask: &[usize]) {
        self.touch(way, time, mask);
        if let Replacement::Qlru(qlru) = self.replacement {
            self.bits[way] = qlru.hit[usize::from(self.bits[way])];
            if !qlru.on_miss_only {
                self.update(&qlru, Some(way), mask);
            }
        }
    }

    /// The way that a new line is put into.
    fn fill(&mut self, empty: &[usize], time: u64, mask: &[usize], drawn: &mut u64) -> usize {
        let Replacement::Qlru(qlru) = self.replacement else {
            let way = empty.first().copied().unwrap_or_else(|| self.victim(mask));
            self.touch(way, time, mask);
            return way;
        };
        if qlru.on_miss_only {
            self.update(&qlru, None, mask);
        }
        let from_the_end = qlru.place == QlruPlace::EmptyFromTheEnd;
        let empty = if from_the_end { empty.last() } else { empty.first() };
        let way = empty.copied().unwrap_or_else(|| {
            let of_age = |age| mask.iter().copied().find(|way| self.bits[*way] == age);
            match qlru.place {
                QlruPlace::FirstOrWay0 => of_age(3).unwrap_or(mask[0]),
                _ => (0..=3).rev().find_map(of_age).unwrap(),
            }
        });
        self.bits[way] = match qlru.miss {
            QlruMiss::Age(age) => age,
            QlruMiss::Drawn { once_in, age } => {
                *drawn += 1;
                if replace::draw(*drawn).is_multiple_of(u64::from(once_in)) { age } else { 3 }
            }
        };
        if !qlru.on_miss_only {
            self.update(&qlru, Some(way), mask);
        }
        way
    }

    fn victim(&self, mask: &[usize]) -> usize {
        match self.replacement {
            Replacement::TreePlru => self.leaf(0, 0, mask).unwrap(),
            Replacement::Mru => {
                mask.iter().copied().find(|way| self.bits[*way] == 1).unwrap_or(mask[0])
            }
            _ => mask.iter().copied().min_by_key(|way| self.used[*way]).unwrap(),
        }
    }

    /// The way that a node of the tree leads to; the other half where that has none of the mask.
    fn leaf(&self, level: usize, node: usize, mask: &[usize]) -> Option<usize> {
        let Some(bits) = self.tree.get(level) else {
            return mask.contains(&node).then_some(node);
        };
        let wanted = usize::from(bits[node]);
        let mut halves = [wanted, 1 - wanted].into_iter();
        halves.find_map(|half| self.leaf(level + 1, 2 * node + half, mask))
    }
}

/// One line after the other, every way looked at.
struct Naive {
    options: LlcOptions,
    geometry: CacheGeometry,
    sets: Vec<(Vec<Way>, NaiveOrder)>,
    /// Ages drawn.
    drawn: u64,
    /// By mask: lines in order of use, and all that were ever read.
    full: Vec<(u64, Vec<u64>, BTreeSet<u64>)>,
    time: u64,
    counters: Vec<LlcCounters>,
}

impl Naive {
    fn new(geometry: CacheGeometry, options: &LlcOptions, owners: usize) -> Self {
        let ways = vec![None; geometry.ways as usize];
        let set = (ways, NaiveOrder::new(options.design.replacement, geometry.ways as usize));
        let counters = LlcCounters { evicted: vec![0; owners], ..LlcCounters::default() };
        Self {
            options: options.clone(),
            geometry,
            sets: vec![set; geometry.sets() as usize],
            drawn: 0,
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

    fn set(&mut self, line: u64) -> &mut (Vec<Way>, NaiveOrder) {
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
        let way = self.set(line).0.iter_mut().find(|way| way.is_some_and(|way| way.0 == line));
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
        let (mask, time, mut drawn) = (self.mask(owner), self.time, self.drawn);
        let (ways, order) = self.set(line);
        let mask: Vec<usize> = (0..ways.len()).filter(|way| mask >> way & 1 != 0).collect();
        if let Some(way) = ways.iter().position(|way| way.is_some_and(|way| way.0 == line)) {
            order.hit(way, time, &mask);
            return (true, None);
        }
        let empty: Vec<usize> = mask.iter().copied().filter(|way| ways[*way].is_none()).collect();
        let way = order.fill(&empty, time, &mask, &mut drawn);
        let before = ways[way].replace((line, owner.0));
        self.drawn = drawn;
        if let Some((_, of)) = before {
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

/// Every kind of replacement, and any variant of quad-age LRU.
fn replacements() -> impl Strategy<Value = Replacement> {
    let ages = prop::sample::select(vec!["H00", "H10", "H11", "H20", "H21"]);
    let new = prop::sample::select(vec!["M0", "M1", "M2", "M3", "MR161", "MR30"]);
    let rest = ["R0_U0", "R0_U1", "R1_U0", "R1_U1", "R1_U2", "R1_U3", "R2_U0", "R2_U1"];
    let qlru = (ages, new, prop::sample::select(rest.to_vec()), any::<bool>());
    let qlru = qlru.prop_map(|(hit, miss, rest, on_miss_only)| {
        let umo = if on_miss_only { "_UMO" } else { "" };
        format!("QLRU_{hit}_{miss}_{rest}{umo}").parse().unwrap()
    });
    let others = [Replacement::Lru, Replacement::TreePlru, Replacement::Mru];
    prop_oneof![prop::sample::select(others.to_vec()), qlru]
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
        replacement in replacements(),
        batches in prop::collection::vec((0u16..3, lines(8, 60), any::<bool>()), 1..40),
    ) {
        let (design, geometry) = sliced(hash, 4, sets, ways);
        let design = LlcDesign { replacement, ..design };
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
        replacement in replacements(),
        batches in prop::collection::vec(
            (0u16..3, lines(8, 60), lines(8, 60), any::<bool>()),
            1..40,
        ),
    ) {
        let (design, geometry) = sliced(hash, 4, sets, ways);
        let design = LlcDesign { fill: LlcFill::Victims, replacement, ..design };
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

    /// Any ways, but under tree-PLRU a power of two of them, from the lowest on.
    #[test]
    fn some_ways_of_a_cache_are_a_cache_of_so_many_ways(
        (ways, first, count) in (1u32..=64).prop_flat_map(|ways| (Just(ways), 0..ways))
            .prop_flat_map(|(ways, first)| (Just(ways), Just(first), 1..=ways - first)),
        replacement in replacements(),
        hash in prop::sample::select(&SliceHash::ALL[..]),
        classify in any::<bool>(),
        batches in prop::collection::vec(lines(8, 200), 1..10),
    ) {
        let tree = replacement == Replacement::TreePlru;
        let (first, count) = if tree { (0, 1 << count.ilog2()) } else { (first, count) };
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

/// What drops out of four ways is what nanoBench's own simulator of the policies says (cacheSim.py), which
/// was asked once for these lines.
#[test]
fn the_published_policies_do_what_is_published() {
    let dropped = |name: &str, lines: &[u64]| {
        let replacement = name.parse().unwrap();
        let options = of(LlcDesign { replacement, ..LlcDesign::default() });
        let mut llc = Llc::new(&geometry(1, 4), &options);
        read_all(&mut llc, Owner(0), lines).2
    };
    let cases: [(&str, &[u64], &[u64]); 8] = [
        ("QLRU_H11_M1_R0_U0", &[0, 1, 2, 3, 4, 5, 6], &[0, 1, 2]),
        ("QLRU_H11_M1_R0_U0", &[0, 1, 2, 3, 0, 4, 5, 6, 7], &[1, 2, 3, 0]),
        ("QLRU_H11_M1_R0_U0", &[0, 1, 2, 3, 1, 1, 2, 4, 5, 6, 7, 8], &[0, 3, 4, 2, 5]),
        ("QLRU_H00_M2_R0_U0_UMO", &[0, 1, 2, 3, 0, 4, 5], &[1, 2]),
        ("QLRU_H00_M1_R2_U1", &[0, 1, 2, 3, 4], &[2]),
        ("QLRU_H00_M1_R2_U1", &[0, 1, 2, 3, 1, 4, 2, 5, 6, 7], &[2, 0, 3, 4, 1]),
        ("QLRU_H11_M1_R1_U2", &[0, 1, 2, 3, 0, 4, 5, 0, 6, 7], &[1, 2, 3, 0]),
        ("QLRU_H21_M2_R0_U0_UMO", &[0, 1, 2, 3, 3, 2, 4, 5, 6], &[0, 1, 4]),
    ];
    for (name, lines, expected) in cases {
        assert_eq!(dropped(name, lines), expected, "{name} {lines:?}");
    }
    // After 0 to 3 only way 3 counts as used; 0 is read again, so 1 goes, then 2. 6 takes the last unused
    // way, so that only its own counts as used, and 7 way 0.
    assert_eq!(dropped("mru", &[0, 1, 2, 3, 0, 4, 5]), [1, 2]);
    assert_eq!(dropped("mru", &[0, 1, 2, 3, 4, 5, 6, 7]), [0, 1, 2, 4]);
    // New lines are of age 3 but for one in sixteen: what streams through displaces itself.
    let streamed: Vec<u64> = (0..3).chain([0, 1, 2, 0, 1, 2]).chain(10..18).collect();
    let out = dropped("QLRU_H11_MR161_R0_U0", &streamed);
    assert!(out.iter().filter(|line| **line >= 10).count() >= 5, "{out:?}");
}

/// Here and at the memory: an owner's counters begin at 0 again, those of others go on, and all lines stay.
#[test]
fn counting_anew_is_for_one_owner_and_keeps_all_lines() {
    let mut model = CpuModel::preset(CpuModel::DEFAULT).unwrap();
    model.cache.l4 = geometry(256, 1);
    let options = LlcOptions { classify: true, ..LlcOptions::default() };
    let mut machine = Machine::with_llc(&model, Misaligned::Splinter, &options).unwrap();
    let cpus = [0, 1].map(|owner| {
        let cpu = machine.add_cpu();
        machine.assign(cpu, Owner(owner));
        cpu
    });
    let read = |machine: &mut Machine, cpu, lines: std::ops::Range<u64>| {
        lines.for_each(|line| machine.note_read(line));
        machine.make_reads(cpu);
    };
    let found = |machine: &Machine, owner| {
        [machine.llc_use(owner).unwrap(), machine.l4_use(owner).unwrap()]
            .map(|of| (of.counters.reads, of.counters.data.cold, of.held_bytes / 64))
    };
    read(&mut machine, cpus[0], 0..10);
    read(&mut machine, cpus[1], 100..130);
    machine.reset_llc_counters(Owner(0));
    assert_eq!(found(&machine, Owner(0)), [(0, 0, 10); 2]);
    assert_eq!(found(&machine, Owner(1)), [(30, 30, 30); 2]);
    // At the memory these take the places of lines of the other.
    read(&mut machine, cpus[0], 256 + 100..256 + 120);
    assert_eq!(found(&machine, Owner(0)), [(20, 20, 30); 2]);
    assert_eq!(machine.l4_use(Owner(0)).unwrap().counters.evicted, [0, 20]);
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
