//! How programs end in gaps of a sampled capture: what they did there is known nevertheless.

use crate::sampling::{GAP, MANY, instructions, pages};
use crate::support::{Linked, Program};

#[test]
fn whatever_ends_a_program_in_a_gap_its_pages_and_instructions_are_known() {
    let program = Program::build("dying", Linked::Static);
    for (how, status) in
        [("abort", 134), ("fault", 139), ("interrupt", 130), ("leave", 5), ("return", 6)]
    {
        let full = program.run(&[how]);
        let expected = pages(&full, &program);
        assert_eq!(expected.len(), 15, "{how}");
        for sampling in [GAP, MANY] {
            let sampled = program.sample(&[how], sampling);
            assert_eq!(sampled.info.exit_status, Some(status), "{how}");
            assert_eq!(pages(&sampled, &program), expected, "{how}");
            let (all, found) = (instructions(&full), instructions(&sampled));
            assert!(all.abs_diff(found) <= all / 1000, "{how}: {all} {found}");
            assert_eq!(sampled.notes(), [""; 0], "{how}");
        }
    }
}

#[test]
fn a_signal_that_ends_several_threads_in_a_gap_hides_nothing() {
    let program = Program::build("dying", Linked::Static);
    let sampled = program.sample(&["threads"], GAP);
    assert_eq!(sampled.info.exit_status, Some(143));
    assert_eq!(pages(&sampled, &program).len(), 16);
    assert_eq!(sampled.notes(), [""; 0]);
    assert!(instructions(&sampled) > 15 * 2000);
}

#[test]
fn signals_that_are_handled_in_a_gap_show_what_their_handlers_touched() {
    let program = Program::build("dying", Linked::Static);
    for sampling in [GAP, MANY] {
        let sampled = program.sample(&["handler"], sampling);
        assert_eq!(sampled.info.exit_status, Some(3));
        let pages = pages(&sampled, &program);
        assert!(pages.len() >= 8 && pages[..8] == [32, 33, 34, 35, 36, 37, 38, 39], "{pages:?}");
    }
}

#[test]
fn of_a_program_that_is_killed_in_a_gap_it_is_said_that_the_gap_is_missing() {
    let program = Program::build("dying", Linked::Static);
    let sampled = program.sample(&["kill"], GAP);
    assert_eq!(sampled.info.exit_status, Some(137));
    let notes = &sampled.info.notes;
    assert!(
        notes.iter().any(|note| note.contains("killed (SIGKILL) between two windows")),
        "{notes:?}"
    );
    // All of it was seen, so nothing is missing.
    assert!(program.run(&["kill"]).info.notes.is_empty());
}
