//! Sampled captures of programs that do what programs seldom do.

use crate::sampling::{GAP, MANY, pages, places};
use crate::support::{Entry, Linked, Program};
use std::collections::BTreeMap;
use strata_capture::{Capture, Options};
use strata_stream::{Event, Pid, Sampling, Tid};
use strata_workloads::Sampled;

#[test]
fn pages_are_found_whatever_the_program_does_to_its_memory_and_to_its_rights() {
    let program = Program::build("unusual", Linked::Static);
    for how in ["plain", "unreadable", "free", "rights"] {
        let expected = pages(&program.run(&[how]), &program);
        assert_eq!(expected.len(), if how == "free" { 37 } else { 32 }, "{how}");
        for sampling in [GAP, MANY] {
            let sampled = program.sample(&[how], sampling);
            assert_eq!(sampled.info.exit_status, Some(0), "{how}");
            assert_eq!(pages(&sampled, &program), expected, "{how} {sampling:?}");
            assert_eq!(sampled.notes(), [""; 0], "{how}");
        }
    }
}

#[test]
fn where_page_tables_cannot_be_looked_at_it_is_said_that_pages_are_missing() {
    let program = Program::build("unusual", Linked::Static);
    let sampled = program.sample(&["files"], GAP);
    assert_eq!(sampled.info.exit_status, Some(0));
    let notes = &sampled.info.notes;
    assert!(
        notes.iter().any(|note| note.contains("page tables: Too many open files")),
        "{notes:?}"
    );
}

/// Windows lie where those of the whole stream would.
fn lie_in_place(arguments: &[&str], within: u64) {
    let program = Program::build("unusual", Linked::Static);
    let sampling = Sampling { interval: 100_000, window: 5_000, warm: 5_000, ..MANY };
    let spawn = |options| {
        let program_arguments = program.arguments(arguments);
        Capture::spawn(program.path.as_os_str(), &program_arguments, options).unwrap()
    };
    let live = places(spawn(Options { sampling: Some(sampling), ..Options::default() }));
    let afterwards = places(Sampled::new(spawn(Options::default()), sampling));
    assert!(live.len() > 50, "{live:?}");
    assert_eq!(live.len(), afterwards.len(), "{live:?} {afterwards:?}");
    for ((live, length), (expected, _)) in live.iter().zip(&afterwards) {
        assert!(live.abs_diff(*expected) < within, "{live} {expected}");
        assert!(length.abs_diff(5_000) < within, "{live} {length}");
    }
}

/// A child that is forked while a sibling of its parent's thread begins a window or a gap goes on to do so itself.
#[test]
fn children_of_threads_that_switch_have_windows_and_gaps() {
    let program = Program::build("unusual", Linked::Static);
    let sampling = Sampling { interval: 20_000, window: 2_000, warm: 2_000, ..MANY };
    let record = program.sample(&["siblings"], sampling);
    let mut owners: BTreeMap<Tid, Pid> = BTreeMap::new();
    let (mut seen, mut skipped) = (BTreeMap::<Pid, u64>::new(), BTreeMap::<Pid, u64>::new());
    for entry in &record.entries {
        match *entry {
            Entry::Event(Event::ThreadStart { pid, tid }) => {
                owners.insert(tid, pid);
            }
            Entry::Access(tid, _) => *seen.entry(owners[&tid]).or_default() += 1,
            Entry::Event(Event::Skipped { tid, instructions }) => {
                *skipped.entry(owners[&tid]).or_default() += instructions;
            }
            Entry::Event(_) => {}
        }
    }
    // One that went on as its parent was would have nothing of one kind.
    assert_eq!((seen.len(), skipped.len()), (61, 61), "{seen:?} {skipped:?}");
}

#[test]
fn recursion_ends_no_later_than_windows_begin() {
    lie_in_place(&["recursion"], 500);
}

#[test]
fn one_clock_goes_on_from_process_to_process() {
    lie_in_place(&["forks"], 500);
}

#[test]
fn one_clock_goes_on_from_program_to_program() {
    lie_in_place(&["programs", "9"], 500);
}
