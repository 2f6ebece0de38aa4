//! Sampled captures of programs that fork: copies on write in gaps are seen, as many as there were.

use crate::sampling::{GAP, MANY, place};
use crate::support::{Entry, Linked, Program, Record, unwatched};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strata_addr::{Gva, Range, space::Virtual};
use strata_capture::Capture;
use strata_stream::{Advice, Batch, Event, Fill, Pid, Source, SourceError, WorkloadInfo};
use strata_workloads::Sampled;

const PAGE: u64 = 4096;

/// The pages of processes, each with what is in it: a number of its own if it was stored to.
#[derive(Default)]
struct Contents {
    pages: BTreeMap<(Pid, u64), Option<usize>>,
    made: usize,
    /// Pages that were copied, by whom.
    copies: Vec<(Pid, u64)>,
}

impl Contents {
    fn touch(&mut self, pid: Pid, page: u64, store: bool) {
        let before = *self.pages.entry((pid, page)).or_default();
        if !store {
            return;
        }
        let is_shared = before.is_some_and(|before| {
            self.pages.values().filter(|content| **content == Some(before)).count() > 1
        });
        if is_shared {
            self.copies.push((pid, page));
        }
        if is_shared || before.is_none() {
            self.made += 1;
            self.pages.insert((pid, page), Some(self.made));
        }
    }

    fn take(&mut self, pid: Pid, pages: std::ops::Range<u64>) -> Vec<((Pid, u64), Option<usize>)> {
        let taken = self.pages.range((pid, pages.start)..(pid, pages.end));
        let taken: Vec<_> = taken.map(|(at, what)| (*at, *what)).collect();
        taken.iter().for_each(|(at, _)| {
            self.pages.remove(at);
        });
        taken
    }
}

/// The pages of a range, counted from the start of another.
fn numbers(range: Range<Virtual>, from: &std::ops::Range<u64>) -> std::ops::Range<u64> {
    let number = |at: Gva| at.get().saturating_sub(from.start) / PAGE;
    number(range.start)..number(range.end)
}

/// Pages of a range that were copied after a fork, by whom.
pub fn copies(record: &Record, range: &std::ops::Range<u64>) -> Vec<(Pid, u64)> {
    let (mut contents, mut owners) = (Contents::default(), BTreeMap::new());
    for entry in &record.entries {
        match *entry {
            Entry::Access(tid, access) if range.contains(&access.addr().get()) => {
                let page = (access.addr().get() - range.start) / PAGE;
                contents.touch(owners[&tid], page, access.is_store());
            }
            Entry::Access(..) => {}
            Entry::Event(event) => match event {
                Event::Touched { pid, range: touched, store } => (touched.start.get()
                    ..touched.end.get())
                    .step_by(PAGE as usize)
                    .filter(|at| range.contains(at))
                    .for_each(|at| contents.touch(pid, (at - range.start) / PAGE, store)),
                Event::ThreadStart { pid, tid } => {
                    owners.insert(tid, pid);
                }
                Event::Fork { parent, child } => {
                    let its = contents.pages.range((parent, 0)..(parent, u64::MAX));
                    let its: Vec<_> =
                        its.map(|((_, page), what)| ((child, *page), *what)).collect();
                    contents.pages.extend(its);
                }
                Event::Unmap { pid, range: gone }
                | Event::Map { pid, range: gone, .. }
                | Event::Advise { pid, range: gone, advice: Advice::DontNeed } => {
                    contents.take(pid, numbers(gone, range));
                }
                Event::Remap { pid, from, to } => {
                    let moved = contents.take(pid, numbers(from, range));
                    contents.take(pid, numbers(to, range));
                    let shift = to.start.get() / PAGE - from.start.get() / PAGE;
                    let moved =
                        moved.into_iter().map(|((pid, page), what)| ((pid, page + shift), what));
                    contents.pages.extend(moved);
                }
                Event::Exec { pid } | Event::ProcessExit { pid } => {
                    contents.pages.retain(|(of, _), _| *of != pid);
                }
                _ => {}
            },
        }
    }
    contents.copies.sort_unstable();
    contents.copies
}

#[test]
fn copies_of_children_that_store_in_gaps_are_theirs() {
    let program = Program::build("copies", Linked::Static);
    for (how, number) in [("children", 5 * 64), ("line", 3 * 64)] {
        let full = program.run(&[how]);
        let expected = copies(&full, &place(&program, "memory", 64));
        assert_eq!(expected.len(), number, "{how}");
        for sampling in [GAP, MANY] {
            let sampled = program.sample(&[how], sampling);
            assert_eq!(sampled.info.exit_status, Some(0));
            let found = copies(&sampled, &place(&program, "memory", 64));
            assert!(found == expected, "{how}, {sampling:?}: {} of {number}", found.len());
            let afterwards = Record::take(Sampled::new(program.spawn(&[how]), sampling));
            let found = copies(&afterwards, &place(&program, "memory", 64));
            assert!(found == expected, "{how}, {sampling:?}: {} of {number}", found.len());
        }
    }
}

/// Which of two processes copied a page is not to be seen in page tables, but that one did is.
#[test]
fn there_are_as_many_copies_as_pages_that_became_two() {
    let program = Program::build("copies", Linked::Static);
    for (how, number) in [("parent", 64), ("both", 64), ("three", 2 * 64)] {
        for sampling in [GAP, MANY] {
            // With page faults each tells of its own stores, and the others may be gone before.
            let record = unwatched(|| program.sample(&[how], sampling));
            assert!(!record.is_watched());
            assert_eq!(record.info.exit_status, Some(0));
            let found = copies(&record, &place(&program, "memory", 64));
            assert_eq!(found.len(), number, "{how}, {sampling:?}: {found:?}");
            let pages: BTreeSet<u64> = found.iter().map(|(_, page)| *page).collect();
            assert_eq!(pages.len(), 64, "{how}, {sampling:?}");
        }
    }
}

/// A capture that is read with pauses, in which processes go on.
struct Late(Capture);

impl Source for Late {
    fn info(&self) -> WorkloadInfo {
        self.0.info()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        std::thread::sleep(Duration::from_millis(20));
        self.0.fill(batch)
    }
}

/// Whoever is gone by the time that a copy is heard of may have lived when it was made.
#[test]
fn copies_are_seen_however_late_they_are_heard_of() {
    let program = Program::build("copies", Linked::Static);
    for (how, number) in [("children", 5 * 64), ("line", 3 * 64), ("three", 2 * 64)] {
        for sampling in [GAP, MANY] {
            let record = Record::take(Late(program.spawn_sampled(&[how], sampling)));
            let found = copies(&record, &place(&program, "memory", 64));
            assert_eq!(found.len(), number, "{how}, {sampling:?}");
        }
    }
}

/// Pages that a process has for itself as the others are gone were copied by nobody.
#[test]
fn what_is_left_by_processes_that_are_gone_is_no_copy() {
    let program = Program::build("copies", Linked::Static);
    for how in ["nothing", "killed", "execute", "unmapped"] {
        for sampling in [GAP, MANY] {
            let sample = || program.sample(&[how], sampling);
            for record in [sample(), unwatched(sample)] {
                assert_eq!(record.info.exit_status, Some(0));
                let found = copies(&record, &place(&program, "memory", 64));
                assert_eq!(found, [], "{how}, {sampling:?}: {:?}", record.info.notes);
            }
        }
    }
}

/// Without page faults a page that was read and then stored to shows as stored to, and a note says what is missing.
#[test]
fn where_page_faults_cannot_be_watched_a_note_says_so() {
    let program = Program::build("copies", Linked::Static);
    let record = unwatched(|| program.sample(&["read first"], GAP));
    let expected: Vec<_> = (0..64).map(|page| (Pid(0), page, true)).collect();
    assert_eq!(told(&record, &place(&program, "memory", 64)), expected);
    let [note] = &record.info.notes[..] else { panic!("{:?}", record.info.notes) };
    assert!(note.contains("could not be watched (Permission denied"), "{note}");
}

/// Pages of a range that are told of in gaps, each with whether it was stored to, in order.
fn told(record: &Record, range: &std::ops::Range<u64>) -> Vec<(Pid, u64, bool)> {
    let mut told = Vec::new();
    for event in record.events() {
        if let Event::Touched { pid, range: touched, store } = event {
            let pages = (touched.start.get()..touched.end.get()).step_by(PAGE as usize);
            let pages = pages.filter(|at| range.contains(at));
            told.extend(pages.map(|at| (pid, (at - range.start) / PAGE, store)));
        }
    }
    told
}

#[test]
fn what_is_read_and_stored_to_once_it_may_be_is_told_of_twice() {
    let program = Program::build("copies", Linked::Static);
    let touched = |pages: std::ops::Range<u64>, store| pages.map(move |page| (Pid(0), page, store));
    let record = program.sample(&["protected"], GAP);
    let expected: Vec<_> = touched(0..64, false).chain(touched(0..64, true)).collect();
    assert_eq!(told(&record, &place(&program, "memory", 64)), expected);
    let record = program.sample(&["file"], GAP);
    let expected = [(Pid(0), 0, false), (Pid(0), 16, false), (Pid(0), 16, true)];
    let found = told(&record, &place(&program, "memory", 64));
    // Without page faults, what the kernel has mapped beside a page that was read is told as read.
    let found = found.into_iter().filter(|(_, page, _)| page % 16 == 0 && *page < 17);
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn what_is_read_before_it_is_stored_to_in_one_gap_is_told_of_twice() {
    let program = Program::build("copies", Linked::Static);
    let record = program.sample(&["read first"], GAP);
    if !record.is_watched() {
        return eprintln!("skipped: {:?}", record.info.notes);
    }
    let expected: Vec<_> = (0..64)
        .flat_map(|page| match page % 2 {
            0 => vec![(Pid(0), page, false), (Pid(0), page, true)],
            _ => vec![(Pid(0), page, true)],
        })
        .collect();
    assert_eq!(told(&record, &place(&program, "memory", 64)), expected);
}

/// The last process that has a page after a fork faults too when it stores to it, though it copies nothing.
#[test]
fn stores_to_what_a_fork_has_left_are_told_of_by_whoever_makes_them() {
    let program = Program::build("copies", Linked::Static);
    let record = program.sample(&["last"], GAP);
    if !record.is_watched() {
        return eprintln!("skipped: {:?}", record.info.notes);
    }
    let told = told(&record, &place(&program, "memory", 64));
    let by =
        |pid, pages: std::ops::Range<u64>, store| pages.map(move |page| (Pid(pid), page, store));
    let expected =
        [by(0, 0..64, false), by(0, 0..64, true), by(1, 0..32, true), by(0, 16..64, true)];
    assert!(told == expected.into_iter().flatten().collect::<Vec<_>>(), "{told:?}");
    // Whoever stores to what another has too, and the other afterwards.
    for (how, stores) in [("parent", vec![0]), ("both", vec![1, 0])] {
        let record = program.sample(&[how], GAP);
        let told = self::told(&record, &place(&program, "memory", 64));
        let expected = stores.into_iter().flat_map(|pid| by(pid, 0..64, true));
        assert!(told[2 * 64..] == expected.collect::<Vec<_>>(), "{how}: {told:?}");
    }
}

/// The number of a child's thread is stored by whoever makes the child, in a page that parent and child both have.
#[test]
fn what_is_stored_in_a_child_before_it_runs_is_told_of() {
    let program = Program::build("copies", Linked::Static);
    let record = program.sample(&["children"], GAP);
    if !record.is_watched() {
        return eprintln!("skipped: {:?}", record.info.notes);
    }
    let told = told(&record, &program.page("thread"));
    let children: Vec<Pid> = told.iter().map(|(pid, ..)| *pid).filter(|pid| pid.0 > 0).collect();
    assert_eq!(children, [1, 2, 3, 4, 5].map(Pid), "{told:?}");
    assert!(told.iter().all(|(pid, _, store)| pid.0 == 0 || *store), "{told:?}");
}

#[test]
fn a_whole_stream_sampled_afterwards_tells_of_the_same_pages() {
    let program = Program::build("copies", Linked::Static);
    let how = ["children", "line", "protected", "read first", "last", "parent", "both", "file"];
    for how in how {
        let live = program.sample(&[how], GAP);
        if !live.is_watched() {
            return eprintln!("skipped: {:?}", live.info.notes);
        }
        let live = told(&live, &place(&program, "memory", 64));
        assert!(live.len() > 2, "{how}");
        let afterwards = Record::take(Sampled::new(program.spawn(&[how]), GAP));
        assert_eq!(told(&afterwards, &place(&program, "memory", 64)), live, "{how}");
    }
}
