//! Every policy on stacks of one to four layers, checked on random lives of processes.

#[path = "../../stack/tests/world/mod.rs"]
mod world;

use proptest::prelude::*;
use strata_policies::{PolicyParameters, REGISTRY, find};
use world::{Op, PAGES, World, op};

fn world(policy: &str, layers: usize, fragmentation: f64) -> World {
    let policy = (find(policy).unwrap().make)(&PolicyParameters::default());
    World::new(layers, fragmentation, policy)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn nothing_is_lost_under_any_policy(
        policy in 0..REGISTRY.len(),
        layers in 1usize..=4,
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        backed in any::<bool>(),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let policy = (REGISTRY[policy].make)(&PolicyParameters::default());
        let new = if backed { World::backed } else { World::new };
        let mut world = new(layers, fragmentation, policy);
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

/// Touches everything, lets background work run, and returns guest huge pages, well-aligned ones
/// and pseudo huge ones.
fn settled(policy: &str, layers: usize, fragmentation: f64) -> (u64, u64, u64) {
    let mut world = world(policy, layers, fragmentation);
    for page in 0..PAGES {
        world.touch(0, page, true);
    }
    for _ in 0..20 {
        world.apply(&Op::Wake);
    }
    for page in 0..PAGES {
        world.touch(0, page, false);
    }
    let alignment = world.stack.alignment(world.guest);
    world.finish();
    (alignment.guest_huge, alignment.well_aligned, alignment.pseudo_huge)
}

#[test]
fn gemini_aligns_a_guest_with_its_host() {
    // With more, the host of this small stack has no order-9 block left to give.
    for fragmentation in [0.0, 0.25] {
        let (huge, aligned, _) = settled("gemini", 2, fragmentation);
        assert!(huge >= 4 && aligned == huge, "{aligned} of {huge} at FMFI {fragmentation}");
    }
}

#[test]
fn gemini_keeps_the_offset_where_an_area_grows() {
    const STEP: u64 = 32;
    let mut world = world("gemini", 2, 0.0);
    world.apply(&Op::Unmap { pid: 0, page: 0, pages: PAGES });
    for page in (0..PAGES).step_by(STEP as usize) {
        world.apply(&Op::Map { pid: 0, page, pages: STEP, fixed: false });
        (page..page + STEP).for_each(|page| world.touch(0, page, true));
    }
    // No daemon has run. The area neither begins nor ends with a region.
    let alignment = world.stack.alignment(world.guest);
    assert_eq!(alignment.guest_huge, PAGES / 512 - 1);
    assert_eq!(alignment.well_aligned, alignment.guest_huge);
    world.finish();
}

#[test]
fn xgemini_makes_pseudo_huge_pages_where_the_guest_hypervisor_has_base_pages() {
    let mut parameters = PolicyParameters::default();
    strata_params::Parameters::set(&mut parameters, "xgemini.l1_thp", "false").unwrap();
    let policy = (find("xgemini").unwrap().make)(&parameters);
    let mut world = World::new(3, 0.0, policy);
    for page in 0..PAGES {
        world.touch(0, page, true);
    }
    let alignment = world.stack.alignment(world.guest);
    // The last region is padding but for a few pages: memory use follows touch.
    assert_eq!(alignment.guest_huge, PAGES / 512);
    assert_eq!(alignment.well_aligned, alignment.guest_huge);
    assert_eq!(alignment.pseudo_huge, alignment.guest_huge);
    world.check();
    world.finish();
}
