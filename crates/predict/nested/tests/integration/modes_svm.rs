//! Memory modes on AMD's instructions: what one page fault takes, and what is otherwise than on Intel's.

use crate::machines::{INTEL, amd, ready, setup};
use ExitReason::{
    Clgi, HandedOn, Msr, PageFault, SecondStageViolation, SecondStageWrite, Stgi, Vmload, Vmrun,
    Vmsave,
};
use Level::{Nested, Shadow};
use strata_nested::SecondStageWrites::{Trap, Unsync};
use strata_nested::modes::{Level, Machine, Refused};
use strata_nested::vmx::Event;
use strata_nested::{Access, ExitReason, SecondStageWrites, Virtualization};

type Exits = Vec<(usize, ExitReason, u64)>;

/// Exits by VM and reason, those that there are.
fn exits(machine: &Machine) -> Exits {
    let all = (1..=2).flat_map(|vm| ExitReason::ALL.map(|reason| (vm, reason)));
    let all = all.map(|(vm, reason)| (vm, reason, machine.exits(vm, reason)));
    all.filter(|(.., count)| *count > 0).collect()
}

/// What one touch leads to: of a page of the leaf table that there is, and of one that needs a new one.
fn of_one_fault(levels: &[Level], cpu: Virtualization, writes: SecondStageWrites) -> [Exits; 2] {
    [256, 512].map(|page| {
        let mut machine = ready(setup(levels, cpu, writes));
        machine.touch(page, true);
        assert_eq!(machine.counts().guest_faults, 1);
        assert_eq!(machine.translation(page), machine.composition(page));
        exits(&machine)
    })
}

/// What L1 executes for so many exits that it handles, by KVM's `svm_vcpu_run`, and exits besides.
fn with_script(handled: u64, cpu: Virtualization, others: &[(usize, ExitReason, u64)]) -> Exits {
    let mut all = others.to_vec();
    all.push((1, Vmrun, handled));
    // DEBUGCTL is read before each entry.
    all.push((1, Msr, handled));
    // VMSAVE of the registers that L2 had, VMLOAD of L1's own, interrupts on; and off, VMLOAD of L2's, VMRUN.
    if !cpu.vls {
        all.extend([(1, Vmload, 2 * handled), (1, Vmsave, handled)]);
    }
    if !cpu.vgif {
        all.extend([(1, Stgi, handled), (1, Clgi, handled)]);
    }
    all.push((2, HandedOn, handled));
    all.sort();
    all
}

/// The fault is injected, the guest writes its entry, and the page is filled in. The leaf table is unsync by
/// then, or else the write is done for the guest, and the shadow is right after it: two exits in either case. An
/// entry for a new leaf table is in a table that never goes unsync, so that there are three; the new table is not
/// shadowed before something of it is, so that nothing exits for the entry in it.
#[test]
fn a_page_fault_of_a_vm_with_a_shadow_exits_and_with_npt_it_does_not() {
    for cpu in [amd(false), amd(true)] {
        for writes in [Unsync, Trap] {
            let expected = [vec![(1, PageFault, 2)], vec![(1, PageFault, 3)]];
            assert_eq!(of_one_fault(&[Shadow], cpu, writes), expected);
            assert_eq!(of_one_fault(&[Nested], cpu, writes), [vec![], vec![]]);
            assert_eq!(of_one_fault(&[Nested, Nested], cpu, writes), [vec![], vec![]]);
        }
    }
}

/// L0 has NPT: L1 handles each exit of a VM with a shadow, and L0 does not look at L1's shadow. With a new table
/// L1 makes one, too, in a page of which L0 backs the frame.
#[test]
fn with_npt_below_a_page_fault_of_l2_is_that_of_a_vm_with_what_l1_executes() {
    for cpu in [amd(false), amd(true)] {
        for writes in [Unsync, Trap] {
            let expected = [
                with_script(2, cpu, &[(2, PageFault, 2)]),
                with_script(3, cpu, &[(1, SecondStageViolation, 1), (2, PageFault, 3)]),
            ];
            assert_eq!(of_one_fault(&[Nested, Shadow], cpu, writes), expected);
        }
    }
}

/// The same, and L0 shadows L1's shadow.
///
/// Unsync, for a page of a leaf table that there is: L1 injects. At its VMRUN L0 reads what is unsync of L1's shadow
/// anew and protects it. L2 writes its entry, and faults again: L1 fills the page in, for which it writes to its shadow:
/// an exit, by which the leaf table of that goes unsync. L0's own shadow has nothing of it yet: the third fault of L2,
/// which L0 mends alone. With a trap L0 does L1's write, and has the same in its shadow: no third fault.
///
/// With a new table L1 handles three. As it fills the page in, it reads L2's new table, which L0 does not map for L1
/// yet; takes the right to write to that table out of its shadow; links a new leaf table of its shadow; and before
/// that zeroes it, in a page that L0 has not given it yet: four faults of L1. L0's shadow has nothing in the new
/// leaf table, whatever it does about writes.
#[test]
fn with_a_shadow_below_l1_faults_as_it_keeps_its_own() {
    for cpu in [amd(false), amd(true)] {
        for (writes, faults) in [(Unsync, 3), (Trap, 2)] {
            let expected = [
                with_script(2, cpu, &[(1, PageFault, 1), (2, PageFault, faults)]),
                with_script(3, cpu, &[(1, PageFault, 4), (2, PageFault, 4)]),
            ];
            assert_eq!(of_one_fault(&[Shadow, Shadow], cpu, writes), expected, "{writes:?}");
        }
    }
}

/// L2 touches what L1 has not backed: L1 is handed the violation, writes its entry (an exit), and at its VMRUN L0 may
/// read it anew, but fills in nothing that nobody touched: L2 has a second violation, which L0 handles. With a trap
/// L0's table has the entry at once.
#[test]
fn a_page_that_l1_backs_costs_two_violations_of_l2_and_one_write_of_l1() {
    for cpu in [amd(false), amd(true)] {
        for (writes, violations) in [(Unsync, 2), (Trap, 1)] {
            let mut machine = Machine::new(setup(&[Nested, Nested], cpu, writes)).unwrap();
            (0..8).for_each(|page| machine.touch(page, true));
            machine.reset();
            machine.touch(8, true);
            let others = [(1, SecondStageWrite, 1), (2, SecondStageViolation, violations)];
            assert_eq!(exits(&machine), with_script(1, cpu, &others));
            assert_eq!(machine.counts().backed, [1, 1]);
        }
        let mut machine = Machine::new(setup(&[Nested], cpu, Unsync)).unwrap();
        machine.touch(0, true);
        machine.reset();
        machine.touch(1, true);
        assert_eq!(exits(&machine), [(1, SecondStageViolation, 1)]);
    }
}

/// What real kernels did (docs/lab-intel.md): for 24,576 pages L0 fixed 50,756 violations on AMD, 2.07 for each page, and
/// 25,507 on Intel, 1.04.
#[test]
fn l1s_leaf_tables_are_protected_anew_at_vmrun_and_with_ept_stay_unsync() {
    const PAGES: u64 = 8 * 512;
    let run = |cpu, writes| {
        let mut machine = Machine::new(setup(&[Nested, Nested], cpu, writes)).unwrap();
        machine.touch(0, true);
        machine.reset();
        (1..=PAGES).for_each(|page| machine.touch(page, true));
        for page in 0..=PAGES {
            assert_eq!(machine.translation(page), machine.composition(page));
        }
        let handed_on = machine.exits(2, HandedOn);
        // Pages, and those of L2's new tables.
        assert!((PAGES..PAGES + PAGES / 256).contains(&handed_on), "{handed_on}");
        let [violations, of_l2] = [1, 2].map(|vm| machine.exits(vm, SecondStageViolation));
        (handed_on, machine.exits(1, SecondStageWrite), violations, of_l2)
    };
    let tables = |handed_on: u64| handed_on / 512;
    let (handed_on, writes, violations, of_l2) = run(amd(false), Unsync);
    assert_eq!((writes, of_l2), (handed_on, 2 * handed_on));
    let fixed = (writes + violations + of_l2 - handed_on) as f64 / PAGES as f64;
    assert!((2.0..2.1).contains(&fixed), "{fixed}");
    // With EPT a table is linked, and goes unsync: two exits, whatever is in it.
    let (handed_on, writes, violations, of_l2) = run(INTEL, Unsync);
    assert_eq!((writes, of_l2), (2 * tables(handed_on), 2 * handed_on));
    let fixed = (writes + violations + of_l2 - handed_on) as f64 / PAGES as f64;
    assert!((1.0..1.1).contains(&fixed), "{fixed}");
    // Where every write is trapped, nothing is unsync.
    assert_eq!(run(amd(false), Trap), run(INTEL, Trap));
}

#[test]
fn what_only_a_vmcs_can_is_refused_with_a_remedy() {
    for levels in [&[][..], &[Shadow], &[Nested], &[Shadow, Shadow], &[Nested, Shadow]] {
        let mut bypass = setup(levels, amd(true), Unsync);
        bypass.switches.bypass = true;
        assert_eq!(Machine::new(bypass).err(), Some(Refused::BypassOnAmd), "{levels:?}");
    }
    for access in [Access::Paravirtual, Access::Enlightened] {
        let mut shared = setup(&[Nested, Nested], amd(true), Unsync);
        shared.switches.access = access;
        let refused = Refused::NotOfAmd("a VMCS in shared memory");
        assert_eq!(Machine::new(shared).err(), Some(refused));
    }
    let refused = Machine::new(setup(&[Shadow, Nested], amd(true), Unsync)).err();
    assert_eq!(refused, Some(Refused::VirtualEptOnShadow));
    let message = Refused::BypassOnAmd.to_string();
    assert!(message.contains("leave bypass out or take an Intel CPU"), "{message}");
}

#[test]
#[should_panic(expected = "VMX's alone")]
fn what_happens_on_vmx_only_does_not_happen() {
    let mut machine = Machine::new(setup(&[Nested], amd(true), Unsync)).unwrap();
    machine.happens(Event::PreemptionTimer, ExitReason::Apic, &[]);
}
