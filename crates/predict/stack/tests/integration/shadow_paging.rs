//! Shadow paging: no shadow ever differs from what it is made of, nothing is lost, and what exits is what exits
//! on VMCSs and tables in memory.

use crate::world::machines::Shadows;
use crate::world::{Op, World, op};
use proptest::prelude::*;
use strata_addr::Frame;
use strata_nested::modes::{Level, Machine, Setup, Switches};
use strata_nested::{Hypervisor, Instructions, SecondStageWrites, Virtualization};
use strata_stack::{AlignAreas, ExitReason, KernelSettings, Owner, Policy, Position, ThpMode};

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

/// Of which these are looked at.
const FAULT: usize = 0;
const VIOLATION: usize = 4;

/// Exits of each VM, L1's first where there is one, by reason.
type Exits = Vec<[u64; REASONS.len()]>;

/// What is done to memory, the exits of which are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Pages are touched that nobody had touched.
    Fresh,
    /// Pages are touched that were touched and given back twice.
    Again,
    /// And are given back once more.
    Back,
    /// Or one after the other.
    OneByOne,
}

/// So many pages are touched before, of which so many are given back: the tables stay.
const BEFORE: u64 = 1024;
const GIVEN_BACK: u64 = 1023;

/// Pages that are touched.
const PAGES: u64 = 512;

impl Life {
    /// Times that pages are touched before.
    fn before(self) -> usize {
        if self == Self::Fresh { 0 } else { 2 }
    }
}

fn exits(layers: usize, shadows: Shadows, life: Life) -> Exits {
    let mut world = World::shadowed(layers, 0.0, shadows, Box::new(Linux(ThpMode::Never)));
    let touch = |world: &mut World, pages| (0..pages).for_each(|page| world.touch(0, page, true));
    let give_back =
        |world: &mut World, pages| world.apply(&Op::DontNeed { pid: 0, page: 0, pages });
    for _ in 0..life.before() {
        touch(&mut world, BEFORE);
        give_back(&mut world, GIVEN_BACK);
    }
    let vms: Vec<_> = world.stack.nodes().skip(1).collect();
    let now = |world: &World| -> Exits {
        let of = |vm: &_| REASONS.map(|reason| world.stack.exits().of(*vm, reason));
        vms.iter().map(of).collect()
    };
    let start = now(&world);
    touch(&mut world, PAGES);
    match life {
        Life::Fresh | Life::Again => {}
        Life::Back => give_back(&mut world, PAGES),
        Life::OneByOne => {
            (0..PAGES).for_each(|page| world.apply(&Op::DontNeed { pid: 0, page, pages: 1 }));
        }
    }
    let mut exits = now(&world);
    for (end, start) in exits.iter_mut().flatten().zip(start.iter().flatten()) {
        *end -= start;
    }
    exits
}

/// The same on VMCSs, or VMCBs, and tables in memory.
fn exits_of_machine(levels: &[Level], shadows: Shadows, life: Life) -> Exits {
    let Shadows { trap, bypass, hypervisor, svm, .. } = shadows;
    let writes = if trap { SecondStageWrites::Trap } else { SecondStageWrites::Unsync };
    let native = Setup::native();
    let switches = Switches { writes, bypass, ..native.switches };
    let instructions = if svm { Instructions::Svm } else { Instructions::Vmx };
    let cpu = Virtualization { vmcs_shadowing: !svm, instructions, ..native.cpu };
    let setup = Setup { levels: levels.to_vec(), switches, cpu, hypervisor };
    let mut machine = Machine::new(setup).unwrap();
    // As far behind the first page of a leaf table.
    let touch = |machine: &mut Machine, pages: u64| {
        (517..517 + pages).for_each(|page| machine.touch(page, true));
    };
    for _ in 0..life.before() {
        touch(&mut machine, BEFORE);
        machine.unmap(517, GIVEN_BACK);
    }
    machine.reset();
    touch(&mut machine, PAGES);
    match life {
        Life::Fresh | Life::Again => {}
        Life::Back => machine.unmap(517, PAGES),
        Life::OneByOne => (517..517 + PAGES).for_each(|page| machine.unmap(page, 1)),
    }
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
            let all = exits(layers, shadows, Life::Again);
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
        let all = exits(3, shadows, Life::Again);
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
            for life in [Life::Fresh, Life::Again, Life::Back, Life::OneByOne] {
                // A page that is written three times in a row is no table any more there, when it is given back.
                if matches!(life, Life::Back | Life::OneByOne) && trap {
                    continue;
                }
                let here = exits(layers, shadows, life);
                let mut there = exits_of_machine(levels, shadows, life);
                if life == Life::Fresh && layers == 3 {
                    // L1 zeroes what it gives to L2 here: the first to touch it, so that L2 is not.
                    let violations = std::mem::take(&mut there[1][VIOLATION]);
                    there[0][VIOLATION] += violations;
                    there[0][FAULT] += if twice { PAGES } else { 0 };
                }
                for (vm, (here, there)) in here.iter().zip(&there).enumerate() {
                    for ((reason, here), there) in REASONS.iter().zip(here).zip(there) {
                        // Tables that are empty are freed and made anew there, some exits for each of three.
                        let names =
                            format!("{levels:?} {shadows:?}, {life:?}: L{} {reason:?}", vm + 1);
                        assert!(here.abs_diff(*there) <= 24, "{names}: {here} and {there}");
                    }
                }
            }
        }
    }
}

#[test]
fn pages_of_shadows_are_page_table_pages_of_the_kernel_that_keeps_them() {
    for (layers, twice) in [(2, false), (3, false), (3, true)] {
        let shadows = Shadows { twice, ..Shadows::default() };
        let mut world = World::shadowed(layers, 0.0, shadows, Box::new(Linux(ThpMode::Never)));
        (0..1024).for_each(|page| world.touch(0, page, true));
        for node in world.stack.nodes() {
            let kernel = world.stack.kernel(node);
            let frames = (0..kernel.memory().frames()).map(Frame::new);
            let tables = frames.filter(|frame| kernel.owner(*frame) == Owner::Table).count();
            assert_eq!(world.stack.table_pages(node), tables, "{layers} {twice} {node:?}");
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

/// Of frames that two processes share nobody knows whose shadows have them.
#[test]
fn what_l1_or_the_host_takes_away_of_shared_pages_is_in_no_shadow() {
    for twice in [false, true] {
        let shadows = Shadows { twice, ..Shadows::default() };
        let mut world = World::shadowed(3, 0.0, shadows, Box::new(Linux(ThpMode::Never)));
        (0..64).for_each(|page| world.touch(0, page, true));
        world.apply(&Op::Fork { parent: 0 });
        (0..128).for_each(|at| world.touch(at % 2 * 2, u64::from(at / 2), false));
        for above_host in 0..2 {
            for page in 0..1024 {
                world.apply(&Op::Migrate { above_host, page });
            }
            world.check();
            (0..64).for_each(|page| world.touch(2, page, false));
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
