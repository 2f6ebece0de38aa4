//! Generators make what they say.

use crate::common::{self, Part, read_all, units};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use strata_addr::{Range, space::Virtual};
use strata_stream::{Access, Advice, Batch, Event, Fill, Source, Tid};
use strata_workloads::{Generator, generate};

fn stream(spec: &str) -> Vec<Part> {
    read_all(&mut Generator::parse(spec).unwrap())
}

fn accesses(spec: &str) -> Vec<Access> {
    let units = units(&stream(spec));
    units.into_iter().filter_map(|unit| unit.ok().map(|(_, access)| access)).collect()
}

/// Positions within the memory of a workload that maps it once.
fn offsets(spec: &str) -> Vec<u64> {
    let parts = stream(spec);
    let base = parts.iter().find_map(|part| match part {
        Part::Event(Event::Map { range, .. }) => Some(range.start),
        _ => None,
    });
    let base = base.unwrap();
    units(&parts).into_iter().flatten().map(|(_, access)| access.addr() - base).collect()
}

fn message(spec: &str) -> String {
    Generator::parse(spec).err().unwrap().to_string()
}

/// What is mapped, kept by hand.
#[derive(Default)]
struct Mapped(Vec<Range<Virtual>>);

impl Mapped {
    fn remove(&mut self, hole: Range<Virtual>) {
        self.0 = self
            .0
            .iter()
            .flat_map(|range| {
                [
                    Range::new(range.start, range.end.min(hole.start)),
                    Range::new(range.start.max(hole.end), range.end),
                ]
            })
            .filter(|range| !range.is_empty())
            .collect();
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::Map { range, .. } => {
                self.remove(range);
                self.0.push(range);
            }
            Event::Unmap { range, .. } => {
                assert!(self.covers(range), "{range:?} is mapped before it is unmapped");
                self.remove(range);
            }
            Event::Remap { from, to, .. } => {
                assert!(self.covers(from) && from.intersection(&to).is_empty());
                self.remove(from);
                self.remove(to);
                self.0.push(to);
            }
            Event::Advise { range, .. } => assert!(self.covers(range)),
            _ => {}
        }
    }

    fn covers(&self, range: Range<Virtual>) -> bool {
        let covered: u64 = self.0.iter().map(|m| m.intersection(&range).bytes()).sum();
        covered == range.bytes()
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(Range::bytes).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every access of every kind lies in memory that is mapped at that moment, by a thread that
    /// has begun, and the counts are those announced.
    #[test]
    fn accesses_are_mapped_and_counts_are_as_announced(
        kind in 0..generate::list().len(), size in 4096u64..3 << 20, count in 1u64..20_000,
        threads in 1u64..5, log2 in 0u32..8, stores in 0u32..3, touch: bool, variant: bool,
        seed: u64,
    ) {
        let kind = &generate::list()[kind];
        let mut spec = format!("{}:size={size},accesses={count},threads={threads},seed={seed},ipa=7", kind.name);
        let has = |name: &str| kind.keys.iter().any(|key| key.name == name);
        if has("bytes") {
            spec += &format!(",bytes={}", 1 << log2);
        }
        if has("request") {
            spec += &format!(",request={}", seed % 3);
        }
        if has("stores") {
            spec += &format!(",stores={}", f64::from(stores) / 2.0);
        }
        if has("touch") && touch {
            spec += ",touch=yes";
        }
        match kind.name {
            "zipf" => spec += ",grain=4096",
            "chase" => spec += ",node=128",
            "heap" => spec += &format!(",step=4KiB,grow={}", if variant { "brk" } else { "mremap" }),
            "churn" => spec += &format!(",min=4KiB,max=4KiB,release={}", if variant { "unmap" } else { "dontneed" }),
            _ => {}
        }
        prop_assume!(kind.name != "sequential" && kind.name != "strided" || size >= threads * 4096 + 128);
        let mut generator = Generator::parse(&spec).unwrap();
        let info = generator.info();
        let (mut mapped, mut threads, mut pages) = (Mapped::default(), HashSet::new(), HashSet::new());
        let (mut seen, mut instructions) = (0, 0);
        let moves = spec.contains("mremap") || kind.name == "churn";
        for part in read_all(&mut generator) {
            match part {
                Part::Event(Event::ThreadStart { tid, .. }) => {
                    threads.insert(tid);
                }
                Part::Event(event) => mapped.event(&event),
                Part::Run { tid, instructions: count, accesses } => {
                    prop_assert!(threads.contains(&tid));
                    instructions += count;
                    seen += accesses.len() as u64;
                    for access in accesses {
                        let place = Range::sized(access.addr(), access.size().into());
                        prop_assert!(access.size() == 1 << log2 || !has("bytes"));
                        prop_assert!(mapped.covers(place), "{:?} in {}", access, spec);
                        pages.insert(place.start.page());
                        pages.insert((place.start + (place.bytes() - 1)).page());
                        if stores != 1 && has("stores") && !touch && !matches!(kind.name, "churn") {
                            prop_assert_eq!(access.is_store(), stores == 2);
                        }
                    }
                }
            }
        }
        prop_assert_eq!(Some(seen), info.accesses);
        prop_assert_eq!(instructions, 7 * seen);
        if !moves {
            prop_assert!(pages.len() as u64 * 4096 <= info.footprint_bytes.unwrap(), "{}", spec);
        }
        // What is said to be held was touched and is mapped still.
        let held = pages.iter().filter(|page| mapped.covers(Range::sized(page.addr(), 4096)));
        prop_assert!(held.count() as u64 * 4096 >= info.held_bytes, "{}", spec);
        prop_assert_eq!(info.held_bytes > 0, touch && has("touch"), "{}", spec);
        prop_assert!(mapped.bytes() <= size.next_multiple_of(4096), "{}", spec);
    }
}

#[test]
fn same_text_same_stream_and_another_seed_another() {
    for kind in generate::list() {
        let spec = |seed| format!("{}:size=8MiB,accesses=50K,seed={seed},threads=3", kind.name);
        assert_eq!(stream(&spec(4)), stream(&spec(4)), "{}", kind.name);
        if kind.name != "strided" && kind.name != "sequential" {
            assert_ne!(accesses(&spec(4)), accesses(&spec(5)), "{}", kind.name);
        }
    }
}

#[test]
fn defaults_in_the_list_are_the_ones_used() {
    for kind in generate::list() {
        let defaults = kind.keys.iter().filter(|key| !key.default.is_empty());
        let shrunk = |key: &generate::Key| match key.name {
            "size" => "size=16MiB".to_owned(),
            "accesses" => "accesses=30000".to_owned(),
            _ => format!("{}={}", key.name, key.default),
        };
        let all: Vec<_> = defaults.map(shrunk).collect();
        let spelled = format!("{}:{}", kind.name, all.join(","));
        let short = format!("{}:size=16MiB,accesses=30000", kind.name);
        assert_eq!(stream(&spelled), stream(&short), "{spelled}");
        assert!(!kind.explanation.contains('\n'));
    }
    let info = Generator::parse("random").unwrap().info();
    assert_eq!((info.accesses, info.footprint_bytes), (Some(50_000_000), Some(1 << 30)));
}

#[test]
fn sequential_touches_each_page_of_475_gb_once() {
    let mut generator =
        Generator::parse("sequential:size=475GB,stride=4KiB,passes=1,threads=3").unwrap();
    let pages = 475_000_000_000u64.div_ceil(4096);
    let info = generator.info();
    assert_eq!((info.accesses, info.footprint_bytes), (Some(pages), Some(pages * 4096)));
    // Each thread goes up page by page through its third.
    let mut last: HashMap<Tid, u64> = HashMap::new();
    let (mut batch, mut seen) = (Batch::new(), 0);
    while seen < 3_000_000 {
        assert_eq!(generator.fill(&mut batch).unwrap(), Fill::More);
        let mut parts = Vec::new();
        common::append(&mut parts, &batch);
        for (tid, access) in units(&parts).into_iter().flatten() {
            let page = access.addr().get();
            assert!(last.insert(tid, page).is_none_or(|before| before + 4096 == page));
            seen += 1;
        }
    }
    // The same at a size that can be read to the end.
    let offsets = offsets("sequential:size=40MB,stride=4KiB,passes=1,threads=3");
    let pages: HashSet<_> = offsets.iter().map(|offset| offset / 4096).collect();
    assert_eq!(offsets.len() as u64, 40_000_000u64.div_ceil(4096));
    assert_eq!(pages.len(), offsets.len());
}

#[test]
fn sequential_begins_again_at_its_start() {
    let offsets = offsets("sequential:size=8KiB,stride=1KiB,accesses=20");
    let expected: Vec<_> = (0..20).map(|i| i % 8 * 1024).collect();
    assert_eq!(offsets, expected);
}

#[test]
fn strided_passes_go_through_every_word() {
    let offsets = offsets("strided:size=16KiB,stride=4KiB,accesses=2048,bytes=8");
    assert_eq!(offsets[..6], [0, 4096, 8192, 12288, 8, 4104]);
    assert_eq!(offsets.iter().collect::<HashSet<_>>().len(), 2048);
}

#[test]
fn random_is_uniform() {
    let offsets = offsets("random:size=1MiB,accesses=200K,seed=3");
    let mut buckets = [0f64; 64];
    for offset in offsets {
        assert_eq!(offset % 8, 0);
        buckets[(offset >> 14) as usize] += 1.0;
    }
    let expected = 200_000.0 / 64.0;
    let chi_square: f64 = buckets.iter().map(|seen| (seen - expected).powi(2) / expected).sum();
    // 63 degrees of freedom: beyond 104 with probability 0.1 %.
    assert!(chi_square < 104.0, "{chi_square}");
    let stores = accesses("random:size=1MiB,accesses=100K,stores=0.25");
    let stores = stores.iter().filter(|access| access.is_store()).count();
    assert!((24_000..26_000).contains(&stores), "{stores}");
}

#[test]
fn zipf_gives_the_head_its_mass_and_scatters_it() {
    let spec = "zipf:size=64MiB,grain=64,theta=0.99,accesses=300K";
    let items = (64u64 << 20) / 64;
    let zeta: f64 = (1..=items).map(|rank| (rank as f64).powf(-0.99)).sum();
    let head: f64 = (1..=100).map(|rank| f64::from(rank).powf(-0.99)).sum();
    let expected = head / zeta;
    for scatter in ["no", "yes"] {
        let mut counts: HashMap<u64, u32> = HashMap::new();
        for offset in offsets(&format!("{spec},scatter={scatter}")) {
            *counts.entry(offset / 64).or_default() += 1;
        }
        let mut popular: Vec<_> = counts.iter().map(|(item, count)| (*count, *item)).collect();
        popular.sort_unstable_by(|a, b| b.cmp(a));
        let mass = popular[..100].iter().map(|p| f64::from(p.0)).sum::<f64>() / 300_000.0;
        assert!((mass / expected - 1.0).abs() < 0.03, "{mass} for {expected}");
        // In order, the most popular come first; scattered, they are on pages of their own.
        let pages: HashSet<_> = popular[..100].iter().map(|p| p.1 / 64).collect();
        assert!(if scatter == "no" { pages.len() <= 3 } else { pages.len() > 90 });
    }
}

#[test]
fn chase_is_a_single_cycle() {
    for nodes in [1u64, 2, 63, 64, 65, 1000] {
        let size = (nodes * 64).max(4096);
        let node = size / nodes;
        let spec = format!("chase:size={size},node={node},passes=2,stores=0");
        let offsets = offsets(&spec);
        let nodes = size / node;
        assert_eq!(offsets.len() as u64, 2 * nodes);
        let mut next = HashMap::new();
        for pair in offsets.windows(2) {
            assert_eq!(*next.entry(pair[0]).or_insert(pair[1]), pair[1], "one successor");
        }
        let (mut at, mut length) = (offsets[0], 0);
        loop {
            at = next[&at];
            length += 1;
            if at == offsets[0] {
                break;
            }
        }
        assert_eq!(length, nodes);
    }
}

#[test]
fn threads_chase_from_equally_far_along_the_cycle() {
    let alone = offsets("chase:size=64KiB,passes=1");
    let parts = stream("chase:size=64KiB,passes=1,threads=4");
    let mut firsts = HashMap::new();
    let mut base = None;
    for part in &parts {
        if let Part::Event(Event::Map { range, .. }) = part {
            base = Some(range.start);
        }
    }
    for (tid, access) in units(&parts).into_iter().flatten() {
        firsts.entry(tid.0).or_insert(access.addr() - base.unwrap());
    }
    for thread in 0..4 {
        assert_eq!(firsts[&thread], alone[thread as usize * 256]);
    }
}

#[test]
fn gups_stores_back_what_it_loaded() {
    for accesses in [
        self::accesses("gups:size=1MiB,accesses=9999"),
        self::accesses("gups:size=1MiB,accesses=9999,threads=3"),
    ] {
        assert_eq!(accesses.len(), 9999);
    }
    let alone = accesses("gups:size=1MiB,accesses=9999");
    for pair in alone.chunks_exact(2) {
        assert!(!pair[0].is_store() && pair[1].is_store());
        assert_eq!(pair[0].addr(), pair[1].addr());
    }
}

#[test]
fn touch_stores_to_every_page_first_in_order() {
    let accesses = accesses("random:size=1MiB,accesses=100,touch=yes,stores=0");
    assert_eq!(accesses.len(), 256 + 100);
    for pair in accesses[..256].windows(2) {
        assert_eq!(pair[1].addr() - pair[0].addr(), 4096);
    }
    assert!(accesses[..256].iter().all(|access| access.is_store()));
    assert!(accesses[256..].iter().all(|access| !access.is_store()));
}

#[test]
fn heap_grows_to_its_size_by_brk_or_mremap() {
    for (grow, moves) in [("brk", 0), ("mremap", 4)] {
        let parts = stream(&format!("heap:size=2MiB,step=128KiB,accesses=32K,grow={grow}"));
        let mut mapped = Mapped::default();
        let mut remaps = 0;
        for part in &parts {
            if let Part::Event(event) = part {
                mapped.event(event);
                remaps += u32::from(matches!(event, Event::Remap { .. }));
            }
        }
        assert_eq!((mapped.bytes(), remaps), (2 << 20, moves), "{grow}");
        // Half of each step fills the new part, so every page is touched where it lies at last.
        if grow == "brk" {
            let pages: HashSet<_> = units(&parts)
                .into_iter()
                .flatten()
                .map(|(_, access)| access.addr().page())
                .collect();
            assert_eq!(pages.len(), 512);
        }
    }
}

#[test]
fn churn_keeps_its_size_and_reuses_addresses() {
    for release in ["unmap", "dontneed"] {
        let spec = format!("churn:size=8MiB,min=16KiB,max=1MiB,accesses=200K,release={release}");
        let parts = stream(&spec);
        let (mut mapped, mut dropped, mut top) = (Mapped::default(), 0, 0);
        for part in &parts {
            if let Part::Event(event) = part {
                mapped.event(event);
                dropped += u32::from(matches!(
                    event,
                    Event::Unmap { .. } | Event::Advise { advice: Advice::DontNeed, .. }
                ));
                top = top.max(mapped.bytes());
            }
        }
        assert!(dropped > 20, "{release}: {dropped}");
        assert!(top > 6 << 20 && top < 16 << 20, "{release}: {top}");
    }
}

#[test]
fn footprints_far_beyond_this_machine_cost_nothing() {
    for kind in generate::list() {
        let step = if kind.name == "heap" { ",step=1TiB" } else { "" };
        let spec = format!("{}:size=60TiB,accesses=50K{step}", kind.name);
        let mut generator = Generator::parse(&spec).unwrap();
        let parts = read_all(&mut generator);
        assert_eq!(units(&parts).into_iter().flatten().count(), 50_000, "{}", kind.name);
        assert!(units(&parts).iter().flatten().all(|(_, a)| a.addr().get() < 1 << 47));
    }
}

#[test]
fn mistakes_are_named_with_the_nearest_name() {
    for (spec, part) in [
        ("randm", "unknown workload 'randm'; did you mean 'random'?"),
        ("quux", "known: sequential, strided"),
        ("random:sizes=1GiB", "no key 'sizes'; did you mean 'size'?"),
        ("random:theta=1", "workload 'random' has no key 'theta'"),
        ("random:size", "has no value"),
        ("random:size=1GiB,size=2GiB", "given twice"),
        ("random:size=1Gigabyte", "key 'size' of workload 'random': '1Gigabyte' is not a size"),
        ("random:size=100", "100 is not within 4096"),
        ("random:bytes=3", "no power of two"),
        ("random:stores=2", "'2' is no number from 0 to 1"),
        ("random:stores=nan", "'nan' is no number"),
        ("random:touch=maybe", "unknown 'maybe'"),
        ("zipf:grain=12", "multiple of bytes"),
        ("streamcluster:dimensions=6", "6 is no multiple of 4"),
        ("streamcluster:size=4KiB,dimensions=1024", "too small for a point"),
        ("dedup:size=4KiB,threads=4096", "too small for its threads"),
        ("btree:value=24", "24 is no multiple of 16"),
        ("chase:passes=2,accesses=5", "leave out one"),
        ("chase:passes=99999999999T", "not a count"),
        ("sequential:size=8KiB,threads=9", "more threads than base pages"),
        ("churn:min=1MiB,max=64KiB", "must not be above max"),
        ("heap:grow=mremp", "did you mean 'mremap'?"),
    ] {
        let message = message(spec);
        assert!(message.contains(part), "{spec}: {message}");
        assert!(!message.contains('\n'));
    }
}
