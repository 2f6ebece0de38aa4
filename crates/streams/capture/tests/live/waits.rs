//! System calls that wait, and those that wake others.

use crate::support::{Entry, Linked, Program};
use strata_stream::{Call, Event};

#[test]
fn what_waits_and_what_wakes_is_told_and_nothing_else() {
    let program = Program::build("waits", Linked::Pie);
    let record = program.run(&[]);
    assert_eq!(record.info.exit_status, Some(0));
    let page = program.page("page").start..program.page("page").start + 4096;
    // By how often the page was stored to before.
    let (mut stores, mut first) = (0, None);
    let mut told = Vec::new();
    for entry in &record.entries {
        match *entry {
            Entry::Access(tid, access) if page.contains(&access.addr().get()) => {
                stores += 1;
                first = first.or(Some(tid));
            }
            Entry::Event(Event::Called { tid, call }) => {
                told.push((stores, Some(tid) == first, call));
            }
            _ => {}
        }
    }
    let count = |stores: u64, of_first: bool, call| {
        told.iter().filter(|one| **one == (stores, of_first, call)).count()
    };
    assert_eq!(stores, 60);
    assert_eq!(count(10, true, Call::Wait), 3, "sleeps: {told:?}");
    assert_eq!(count(30, true, Call::Wait), 0, "a pipe that has something: {told:?}");
    assert_eq!(count(60, true, Call::Wake), 4, "wakes: {told:?}");
    assert!(count(60, true, Call::Wait) >= 4, "sleeps in between: {told:?}");
    assert!(count(60, false, Call::Wait) >= 4, "the one that is woken: {told:?}");
    let requests = told.iter().filter(|(.., call)| matches!(call, Call::Request));
    assert_eq!(requests.count(), 0, "there is no network: {told:?}");
}
