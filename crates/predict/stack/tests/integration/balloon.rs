//! Balloons: the host gets frames of guests, and guests get pages back, wherever the guest is in the tree.

use crate::world::{Op, PAGES, World};
use strata_addr::Frame;
use strata_stack::{AlignAreas, KernelSettings, NodeId, Owner, Policy, Position, ThpMode};

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

fn free(world: &World, node: NodeId) -> u64 {
    world.stack.kernel(node).memory().free_frames()
}

/// Pages that the guest has and that real memory is behind: a process touched them and ended.
fn use_and_free(world: &mut World) {
    world.apply(&Op::Map { pid: 1, page: 0, pages: PAGES, fixed: false });
    world.apply(&Op::Fork { parent: 0 });
    (0..PAGES / 512).for_each(|region| world.apply(&Op::Sweep { pid: 2, region }));
    world.apply(&Op::Exit { pid: 2 });
}

#[test]
fn frames_of_free_pages_go_back_to_the_host_and_to_nobody_else() {
    for (layers, thp) in
        [(2, ThpMode::Never), (3, ThpMode::Never), (4, ThpMode::Never), (3, ThpMode::Always)]
    {
        let mut world = world(layers, thp);
        use_and_free(&mut world);
        let path: Vec<_> = world.stack.path_down(world.guest).collect();
        let before: Vec<_> = path.iter().map(|node| free(&world, *node)).collect();
        assert_eq!(world.balloon(700), 700);
        world.check();
        let guest = *world.stack.kernel(world.guest).counters();
        let host = *world.stack.kernel(NodeId::HOST).counters();
        assert_eq!((guest.balloon_taken, guest.balloon_exits), (700, 3), "256 pages an exit");
        assert!(host.balloon_freed > 600, "{layers} layers: {host:?}");
        for (node, before) in path.iter().zip(before) {
            let now = free(&world, *node);
            match *node {
                node if node == world.guest => assert_eq!(now, before - 700),
                // Splitting huge pages takes a page table or two.
                NodeId::HOST => assert!(now + 4 >= before + host.balloon_freed, "{now} {before}"),
                _ => assert_eq!(now, before, "guest hypervisors know of nothing"),
            }
        }
        let balloon =
            |i: &u64| world.stack.kernel(world.guest).owner(Frame::new(*i)) == Owner::Balloon;
        let frames = world.stack.kernel(world.guest).memory().frames();
        let held: Vec<_> = (0..frames).filter(balloon).collect();
        assert_eq!(held.len() as u64, world.stack.ballooned(world.guest));
        let backed = |i: &&u64| world.stack.bottom_frame(world.guest, Frame::new(**i)).is_some();
        assert_eq!(
            held.iter().filter(backed).count(),
            0,
            "nothing is behind a page of the balloon"
        );
        // Given back, pages are used again and are backed again.
        assert_eq!(world.balloon(-10_000), 700);
        assert_eq!(world.stack.ballooned(world.guest), 0);
        (0..PAGES).for_each(|page| world.touch(1, page, true));
        world.finish();
    }
}

#[test]
fn what_programs_have_keeps_its_contents() {
    for layers in 2..=4 {
        let mut world = world(layers, ThpMode::Always);
        (0..PAGES).step_by(3).for_each(|page| world.touch(0, page, true));
        for _ in 0..3 {
            world.balloon(2000);
            (0..PAGES).step_by(2).for_each(|page| world.touch(0, page, true));
            world.apply(&Op::Wake);
            world.balloon(-1500);
            world.check();
        }
        world.finish();
    }
}

#[test]
fn a_guest_is_left_what_its_kernel_keeps_for_itself() {
    let mut world = world(3, ThpMode::Never);
    let frames = world.stack.kernel(world.guest).memory().frames();
    let taken = world.balloon(i64::MAX);
    let left = free(&world, world.guest);
    assert!(taken > 0 && left > 0 && left < frames / 40, "{left} of {frames} are left");
    assert_eq!(world.balloon(1), 0);
    // It can still run, if only little.
    world.touch(0, 1, true);
    world.finish();
}

#[test]
fn every_guest_of_a_tree_has_its_own() {
    let kernels = [(None, 200), (Some(0), 40), (Some(0), 90), (Some(2), 32), (Some(2), 32)];
    let mut world = World::tree(&kernels, Box::new(Linux(ThpMode::Never)));
    for guest in 0..3 {
        world.act_in(guest);
        (0..500).for_each(|page| world.touch(0, page, true));
        assert_eq!(world.balloon(100 * (guest as i64 + 1)), 100 * (guest as u64 + 1));
        world.check();
    }
    let guests: Vec<_> = world.stack.guests().collect();
    let held: Vec<_> = guests.iter().map(|guest| world.stack.ballooned(*guest)).collect();
    assert_eq!(held, [100, 200, 300]);
    world.end_vm(guests[1]);
    world.finish();
}

#[test]
fn who_is_no_guest_has_no_balloon() {
    let mut native = world(1, ThpMode::Never);
    assert_eq!(native.balloon(10), 0);
    native.finish();
    let mut nested = world(3, ThpMode::Never);
    let hypervisor = nested.stack.below(nested.guest).unwrap();
    nested.guest = hypervisor;
    assert_eq!(nested.balloon(10), 0);
}

#[test]
fn a_balloon_is_filled_when_the_guest_starts_and_emptied_and_filled_in_turn() {
    let mut policy = Linux(ThpMode::Never);
    let mut world = world(3, ThpMode::Never);
    let (guest, vm) = (world.guest, world.stack.vms_of_host().next().unwrap());
    assert_eq!(world.stack.next_wake(&policy, vm), f64::INFINITY, "without a size it has none");
    world.stack.set_balloon_size(guest, 100 << 12);
    assert_eq!(world.stack.next_wake(&policy, vm), 0.0);
    // Every second, `balloon.period`; between that nothing happens.
    for (now, pages, next) in
        [(0.0, 100, 1.0), (0.9, 100, 1.0), (1.0, 0, 2.0), (1.9, 0, 2.0), (2.0, 100, 3.0)]
    {
        world.stack.wake(&mut policy, vm, now, world.feedback).unwrap();
        assert_eq!(world.stack.ballooned(guest), pages, "at {now} s");
        assert_eq!(world.stack.next_wake(&policy, vm), next, "at {now} s");
    }
    world.finish();
}
