//! Pages of code are told of when an instruction in them is executed first.

use crate::sampling::{GAP, MANY};
use crate::support::{Entry, Linked, Program, Record};
use strata_stream::Event;

/// How often the page of each of these was told of.
fn told(program: &Program, record: &Record) -> Vec<(&'static str, usize)> {
    let of = |key| {
        let page = program.page(key).start;
        let is_it = |event: &Event| match event {
            Event::Fetched { range, .. } => range.start.get() <= page && page < range.end.get(),
            _ => false,
        };
        (key, record.events().filter(is_it).count())
    };
    ["early", "never", "late", "threaded", "made"].map(of).to_vec()
}

#[test]
fn each_page_of_code_is_told_of_once_for_each_time_that_it_was_mapped() {
    let program = Program::build("code", Linked::Pie);
    let once = [("early", 1), ("never", 0), ("late", 1), ("threaded", 1), ("made", 2)];
    let record = program.run(&[]);
    assert_eq!(record.info.exit_status, Some(0));
    assert_eq!(told(&program, &record), once);
    for sampling in [GAP, MANY] {
        let record = program.sample(&[], sampling);
        assert_eq!(told(&program, &record), once, "{sampling:?}");
    }
}

#[test]
fn code_is_told_of_after_its_mapping_and_before_the_first_access() {
    let program = Program::build("accesses", Linked::Static);
    let record = program.run(&["10"]);
    let place = |is_it: fn(&Entry) -> bool| record.entries.iter().position(is_it).unwrap();
    let fetched = place(|entry| matches!(entry, Entry::Event(Event::Fetched { .. })));
    assert!(place(|entry| matches!(entry, Entry::Event(Event::Map { .. }))) < fetched);
    assert!(fetched < place(|entry| matches!(entry, Entry::Access(..))));
}
