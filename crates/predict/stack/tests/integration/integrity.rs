//! Stock Linux on stacks of one to four layers, checked on random lives of processes.

use crate::world::{PAGES, World, op};
use proptest::prelude::*;
use strata_addr::{Frame, PageSize};
use strata_stack::{
    AlignAreas, ExitReason, KernelSettings, PagePlacement, Policy, Position, ThpMode,
};

/// Linux with huge pages always, optionally with Huge Aligner.
struct Always {
    align: bool,
}

impl Policy for Always {
    fn settings(&mut self, _: Position) -> KernelSettings {
        KernelSettings {
            thp: ThpMode::Always,
            align_areas: if self.align { AlignAreas::Always } else { AlignAreas::Never },
            fragmented: true,
            coloured: false,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn nothing_is_lost(
        layers in 1usize..=4,
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        align: bool,
        backed: bool,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let new = if backed { World::backed } else { World::new };
        let mut world = new(layers, fragmentation, Box::new(Always { align }));
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn nothing_is_lost_wherever_pages_are_placed(
        layers in 1usize..=4,
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        placement in 1..PagePlacement::ALL.len(),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let placement = PagePlacement::ALL[placement];
        let mut world =
            World::placed(layers, fragmentation, placement, Box::new(Always { align: false }));
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

#[test]
fn a_stack_of_four_layers_translates_through_all_of_them() {
    let mut world = World::new(4, 0.5, Box::new(Always { align: false }));
    for page in 0..1024 {
        world.touch(0, page, true);
    }
    // The guest's violations, and those of both guest hypervisors.
    let took = |vm, reason| world.stack.exits().of(vm, reason) > 0;
    for vm in world.stack.nodes().skip(1) {
        assert!(took(vm, ExitReason::SecondStageViolation), "{vm:?}");
        let has_vms = vm != world.guest;
        assert_eq!(took(vm, ExitReason::SecondStageWrite), has_vms, "{vm:?}");
        // Those of the host's VM are all for the host.
        let is_on_host = world.stack.position(vm).level == 1;
        assert_eq!(took(vm, ExitReason::HandedOn), !is_on_host, "{vm:?}");
        assert_eq!(took(vm, ExitReason::Vmresume), has_vms, "{vm:?}");
    }
    assert_eq!(world.stack.position(world.guest).level, 3);
    let alignment = world.stack.alignment(world.guest);
    assert_eq!(alignment.guest_huge, alignment.well_aligned + alignment.type1 + alignment.type2);
    assert!(alignment.guest_huge > 0);
    world.finish();
}

#[test]
fn clean_memory_with_huge_pages_everywhere_is_well_aligned() {
    for layers in 2..=4 {
        let mut world = World::new(layers, 0.0, Box::new(Always { align: true }));
        for page in 0..PAGES {
            world.touch(0, page, true);
        }
        let alignment = world.stack.alignment(world.guest);
        assert_eq!(alignment.guest_huge, PAGES / 512 + 1, "padded at both ends");
        assert_eq!(alignment.well_aligned, alignment.guest_huge);
        assert!(world.stack.blame(world.guest).is_empty());
        let huge = PageSize::Huge;
        assert_eq!(
            world.stack.compose(world.guest, Frame::new(0).floor(huge)).map(|c| c.size),
            Some(huge)
        );
        world.finish();
    }
}
