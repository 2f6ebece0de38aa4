//! Requests that a server serves.

use crate::support::{Entry, Linked, Program};
use std::collections::HashMap;
use strata_stream::{Event, Mark};

#[test]
fn requests_are_what_a_server_does_from_a_read_to_its_answer() {
    for how in ["read", "poll"] {
        let program = Program::build("server", Linked::Pie);
        let record = program.run(&[how]);
        assert_eq!(record.info.exit_status, Some(0), "{how}");
        let pages = program.page("page").start..program.page("page").start + 8192;
        let mut open = HashMap::new();
        let (mut served, mut outside) = (Vec::new(), 0);
        for entry in &record.entries {
            match *entry {
                Entry::Event(Event::Request { tid, mark: Mark::Begin }) => {
                    assert!(open.insert(tid, 0).is_none(), "{how}");
                }
                Entry::Event(Event::Request { tid, mark: Mark::End }) => {
                    served.push(open.remove(&tid).unwrap());
                }
                Entry::Access(tid, access) if pages.contains(&access.addr().get()) => {
                    *open.get_mut(&tid).unwrap_or(&mut outside) += 1;
                }
                _ => {}
            }
        }
        assert_eq!(served, [100, 101, 102, 103, 104], "{how}");
        assert_eq!(outside, 5 * (7 + 10), "{how}");
    }
}
