//! Sampled captures: windows are as they were, and gaps show what was touched in them.

use crate::copies::copies;
use crate::support::{Entry, Linked, Program, Record};
use std::collections::{BTreeMap, BTreeSet};
use strata_capture::{Capture, Options};
use strata_stream::{
    Access, Advice, Array, Batch, Edge, Event, Fill, Pid, Sampling, Source, Step, Tid,
};
use strata_workloads::{Aim, Aimed, Auto, Reach, Sampled};

const PAGE: u64 = 4096;

/// No window is reached: all is one gap.
pub const GAP: Sampling =
    Sampling { interval: u64::MAX / 4, window: 1, warm: 0, whole: 0, adaptive: false, seed: 1 };

/// Windows every few thousand instructions.
pub const MANY: Sampling =
    Sampling { interval: 5_000, window: 500, warm: 300, whole: 20_000, adaptive: false, seed: 3 };

/// First touches in a range, in order, by process: page of the range, and whether it was a store. A page
/// that was given back is touched first again.
pub fn touches(record: &Record, range: std::ops::Range<u64>) -> Vec<(Pid, u64, bool)> {
    let mut owners: BTreeMap<Tid, Pid> = BTreeMap::new();
    let mut seen: BTreeSet<(Pid, u64)> = BTreeSet::new();
    let mut found = Vec::new();
    for entry in &record.entries {
        let mut touch = |pid, page: u64, store| {
            if range.contains(&(page * PAGE)) && seen.insert((pid, page)) {
                found.push((pid, page - range.start / PAGE, store));
            }
        };
        match *entry {
            Entry::Access(tid, access) => {
                touch(owners[&tid], access.addr().get() / PAGE, access.is_store());
            }
            Entry::Event(Event::Touched { pid, range, store }) => {
                let pages = range.start.get() / PAGE..range.end.get() / PAGE;
                pages.for_each(|page| touch(pid, page, store));
            }
            Entry::Event(Event::ThreadStart { pid, tid }) => {
                owners.insert(tid, pid);
            }
            Entry::Event(
                Event::Advise { pid, range, advice: Advice::DontNeed | Advice::Free }
                | Event::Unmap { pid, range }
                | Event::Map { pid, range, .. },
            ) => {
                let given = range.start.get() / PAGE..range.end.get() / PAGE;
                seen.retain(|(of, page)| *of != pid || !given.contains(page));
            }
            Entry::Event(Event::Remap { pid, from, to }) => {
                let moved: Vec<_> = (from.start.get()..from.end.get())
                    .step_by(PAGE as usize)
                    .filter(|at| seen.remove(&(pid, at / PAGE)))
                    .map(|at| (pid, (at - from.start.get() + to.start.get()) / PAGE))
                    .collect();
                let new = to.start.get() / PAGE..to.end.get() / PAGE;
                seen.retain(|(of, page)| *of != pid || !new.contains(page));
                seen.extend(moved);
            }
            Entry::Event(Event::Fork { parent, child }) => {
                let shared: Vec<_> = seen.iter().filter(|(pid, _)| *pid == parent).collect();
                let shared: Vec<_> = shared.iter().map(|(_, page)| (child, *page)).collect();
                seen.extend(shared);
            }
            _ => {}
        }
    }
    found
}

pub fn place(program: &Program, key: &str, pages: u64) -> std::ops::Range<u64> {
    let start = program.reported(key).unwrap_or_else(|| panic!("{key} was reported"));
    start..start + pages * PAGE
}

/// Pages of `memory`, of which a program has 64, that were touched; again where they were given back.
pub fn pages(record: &Record, program: &Program) -> Vec<u64> {
    let found = touches(record, place(program, "memory", 64));
    let mut pages: Vec<u64> = found.into_iter().map(|(_, page, _)| page).collect();
    pages.sort_unstable();
    pages
}

const PLACES: [(&str, u64); 9] = [
    ("sparse", 300),
    ("again", 10),
    ("gone", 8),
    ("from", 4),
    ("to", 4096),
    ("heap", 16),
    ("thread", 16),
    ("child", 8),
    ("last", 4),
];

pub fn instructions(record: &Record) -> u64 {
    let skipped = record.events().map(|event| match event {
        Event::Skipped { instructions, .. } => instructions,
        _ => 0,
    });
    skipped.sum::<u64>() + record.instructions.values().sum::<u64>()
}

#[test]
fn gaps_show_every_page_that_was_touched_in_them() {
    let program = Program::build("sampling", Linked::Pie);
    for threads in [&[][..], &["threads"]] {
        let full = program.run(threads);
        let expected = PLACES.map(|(key, pages)| touches(&full, place(&program, key, pages)));
        assert_eq!(expected[0].len(), 100);
        assert_eq!(expected[1].len(), 21, "those given back twice and touched again");
        for sampling in [GAP, MANY] {
            let sampled = program.sample(threads, sampling);
            assert_eq!(sampled.info.exit_status, Some(7));
            for ((key, pages), mut expected) in PLACES.into_iter().zip(expected.clone()) {
                let mut found = touches(&sampled, place(&program, key, pages));
                // Order within a gap is that of addresses.
                expected.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, expected, "{key} {threads:?} {sampling:?}");
            }
        }
    }
}

#[test]
pub fn instructions_are_counted_in_gaps_and_windows_alike() {
    let program = Program::build("sampling", Linked::Static);
    let full = instructions(&program.run(&[]));
    for sampling in [GAP, MANY] {
        let sampled = instructions(&program.sample(&[], sampling));
        assert!(full.abs_diff(sampled) <= full / 10_000, "{full} {sampled}");
    }
}

#[test]
fn of_threads_that_run_beside_each_other_it_is_said_that_gaps_may_be_otherwise() {
    let is_told =
        |record: &Record| record.info.notes.iter().any(|note| note.contains("beside each other"));
    let threads = Program::build("threads", Linked::Static);
    assert!(is_told(&threads.sample(&[], MANY)));
    assert!(!is_told(&threads.run(&[])), "nothing is left out");
    let alone = Program::build("accesses", Linked::Static).sample(&[], MANY);
    assert!(!is_told(&alone) && alone.events().any(|event| matches!(event, Event::Sampling(_))));
}

#[test]
fn windows_are_as_long_as_they_are_to_be_and_gaps_hold_no_access() {
    let program = Program::build("sampling", Linked::Static);
    let record = program.sample(&[], MANY);
    let edges: Vec<Edge> = record
        .events()
        .filter_map(|event| match event {
            Event::Sampling(edge) => Some(edge),
            _ => None,
        })
        .collect();
    assert!(edges.len() > 100, "{}", edges.len());
    let order = [Edge::Interval, Edge::Warm, Edge::Window, Edge::Gap];
    for (edge, expected) in edges.iter().zip(order.iter().cycle()) {
        assert_eq!(edge, expected);
    }
    let mut in_gap = false;
    let (mut inside, mut outside) = (0, 0);
    for entry in &record.entries {
        match entry {
            Entry::Event(Event::Sampling(edge)) => {
                in_gap = matches!(edge, Edge::Interval | Edge::Gap);
            }
            Entry::Access(..) if in_gap => outside += 1,
            Entry::Access(..) => inside += 1,
            Entry::Event(_) => {}
        }
    }
    // A child begins in its parent's part and notices the next edge a little late.
    assert!(inside > 1000 && outside < inside / 5, "{inside} {outside}");
}

/// An edge divides what other threads did: accesses before it, and the instructions that made them.
#[test]
fn instructions_come_with_their_accesses_where_an_edge_divides_them() {
    let program = Program::build("threads", Linked::Static);
    let mut source = program.spawn_sampled(&[], MANY);
    let (mut batch, mut edges, mut threads) = (Batch::new(), 0, BTreeSet::new());
    loop {
        let fill = source.fill(&mut batch).unwrap();
        for step in batch.steps() {
            match step {
                Step::Event(Event::Sampling(_)) => edges += 1,
                Step::Event(_) => {}
                Step::Run { tid, instructions, accesses } => {
                    // A block counts as it begins, and has a few accesses.
                    let accesses = accesses.len() as u64;
                    assert!(accesses < 10 * instructions + 200, "{accesses} in {instructions}");
                    threads.insert(tid);
                }
            }
        }
        if fill == Fill::End {
            break;
        }
    }
    assert!(edges > 20 && threads.len() > 8, "{edges} {}", threads.len());
}

#[test]
fn what_covers_everything_is_the_whole_stream() {
    let program = Program::build("sampling", Linked::Static);
    let all = Sampling { interval: 100, window: 100, ..GAP };
    let (full, sampled) = (program.run(&[]), program.sample(&[], all));
    let of =
        |record: &Record| record.entries.iter().filter(|e| matches!(e, Entry::Access(..))).count();
    assert!(of(&full).abs_diff(of(&sampled)) < 200, "{} {}", of(&full), of(&sampled));
    assert!(sampled.events().all(|event| !matches!(event, Event::Sampling(_))));
}

/// What page tables show of random programs is what they touch, set for set.
#[test]
fn random_programs_touch_in_gaps_what_they_touch_in_full_sight() {
    let program = Program::build("wild", Linked::Static);
    // Page by page, with the places where a page came again; a page that was only read and then stored to
    // counts as stored to where page tables show it.
    let pages = |record: &Record| {
        let mut found = touches(record, place(&program, "arena", 512));
        found.sort_unstable_by_key(|(pid, page, _)| (*pid, *page));
        found
    };
    let mut all_copies = 0;
    for seed in 0..8 {
        let seed = seed.to_string();
        let full = program.run(&[&seed]);
        assert_eq!(full.info.exit_status, Some(0), "{seed}");
        let expected = pages(&full);
        assert!(expected.len() > 100, "{seed}: {}", expected.len());
        let arena = place(&program, "arena", 512);
        let expected_copies = copies(&full, &arena);
        for sampling in [GAP, MANY] {
            let sampled = program.sample(&[&seed], sampling);
            let found = pages(&sampled);
            let place = |(pid, page, _): &(Pid, u64, bool)| (*pid, *page);
            let (expected_places, found_places): (Vec<_>, Vec<_>) =
                (expected.iter().map(place).collect(), found.iter().map(place).collect());
            assert!(found_places == expected_places, "seed {seed}, {sampling:?}");
            let found_copies = copies(&sampled, &arena);
            assert!(found_copies == expected_copies, "seed {seed}, {sampling:?}");
            all_copies += found_copies.len();
        }
    }
    assert!(all_copies > 100, "{all_copies}");
}

fn aim() -> Aim {
    let reaches = vec![
        Reach { array: Array::LastLevelCache, entries: 1 << 16, ways: 16, cycles: 100.0 },
        Reach { array: Array::L2Tlb, entries: 1536, ways: 6, cycles: 50.0 },
    ];
    Aim { within: 0.02, base_cpi: 0.5, reaches }
}

#[test]
fn intervals_are_chosen_while_several_processes_and_threads_run() {
    let program = Program::build("dying", Linked::Static);
    let options = Options {
        sampling: Some(Sampling { whole: 1_000_000, ..Auto::sampling(1) }),
        aimed: Some(Aimed::Auto(aim())),
        ..Options::default()
    };
    let capture = Capture::spawn(program.path.as_os_str(), &program.arguments(&["long"]), options);
    let record = Record::take(capture.unwrap());
    assert_eq!(record.info.exit_status, Some(9));
    let mut edges = record.events().filter_map(|event| match event {
        Event::Sampling(edge) => Some(edge),
        _ => None,
    });
    let order = [Edge::Interval, Edge::Warm, Edge::Window, Edge::Gap];
    let mut number = 0;
    assert!(edges.all(|edge| {
        number += 1;
        edge == order[(number - 1) % 4]
    }));
    // 420 million instructions: the first intervals have ten million, later ones less.
    assert!(number / 4 > 26, "{number}");
    let all = instructions(&record);
    assert!((300_000_000..600_000_000).contains(&all), "{all}");
    let observed: u64 = record.instructions.values().sum();
    assert!(observed < all / 6, "{observed} of {all}");
    assert_eq!(pages(&record, &program), [40, 41]);
    let notes = &record.info.notes;
    assert!(notes.iter().any(|note| note.contains("more than this program needs")), "{notes:?}");
}

/// What is seen of each interval in detail, accesses that warm up and accesses that count.
fn windows(record: &Record) -> Vec<[Vec<Access>; 2]> {
    let mut windows: Vec<[Vec<Access>; 2]> = Vec::new();
    let mut part = None;
    for entry in &record.entries {
        match entry {
            Entry::Event(Event::Sampling(edge)) => {
                part = match edge {
                    Edge::Warm => {
                        windows.push(Default::default());
                        Some(0)
                    }
                    Edge::Window => Some(1),
                    Edge::Interval | Edge::Gap => None,
                }
            }
            Entry::Access(_, access) => {
                if let (Some(part), Some(window)) = (part, windows.last_mut()) {
                    window[part].push(*access);
                }
            }
            Entry::Event(_) => {}
        }
    }
    windows
}

#[test]
fn windows_are_parts_of_the_whole_stream_access_for_access() {
    let program = Program::build("phases", Linked::Static);
    let all: Vec<Access> = program
        .run(&["alone"])
        .entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Access(_, access) => Some(*access),
            Entry::Event(_) => None,
        })
        .collect();
    let sampled = program.sample(&["alone"], MANY);
    let mut windows = windows(&sampled);
    // One of its loops needs no memory.
    windows.retain(|[warm, counted]| warm.len() + counted.len() > 0);
    assert!(windows.len() > 1000, "{}", windows.len());
    let mut from = 0;
    for [warm, counted] in &windows {
        let seen = [warm.as_slice(), counted.as_slice()].concat();
        let at = all[from..].windows(seen.len()).position(|part| part == seen.as_slice());
        from += at.expect("what a window shows is in the stream, after what others showed")
            + seen.len();
    }
}

/// Where windows begin by the clock of all instructions, and how long each is.
pub fn places(mut source: impl Source) -> Vec<(u64, u64)> {
    let (mut clock, mut places, mut batch) = (0, Vec::new(), Batch::new());
    loop {
        let fill = source.fill(&mut batch).unwrap();
        for step in batch.steps() {
            match step {
                Step::Run { instructions, .. } => clock += instructions,
                Step::Event(Event::Skipped { instructions, .. }) => clock += instructions,
                Step::Event(Event::Sampling(Edge::Window)) => places.push((clock, clock)),
                Step::Event(Event::Sampling(Edge::Gap)) => {
                    if let Some((_, end)) = places.last_mut() {
                        *end = clock;
                    }
                }
                Step::Event(_) => {}
            }
        }
        if fill == Fill::End {
            return places.into_iter().map(|(start, end)| (start, end - start)).collect();
        }
    }
}

#[test]
fn a_whole_stream_sampled_afterwards_has_the_windows_of_the_live_one() {
    let program = Program::build("dying", Linked::Static);
    let spawn = |options| {
        Capture::spawn(program.path.as_os_str(), &program.arguments(&["alone"]), options).unwrap()
    };
    let adaptive = Sampling { whole: 1_000_000, ..Auto::sampling(1) };
    let fixed = Sampling { interval: 3_000_000, window: 50_000, warm: 100_000, ..MANY };
    for (sampling, aimed) in [(fixed, None), (adaptive, Some(Aimed::Auto(aim())))] {
        let options =
            Options { sampling: Some(sampling), aimed: aimed.clone(), ..Options::default() };
        let live = places(spawn(options));
        let whole = spawn(Options::default());
        let afterwards = match aimed {
            Some(aimed) => places(Sampled::aimed(whole, sampling, aimed)),
            None => places(Sampled::new(whole, sampling)),
        };
        assert!(live.len() >= 4, "{live:?}");
        assert_eq!(live.len(), afterwards.len(), "{live:?} {afterwards:?}");
        for (live, afterwards) in live.iter().zip(&afterwards) {
            // Live, an edge is passed where a block ends.
            assert!(live.0.abs_diff(afterwards.0) < 500, "{live:?} {afterwards:?}");
            assert!(live.1.abs_diff(afterwards.1) < 500, "{live:?} {afterwards:?}");
        }
    }
}
