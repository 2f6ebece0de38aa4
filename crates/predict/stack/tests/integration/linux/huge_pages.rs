//! Huge pages: who gets one, what becomes of it, and how khugepaged and compaction make one.

use super::*;

#[test]
fn a_huge_page_outlives_a_child_that_ended() {
    let mut guest = Guest::with_area(true, ThpParameters::default(), 512);
    assert!(guest.is_huge(PARENT));
    guest.event(Event::Fork { parent: PARENT, child: CHILD });
    guest.event(Event::ProcessExit { pid: CHILD });
    guest.store(PARENT, 7);
    assert!(guest.is_huge(PARENT), "nobody shares it any more");
    assert_eq!(guest.stack.kernel(NodeId::HOST).counters().demotions, 0);
    guest.event(Event::Fork { parent: PARENT, child: CHILD });
    guest.store(PARENT, 7);
    assert!(!guest.is_huge(PARENT) && guest.is_huge(CHILD), "one page of it is copied");
    guest.event(Event::ProcessExit { pid: CHILD });
    guest.stack.kernel(NodeId::HOST).memory().check().unwrap();
}

#[test]
fn a_fault_takes_no_huge_page_beyond_the_end_of_its_area() {
    let guest = Guest::with_area(true, ThpParameters::default(), 700);
    let (kernel, space) = (guest.stack.kernel(NodeId::HOST), guest.space(PARENT));
    let is_huge = [0, 511, 512, 699].map(|at| kernel.is_huge(space, page(at)));
    assert_eq!(is_huge, [true, true, false, false]);
    assert_eq!([699, 700].map(|at| guest.frame(PARENT, at).is_some()), [true, false]);
}

/// Linux, `move_page_tables`.
#[test]
fn a_huge_page_moves_whole_where_it_lies_alike_and_page_by_page_elsewhere() {
    for (to, is_whole) in [(4096, true), (4097, false)] {
        let mut guest = Guest::with_area(true, ThpParameters::default(), 512);
        let frames = |guest: &Guest, from: u64| -> Vec<_> {
            (from..from + 512).map(|at| guest.frame(PARENT, at)).collect()
        };
        let before = frames(&guest, 0);
        guest.event(Event::Remap { pid: PARENT, from: range(0, 512), to: range(to, 512) });
        assert_eq!(frames(&guest, 0), [None; 512]);
        assert_eq!(frames(&guest, to), before, "to {to}: the same frames in the same order");
        let (kernel, space) = (guest.stack.kernel(NodeId::HOST), guest.space(PARENT));
        assert_eq!(kernel.is_huge(space, page(to)), is_whole);
        for (at, frame) in (to..).zip(before.iter().flatten()) {
            assert_eq!(kernel.owner(Frame::new(*frame)), Owner::Page(space, page(at)));
        }
        kernel.memory().check().unwrap();
    }
}

#[test]
fn khugepaged_copies_shared_pages_up_to_its_limit() {
    for (limit, collapsed) in [(211, false), (212, true)] {
        let thp = ThpParameters { max_ptes_shared: limit, ..ThpParameters::default() };
        let mut guest = Guest::with_area(false, thp.clone(), 512);
        guest.event(Event::Fork { parent: PARENT, child: CHILD });
        (0..300).for_each(|at| guest.store(PARENT, at));
        let of_child = guest.frame(CHILD, 400);
        assert_eq!(of_child, guest.frame(PARENT, 400), "shared");
        // The child's region has as many shared pages, so only one of the two is looked at.
        let once = ThpParameters { pages_to_scan: 512, ..thp };
        guest.stack.khugepaged(&mut guest.policy, NodeId::HOST, &once).unwrap();
        assert_eq!(guest.is_huge(PARENT), collapsed, "{limit}");
        assert_eq!(guest.frame(CHILD, 400), of_child, "the child keeps its own");
        for pid in [PARENT, CHILD] {
            guest.event(Event::ProcessExit { pid });
        }
        assert_eq!(guest.stack.kernel(NodeId::HOST).memory().used_frames(), 0);
    }
}

/// A region of which every page was moved to where it belongs in a block, and another block that is free.
fn lying_in_a_block() -> (Guest, [Frame<Lower>; 2]) {
    let mut guest = Guest::with_area(false, ThpParameters::default(), 512);
    let space = guest.space(PARENT);
    let memory = guest.stack.kernel(NodeId::HOST).memory();
    let blocks = (0..32).map(|region| Frame::new(region * 512));
    let mut free = blocks.filter(|block| memory.free_in_region(*block) == 512);
    let blocks = [0, 1].map(|_| free.next().unwrap());
    for at in 0..512 {
        let (policy, to) = (&mut guest.policy, blocks[0] + at);
        assert!(guest.stack.migrate(policy, NodeId::HOST, space, page(at), to).unwrap());
    }
    (guest, blocks)
}

impl Guest {
    fn collapse(&mut self, pid: Pid, target: Option<Frame<Lower>>) -> Collapsed {
        let (space, policy) = (self.space(pid), &mut self.policy);
        self.stack.collapse(policy, NodeId::HOST, space, page(0), target).unwrap()
    }
}

#[test]
fn a_region_becomes_huge_in_the_wanted_block_and_is_copied_unless_it_lies_there() {
    for (at, promotion) in [Promotion::InPlace, Promotion::Moved].into_iter().enumerate() {
        let (mut guest, blocks) = lying_in_a_block();
        assert_eq!(guest.collapse(PARENT, Some(blocks[at])), Collapsed::Huge(promotion));
        assert_eq!(guest.frame(PARENT, 0), Some(blocks[at].get()));
    }
}

#[test]
fn a_region_that_lies_in_a_block_is_copied_while_others_share_pages_of_it() {
    let (mut guest, [block, _]) = lying_in_a_block();
    guest.event(Event::Fork { parent: PARENT, child: CHILD });
    // Of these the parent gets copies; the child's region lies as it did.
    (0..300).for_each(|at| guest.store(PARENT, at));
    assert_eq!(guest.collapse(CHILD, None), Collapsed::Huge(Promotion::Moved));
    assert_ne!(guest.frame(CHILD, 0), Some(block.get()));
    assert_eq!(guest.frame(PARENT, 400), Some(block.get() + 400), "the parent keeps its own");
    guest.stack.kernel(NodeId::HOST).memory().check().unwrap();
}

#[test]
fn faults_compact_where_the_program_asked_for_huge_pages() {
    for advised in [false, true] {
        let mut guest = Guest::new(true, ThpParameters::default());
        // Somebody's movable page in every region.
        let memory = guest.stack.kernel_mut(NodeId::HOST).memory_mut();
        for frame in (0..32).map(|region| Frame::new(region * 512 + 7)) {
            assert!(memory.alloc_at(frame, 0));
            memory.set_owner(frame, Owner::Movable.to_bits());
        }
        guest.event(Event::ProcessStart { pid: PARENT });
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        let range = range(0, 512);
        guest.event(Event::Map { pid: PARENT, range, backing, protection, fixed: true });
        if advised {
            let advice = Advice::HugePage;
            guest.event(Event::Advise { pid: PARENT, range, advice });
        }
        guest.store(PARENT, 0);
        assert_eq!(guest.is_huge(PARENT), advised);
        let compacted = guest.stack.kernel(NodeId::HOST).counters().compacted_regions;
        assert_eq!(compacted, u64::from(advised));
        guest.stack.kernel(NodeId::HOST).memory().check().unwrap();
    }
}

/// What is stored to a huge page all the same is stored without a fault.
#[test]
fn mprotect_takes_the_right_to_write_from_base_pages_and_leaves_it_to_huge_ones() {
    for huge in [false, true] {
        let mut guest = Guest::with_area(huge, ThpParameters::default(), 512);
        guest.stack.drain_flushes().for_each(drop);
        let protection = Protection { write: false, ..Protection::READ_WRITE };
        guest.event(Event::Protect { pid: PARENT, range: range(0, 512), protection });
        assert_eq!(guest.is_huge(PARENT), huge, "it is not split");
        let space = guest.stack.kernel(NodeId::HOST).space(guest.space(PARENT)).unwrap();
        let write = |at| space.table().mapping(page(at).addr()).unwrap().rights.write;
        assert_eq!([0, 7, 511].map(write), [huge; 3]);
        assert_eq!(guest.stack.drain_flushes().count(), usize::from(!huge));
    }
}
