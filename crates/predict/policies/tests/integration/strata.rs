//! The kernel in `linux/` as a policy: what it adds, and what each addition brings.

use crate::made;
use crate::world::{Op, PAGES, World};
use strata_addr::{Frame, PageSize, space::Upper};
use strata_paging::Region;
use strata_stack::{AlignmentCounts, ExitReason, NodeId, Owner, Policy};

fn policy(set: &[(&str, &str)]) -> Box<dyn Policy> {
    made("strata", set)
}

fn world_with(set: &[(&str, &str)]) -> World {
    World::new(3, 0.0, policy(set))
}

/// Somebody's page in every wholly free region of a kernel's memory.
fn exhaust(world: &mut World, node: NodeId, owner: Owner) {
    let memory = world.stack.kernel_mut(node).memory_mut();
    memory.release_all_regions();
    for region in (0..memory.frames() / 512).map(|i| Frame::new(i * 512)) {
        let frame = region + region.get() / 512 * 37 % 512;
        if memory.is_free(region, 9) {
            assert!(memory.alloc_at(frame, 0));
            memory.set_owner(frame, owner.to_bits());
        }
    }
}

/// All of the memory touched, the worker at work, and all of it touched again. L1 has no huge page to
/// give.
fn worked(world: &mut World) -> AlignmentCounts {
    let l1 = world.stack.nodes().nth(1).unwrap();
    exhaust(world, l1, Owner::Pinned);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    for _ in 0..10 {
        world.apply(&Op::Wake);
        (0..PAGES).for_each(|page| world.touch(0, page, false));
    }
    world.check();
    world.stack.alignment(world.guest)
}

#[test]
fn what_stock_guests_have_huge_is_in_a_row_though_l1_scatters_it() {
    let mut world = world_with(&[]);
    let found = worked(&mut world);
    assert!(found.guest_huge >= PAGES / 512 - 1, "{found:?}");
    assert_eq!((found.well_aligned, found.pseudo_huge), (found.guest_huge, found.guest_huge));
    world.finish();
}

/// Where the host has no free region one is made: by compaction, and if that is not enough by taking a huge page
/// of the VM apart.
#[test]
fn free_regions_are_made() {
    let pseudo_huge = |owner, compact: &str, take_apart: &str| {
        let mut world =
            world_with(&[("strata.compact", compact), ("strata.take_apart", take_apart)]);
        let host = world.stack.kernel_mut(NodeId::HOST).memory_mut();
        let kept: Vec<_> = (0..7).map(|_| host.alloc(9).unwrap()).collect();
        exhaust(&mut world, NodeId::HOST, owner);
        let host = world.stack.kernel_mut(NodeId::HOST).memory_mut();
        kept.into_iter().for_each(|region| host.free(region, 9));
        let found = worked(&mut world);
        world.finish();
        found.pseudo_huge
    };
    let without = pseudo_huge(Owner::Pinned, "false", "false");
    assert!(without < PAGES / 512 / 2, "{without}");
    // What cannot be moved keeps its region.
    assert_eq!(pseudo_huge(Owner::Pinned, "true", "false"), without);
    assert!(pseudo_huge(Owner::Pinned, "false", "true") > without);
    let without = pseudo_huge(Owner::Movable, "false", "false");
    assert!(pseudo_huge(Owner::Movable, "true", "false") > without);
}

/// The page of a fault that was handed on is in the shadow table when the guest is entered next: one fault, not
/// two.
#[test]
fn filling_ahead_saves_the_second_fault() {
    let violations = |fill_ahead| {
        let mut world = world_with(&[("strata.fill_ahead", fill_ahead)]);
        let l1 = world.stack.nodes().nth(1).unwrap();
        exhaust(&mut world, l1, Owner::Pinned);
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        let of_guest = world.stack.exits().of(world.guest, ExitReason::SecondStageViolation);
        world.finish();
        of_guest
    };
    let (with, without) = (violations("true"), violations("false"));
    assert!(with <= PAGES + 700 && without >= 2 * PAGES - 1024, "{with}, {without}");
}

/// L1 writes a leaf table 512 times to fill it. Where it is protected at each entry, each write exits.
#[test]
fn a_table_that_l1_fills_stays_writable() {
    let writes = |keep_unsync| {
        let mut world = World::on_svm(3, policy(&[("strata.keep_unsync", keep_unsync)]));
        let l1 = world.stack.nodes().nth(1).unwrap();
        exhaust(&mut world, l1, Owner::Pinned);
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        world.check();
        let of_l1 = world.stack.exits().of(l1, ExitReason::SecondStageWrite);
        world.finish();
        of_l1
    };
    let (with, without) = (writes("true"), writes("false"));
    assert!(with <= PAGES / 16 && without >= PAGES - 1024, "{with}, {without}");
}

/// Where L1 enters its guest after something else than a fault of it, such as an interrupt, L0 protects the table that it
/// left writable.
#[test]
fn interrupts_protect_the_table_that_l1_fills() {
    let writes = |interrupted: f64| {
        let mut world = World::interrupted(3, interrupted, policy(&[]));
        let l1 = world.stack.nodes().nth(1).unwrap();
        exhaust(&mut world, l1, Owner::Pinned);
        let before = world.stack.exits().of(world.guest, ExitReason::HandedOn);
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        world.check();
        let exits = world.stack.exits();
        let handed_on = exits.of(world.guest, ExitReason::HandedOn) - before;
        let of_l1 = exits.of(l1, ExitReason::SecondStageWrite);
        world.finish();
        (handed_on, of_l1)
    };
    let (handed_on, without) = writes(0.0);
    let (_, with) = writes(0.125);
    let more = (with - without) as f64 / handed_on as f64;
    assert!((0.11..=0.125).contains(&more), "{more}");
}

/// Huge pages of L1's memory are split for what L0 moves. When L1 gives its guest more of them, a fault of its own brings
/// 16 pages in place of one.
#[test]
fn a_fault_on_a_split_huge_page_maps_what_is_around() {
    let violations = |map_around| {
        let mut world = world_with(&[("strata.map_around", map_around)]);
        let l1 = world.stack.nodes().nth(1).unwrap();
        exhaust(&mut world, l1, Owner::Pinned);
        (0..PAGES / 2).for_each(|page| world.touch(0, page, true));
        (0..10).for_each(|_| world.apply(&Op::Wake));
        let of_l1 = |world: &World| world.stack.exits().of(l1, ExitReason::SecondStageViolation);
        let before = of_l1(&world);
        (PAGES / 2..PAGES).for_each(|page| world.touch(0, page, true));
        world.check();
        let more = of_l1(&world) - before;
        world.finish();
        more
    };
    let (with, without) = (violations("true"), violations("false"));
    assert!(with * 4 < without, "{with}, {without}");
}

/// A region that is booked fills up in its row: a page goes there when L1 maps it, with no other visit.
#[test]
fn pages_of_a_booked_region_go_there_one_by_one() {
    let in_a_row = |one_by_one| {
        let mut world = world_with(&[("strata.one_by_one", one_by_one)]);
        let l1 = world.stack.nodes().nth(1).unwrap();
        exhaust(&mut world, l1, Owner::Pinned);
        let guest = world.guest;
        // The guest has no huge pages either, so that its memory fills up page by page.
        exhaust(&mut world, guest, Owner::Pinned);
        // The region of the guest's memory that a page of its program is in.
        let frame_of = |world: &World, page: u64| -> Frame<Upper> {
            let (_, space) = world.stack.kernel(guest).spaces().next().unwrap();
            let gva: Frame<Upper> = Frame::new(0x4000_5000 / 4096 + page);
            space.table().mapping(gva.addr()).unwrap().frame.cross()
        };
        let mut next = 0;
        loop {
            world.touch(0, next, true);
            let region = frame_of(&world, next).floor(PageSize::Huge);
            next += 1;
            let mapped = world.stack.second_stage(guest).region(region);
            if matches!(mapped, Region::Base { present: 470, .. }) {
                break;
            }
        }
        (0..4).for_each(|_| world.apply(&Op::Wake));
        let rows = (next..next + 30).filter(|page| {
            world.touch(0, *page, true);
            let at = frame_of(&world, *page);
            let frame = world.stack.compose(guest, at).unwrap().frame;
            frame.index_in(PageSize::Huge) == at.index_in(PageSize::Huge)
        });
        let rows = rows.count();
        world.check();
        world.finish();
        rows
    };
    assert_eq!(in_a_row("true"), 30);
    assert!(in_a_row("false") < 15);
}
