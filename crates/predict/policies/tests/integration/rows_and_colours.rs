//! xGemini and xPlace together: regions that can be whole are rows, the pages of the others have their colours.

use crate::made;
use crate::world::machines::colours;
use crate::world::{Op, PAGES, World, op};
use proptest::prelude::*;
use strata_addr::Frame;
use strata_colours::Colour;
use strata_stack::{Feedback, NodeId, Owner};

fn world_with(layers: usize, fragmentation: f64, set: &[(&str, &str)]) -> World {
    World::new(layers, fragmentation, made("xgemini+xplace", set))
}

fn touch_all(world: &mut World) {
    (0..PAGES).for_each(|page| world.touch(0, page, true));
}

/// Somebody's page that cannot move in every wholly free region of the host's memory but some.
fn exhaust_host(world: &mut World, but: usize) {
    let host = world.stack.nodes().next().unwrap();
    let memory = world.stack.kernel_mut(host).memory_mut();
    memory.release_all_regions();
    let regions: Vec<_> = (0..memory.frames() / 512).map(|i| Frame::new(i * 512)).collect();
    let whole: Vec<_> = regions.into_iter().filter(|region| memory.is_free(*region, 9)).collect();
    assert!(whole.len() > but);
    for (i, region) in (0..).zip(whole.into_iter().skip(but)) {
        // Anywhere in the region, and of any colour.
        let frame = region + (i * 37 + 11) % 512;
        assert!(memory.alloc_at(frame, 0));
        memory.set_owner(frame, Owner::Pinned.to_bits());
    }
}

/// The guest's regions: 2 MiB pages of its own, and what is left at the ends.
const WHOLE: u64 = PAGES / 512 - 1;

/// A region that the VM has whole from its start, for the page tables of its kernel.
const BEFORE: u64 = 1;

#[test]
fn in_clean_memory_everything_whole_is_a_row() {
    for layers in [2, 3, 4] {
        for l1_thp in ["true", "false"] {
            let mut world = world_with(layers, 0.0, &[("xgemini.l1_thp", l1_thp)]);
            touch_all(&mut world);
            (0..5).for_each(|_| world.apply(&Op::Wake));
            touch_all(&mut world);
            let (counts, trade) = (world.placement(), world.trade());
            let shown = format!("{layers} layers, L1 THP {l1_thp}: {counts:?} {trade:?}");
            assert_eq!(counts.violations, 0, "{shown}");
            assert!(trade.rows >= WHOLE, "{shown}");
            world.check();
            world.finish();
        }
    }
}

#[test]
fn where_the_host_has_no_whole_region_everything_is_coloured() {
    for layers in [2, 3] {
        let mut world = world_with(layers, 0.0, &[("xgemini.l1_thp", "false")]);
        exhaust_host(&mut world, 0);
        touch_all(&mut world);
        let counts = world.placement();
        assert_eq!((counts.violations, counts.colour_was_out), (0, 0), "{layers}: {counts:?}");
        (0..5).for_each(|_| world.apply(&Op::Wake));
        touch_all(&mut world);
        let (counts, trade) = (world.placement(), world.trade());
        let shown = format!("{layers} layers: {counts:?} {trade:?}");
        assert_eq!((counts.violations, counts.colour_was_out), (0, 0), "{shown}");
        assert!(trade.rows <= BEFORE && trade.coloured + trade.filling >= WHOLE, "{shown}");
        world.check();
        world.finish();
    }
}

#[test]
fn where_the_host_has_some_whole_regions_these_are_rows_and_the_rest_is_coloured() {
    for l1_thp in ["true", "false"] {
        let mut world = world_with(3, 0.0, &[("xgemini.l1_thp", l1_thp)]);
        exhaust_host(&mut world, 4);
        touch_all(&mut world);
        (0..5).for_each(|_| world.apply(&Op::Wake));
        touch_all(&mut world);
        let (counts, trade) = (world.placement(), world.trade());
        let shown = format!("L1 THP {l1_thp}: {counts:?} {trade:?}");
        assert_eq!((counts.violations, counts.colour_was_out), (0, 0), "{shown}");
        assert!((2..=4 + BEFORE).contains(&trade.rows) && trade.coloured > 0, "{shown}");
        world.check();
        world.finish();
    }
}

/// Regions of which all pages lie elsewhere become rows where that pays: those in use, when walks take time.
#[test]
fn what_is_used_becomes_a_row_and_what_is_not_stays_as_it_is() {
    let mut world = world_with(3, 0.0, &[("xgemini.l1_thp", "false")]);
    exhaust_host(&mut world, 12);
    let host = world.stack.nodes().next().unwrap();
    let memory = world.stack.kernel_mut(host).memory_mut();
    let taken: Vec<_> = std::iter::from_fn(|| memory.alloc(9)).collect();
    assert!(taken.len() >= 12);
    touch_all(&mut world);
    // Nothing is used for a while, then 1024 pages are: the area does not begin with a region.
    (0..3).for_each(|_| world.apply(&Op::Wake));
    let walks = 1e7;
    world.feedback = Feedback { walk_cycles: walks, ..world.feedback };
    let use_pages = |world: &mut World, pages: std::ops::Range<u64>| {
        for _ in 0..3 {
            pages.clone().for_each(|page| world.touch(0, page, false));
            world.apply(&Op::Wake);
        }
    };
    use_pages(&mut world, 1024..2048);
    let before = world.trade();
    assert!(before.rows <= BEFORE && before.coloured > 0, "{before:?}");
    // There is room again.
    let memory = world.stack.kernel_mut(host).memory_mut();
    taken.into_iter().for_each(|region| memory.free(region, 9));
    use_pages(&mut world, 1024..2048);
    let some = world.trade();
    assert_eq!(some.rows - before.rows, 3, "{before:?} {some:?}");
    assert!(some.row_gain > 0 && some.coloured >= WHOLE - 3, "{some:?}");
    // At most all walks for as long as they are expected to go on.
    assert!((some.row_gain as f64) < 10.0 * walks, "{some:?}");
    assert_eq!(world.placement().violations, 0);
    use_pages(&mut world, 0..PAGES);
    let all = world.trade();
    assert!(all.rows >= WHOLE && all.row_gain > some.row_gain, "{some:?} {all:?}");
    assert_eq!(world.placement().violations, 0);
    world.check();
    world.finish();
}

/// Where memory takes time and walks do not, a row would save no more than colours, and all pages would have to
/// move to it: those in wrong colours are replaced, and no others.
#[test]
fn where_only_memory_takes_time_colours_are_mended_and_no_rows_made() {
    let mut world = world_with(3, 0.0, &[("xgemini.l1_thp", "false")]);
    exhaust_host(&mut world, 12);
    let memory = world.stack.kernel_mut(NodeId::HOST).memory_mut();
    let regions: Vec<_> = std::iter::from_fn(|| memory.alloc(9)).collect();
    let frames: Vec<_> = std::iter::from_fn(|| memory.take_coloured(Colour::new(5))).collect();
    let cycles = 1e9;
    world.feedback = Feedback { memory_cycles: cycles, ..world.feedback };
    let use_all = |world: &mut World| {
        for _ in 0..3 {
            touch_all(world);
            world.apply(&Op::Wake);
        }
        (world.placement().violations, world.trade())
    };
    let (wrong, trade) = use_all(&mut world);
    assert!(wrong > 0 && trade.rows <= BEFORE && trade.row_gain == 0, "{wrong}: {trade:?}");
    // At most the part of all time in memory, for as long as it is expected to go on, that has the colour.
    let most = 10.0 * cycles / f64::from(colours().count());
    assert!((1..=most as u64).contains(&trade.colour_gain), "{wrong}: {trade:?}");
    // There is room for rows, and for the colour.
    let memory = world.stack.kernel_mut(NodeId::HOST).memory_mut();
    regions.into_iter().for_each(|region| memory.free(region, 9));
    frames.into_iter().for_each(|frame| memory.free(frame, 0));
    let (wrong, trade) = use_all(&mut world);
    assert!(trade.rows <= BEFORE && trade.coloured >= WHOLE, "{trade:?}");
    assert_eq!((wrong, trade.colour_gain), (0, 0), "nothing is left to mend");
    world.check();
    world.finish();
}

/// ksmd keeps a frame for others that a page's row would have it in: its copy has the page's colour all the same.
#[test]
fn a_page_that_was_merged_is_copied_to_its_colour() {
    let mut world = world_with(3, 0.0, &[("xgemini.l1_thp", "false")]);
    for op in [
        Op::Alike { pid: 0, page: 1022, pages: 187, content: 0 },
        Op::Ksm { pages: 100_000 },
        Op::DontNeed { pid: 0, page: 0, pages: 1024 },
        // The guest makes a huge page of the rest, and clears what it freed.
        Op::Wake,
    ] {
        world.apply(&op);
        assert_eq!(world.placement().violations, 0, "after {op:?}");
    }
    world.finish();
}

/// A page has another colour while its own is out, and its own once there are frames of it again.
#[test]
fn a_colour_that_was_out_is_asked_for_again() {
    let mut world = world_with(3, 0.0, &[("xgemini.l1_thp", "false")]);
    exhaust_host(&mut world, 0);
    let host = world.stack.nodes().next().unwrap();
    let memory = world.stack.kernel_mut(host).memory_mut();
    let taken: Vec<_> = std::iter::from_fn(|| memory.take_coloured(Colour::new(5))).collect();
    assert!(taken.len() > 100);
    // So few that the guest's kernel makes no huge page of them.
    (0..200).for_each(|page| world.touch(0, page, true));
    // Rounds find none either.
    (0..5).for_each(|_| world.apply(&Op::Wake));
    assert!(world.placement().violations > 0);
    let memory = world.stack.kernel_mut(host).memory_mut();
    taken.into_iter().for_each(|frame| memory.free(frame, 0));
    (0..2).for_each(|_| world.apply(&Op::Wake));
    assert_eq!(world.placement().violations, 0, "{:?}", world.placement());
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever happens, background work leaves no page in another colour than its own, but those for which
    /// every round asks anew because the host has no frame of it; and where guest hypervisors have no huge
    /// pages there is never one.
    #[test]
    fn leftovers_have_their_colours(
        layers in 2usize..=4,
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        l1_thp: bool,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let mut world =
            world_with(layers, fragmentation, &[("xgemini.l1_thp", &*l1_thp.to_string())]);
        let mut huge = l1_thp;
        for op in &ops {
            huge |= matches!(op, Op::Collapse { .. });
            world.apply(op);
            let counts = world.placement();
            let may_be = huge || counts.colour_was_out > 0;
            prop_assert!(may_be || counts.violations == 0, "{:?} after {:?}", counts, op);
            world.check();
        }
        // khugepaged works after the policy: what it moves is looked at in the next round.
        (0..2).for_each(|_| world.apply(&Op::Wake));
        let before = world.placement();
        world.apply(&Op::Wake);
        let counts = world.placement();
        let out = counts.colour_was_out - before.colour_was_out;
        prop_assert!(counts.violations <= out, "{:?} after {:?}", counts, before);
        world.finish();
    }
}
