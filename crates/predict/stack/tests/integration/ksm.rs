//! ksmd: equal pages of VMs share a frame until they are stored to, wherever the guest is in the tree.

use crate::world::{Op, World};
use strata_stack::{
    AlignAreas, Feedback, KernelCounters, KernelSettings, NodeId, Policy, Position, ThpMode,
};

struct Linux(ThpMode);

impl Policy for Linux {
    fn settings(&mut self, _: Position) -> KernelSettings {
        let align_areas = AlignAreas::Never;
        KernelSettings { thp: self.0, align_areas, fragmented: true, coloured: false }
    }
}

fn world(layers: usize, thp: ThpMode) -> World {
    World::new(layers, 0.0, Box::new(Linux(thp)))
}

fn host(world: &World) -> KernelCounters {
    *world.stack.kernel(NodeId::HOST).counters()
}

fn free(world: &World) -> u64 {
    world.stack.kernel(NodeId::HOST).memory().free_frames()
}

/// Pages that the host maps for its VMs.
fn mapped(world: &World) -> u64 {
    let spaces = world.stack.kernel(NodeId::HOST).spaces();
    let pages = |table: &strata_stack::PageTable| -> u64 {
        table.mapped(table.everything()).map(|(_, mapping)| mapping.size.base_pages()).sum()
    };
    spaces.map(|(_, space)| pages(space.table())).sum()
}

fn alike(pages: u64, content: u64) -> Op {
    Op::Alike { pid: 0, page: 0, pages, content }
}

#[test]
fn equal_pages_share_a_frame_until_they_are_stored_to() {
    for layers in 2..=4 {
        let mut world = world(layers, ThpMode::Never);
        world.apply(&alike(600, 1));
        (600..900).for_each(|page| world.touch(0, page, true));
        let before = free(&world);
        world.ksm(u64::MAX);
        world.check();
        assert_eq!(host(&world).merged_pages, 599, "{layers} layers");
        assert_eq!(free(&world), before + 599);
        // Reading keeps them together; a store parts one from the others, and the rest is as it was.
        (0..900).for_each(|page| world.touch(0, page, false));
        assert_eq!(free(&world), before + 599);
        (0..10).for_each(|page| world.touch(0, page, true));
        world.check();
        assert_eq!((host(&world).unmerged_pages, free(&world)), (10, before + 589));
        // What was parted may be merged again if it is equal again.
        world.apply(&alike(10, 1));
        world.ksm(u64::MAX);
        assert_eq!((host(&world).merged_pages, free(&world)), (609, before + 599));
        // The last one needs no copy.
        let copied = host(&world).copied_pages;
        (0..600).for_each(|page| world.touch(0, page, true));
        assert_eq!(host(&world).copied_pages, copied + 599);
        assert_eq!(free(&world), before);
        world.finish();
    }
}

/// Hardware stores to the guest's tables, its kernel to all that it zeroes and copies: those writes part
/// pages as well.
#[test]
fn a_kernel_that_writes_a_merged_page_gets_its_own() {
    for layers in 2..=4 {
        let mut world = world(layers, ThpMode::Never);
        world.apply(&alike(300, 1));
        world.ksm(u64::MAX);
        world.apply(&Op::DontNeed { pid: 0, page: 0, pages: 300 });
        world.check();
        // The same pages come back, zeroed.
        (0..400).for_each(|page| world.touch(0, page, false));
        assert!(host(&world).unmerged_pages > 250, "{layers} layers");
        world.finish();
    }
}

#[test]
fn huge_pages_are_split_where_a_page_of_them_is_merged() {
    for layers in 2..=3 {
        let mut world = world(layers, ThpMode::Always);
        (0..2048).for_each(|page| world.touch(0, page, true));
        let guest = world.guest;
        let huge = world.stack.alignment(guest).host_huge;
        assert!(huge >= 2);
        // Some of one huge page, and one of another.
        world.apply(&alike(3, 1));
        world.apply(&Op::Alike { pid: 0, page: 2000, pages: 1, content: 1 });
        world.ksm(u64::MAX);
        world.check();
        // Two that the program stored the same to, and what of its huge pages it never touched.
        assert!(host(&world).merged_pages >= 3);
        assert!(world.stack.alignment(guest).host_huge < huge);
        world.finish();
    }
}

#[test]
fn what_changes_between_two_looks_is_left_alone() {
    let mut world = world(3, ThpMode::Never);
    for round in 1..6 {
        world.apply(&alike(200, round));
        let all = mapped(&world);
        world.ksm(all);
    }
    assert_eq!(host(&world).merged_pages, 0);
    let all = mapped(&world);
    world.ksm(all);
    assert_eq!(host(&world).merged_pages, 199);
    world.finish();
}

#[test]
fn pages_of_all_vms_are_merged_and_outlive_those_that_end() {
    let kernels = [(None, 200), (Some(0), 40), (Some(0), 90), (Some(2), 32), (Some(2), 32)];
    let mut world = World::tree(&kernels, Box::new(Linux(ThpMode::Never)));
    for guest in 0..3 {
        world.act_in(guest);
        world.apply(&alike(100, 2));
    }
    world.ksm(u64::MAX);
    world.check();
    assert_eq!(host(&world).merged_pages, 299);
    let first = world.stack.guests().next().unwrap();
    world.end_vm(first);
    for guest in 0..2 {
        world.act_in(guest);
        (0..100).for_each(|page| world.touch(0, page, page % 2 == 0));
        world.check();
    }
    world.ksm(u64::MAX);
    world.finish();
}

#[test]
fn ksmd_sleeps_unless_it_is_told_to_run() {
    let mut world = world(3, ThpMode::Never);
    world.apply(&alike(100, 1));
    (0..100).for_each(|_| world.apply(&Op::Wake));
    assert_eq!(host(&world).merged_pages, 0);
    let vm = world.stack.vms_of_host().next().unwrap();
    let mut policy = Linux(ThpMode::Never);
    assert_eq!(world.stack.next_wake(&policy, vm), f64::INFINITY);
    world.stack.wake(&mut policy, vm, 1e6, Feedback::default()).unwrap();
    assert_eq!(host(&world).merged_pages, 0);
}
