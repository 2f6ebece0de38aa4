//! CoPlace and xPlace: where the colours of a guest's memory survive the layers below.

#[path = "../../stack/tests/world/mod.rs"]
mod world;

use proptest::prelude::*;
use strata_params::Parameters;
use strata_policies::{PolicyParameters, find};
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
