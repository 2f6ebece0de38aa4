//! Kernels of known programs do what those programs do, and generators serve requests.

use crate::common::{Part, read_all, units};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use strata_addr::Gva;
use strata_stream::{Access, Event, Mark, Tid};
use strata_workloads::{Generator, generate};

fn stream(spec: &str) -> Vec<Part> {
    read_all(&mut Generator::parse(spec).unwrap())
}

/// Accesses with their offsets in the memory that is mapped.
fn accesses(spec: &str) -> Vec<(u64, Access)> {
    let parts = stream(spec);
    let base = parts.iter().find_map(|part| match part {
        Part::Event(Event::Map { range, .. }) => Some(range.start),
        _ => None,
    });
    let base: Gva = base.unwrap();
    let all = units(&parts).into_iter().flatten();
    all.map(|(_, access)| (access.addr() - base, access)).collect()
}

/// Accesses of each request that came to its end, by thread; checks that marks alternate.
fn requests(parts: &[Part]) -> BTreeMap<Tid, Vec<usize>> {
    let mut served: BTreeMap<Tid, Vec<usize>> = BTreeMap::new();
    let mut open: HashMap<Tid, usize> = HashMap::new();
    for unit in units(parts) {
        match unit {
            Err(Event::Request { tid, mark: Mark::Begin }) => {
                assert!(open.insert(tid, 0).is_none());
            }
            Err(Event::Request { tid, mark: Mark::End }) => {
                served.entry(tid).or_default().push(open.remove(&tid).unwrap());
            }
            Err(_) => {}
            Ok((tid, _)) => {
                if let Some(count) = open.get_mut(&tid) {
                    *count += 1;
                }
            }
        }
    }
    served
}

#[test]
fn requests_of_a_number_of_accesses_have_as_many() {
    for threads in [1, 3] {
        let spec = format!("zipf:size=1MiB,accesses=10k,request=700,threads={threads},touch=yes");
        let served = requests(&stream(&spec));
        // What is left is no whole request.
        let each = 10_000 / threads / 700;
        assert_eq!(served.len(), threads);
        for accesses in served.values() {
            assert_eq!(*accesses, vec![700; each]);
        }
    }
}

#[test]
fn requests_change_nothing_in_the_order_of_accesses() {
    for kind in generate::list() {
        if !kind.keys.iter().any(|key| key.name == "request") {
            continue;
        }
        for threads in [1, 3] {
            let spec = |request| {
                format!("{}:size=1MiB,accesses=60k,threads={threads},request={request}", kind.name)
            };
            let plain = units(&stream(&spec(0)));
            let marked = units(&stream(&spec(3)));
            let is_request = |unit: &Result<_, Event>| matches!(unit, Err(Event::Request { .. }));
            assert!(!plain.iter().any(is_request), "{}", kind.name);
            let rest: Vec<_> = marked.iter().filter(|unit| !is_request(unit)).cloned().collect();
            assert!(rest == plain, "{}", kind.name);
            let served = requests(&stream(&spec(3)));
            assert!(!served.is_empty() || kind.name == "streamcluster", "{}", kind.name);
        }
    }
}

#[test]
fn canneal_looks_at_two_elements_and_all_their_neighbours() {
    let spec = "canneal:size=1MiB,accesses=68k,temperature=0,request=1";
    let parts = stream(spec);
    let served = requests(&parts);
    // Of each of two elements: itself, two lists, ten neighbours; two stores if they change places.
    assert!(served[&Tid(0)].iter().all(|accesses| *accesses == 68 || *accesses == 70));
    let swaps = served[&Tid(0)].iter().filter(|accesses| **accesses == 70).count();
    // Without temperature only what shortens wires: rarer than not, and not never.
    let all = served[&Tid(0)].len();
    assert!(swaps > all / 20 && swaps < all / 2, "{swaps} of {all}");
    // At a high temperature nearly all.
    let parts = stream("canneal:size=1MiB,accesses=68k,temperature=1e9,request=1");
    let served = requests(&parts);
    let swaps = served[&Tid(0)].iter().filter(|accesses| **accesses == 70).count();
    assert!(swaps > served[&Tid(0)].len() * 99 / 100);
    // Places are random: nearly every page of elements and locations is used.
    let pages: BTreeSet<u64> = accesses(spec).iter().map(|(at, _)| at >> 12).collect();
    assert!(pages.len() > 250, "{}", pages.len());
}

#[test]
fn streamcluster_compares_all_points_with_a_candidate() {
    let (dimensions, size) = (64u64, 256 << 10);
    for threads in [1u64, 3] {
        let spec = format!(
            "streamcluster:size={size},dimensions={dimensions},accesses=100k,threads={threads},open=0"
        );
        let all = accesses(&spec);
        let points = (size - threads * 20 * 8 - 32) / (4 * dimensions + 38);
        // Vectors of coordinates: those of the points in order, thread by thread, each with the
        // candidate's.
        let vectors: Vec<u64> =
            all.iter().filter(|(_, access)| access.size() == 16).map(|(at, _)| *at).collect();
        let per_point = (4 * dimensions / 16) as usize;
        let round = 2 * per_point * points as usize;
        assert!(vectors.len() > 2 * round);
        for round in vectors[..2 * round].chunks(round) {
            let points_seen: BTreeSet<u64> =
                round.iter().step_by(2).map(|at| at / (4 * dimensions)).collect();
            assert_eq!(points_seen.len() as u64, points);
            let candidates: BTreeSet<u64> =
                round.iter().skip(1).step_by(2).map(|at| at / (4 * dimensions)).collect();
            assert_eq!(candidates.len(), 1);
        }
        // Without new centres no point is assigned anew.
        let structures = points * 4 * dimensions..points * (4 * dimensions + 32);
        assert!(!all.iter().any(|(at, access)| structures.contains(at) && access.is_store()));
    }
    let spec = "streamcluster:size=256KiB,dimensions=64,accesses=100k,open=1,centres=4";
    let stored = accesses(spec).iter().filter(|(_, access)| access.is_store()).count();
    assert!(stored > 100, "{stored}");
}

#[test]
fn streamcluster_has_operations_of_every_thread() {
    let spec = "streamcluster:size=64KiB,dimensions=16,accesses=200k,threads=3,request=1";
    let served = requests(&stream(spec));
    let counts: Vec<usize> = served.values().map(Vec::len).collect();
    assert_eq!(counts.len(), 3);
    // All wait for each other.
    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
}

#[test]
fn dedup_reads_its_input_in_order_and_compresses_what_is_new() {
    let size = 1 << 20;
    let stores_of = |duplicates: &str| {
        let spec = format!("dedup:size={size},accesses=1M,chunk=1KiB,duplicates={duplicates}");
        let all = accesses(&spec);
        let input: Vec<u64> = all.iter().map(|(at, _)| *at).filter(|at| *at < size / 2).collect();
        // It never goes far back but to the start, and comes to the end.
        let jumps = input.windows(2).filter(|pair| pair[1] + 8 * 1024 < pair[0]).count();
        assert!((1..10).contains(&jumps), "{jumps}");
        assert_eq!(input.iter().max(), Some(&(size / 2 - 8)));
        // Behind the table, 2 KiB and 64 KiB.
        let start = size / 2 + size / 4 / 72 * 72 + (66 << 10);
        let output = all.iter().filter(|(at, a)| a.is_store() && *at >= start).count();
        output as f64 / input.len() as f64
    };
    // New chunks are read three times and make half as many words.
    let (none, half, all) = (stores_of("0"), stores_of("0.5"), stores_of("1"));
    assert!((0.15..0.18).contains(&none), "{none}");
    assert!((0.09..0.12).contains(&half), "{half}");
    assert!(all < 0.01, "{all}");
}

#[test]
fn btree_goes_from_the_root_to_one_leaf() {
    // 12^3 items at most on three levels.
    let spec = "btree:size=128KiB,accesses=200k,gets=1,request=1";
    let all = accesses(spec);
    let nodes = all.iter().filter(|(_, access)| access.size() == 8).map(|(at, _)| at >> 8);
    let mut uses: HashMap<u64, u32> = HashMap::new();
    nodes.for_each(|node| *uses.entry(node).or_default() += 1);
    let mut uses: Vec<u32> = uses.into_values().collect();
    uses.sort_unstable_by(|a, b| b.cmp(a));
    // The root is in every operation, as much as any level together.
    let whole: u32 = uses.iter().sum();
    assert!(uses[0] > whole / 4 && uses[0] < whole / 2, "{} of {whole}", uses[0]);
    assert!(uses[1] < uses[0] / 2);
    assert!(all.iter().all(|(_, access)| !access.is_store()));
    let stores = accesses("btree:size=128KiB,accesses=200k,gets=0,request=1");
    let stores = stores.iter().filter(|(_, access)| access.is_store()).count();
    let operations = requests(&stream("btree:size=128KiB,accesses=200k,gets=0,request=1"));
    // The leaf's lock twice and four vectors.
    assert!(stores.abs_diff(6 * operations[&Tid(0)].len()) <= 6);
}
