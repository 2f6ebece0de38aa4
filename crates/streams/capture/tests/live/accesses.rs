//! Every load and store, once, with its size, thread and place in the order.

use crate::support::{Linked, Program, shapes};
use std::collections::HashMap;
use strata_stream::{Event, Tid};

#[test]
fn every_access_is_counted_once_with_its_size() {
    for linked in [Linked::Pie, Linked::Fixed, Linked::Static, Linked::StaticPie] {
        let program = Program::build("accesses", linked);
        let record = program.run(&["5000"]);
        assert_eq!(record.info.exit_status, Some(0), "{linked:?}");
        assert_eq!(record.info.notes, [""; 0], "{linked:?}");
        let expected = HashMap::from([
            ((false, 1), 5000),
            ((false, 2), 5000),
            ((false, 4), 10_000),
            // The vector load comes in two halves; the locked increment loads and stores.
            ((false, 8), 15_000),
            ((true, 8), 10_000),
            ((true, 4), 5000),
            ((true, 1), 1000),
        ]);
        assert_eq!(shapes(&record.within(program.page("buffer"))), expected, "{linked:?}");
    }
}

#[test]
fn instructions_are_counted() {
    let program = Program::build("accesses", Linked::Static);
    let count = |rounds: &str| program.run(&[rounds]).instructions.values().sum::<u64>();
    let (few, many) = (count("10000"), count("90000"));
    // Nine instructions a round; but for reading another number, the rest of the runs is the same.
    assert!((720_000..720_020).contains(&(many - few)), "{few} {many}");
    assert!((90_000..200_000).contains(&few), "{few}");
}

#[test]
fn sixteen_threads_are_told_apart() {
    let program = Program::build("threads", Linked::Pie);
    let record = program.run(&[]);
    assert_eq!(record.info.exit_status, Some(0));
    assert_eq!(record.info.notes, [""; 0]);
    let starts = record.events().filter(|event| matches!(event, Event::ThreadStart { .. }));
    let exits = record.events().filter(|event| matches!(event, Event::ThreadExit { .. }));
    assert_eq!((starts.count(), exits.count()), (17, 16));
    let pages = program.reported("pages").unwrap();
    let mut tids: Vec<Tid> = Vec::new();
    for index in 0..16 {
        let start = pages + index * 4096;
        let accesses = record.within(start..start + 4096);
        assert_eq!(shapes(&accesses), HashMap::from([((true, 8), 20_000)]));
        let tid = accesses[0].0;
        assert!(accesses.iter().all(|access| access.0 == tid));
        // Three instructions a store, and what surrounds them.
        assert!(
            (60_000..120_000).contains(&record.instructions[&tid]),
            "{:?}",
            record.instructions
        );
        tids.push(tid);
    }
    tids.sort();
    tids.dedup();
    assert_eq!(tids.len(), 16);
    // Locked increments, now in code made for several threads; and main's one look at the end.
    let expected = HashMap::from([((false, 8), 16_001), ((true, 8), 16_000)]);
    assert_eq!(shapes(&record.within(program.page("shared"))), expected);
}

#[test]
fn memory_is_used_by_another_thread_only_while_it_is_mapped() {
    let program = Program::build("handover", Linked::Pie);
    let record = program.run(&[]);
    assert_eq!(record.info.exit_status, Some(0));
    // An access before its mapping or after its end would have made the consumer infer one.
    assert_eq!(record.info.notes, [""; 0]);
    let stores = record.within(program.page("page"));
    assert_eq!(shapes(&stores).get(&(true, 8)), Some(&30_000));
}
