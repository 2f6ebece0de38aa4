//! Memory that begins as it was found on a machine.

use crate::world::{World, op};
use proptest::prelude::*;
use strata_addr::{Frame, PageSize};
use strata_stack::{
    AlignAreas, ExitReason, FoundRegion, KernelSettings, Owner, Policy, Position, ThpMode,
};

struct Linux(ThpMode);

impl Policy for Linux {
    fn settings(&mut self, _: Position) -> KernelSettings {
        let (thp, align_areas) = (self.0, AlignAreas::Never);
        KernelSettings { thp, align_areas, fragmented: true, coloured: false }
    }
}

fn world(thp: ThpMode, of_vm: u16) -> World {
    let region =
        |pinned, movable, backed| FoundRegion { pinned, movable, backed, ..FoundRegion::default() };
    let host = vec![region(7, 1, 0); 4];
    let of_vm = FoundRegion { of_vm, ..region(0, 300, 400) };
    let l1 = vec![region(2, 0, 512), of_vm, region(0, 0, 0)];
    // One region more than it has memory is left out.
    let guest = [vec![region(5, 6, 100), region(0, 0, 20)], vec![region(1, 0, 0); 100]].concat();
    World::found(&[host, l1, guest], Box::new(Linux(thp)))
}

/// Pages of a VM that are backed in a region.
fn backed(world: &World, vm: usize, region: u64) -> usize {
    let vm = world.stack.nodes().nth(vm).unwrap();
    let table = world.stack.second_stage(vm);
    (0..512).filter(|i| table.mapping(Frame::new(region * 512 + i).addr()).is_some()).count()
}

#[test]
fn frames_are_in_use_and_backed_as_they_were_found() {
    let world = world(ThpMode::Never, 60);
    let owners = |node: usize, of: Owner, region: u64| {
        let kernel = world.stack.kernel(world.stack.nodes().nth(node).unwrap());
        (0..512).filter(|i| kernel.owner(Frame::new(region * 512 + i)) == of).count()
    };
    // The first frame of a memory may be a page table, which is there before.
    assert_eq!((owners(0, Owner::Pinned, 1), owners(0, Owner::Movable, 1)), (7, 1));
    assert_eq!((owners(1, Owner::Pinned, 1), owners(1, Owner::Movable, 1)), (0, 300));
    assert_eq!((owners(2, Owner::Pinned, 0), owners(2, Owner::Movable, 0)), (5, 6));
    assert_eq!((owners(2, Owner::Pinned, 3), owners(2, Owner::Movable, 3)), (1, 0));
    assert_eq!(backed(&world, 1, 0), 512);
    assert!((400..512).contains(&backed(&world, 1, 1)));
    assert_eq!(backed(&world, 2, 1), 20);
    // The guest's process has a page table by now.
    assert!((100..110).contains(&backed(&world, 2, 0)));
    assert_eq!(backed(&world, 2, 4), 0);
}

/// Without that the kernel would take the lowest of what is free.
#[test]
fn memory_of_a_vm_is_where_it_was_found() {
    let free = FoundRegion { backed: 512, ..FoundRegion::default() };
    let l1 = vec![free, FoundRegion { pinned: 7, of_vm: 200, ..free }, free, free];
    let guest = vec![FoundRegion { backed: 150, ..free }];
    let world = World::found(&[vec![], l1, guest], Box::new(Linux(ThpMode::Never)));
    let kernel = world.stack.kernel(world.stack.nodes().nth(1).unwrap());
    let used = |region: u64| kernel.memory().allocated_in_region(Frame::new(region * 512)).count();
    // Tables are there, too.
    assert!((157..=207).contains(&used(1)), "{}", used(1));
    assert_eq!((used(2), used(3)), (0, 0));
    world.check();
}

/// Whatever the kernel's huge pages are like when it is asked for a region that has none.
#[test]
fn huge_pages_of_a_vm_are_those_that_were_found() {
    let free = FoundRegion { backed: 512, ..FoundRegion::default() };
    let of_vm = FoundRegion { of_vm: 512, ..free };
    let l1 = vec![free, of_vm, of_vm, free];
    // The one with base pages comes first.
    let guest = vec![free, FoundRegion { huge: true, ..free }];
    let world = World::found(&[vec![], l1, guest], Box::new(Linux(ThpMode::Always)));
    let guest = world.stack.nodes().nth(2).unwrap();
    let huge = |region: u64| {
        let mapping = world.stack.second_stage(guest).mapping(Frame::new(region * 512).addr());
        mapping.is_some_and(|mapping| mapping.size == PageSize::Huge)
    };
    assert_eq!([huge(0), huge(1)], [false, true]);
    assert_eq!([backed(&world, 2, 0), backed(&world, 2, 1)], [512, 512]);
    let l1 = world.stack.kernel(world.stack.nodes().nth(1).unwrap());
    assert!(l1.memory().is_free(Frame::new(3 * 512), 9), "what was free still is");
    world.check();
}

/// What the memory of a VM takes besides, such as tables, may be more than what is left for them.
#[test]
fn a_vm_that_takes_more_than_was_found_takes_what_is_free() {
    let free = FoundRegion { backed: 512, ..FoundRegion::default() };
    let l1 = vec![free, FoundRegion { of_vm: 10, ..free }, free];
    let guest = vec![free];
    let world = World::found(&[vec![], l1, guest], Box::new(Linux(ThpMode::Never)));
    assert_eq!(backed(&world, 2, 0), 512);
    world.check();
}

#[test]
fn what_was_found_counts_for_nothing() {
    let world = world(ThpMode::Never, 60);
    for node in world.stack.nodes() {
        assert_eq!(world.stack.kernel(node).counters().faults, 0);
        assert_eq!(world.stack.exits().of(node, ExitReason::SecondStageViolation), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn nothing_is_lost_whatever_was_found(
        huge: bool,
        of_vm in 0..=200u16,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let mut world = world(if huge { ThpMode::Always } else { ThpMode::Never }, of_vm);
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

#[test]
fn a_hypervisor_with_huge_pages_backs_whole_regions() {
    let world = world(ThpMode::Always, 0);
    assert_eq!(backed(&world, 2, 1), 512);
    assert_eq!(backed(&world, 1, 1), 512);
}
