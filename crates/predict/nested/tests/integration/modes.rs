//! Memory modes: an L2 page fault takes the faults and exits that NestCloud's section VI.C names, and
//! whatever a guest does, hardware gets where the kernels meant it to.

use ExitReason::{
    Apic, ControlRegister, ExternalInterrupt, Halt, HandedOn, Io, PageFault, SecondStageViolation,
    SecondStageWrite, Vmread, Vmresume, Vmwrite,
};
use Level::{Nested, Shadow};
use proptest::prelude::*;
use strata_nested::modes::{Level, Machine, Refused, Setup, Switches};
use strata_nested::vmx::Event;
use strata_nested::{
    Access, ExitReason, Hypervisor, Instructions, SecondStageWrites, Virtualization,
};

const STACKS: [&[Level]; 6] =
    [&[], &[Shadow], &[Nested], &[Shadow, Shadow], &[Nested, Shadow], &[Nested, Nested]];

fn setup(levels: &[Level], bypass: bool, writes: SecondStageWrites) -> Setup {
    let native = Setup::native();
    let switches = Switches { bypass, writes, ..native.switches };
    Setup { levels: levels.to_vec(), switches, ..native }
}

/// A guest whose table has room for the pages of one leaf table, which its hypervisor knows.
fn ready(levels: &[Level], bypass: bool, writes: SecondStageWrites) -> Machine {
    let mut machine = Machine::new(setup(levels, bypass, writes)).unwrap();
    for _ in 0..2 {
        (0..512).for_each(|page| machine.touch(page, true));
        // The leaf table stays, as its last page does.
        machine.unmap(0, 511);
    }
    (0..256).for_each(|page| machine.touch(page, true));
    machine.reset();
    machine
}

/// Exits of L1 and L2 at a single page fault of the guest, those that there are.
fn of_one_fault(
    levels: &[Level],
    bypass: bool,
    writes: SecondStageWrites,
) -> Vec<(usize, ExitReason, u64)> {
    let mut machine = ready(levels, bypass, writes);
    machine.touch(256, true);
    assert_eq!(machine.counts().guest_faults, 1);
    let all = (1..=2).flat_map(|vm| ExitReason::ALL.map(|reason| (vm, reason)));
    let all = all.map(|(vm, reason)| (vm, reason, machine.exits(vm, reason)));
    all.filter(|(.., count)| *count > 0).collect()
}

#[test]
fn a_page_fault_under_shadow_paging_exits_twice_and_with_second_stages_never() {
    for writes in [SecondStageWrites::Trap, SecondStageWrites::Unsync] {
        assert_eq!(of_one_fault(&[Nested], false, writes), []);
        assert_eq!(of_one_fault(&[Nested, Nested], false, writes), []);
        // Injected; then its entry is written, or the page looked up.
        assert_eq!(of_one_fault(&[Shadow], false, writes), [(1, PageFault, 2)]);
    }
}

/// NestCloud, VI.C: the fault itself goes to L1 and back; L2 then modifies its page table, which L1 shadows;
/// and L1 modifies its own, which L0 shadows.
#[test]
fn a_page_fault_of_l2_is_the_chain_that_the_paper_describes() {
    let chain = of_one_fault(&[Shadow, Shadow], false, SecondStageWrites::Trap);
    assert_eq!(
        chain,
        [
            (1, Vmread, 22),
            (1, Vmwrite, 6),
            (1, Vmresume, 2),
            (1, PageFault, 1),
            (2, HandedOn, 2),
            (2, PageFault, 2)
        ]
    );
    // L0 with EPT has no shadow of L1's tables: one link of the chain less.
    let chain = of_one_fault(&[Nested, Shadow], false, SecondStageWrites::Trap);
    assert_eq!(
        chain,
        [(1, Vmread, 22), (1, Vmwrite, 6), (1, Vmresume, 2), (2, HandedOn, 2), (2, PageFault, 2)]
    );
}

#[test]
fn bypass_spares_the_exit_of_what_is_not_present_as_long_as_the_shadow_is_in_step() {
    let exits = |levels: &[Level], bypass, writes| -> u64 {
        of_one_fault(levels, bypass, writes)
            .into_iter()
            .filter(|(_, reason, _)| *reason == PageFault || *reason == HandedOn)
            .map(|(.., count)| count)
            .sum()
    };
    let trap = SecondStageWrites::Trap;
    assert_eq!((exits(&[Shadow], false, trap), exits(&[Shadow], true, trap)), (2, 1));
    assert_eq!(
        (exits(&[Shadow, Shadow], false, trap), exits(&[Shadow, Shadow], true, trap)),
        (5, 3)
    );
    // An unsync table may have got an entry that its shadow lacks, so nothing is known to be absent.
    let unsync = SecondStageWrites::Unsync;
    for levels in [&[Shadow][..], &[Shadow, Shadow], &[Nested, Shadow]] {
        assert_eq!(exits(levels, false, unsync), exits(levels, true, unsync), "{levels:?}");
    }
}

#[test]
fn first_touches_find_the_second_stages_of_all_levels_empty() {
    let mut machine =
        Machine::new(setup(&[Nested, Nested], false, SecondStageWrites::Trap)).unwrap();
    machine.touch(0, true);
    machine.reset();
    machine.touch(1, true);
    // L0 has nothing for the frame, L1 neither: handed on, L1 writes its entry, for which L0 has to do the same.
    assert_eq!(machine.exits(2, SecondStageViolation), 1);
    assert_eq!(machine.exits(2, HandedOn), 1);
    assert_eq!(machine.exits(1, SecondStageWrite), 1);
    assert_eq!(machine.counts().backed, [1, 1]);
    assert_eq!(machine.translation(1), machine.composition(1));
}

#[test]
fn loading_a_page_table_exits_where_somebody_keeps_a_shadow_of_it() {
    for levels in STACKS {
        let mut machine = ready(levels, false, SecondStageWrites::Trap);
        machine.flush();
        let top = levels.len().max(1);
        let exits = u64::from(levels.last() == Some(&Shadow));
        assert_eq!(machine.exits(top, ControlRegister), exits, "{levels:?}");
        let handed_on = if levels.len() == 2 { exits } else { 0 };
        assert_eq!(machine.exits(top, HandedOn), handed_on, "{levels:?}");
    }
}

#[test]
fn timers_and_devices_are_l1s_affair_unless_timers_are_direct() {
    let run = |levels: &[Level], direct_timers| {
        let mut setup = setup(levels, false, SecondStageWrites::Trap);
        setup.switches.direct_timers = direct_timers;
        let mut machine = Machine::new(setup).unwrap();
        // The timer of L2 is one of L1's, which L1 sets anew.
        machine.happens(Event::ExternalInterrupt, ExternalInterrupt, &[Apic]);
        machine.happens(Event::Io { port: 0x1f0, bytes: 1 }, Io, &[]);
        machine.happens(Event::Halt, Halt, &[]);
        let top = levels.len().max(1);
        let of_guest =
            [ExternalInterrupt, Io, Halt, HandedOn].map(|reason| machine.exits(top, reason));
        let of_l1 = if levels.len() == 2 { machine.exits(1, Apic) } else { 0 };
        (of_guest, of_l1)
    };
    assert_eq!(run(&[], false), ([0; 4], 0));
    for levels in [&[Shadow][..], &[Nested]] {
        assert_eq!(run(levels, false), ([1, 1, 1, 0], 0));
    }
    for levels in [&[Shadow, Shadow][..], &[Nested, Shadow], &[Nested, Nested]] {
        assert_eq!(run(levels, false), ([1, 1, 1, 3], 1));
        assert_eq!(run(levels, true), ([1, 1, 1, 2], 0));
    }
}

#[test]
fn the_third_write_in_a_row_that_helps_nobody_ends_the_protection() {
    let mut machine = ready(&[Shadow], false, SecondStageWrites::Trap);
    machine.unmap(0, 200);
    // Three writes, one more to find that the page may be written, and the flush.
    assert_eq!((machine.exits(1, PageFault), machine.exits(1, ControlRegister)), (4, 1));
    assert_eq!(machine.translation(0), None);
}

#[test]
fn a_vmcs_in_shared_memory_saves_the_exits_of_its_accesses_and_costs_copies() {
    let run = |access| {
        let mut setup = setup(&[Shadow, Shadow], false, SecondStageWrites::Trap);
        setup.switches.access = access;
        let mut machine = Machine::new(setup).unwrap();
        machine.touch(0, true);
        machine.reset();
        machine.touch(1, true);
        let accesses = machine.exits(1, Vmread) + machine.exits(1, Vmwrite);
        (accesses, machine.exits(1, Vmresume), machine.copied_fields())
    };
    let [by_instruction, shared, enlightened] =
        [Access::Instructions, Access::Paravirtual, Access::Enlightened].map(run);
    assert_eq!(by_instruction.0, 14 * by_instruction.1);
    assert_eq!((shared.0, enlightened.0), (0, 0));
    assert_eq!(shared.1, by_instruction.1);
    assert!(by_instruction.2 == 0 && 0 < enlightened.2 && enlightened.2 < shared.2 / 4);
}

#[test]
fn what_does_not_go_together_is_refused_with_a_remedy() {
    let intel = Setup::native();
    let with = |levels: &[Level], change: &dyn Fn(&mut Setup)| {
        let mut setup = Setup { levels: levels.to_vec(), ..intel.clone() };
        change(&mut setup);
        setup.check()
    };
    let cases: [(_, Refused); 7] = [
        (with(&[Shadow, Nested], &|_| ()), Refused::VirtualEptOnShadow),
        (with(&[Nested; 3], &|_| ()), Refused::TooDeep(3)),
        (with(&[Nested, Nested], &|setup| setup.switches.bypass = true), Refused::NothingToBypass),
        (with(&[], &|setup| setup.switches.bypass = true), Refused::NothingToBypass),
        (
            with(&[Shadow], &|setup| setup.switches.access = Access::Paravirtual),
            Refused::NothingToShare,
        ),
        (
            with(&[Nested, Nested], &|setup| {
                setup.switches.access = Access::Enlightened;
                setup.cpu = Virtualization::default();
            }),
            Refused::SharedAndShadowed,
        ),
        (
            with(&[Nested, Nested], &|setup| {
                setup.switches.access = Access::Paravirtual;
                setup.cpu.instructions = Instructions::Svm;
            }),
            Refused::NotOfAmd("a VMCS in shared memory"),
        ),
    ];
    for (refused, expected) in cases {
        assert_eq!(refused, Err(expected.clone()));
        let message = expected.to_string();
        assert!(message.contains(';') || message.contains("take at most"), "{message}");
    }
    for levels in STACKS {
        assert_eq!(with(levels, &|_| ()), Ok(()));
    }
}

#[derive(Clone, Debug)]
enum Op {
    Touch(u64, bool),
    Unmap(u64, u64),
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    // Pages of three leaf tables, two of which have an upper table in common.
    let page = || prop_oneof![0..24u64, 500..530u64, (1 << 27)..(1 << 27) + 8u64];
    prop_oneof![
        8 => (page(), any::<bool>()).prop_map(|(page, write)| Op::Touch(page, write)),
        2 => (page(), 1..40u64).prop_map(|(page, pages)| Op::Unmap(page, pages)),
        1 => Just(Op::Flush),
    ]
}

proptest! {
    // For each stack some dozens on either CPU.
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn hardware_gets_where_the_kernels_meant_it_to(
        ops in prop::collection::vec(op(), 1..120),
        levels in prop::sample::select(STACKS.to_vec()),
        bypass in any::<bool>(),
        unsync in any::<bool>(),
        hypervisor in prop::sample::select(Hypervisor::ALL.to_vec()),
        is_amd in any::<bool>(),
    ) {
        let writes = if unsync { SecondStageWrites::Unsync } else { SecondStageWrites::Trap };
        let bypass = bypass && levels.contains(&Shadow) && !is_amd;
        let mut setup = Setup { hypervisor, ..setup(levels, bypass, writes) };
        if is_amd {
            setup.cpu.instructions = Instructions::Svm;
        }
        let mut machine = Machine::new(setup).unwrap();
        let mut touched = std::collections::BTreeSet::new();
        for op in ops {
            match op {
                Op::Touch(page, write) => {
                    machine.touch(page, write);
                    prop_assert!(machine.translation(page).is_some());
                    touched.insert(page);
                }
                Op::Unmap(first, pages) => {
                    machine.unmap(first, pages);
                    touched.retain(|page| !(first..first + pages).contains(page));
                }
                Op::Flush => machine.flush(),
            }
            for page in (0..32).chain(500..530).chain((1 << 27)..(1 << 27) + 8) {
                let found = machine.translation(page);
                prop_assert!(found.is_none() || found == machine.composition(page), "{}", page);
                prop_assert!(touched.contains(&page) || found.is_none(), "{}", page);
            }
        }
    }
}

/// What L1 executes for a page fault of L2 that it injects, and one that it mends, on VMX without VMCS shadowing
/// (Linux 6.12, as counted in real layers): each reads why L2 left (2 fields), what the exception is (3), and flags for
/// the walk (1); each entry reads a register and writes the timer; injecting writes 4 fields.
#[test]
fn l1_of_today_reads_and_writes_these_fields_for_a_page_fault_of_l2() {
    let cpu = Virtualization { vmcs_shadowing: false, ..Virtualization::default() };
    let switches = Switches { writes: SecondStageWrites::Unsync, ..Switches::default() };
    let levels = vec![Level::Nested, Level::Shadow];
    let setup = Setup { levels, switches, cpu, hypervisor: Hypervisor::Kvm612 };
    let mut machine = Machine::new(setup).unwrap();
    let all = || 0..1024;
    for _ in 0..2 {
        machine.reset();
        all().for_each(|page| machine.touch(page, true));
        machine.unmap(0, 1024);
    }
    let each = |reason| machine.exits(1, reason) as f64 / 1024.0;
    let near = |reason, expected: f64| {
        let found = each(reason);
        assert!((found - expected).abs() < 0.03 * expected, "{reason:?}: {found}");
    };
    near(ExitReason::Vmread, 12.0);
    near(ExitReason::Vmwrite, 6.0);
    near(ExitReason::Vmresume, 2.0);
    near(ExitReason::Msr, 2.0);
}

/// On Intel, with VPID in L1, L0 does not read L1's shadow anew at an entry: once a leaf table of it is unsync, L1 fills
/// it without an exit, and L2 faults a third time for L0's own shadow (counted in real layers: 3.03 and 0.02). L1 of
/// 2009 has none, and on AMD L0 reads it anew in any case.
#[test]
fn l1_with_vpid_fills_a_shadow_that_l0_shadows_without_exits() {
    let of = |hypervisor| {
        let cpu = Virtualization::default();
        let switches = Switches { writes: SecondStageWrites::Unsync, ..Switches::default() };
        let levels = vec![Level::Shadow, Level::Shadow];
        let mut machine = Machine::new(Setup { levels, switches, cpu, hypervisor }).unwrap();
        let touch = |machine: &mut Machine| (0..1024).for_each(|page| machine.touch(page, true));
        // The same frames again: all that is behind them is there.
        touch(&mut machine);
        machine.unmap(0, 1024);
        machine.reset();
        touch(&mut machine);
        for page in 0..1024 {
            // What was dropped from L0's shadow comes back when it is touched.
            let found = machine.translation(page);
            assert!(found.is_none() || found == machine.composition(page), "{page}");
        }
        [1, 2].map(|vm| machine.exits(vm, ExitReason::PageFault) as f64 / 1024.0)
    };
    let [of_l1, of_l2] = of(Hypervisor::Kvm612);
    assert!(of_l1 < 0.05 && (3.0..3.1).contains(&of_l2), "{of_l1} {of_l2}");
    assert!(of(Hypervisor::Kvm84)[0] >= 1.0);
}
