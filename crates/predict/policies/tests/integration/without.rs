//! Mechanisms that can be left out, to see what each brings: left out, it does nothing, and the others do what they
//! did.

use crate::made;
use crate::world::{Op, PAGES, World};
use strata_stack::{AlignmentCounts, NodeId};

/// A nested VM under xGemini whose guest hypervisor has base pages, with parameters set.
fn world_with(set: &[(&str, &str)]) -> World {
    let set = [&[("xgemini.l1_thp", "false")], set].concat();
    World::new(3, 0.0, made("xgemini", &set))
}

/// What there is when all memory is touched, and when the daemons have run since.
fn before_and_after(set: &[(&str, &str)]) -> [AlignmentCounts; 2] {
    let mut world = world_with(set);
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    let before = world.stack.alignment(world.guest);
    for _ in 0..8 {
        world.apply(&Op::Wake);
        (0..PAGES).for_each(|page| world.touch(0, page, false));
    }
    world.check();
    let after = world.stack.alignment(world.guest);
    world.finish();
    [before, after]
}

#[test]
fn all_together_align_everything_at_once() {
    for found in before_and_after(&[]) {
        assert!(found.guest_huge >= PAGES / 512, "{found:?}");
        assert_eq!((found.pseudo_huge, found.well_aligned), (found.guest_huge, found.guest_huge));
    }
}

/// NEMA's host part puts pages in rows as they come; NWHPC makes up for it later.
#[test]
fn without_nemas_host_part_rows_are_made_later() {
    let [before, after] = before_and_after(&[("xgemini.nema_host", "false")]);
    assert!(before.guest_huge >= PAGES / 512 && before.pseudo_huge == 0, "{before:?}");
    assert_eq!(after.pseudo_huge, after.guest_huge, "{after:?}");
}

#[test]
fn without_nemas_host_part_and_nwhpc_there_are_no_rows() {
    let without = [("xgemini.nema_host", "false"), ("xgemini.nwhpc", "false")];
    for found in before_and_after(&without) {
        assert_eq!(found.pseudo_huge, 0, "{found:?}");
    }
}

/// What is huge for the guest, but of base pages for its hypervisor, is then not huge for hardware.
#[test]
fn without_pseudo_huge_pages_nothing_is_aligned_over_base_pages_of_the_guest_hypervisor() {
    for found in before_and_after(&[("xgemini.pseudo_huge", "false")]) {
        assert!(found.guest_huge >= PAGES / 512, "{found:?}");
        assert_eq!((found.pseudo_huge, found.well_aligned), (0, 0), "{found:?}");
    }
}

/// But what its hypervisor maps huge as well is.
#[test]
fn without_pseudo_huge_pages_what_is_huge_everywhere_is_aligned() {
    let set = [("xgemini.pseudo_huge", "false"), ("xgemini.l1_thp", "true")];
    let [_, after] = before_and_after(&set);
    assert!(after.well_aligned > 0, "{after:?}");
}

/// The guest's pages lie where Linux puts them: no region fills up in place.
#[test]
fn without_nemas_guest_part_the_guest_has_no_huge_pages_at_first() {
    let [before, _] = before_and_after(&[("ema.enabled", "false")]);
    assert_eq!(before.guest_huge, 0, "{before:?}");
}

/// Nothing is set aside for areas: regions that are free are used all the same, but page tables get into some before
/// they are full.
#[test]
fn without_booking_nothing_is_booked() {
    let booked = |set: &[(&str, &str)]| {
        let mut world = world_with(set);
        world.touch(0, 1024, true);
        let nodes = [NodeId::HOST, world.guest];
        let booked = nodes.map(|node| world.stack.kernel(node).memory().reserved_regions());
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        let found = world.stack.alignment(world.guest);
        world.check();
        world.finish();
        (booked, found.guest_huge)
    };
    let (with, huge) = booked(&[]);
    assert!(with.iter().all(|regions| *regions > 0), "{with:?}");
    let (without, huge_without) = booked(&[("booking.enabled", "false")]);
    assert_eq!(without, [0, 0]);
    assert!((1..huge).contains(&huge_without), "{huge_without} of {huge}");
}
