//! Hypervisors in each other's VMs on VMCBs: what they do takes the exits that are counted without, and leaves
//! each with what is its own.

use proptest::prelude::*;
use strata_nested::script::Work;
use strata_nested::svm::Vmcb;
use strata_nested::svm::exits::Event;
use strata_nested::svm::vmcb::Place;
use strata_nested::tower::svm::Tower;
use strata_nested::tower::{Cause, MemoryMode, Route};
use strata_nested::{ExitCosts, ExitReason, Hypervisor, Instructions, Nesting, Virtualization};

const fn amd(vls: bool, vgif: bool) -> Virtualization {
    Virtualization { instructions: Instructions::Svm, vmcs_shadowing: false, vls, vgif }
}

const CPUS: [Virtualization; 4] =
    [amd(false, false), amd(true, false), amd(false, true), amd(true, true)];

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

fn tower(guest: usize, cpu: Virtualization) -> Tower {
    Tower::new(guest, cpu, Hypervisor::Kvm612)
}

#[test]
fn what_happens_is_what_is_counted() {
    for cpu in CPUS {
        for guest in 1..=4 {
            let costs = ExitCosts { hypervisor: Hypervisor::Kvm612, ..ExitCosts::default() };
            let nesting = Nesting::new(cpu, costs.clone(), 4);
            let mut tower = tower(guest, cpu);
            for handler in 0..guest {
                for reason in OF_GUESTS {
                    tower.reset();
                    tower.guest_exits(handler, reason);
                    let counted = nesting.exit(guest as u8, handler as u8, reason);
                    let told = format!("{cpu:?} L{guest} {reason:?} by L{handler}");
                    for vm in 1..=guest {
                        for reason in ExitReason::ALL {
                            let is_it = |exits: &&(u8, ExitReason, u64)| {
                                (exits.0 as usize, exits.1) == (vm, reason)
                            };
                            let expected = counted.exits.iter().find(is_it);
                            let expected = expected.map_or(0, |(.., count)| *count);
                            assert_eq!(
                                tower.exits(vm, reason),
                                expected,
                                "{told}: L{vm} {reason:?}"
                            );
                        }
                    }
                    assert_eq!(tower.cycles(&costs), counted.cycles, "{told}");
                }
            }
        }
    }
}

#[test]
fn hardware_runs_vmcb01_for_l1_and_vmcb02_for_what_is_in_it() {
    let (own, merged) = Tower::vmcbs_of_host();
    let l1 = tower(1, amd(true, true));
    assert_eq!((l1.runs(), l1.physical_vmcb()), (1, Some(own)));
    for guest in 2..=5 {
        let tower = tower(guest, amd(true, true));
        assert_eq!((tower.runs(), tower.physical_vmcb()), (guest, Some(merged)));
    }
}

#[test]
fn l1_finds_the_exit_of_l2_in_its_own_vmcb_and_not_those_that_l0_handles() {
    let mut tower = tower(2, amd(false, false));
    tower.guest_exits(1, ExitReason::SecondStageViolation);
    assert_eq!(tower.place(1, Place::EXIT_CODE), 0x400);
    tower.guest_exits(1, ExitReason::Io);
    assert_eq!(tower.place(1, Place::EXIT_CODE), 0x7b);
    let reason = ExitReason::Invalidation;
    let invlpg = Cause { reason, work: Work::Forget, error_code: 0 };
    tower.guest_exits_for(1, invlpg, Vec::new());
    assert_eq!(tower.place(1, Place::EXIT_CODE), 0x79);
    tower.guest_exits(1, ExitReason::Io);
    tower.guest_exits(0, ExitReason::ExternalInterrupt);
    assert_eq!(tower.place(1, Place::EXIT_CODE), 0x7b, "L0's own are not L1's affair");
    assert_eq!(tower.merged(0, Place::EXIT_CODE), 0x60);
}

#[test]
fn a_guest_has_its_registers_whoever_ran_in_between() {
    for cpu in CPUS {
        for guest in 1..=4 {
            for handler in 0..guest {
                let mut tower = tower(guest, cpu);
                let told = format!("{cpu:?} L{guest} by L{handler}");
                for (round, place) in (1..).zip(Place::MOVED_BY_VMLOAD) {
                    let value = 0x1000 * round + handler as u64;
                    tower.set_register(place, value);
                    tower.guest_exits(handler, ExitReason::Halt);
                    assert_eq!(tower.register(place), value, "{told}: {place:?} on hardware");
                    assert_eq!(
                        tower.place(handler, place),
                        value,
                        "{told}: {place:?} as it saved it"
                    );
                }
            }
        }
    }
}

#[test]
fn what_a_hypervisor_injects_gets_to_its_guest_once() {
    let event = 1 << 31 | 3 << 8 | 14;
    let mut tower = tower(3, amd(true, true));
    tower.inject(event);
    tower.guest_exits(2, ExitReason::Halt);
    // Each hypervisor below injects it for the one above, and hardware has it at the entry.
    for level in [0, 1] {
        assert_eq!(tower.merged(level, Place::EVENT), event, "L{level}");
    }
    tower.guest_exits(0, ExitReason::ExternalInterrupt);
    assert_eq!(tower.merged(0, Place::EVENT), 0, "delivered");
}

#[test]
fn interrupts_are_let_through_while_a_vm_runs() {
    for cpu in CPUS {
        let mut tower = tower(3, cpu);
        for handler in 0..3 {
            tower.guest_exits(handler, ExitReason::Io);
            (0..3).for_each(|level| assert!(tower.interrupts(level), "{cpu:?} L{level}"));
            // As the one below plays it.
            for level in 0..2 {
                let flag = tower.place(level, Place::VIRTUAL_INTERRUPT) >> 9 & 1;
                assert_eq!(flag, 1, "{cpu:?} L{level}");
            }
        }
    }
}

#[test]
fn where_exits_lead_is_for_the_vmcbs_to_say() {
    let nobody = |_| false;
    let mut tower = tower(2, amd(true, true));
    assert_eq!(tower.route(Event::Halt, nobody), Route::Handler(1));
    assert_eq!(tower.route(Event::Interrupt, |level| level == 0), Route::Handler(0));
    assert_eq!(tower.route(Event::Stgi, nobody), Route::NoExit, "virtual GIF");
    assert_eq!(tower.route(Event::Vmload, nobody), Route::NoExit, "virtual VMLOAD");
    assert_eq!(tower.route(Event::Exception(14), nobody), Route::NoExit, "second stages");
    // L1 does not want to see HLT any more: L0 does.
    let wants = tower.place(1, Place::EXCEPTION_INTERCEPTS);
    tower.set_place(1, Place::EXCEPTION_INTERCEPTS, wants & !(1 << 56));
    tower.guest_exits(1, ExitReason::Io);
    assert_eq!(tower.route(Event::Halt, nobody), Route::Handler(0));
    // With shadows, page faults and MOV to CR3 are for whoever keeps them.
    let modes = [MemoryMode::Nested, MemoryMode::Shadow { bypass: false }];
    let tower = Tower::with_memory(&modes, amd(true, true), Hypervisor::Kvm612);
    assert_eq!(tower.route(Event::Exception(14), nobody), Route::Handler(1));
    assert_eq!(tower.route(Event::WriteCr(3), nobody), Route::Handler(1));
    assert_eq!(tower.route(Event::Invlpg, nobody), Route::Handler(1));
    // The second stage is L0's then, and so are its violations.
    assert_eq!(tower.route(Event::NestedPageFault, nobody), Route::Handler(0));
    let tower = Tower::with_memory(&[modes[1]; 2], amd(true, true), Hypervisor::Kvm612);
    assert_eq!(tower.route(Event::NestedPageFault, nobody), Route::NoExit);
}

/// Words of the intercepts, of which VMRUN's is always set.
fn intercepts() -> impl Strategy<Value = [u64; 3]> {
    (any::<u32>(), any::<u64>(), any::<u8>()).prop_map(|(registers, rest, instructions)| {
        [registers.into(), rest, u64::from(instructions) | 1]
    })
}

const PLACES: [Place; 3] = [Place::CR_INTERCEPTS, Place::EXCEPTION_INTERCEPTS, Place::INTERCEPTS];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn hardware_exits_for_whatever_any_hypervisor_wants_to_see(
        words in intercepts(), port: u16, msr: u32,
    ) {
        let mut tower = tower(3, amd(false, false));
        for (place, word) in PLACES.into_iter().zip(words) {
            tower.set_place(2, place, word);
        }
        tower.guest_exits(2, ExitReason::Io);
        let events = (0..32).map(Event::Exception)
            .chain((0..16).map(Event::ReadCr))
            .chain((0..16).map(Event::WriteCr))
            .chain([
                Event::Interrupt, Event::Nmi, Event::Cpuid, Event::Halt, Event::Invlpg, Event::Vmmcall,
                Event::Io { port, bytes: 1 }, Event::ReadMsr(msr), Event::WriteMsr(msr),
            ]);
        for event in events {
            // As a hypervisor that had only this VM would have it.
            let alone = |words: [u64; 3]| {
                let mut memory = strata_nested::memory::Memory::default();
                let vmcb = Vmcb(0x2000);
                PLACES.into_iter().zip(words).for_each(|(place, word)| vmcb.set(&mut memory, place, word));
                vmcb.set(&mut memory, Place::IOPM, 0x10_0000);
                vmcb.set(&mut memory, Place::MSRPM, 0x20_0000);
                for map in [0x10_0000, 0x20_0000] {
                    (0..0x3000).step_by(8).for_each(|word| memory.write(map + word, u64::MAX));
                }
                strata_nested::svm::exits::exits(vmcb, &memory, event)
            };
            let others = alone(PLACES.map(|place| tower.place(0, place)));
            let expected = match (alone(words), others) {
                (true, _) => Route::Handler(2),
                // Of the others L0 is the first that has one which does not want it above.
                (false, true) => Route::Handler(1),
                (false, false) => Route::NoExit,
            };
            let route = tower.route(event, |_| false);
            prop_assert_eq!(route, expected, "{:?}", event);
        }
    }
}
