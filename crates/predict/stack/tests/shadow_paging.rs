//! Shadow paging: no shadow ever differs from what it is made of, nothing is lost, and what exits is what exits
//! on VMCSs and tables in memory.

mod world;

use proptest::prelude::*;
use strata_nested::modes::{Level, Machine, Setup, Switches};
use strata_nested::{SecondStageWrites, Virtualization};
use strata_stack::{AlignAreas, ExitReason, KernelSettings, Policy, Position, ThpMode};
use world::{Op, World, op};

struct Linux(ThpMode);

impl Policy for Linux {
    fn settings(&mut self, _: Position) -> KernelSettings {
        let (thp, align_areas) = (self.0, AlignAreas::Never);
        KernelSettings { thp, align_areas, fragmented: true, coloured: false }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn shadows_are_what_they_are_made_of(
        layers in 2usize..=3,
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        huge: bool,
        trap: bool,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let thp = if huge { ThpMode::Always } else { ThpMode::Never };
        let mut world = World::shadowed(layers, fragmentation, trap, Box::new(Linux(thp)));
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

/// Exits of the guest, by reason, of pages that are touched first in memory that it had before.
fn exits(layers: usize, trap: bool, pages: u64) -> [u64; 3] {
    let mut world = World::shadowed(layers, 0.0, trap, Box::new(Linux(ThpMode::Never)));
    let again = |world: &mut World| {
        (0..1024).for_each(|page| world.touch(0, page, true));
        world.apply(&Op::DontNeed { pid: 0, page: 0, pages: 1024 });
    };
    (0..2).for_each(|_| again(&mut world));
    let guest = world.guest;
    let now = |world: &World| {
        [ExitReason::PageFault, ExitReason::ControlRegister, ExitReason::SecondStageViolation]
            .map(|reason| world.stack.exits().of(guest, reason))
    };
    let before = now(&world);
    (0..pages).for_each(|page| world.touch(0, page, true));
    let after = now(&world);
    [0, 1, 2].map(|index| after[index] - before[index])
}

#[test]
fn a_page_touched_first_exits_to_inject_and_to_fill_and_tables_once() {
    for layers in 2..=3 {
        // An injected fault and a filled one for each page, and one for each leaf table that goes unsync: the
        // area begins five pages behind a table's first, and 512 pages are in two.
        let [faults, loads, violations] = exits(layers, false, 512);
        assert!((2 * 512..=2 * 512 + 4).contains(&faults), "{layers}: {faults}");
        assert_eq!((loads, violations), (0, 0), "{layers}");
        // Where each write traps, the hypervisor that does it fills the shadow.
        let [faults, ..] = exits(layers, true, 512);
        assert!((2 * 512..=2 * 512 + 4).contains(&faults), "{layers}: {faults}");
    }
}

#[test]
fn exits_are_as_many_as_on_vmcss_and_tables_in_memory() {
    for (levels, layers) in [(vec![Level::Shadow], 2), (vec![Level::Nested, Level::Shadow], 3)] {
        for writes in [SecondStageWrites::Unsync, SecondStageWrites::Trap] {
            let native = Setup::native();
            let switches = Switches { writes, ..native.switches };
            let cpu = Virtualization { vmcs_shadowing: true, ..native.cpu };
            let vms = levels.len();
            let setup = Setup { levels: levels.clone(), switches, cpu, ..native };
            let mut machine = Machine::new(setup).unwrap();
            let again = |machine: &mut Machine| {
                (517..517 + 1024).for_each(|page| machine.touch(page, true));
                machine.unmap(517, 1024);
            };
            (0..2).for_each(|_| again(&mut machine));
            machine.reset();
            (517..517 + 512).for_each(|page| machine.touch(page, true));
            let there = machine.exits(vms, ExitReason::PageFault);
            let [here, ..] = exits(layers, writes == SecondStageWrites::Trap, 512);
            // The machine there frees tables that are empty, and takes a page that is written three times in a
            // row for no table any more.
            let apart = here.abs_diff(there) as f64 / there as f64;
            assert!(apart < 0.02, "{layers} {writes:?}: {here} and {there}");
        }
    }
}

#[test]
fn what_l1_takes_away_is_in_no_shadow() {
    let mut world = World::shadowed(3, 0.0, false, Box::new(Linux(ThpMode::Never)));
    (0..64).for_each(|page| world.touch(0, page, true));
    for above_host in 0..2 {
        for page in 0..64 {
            world.apply(&Op::Migrate { above_host, page });
            world.check();
        }
    }
    world.finish();
}

#[test]
fn l2s_kernel_copies_a_page_that_the_host_merged_before_it_clears_it() {
    let mut world = World::shadowed(3, 0.0, false, Box::new(Linux(ThpMode::Never)));
    for op in [
        Op::Fork { parent: 0 },
        Op::Alike { pid: 2, page: 0, pages: 2, content: 1 },
        Op::Ksm { pages: 100_000 },
        Op::Exit { pid: 2 },
        Op::Alike { pid: 0, page: 266, pages: 33, content: 1 },
        Op::Ksm { pages: 100_000 },
    ] {
        world.apply(&op);
        world.check();
    }
    world.finish();
}
