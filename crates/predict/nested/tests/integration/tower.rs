//! Hypervisors in each other's VMs: what they do on real VMCSs takes the exits that are counted without.

use strata_nested::script::Work;
use strata_nested::tower::Cause;
use strata_nested::tower::vmx::Tower;
use strata_nested::vmx::Field;
use strata_nested::{
    Access, ExitCosts, ExitReason, Hypervisor, Instructions, Nesting, Virtualization,
};

fn intel(vmcs_shadowing: bool) -> Virtualization {
    Virtualization { instructions: Instructions::Vmx, vmcs_shadowing, vls: false, vgif: false }
}

const OF_GUESTS: [ExitReason; 9] = [
    ExitReason::SecondStageViolation,
    ExitReason::SecondStageWrite,
    ExitReason::Invalidation,
    ExitReason::PageFault,
    ExitReason::ControlRegister,
    ExitReason::ExternalInterrupt,
    ExitReason::Apic,
    ExitReason::Halt,
    ExitReason::Io,
];

const ACCESSES: [Access; 3] = [Access::Instructions, Access::Paravirtual, Access::Enlightened];

#[test]
fn what_happens_is_what_is_counted() {
    for vmcs_shadowing in [false, true] {
        for hypervisor in Hypervisor::ALL {
            for access in ACCESSES {
                (1..=3).for_each(|guest| compare(intel(vmcs_shadowing), hypervisor, access, guest));
            }
        }
    }
}

/// Every exit of the guest of so many hypervisors, by each of them.
fn compare(cpu: Virtualization, hypervisor: Hypervisor, access: Access, guest: usize) {
    let costs = ExitCosts { hypervisor, vmcs_access: access, ..ExitCosts::default() };
    let nesting = Nesting::new(cpu, costs.clone(), 3);
    let mut tower = Tower::new(guest, cpu, hypervisor, access);
    for handler in 0..guest {
        for reason in OF_GUESTS {
            // The first time a VMCS may not have been launched yet.
            tower.guest_exits(handler, reason);
            tower.reset();
            tower.guest_exits(handler, reason);
            let counted = nesting.exit(guest as u8, handler as u8, reason);
            let told =
                format!("{cpu:?} {hypervisor:?} {access:?} L{guest} {reason:?} by L{handler}");
            for vm in 1..=guest {
                for reason in ExitReason::ALL {
                    let is_it = |exits: &&(u8, ExitReason, u64)| {
                        (exits.0 as usize, exits.1) == (vm, reason)
                    };
                    let expected = counted.exits.iter().find(is_it).map_or(0, |(.., count)| *count);
                    assert_eq!(tower.exits(vm, reason), expected, "{told}: L{vm} {reason:?}");
                }
            }
            let (cycles, expected) = (tower.cycles(&costs), counted.cycles);
            match access {
                // How many fields have changed is not counted where a script leads to others.
                Access::Enlightened => {
                    assert!(cycles.abs_diff(expected) * 100 < expected, "{told}")
                }
                _ => assert_eq!(cycles, expected, "{told}"),
            }
        }
    }
}

#[test]
fn hardware_is_on_ivmcs_while_l1_runs_and_on_svmcs_while_l2_runs() {
    let (own, merged) = Tower::vmcss_of_host();
    let l1_alone = Tower::new(1, intel(true), Hypervisor::Kvm612, Access::Instructions);
    assert_eq!((l1_alone.runs(), l1_alone.physical_vmcs()), (1, Some(own)));
    for guest in [2, 3, 4] {
        let tower = Tower::new(guest, intel(true), Hypervisor::Kvm612, Access::Instructions);
        assert_eq!((tower.runs(), tower.physical_vmcs()), (guest, Some(merged)));
    }
}

#[test]
fn l1_finds_the_exit_of_l2_in_its_own_vmcs_and_l0s_copy_has_the_same() {
    for vmcs_shadowing in [false, true] {
        let mut tower =
            Tower::new(2, intel(vmcs_shadowing), Hypervisor::Kvm612, Access::Instructions);
        tower.guest_exits(1, ExitReason::SecondStageViolation);
        assert_eq!(tower.field(1, Field::EXIT_REASON), 48, "EPT violation");
        for field in [Field::EXIT_REASON, Field::GUEST_CR3, Field::PIN_CONTROLS] {
            assert_eq!(tower.field(1, field), tower.copied_field(0, field), "{field:?}");
        }
        let reason = ExitReason::Invalidation;
        tower.guest_exits_for(1, Cause { reason, work: Work::Forget, error_code: 0 }, Vec::new());
        assert_eq!(tower.field(1, Field::EXIT_REASON), 14, "INVLPG");
        tower.guest_exits(1, ExitReason::SecondStageViolation);
        tower.guest_exits(0, ExitReason::Invalidation);
        assert_eq!(tower.field(1, Field::EXIT_REASON), 48, "L0's own exits are not L1's affair");
    }
}

#[test]
fn a_paravirtual_vmcs_saves_exits_and_costs_copies() {
    let run = |access| {
        let mut tower = Tower::new(2, intel(false), Hypervisor::Kvm84, access);
        tower.guest_exits(1, ExitReason::SecondStageViolation);
        tower.reset();
        tower.guest_exits(1, ExitReason::SecondStageViolation);
        let of = |reason| tower.exits(1, reason);
        let accesses = of(ExitReason::Vmread) + of(ExitReason::Vmwrite);
        (accesses, of(ExitReason::Vmresume), tower.copied_fields())
    };
    assert_eq!(run(Access::Instructions), (14, 1, 0));
    let fields = Field::all().count() as u64;
    assert_eq!(run(Access::Paravirtual), (0, 1, 2 * fields));
    let (accesses, entries, copied) = run(Access::Enlightened);
    assert_eq!((accesses, entries), (0, 1));
    assert!(copied < 10, "{copied}");
}
