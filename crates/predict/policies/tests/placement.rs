//! CoPlace and xPlace: where the colours of a guest's memory survive the layers below.

#[path = "../../stack/tests/world/mod.rs"]
mod world;

use proptest::prelude::*;
use strata_addr::Frame;
use strata_colours::Colour;
use strata_params::Parameters;
use strata_policies::{PolicyParameters, find};
use strata_stack::{NodeId, Owner};
use world::{Op, PAGES, World, colours, op};

fn world_with(policy: &str, layers: usize, fragmentation: f64, set: &[(&str, &str)]) -> World {
    let mut parameters = PolicyParameters::default();
    set.iter().for_each(|(name, value)| parameters.set(name, value).unwrap());
    World::new(layers, fragmentation, (find(policy).unwrap().make)(&parameters))
}

fn touch_all(world: &mut World) {
    (0..PAGES).for_each(|page| world.touch(0, page, true));
}

/// Pages of the guest's memory that are backed, and those of another colour than their own: what the
/// policy says where table t is the identity, worked out anew.
fn identity(world: &World) -> (u64, u64) {
    let second = world.stack.second_stage(world.guest);
    let (mut backed, mut wrong) = (0, 0);
    for (first, mapping) in second.mapped(second.everything()) {
        for page in (0..mapping.size.base_pages()).map(|i| first + i) {
            if let Some(behind) = world.stack.compose(world.guest, page) {
                let (real, own) = (colours().of(behind.frame).index(), colours().of(page).index());
                backed += 1;
                wrong += u64::from(real != own);
            }
        }
    }
    (backed, wrong)
}

/// What the host does to its own huge pages and frames is no part of these policies.
fn is_of_host(op: &Op) -> bool {
    matches!(op, Op::Collapse { above_host: 0, .. } | Op::Migrate { above_host: 0, .. })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// c.h' = t.c' for every backed page after every operation: touches, unmapping, copies on write, and
    /// guest hypervisors that migrate and collapse pages.
    #[test]
    fn xplace_keeps_every_colour_at_every_moment(
        layers in 2usize..=4,
        fragmentation in prop_oneof![Just(0.0), Just(0.5)],
        seed in prop_oneof![Just(0u64), 1..100u64],
        copy: bool,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let set = [("colours.table_seed", &*seed.to_string()), ("xplace.copy", &*copy.to_string())];
        let mut world = world_with("xplace", layers, fragmentation, &set);
        for op in ops.iter().filter(|op| !is_of_host(op)) {
            world.apply(op);
            let counts = world.placement();
            prop_assert_eq!(counts.violations, 0, "{:?} after {:?}", counts, op);
            if seed == 0 {
                prop_assert_eq!(identity(&world), (counts.backed, 0));
            }
            world.check();
        }
        world.finish();
    }

    #[test]
    fn coplace_keeps_every_colour_of_a_vm_on_the_host(
        fragmentation in prop_oneof![Just(0.0), Just(0.5)],
        seed in 0..100u64,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let set = [("colours.table_seed", &*seed.to_string())];
        let mut world = world_with("coplace", 2, fragmentation, &set);
        for op in ops.iter().filter(|op| !is_of_host(op)) {
            world.apply(op);
            let counts = world.placement();
            prop_assert_eq!(counts.violations, 0, "{:?} after {:?}", counts, op);
            if seed == 0 {
                prop_assert_eq!(identity(&world), (counts.backed, 0));
            }
        }
        world.check();
        world.finish();
    }
}

#[test]
fn coplace_loses_the_colours_of_a_nested_guest_and_xplace_does_not() {
    for fragmentation in [0.0, 0.5] {
        let lost = |policy| {
            let mut world = world_with(policy, 3, fragmentation, &[]);
            touch_all(&mut world);
            let counts = world.placement();
            assert_eq!(identity(&world), (counts.backed, counts.violations));
            assert!(counts.backed >= PAGES);
            counts
        };
        let (coplace, xplace) = (lost("coplace"), lost("xplace"));
        assert!(coplace.violations > coplace.backed / 2, "{coplace:?}");
        assert_eq!((coplace.checks, coplace.replaced), (0, 0));
        assert_eq!(xplace.violations, 0);
        assert!(xplace.checks >= xplace.backed && xplace.replaced > 0, "{xplace:?}");
    }
}

/// Balloon pages of the guest by their virtual colour.
fn balloon_by_colour(world: &World) -> Vec<u64> {
    let kernel = world.stack.kernel(world.guest);
    let mut counts = vec![0; colours().count() as usize];
    for frame in (0..kernel.memory().frames()).map(Frame::new) {
        if kernel.owner(frame) == Owner::Balloon {
            counts[colours().of(frame).index() as usize] += 1;
        }
    }
    counts
}

#[test]
fn balloons_take_and_give_back_colour_by_colour() {
    for (policy, layers) in [("coplace", 2), ("xplace", 2), ("xplace", 3), ("xplace", 4)] {
        let mut world = world_with(policy, layers, 0.0, &[("colours.table_seed", "3")]);
        touch_all(&mut world);
        for (pages, held) in
            [(1000, 1000), (-333, 667), (500, 1167), (-1, 1166), (-9999, 0), (77, 77)]
        {
            world.balloon(pages);
            let counts = balloon_by_colour(&world);
            assert_eq!(counts.iter().sum::<u64>(), held);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{policy}, {pages}: {counts:?}");
            // Memory that was taken and comes back is placed like any other.
            world.apply(&Op::Exit { pid: 1 });
            world.apply(&Op::Fork { parent: 0 });
            (0..PAGES / 2).for_each(|page| world.touch(2, page, true));
            assert_eq!(world.placement().violations, 0, "{policy}, {pages}");
            world.apply(&Op::Exit { pid: 2 });
            world.check();
        }
        world.finish();
    }
}

/// Of colours that it holds as many pages of, a balloon takes the one that the host is shortest of.
#[test]
fn the_colours_that_the_host_is_short_of_are_taken_first() {
    let mut world = world_with("xplace", 3, 0.0, &[]);
    let scarce = [3, 8, 12];
    // The host is left few frames of these colours.
    let host = world.stack.kernel_mut(NodeId::HOST).memory_mut();
    for colour in scarce.map(Colour::new) {
        while host.free_of(colour) > 5 {
            host.take_coloured(colour).unwrap();
        }
    }
    world.balloon(scarce.len() as i64);
    let counts = balloon_by_colour(&world);
    let taken: Vec<_> = (0..counts.len() as u32).filter(|at| counts[*at as usize] > 0).collect();
    assert_eq!(taken, scarce);
}

/// Equal pages share a frame for each colour that they must have, and no page another's.
#[test]
fn equal_pages_of_different_colours_stay_apart() {
    for (policy, layers) in [("coplace", 2), ("xplace", 2), ("xplace", 3), ("xplace", 4)] {
        for seed in ["0", "3"] {
            let mut world = world_with(policy, layers, 0.5, &[("colours.table_seed", seed)]);
            world.apply(&Op::Alike { pid: 0, page: 0, pages: 1000, content: 1 });
            world.ksm(u64::MAX);
            world.check();
            let counters = *world.stack.kernel(NodeId::HOST).counters();
            let colours = u64::from(colours().count());
            assert_eq!(counters.merged_pages, 1000 - colours, "{policy}");
            assert!(counters.kept_apart >= colours - 1, "{policy}");
            assert_eq!(world.placement().violations, 0, "{policy}");
            // A copy for a store is taken in the colour wanted, too.
            (0..1000).step_by(3).for_each(|page| world.touch(0, page, true));
            let counters = *world.stack.kernel(NodeId::HOST).counters();
            assert!(counters.unmerged_pages > 300, "{policy}");
            assert_eq!(world.placement().violations, 0, "{policy}");
            world.finish();
        }
    }
}

/// A page that must have another colour leaves those that it shares a frame with.
#[test]
fn a_merged_page_is_recoloured_alone() {
    let mut world = world_with("coplace", 2, 0.0, &[]);
    world.apply(&Op::Alike { pid: 0, page: 0, pages: 64, content: 1 });
    world.ksm(u64::MAX);
    let process = world.stack.vm_process(world.guest);
    let host = world.stack.kernel(NodeId::HOST);
    let table = host.space(process).unwrap().table();
    let shared = table.mapped(table.everything()).find(|(_, mapping)| !mapping.rights.write);
    let (page, mapping) = shared.unwrap();
    let Owner::Shared { mappings } = host.owner(mapping.frame) else { panic!("it is merged") };
    let other = Colour::new((colours().of(mapping.frame).index() + 1) % colours().count());
    let mut policy = (find("coplace").unwrap().make)(&PolicyParameters::default());
    let at = (process, page);
    assert!(world.stack.recolour(policy.as_mut(), NodeId::HOST, at, other, true).unwrap());
    let host = world.stack.kernel(NodeId::HOST);
    let now = host.frame_behind(process, page).unwrap();
    assert_eq!((host.owner(now), colours().of(now)), (Owner::Page(process, page), other));
    assert_eq!(host.owner(mapping.frame), Owner::Shared { mappings: mappings - 1 });
    world.finish();
}

#[test]
fn a_table_that_is_drawn_is_another_and_as_injective() {
    let mut world = world_with("xplace", 3, 0.0, &[("colours.table_seed", "7")]);
    touch_all(&mut world);
    let counts = world.placement();
    assert_eq!(counts.violations, 0);
    let (backed, moved) = identity(&world);
    assert!(moved > backed / 2, "{moved} of {backed} pages have another colour than their own");
}

#[test]
fn a_replacement_is_paid_for_as_a_copy_or_not() {
    let copied = |copy: &str| {
        let mut world = world_with("xplace", 3, 0.0, &[("xplace.copy", copy)]);
        touch_all(&mut world);
        let host = world.stack.nodes().next().unwrap();
        let counters = *world.stack.kernel(host).counters();
        (counters.copied_pages, counters.migrated_pages, world.placement().replaced)
    };
    let (copies, moves, replaced) = copied("true");
    assert_eq!((copies, moves), (replaced, replaced));
    assert_eq!(copied("false"), (0, replaced, replaced));
}
