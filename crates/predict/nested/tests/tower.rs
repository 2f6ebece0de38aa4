//! Hypervisors in each other's VMs: what they do on real VMCSs takes the exits that are counted without.

use strata_nested::tower::{Access, Tower};
use strata_nested::vmx::Field;
use strata_nested::{ExitCosts, ExitReason, Hypervisor, Instructions, Nesting, Virtualization};

fn intel(vmcs_shadowing: bool) -> Virtualization {
    Virtualization { instructions: Instructions::Vmx, vmcs_shadowing, vls: false, vgif: false }
}

const OF_MEMORY: [ExitReason; 3] =
    [ExitReason::SecondStageViolation, ExitReason::SecondStageWrite, ExitReason::Invalidation];

#[test]
fn what_happens_is_what_is_counted() {
    for vmcs_shadowing in [false, true] {
        for hypervisor in Hypervisor::ALL {
            let costs = ExitCosts { hypervisor, ..ExitCosts::default() };
            let nesting = Nesting::new(intel(vmcs_shadowing), costs, 3);
            for guest in 1..=3 {
                let cpu = intel(vmcs_shadowing);
                let mut tower = Tower::new(guest, cpu, hypervisor, Access::Instructions);
                for handler in 0..guest {
                    for reason in OF_MEMORY {
                        // The first time a VMCS may not have been launched yet.
                        tower.guest_exits(handler, reason);
                        tower.reset();
                        tower.guest_exits(handler, reason);
                        let counted = nesting.exit(guest as u8, handler as u8, reason);
                        for vm in 1..=guest {
                            for reason in ExitReason::ALL {
                                let expected = counted
                                    .exits
                                    .iter()
                                    .find(|(level, known, _)| {
                                        (*level as usize, *known) == (vm, reason)
                                    })
                                    .map_or(0, |(.., count)| *count);
                                assert_eq!(
                                    tower.exits(vm, reason),
                                    expected,
                                    "{vmcs_shadowing} {hypervisor:?} L{guest} by L{handler}: L{vm} {reason:?}"
                                );
                            }
                        }
                    }
                }
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
