//! Pages of files, which Linux maps around a fault.

use super::*;

/// A guest with an area of a file of these pages, from [`page`] `first` on; nothing of it is touched.
fn with_file(first: u64, pages: u64) -> Guest {
    let mut guest = Guest::new(false, ThpParameters::default());
    guest.event(Event::ProcessStart { pid: PARENT });
    let (backing, protection) = (Backing::File, Protection::READ_WRITE);
    let range = range(first, pages);
    guest.event(Event::Map { pid: PARENT, range, backing, protection, fixed: true });
    guest
}

impl Guest {
    fn load(&mut self, at: u64) {
        let space = self.space(PARENT);
        self.stack.guest_fault(&mut self.policy, NodeId::HOST, space, page(at), false).unwrap();
    }

    fn mapped(&self, pages: std::ops::Range<u64>) -> Vec<u64> {
        pages.filter(|at| self.frame(PARENT, *at).is_some()).collect()
    }

    fn faults(&self) -> u64 {
        self.stack.kernel(NodeId::HOST).counters().faults
    }
}

#[test]
fn a_page_of_a_file_that_is_read_is_mapped_with_those_around_it() {
    let mut guest = with_file(0, 40);
    guest.load(20);
    assert_eq!(guest.mapped(0..40), Vec::from_iter(16..32), "from a multiple of 16 on");
    guest.load(39);
    assert_eq!(guest.mapped(0..60), Vec::from_iter(16..40), "up to the end of the area");
    assert_eq!(guest.faults(), 2);
    // From where the area begins 16 pages, however that lies (do_fault_around).
    let mut guest = with_file(5, 100);
    guest.load(7);
    assert_eq!(guest.mapped(0..60), Vec::from_iter(5..21));
    // But not beyond what one page table maps.
    let mut guest = with_file(505, 100);
    guest.load(508);
    assert_eq!(guest.mapped(500..600), Vec::from_iter(505..512));
    guest.stack.kernel(NodeId::HOST).memory().check().unwrap();
}

#[test]
fn a_store_to_a_file_maps_one_page_and_what_was_read_faults_again_at_the_first_store() {
    let mut guest = with_file(0, 40);
    guest.store(PARENT, 3);
    assert_eq!(guest.mapped(0..40), [3]);
    guest.load(4);
    assert_eq!((guest.mapped(0..40), guest.faults()), (Vec::from_iter(0..16), 2));
    let written = guest.frame(PARENT, 3);
    for (at, faults) in [(4, 3), (5, 4), (5, 4), (3, 4)] {
        guest.store(PARENT, at);
        assert_eq!(guest.faults(), faults, "page {at}");
    }
    assert_eq!(guest.frame(PARENT, 3), written);
}

#[test]
fn nothing_is_mapped_around_memory_that_is_no_file() {
    let mut guest = Guest::with_area(false, ThpParameters::default(), 40);
    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
    let range = range(100, 40);
    guest.event(Event::Map { pid: PARENT, range, backing, protection, fixed: true });
    guest.load(120);
    assert_eq!(guest.mapped(100..140), [120]);
}
