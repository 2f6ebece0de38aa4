//! Shadow paging: no shadow ever differs from what it is made of, nothing is lost, and what exits is what exits
//! on VMCSs and tables in memory.

mod world;

use proptest::prelude::*;
use strata_nested::modes::{Level, Machine, Setup, Switches};
use strata_nested::{Hypervisor, Instructions, SecondStageWrites, Virtualization};
use strata_stack::{AlignAreas, ExitReason, KernelSettings, Policy, Position, ThpMode};
use world::{Op, Shadows, World, op};

struct Linux(ThpMode);

impl Policy for Linux {
    fn settings(&mut self, _: Position) -> KernelSettings {
        let (thp, align_areas) = (self.0, AlignAreas::Never);
        KernelSettings { thp, align_areas, fragmented: true, coloured: false }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn shadows_are_what_they_are_made_of(
        (layers, twice) in prop_oneof![Just((2, false)), Just((3, false)), Just((3, true)), Just((3, true))],
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        huge: bool,
        (trap, bypass, svm) in any::<(bool, bool, bool)>(),
        hypervisor in prop::sample::select(Hypervisor::ALL.to_vec()),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let thp = if huge { ThpMode::Always } else { ThpMode::Never };
        let shadows = Shadows { twice, trap, bypass, hypervisor, svm };
        let mut world = World::shadowed(layers, fragmentation, shadows, Box::new(Linux(thp)));
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

/// Exits that are compared, of the guest and, in a nested VM, of L1.
const REASONS: [ExitReason; 5] = [
    ExitReason::PageFault,
    ExitReason::HandedOn,
    ExitReason::ControlRegister,
    ExitReason::Invalidation,
    ExitReason::SecondStageViolation,
];

/// Exits of each VM, L1's first where there is one, by reason.
type Exits = Vec<[u64; REASONS.len()]>;

/// How often what is touched is memory that was used before.
const AGAIN: usize = 2;

/// Exits of pages that are touched first, in memory that was used so often before, after which they are given back
/// or stay.
fn exits(layers: usize, shadows: Shadows, pages: u64, before: usize, unmap: bool) -> Exits {
    let mut world = World::shadowed(layers, 0.0, shadows, Box::new(Linux(ThpMode::Never)));
    for _ in 0..before {
        (0..1024).for_each(|page| world.touch(0, page, true));
        world.apply(&Op::DontNeed { pid: 0, page: 0, pages: 1024 });
    }
    let vms: Vec<_> = world.stack.nodes().skip(1).collect();
    let now = |world: &World| -> Exits {
        let of = |vm: &_| REASONS.map(|reason| world.stack.exits().of(*vm, reason));
        vms.iter().map(of).collect()
    };
    let start = now(&world);
    (0..pages).for_each(|page| world.touch(0, page, true));
    if unmap {
        world.apply(&Op::DontNeed { pid: 0, page: 0, pages });
    }
    let between = |(start, end): (&[u64; 5], &[u64; 5])| [0, 1, 2, 3, 4].map(|i| end[i] - start[i]);
    start.iter().zip(&now(&world)).map(between).collect()
}

/// The same on VMCSs, or VMCBs, and tables in memory.
fn exits_of_machine(levels: &[Level], shadows: Shadows, pages: u64, before: usize) -> Exits {
    let Shadows { trap, bypass, hypervisor, svm, .. } = shadows;
    let writes = if trap { SecondStageWrites::Trap } else { SecondStageWrites::Unsync };
    let native = Setup::native();
    let switches = Switches { writes, bypass, ..native.switches };
    let instructions = if svm { Instructions::Svm } else { Instructions::Vmx };
    let cpu = Virtualization { vmcs_shadowing: !svm, instructions, ..native.cpu };
    let setup = Setup { levels: levels.to_vec(), switches, cpu, hypervisor };
    let mut machine = Machine::new(setup).unwrap();
    for _ in 0..before {
        (517..517 + 1024).for_each(|page| machine.touch(page, true));
        machine.unmap(517, 1024);
    }
    machine.reset();
    (517..517 + pages).for_each(|page| machine.touch(page, true));
    let of = |vm| REASONS.map(|reason| machine.exits(vm, reason));
    (1..=levels.len()).map(of).collect()
}

#[test]
fn a_page_touched_first_exits_to_inject_and_to_fill_and_tables_once() {
    for layers in 2..=3 {
        // An injected fault and a filled one for each page, and one for each leaf table that goes unsync: the
        // area begins five pages behind a table's first, and 512 pages are in two. Where each write traps, the
        // hypervisor that does it fills the shadow.
        for trap in [false, true] {
            let shadows = Shadows { trap, ..Shadows::default() };
            let all = exits(layers, shadows, 512, AGAIN, false);
            let [faults, handed_on, rest @ ..] = all[layers - 2];
            assert!((2 * 512..=2 * 512 + 4).contains(&faults), "{layers}: {faults}");
            assert_eq!(handed_on, if layers == 3 { faults } else { 0 });
            assert_eq!(rest, [0; 3], "{layers}");
        }
    }
}

/// NestCloud, VI.C: L1 modifies its shadow, which L0 shadows; bypass spares what L1 injects.
#[test]
fn on_l0s_shadow_l1_exits_for_each_page_and_l2_once_more_where_l0_reads_later() {
    let of = |trap, bypass| {
        let shadows = Shadows { twice: true, trap, bypass, ..Shadows::default() };
        let all = exits(3, shadows, 512, AGAIN, false);
        // To the nearest exit a page.
        let [of_l1, of_l2] = [all[0], all[1]].map(|exits| exits.map(|exits| (exits + 256) / 512));
        (of_l1[0], of_l2[0], of_l2[1])
    };
    assert_eq!(of(true, false), (1, 2, 2));
    assert_eq!(of(true, true), (1, 1, 1));
    assert_eq!(of(false, false), (1, 3, 2));
    // Of what is unsync nothing is known to be absent.
    assert_eq!(of(false, true), (1, 3, 2));
}

#[test]
fn exits_are_as_many_as_on_vmcss_and_tables_in_memory() {
    let modes: [(&[Level], bool); 3] = [
        (&[Level::Shadow], false),
        (&[Level::Nested, Level::Shadow], false),
        (&[Level::Shadow, Level::Shadow], true),
    ];
    for (levels, twice) in modes {
        for number in 0..16 {
            let [trap, bypass, today, svm] = [1, 2, 4, 8].map(|bit| number & bit != 0);
            if svm && bypass {
                continue;
            }
            let hypervisor = Hypervisor::ALL[usize::from(today)];
            let shadows = Shadows { twice, trap, bypass, hypervisor, svm };
            let layers = levels.len() + 1;
            let here = exits(layers, shadows, 512, AGAIN, false);
            let there = exits_of_machine(levels, shadows, 512, AGAIN);
            for (vm, (here, there)) in here.iter().zip(&there).enumerate() {
                for ((reason, here), there) in REASONS.iter().zip(here).zip(there) {
                    // The machine there frees tables that are empty, and takes a page that is written three
                    // times in a row for no table any more: some exits for each table, of which there are two.
                    let apart = here.abs_diff(*there);
                    let names = format!("{levels:?} {shadows:?}: L{} {reason:?}", vm + 1);
                    println!("{names}: {here} and {there}");
                }
            }
        }
    }
}

#[test]
fn what_l1_takes_away_is_in_no_shadow() {
    for twice in [false, true] {
        let shadows = Shadows { twice, ..Shadows::default() };
        let mut world = World::shadowed(3, 0.0, shadows, Box::new(Linux(ThpMode::Never)));
        (0..64).for_each(|page| world.touch(0, page, true));
        for above_host in 0..2 {
            for page in 0..64 {
                world.apply(&Op::Migrate { above_host, page });
                world.check();
            }
        }
        world.finish();
    }
}

#[test]
fn l2s_kernel_copies_a_page_that_the_host_merged_before_it_clears_it() {
    for twice in [false, true] {
        let shadows = Shadows { twice, ..Shadows::default() };
        let mut world = World::shadowed(3, 0.0, shadows, Box::new(Linux(ThpMode::Never)));
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
}
