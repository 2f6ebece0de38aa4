//! What timers, devices and waiting lead to is what the same sequences lead to on VMCSs in memory.

use proptest::prelude::*;
use std::collections::BTreeMap;
use strata_nested::ExitReason::{Apic, ExternalInterrupt, Halt, Io};
use strata_nested::modes::{Level, Machine, Setup, Switches};
use strata_nested::vmx::Event;
use strata_nested::{
    ExitCosts, ExitReason, Happening, Hypervisor, Instructions, Nesting, Virtualization,
};

const PORT: Event = Event::Io { port: 0x1f0, bytes: 1 };

/// By level of the VM and reason.
type Counted = BTreeMap<(u8, ExitReason), u64>;

/// What it leads to as it is counted, and its cycles.
fn counted(nesting: &Nesting, what: Happening, vm: u8, accesses: u64, dvh: bool) -> (Counted, u64) {
    let (mut counts, mut cycles) = (Counted::new(), 0);
    for exit in what.exits(vm, accesses, dvh) {
        let handled = nesting.exit(exit.vm, exit.handler, exit.reason);
        for (vm, reason, count) in &handled.exits {
            *counts.entry((*vm, *reason)).or_default() += count * exit.times;
        }
        cycles += handled.cycles * exit.times;
    }
    (counts, cycles)
}

/// The sequences as a machine takes them, on second stages.
fn happens(machine: &mut Machine, what: Happening, hypervisors: u8, accesses: u64) {
    let nested = hypervisors == 2;
    match what {
        Happening::Tick => {
            machine.interrupt_of_host();
            if nested {
                machine.happens(Event::ExternalInterrupt, ExternalInterrupt, &[Apic, Apic]);
            }
            machine.happens(Event::ExternalInterrupt, ExternalInterrupt, &[Apic]);
            machine.happens(Event::Always, Apic, &[]);
            machine.happens(Event::Always, Apic, &[Apic]);
        }
        Happening::Request | Happening::AwaitedRequest => {
            (1..accesses).for_each(|_| {
                machine.happens(PORT, Io, &[]);
            });
            let own = vec![Io; accesses as usize];
            machine.happens(PORT, Io, &own);
            if what == Happening::Request {
                machine.happens(Event::ExternalInterrupt, ExternalInterrupt, &[Apic]);
            } else {
                machine.happens(Event::Halt, Halt, &[Halt, Apic]);
            }
            machine.happens(Event::Always, Apic, &[]);
        }
        Happening::Halt => {
            machine.happens(Event::Halt, Halt, &[Halt, Apic]);
            machine.happens(Event::Always, Apic, &[]);
        }
        Happening::Ipi => {
            machine.happens(Event::Always, Apic, &[Apic]);
        }
    }
}

#[test]
fn what_is_counted_is_what_happens_on_vmcss_and_vmcbs() {
    let native = Setup::native();
    let amd = Virtualization { instructions: Instructions::Svm, ..native.cpu };
    let cpus = [
        native.cpu,
        Virtualization { vmcs_shadowing: true, ..native.cpu },
        amd,
        Virtualization { vls: true, vgif: true, ..amd },
    ];
    for hypervisor in Hypervisor::ALL {
        for cpu in cpus {
            for hypervisors in 1..=2 {
                let levels = vec![Level::Nested; usize::from(hypervisors)];
                let setup = Setup { levels, hypervisor, cpu, ..native.clone() };
                let costs = ExitCosts { hypervisor, ..ExitCosts::default() };
                let nesting = Nesting::new(cpu, costs.clone(), hypervisors);
                for what in Happening::ALL {
                    let mut machine = Machine::new(setup.clone()).unwrap();
                    happens(&mut machine, what, hypervisors, 3);
                    machine.reset();
                    happens(&mut machine, what, hypervisors, 3);
                    let (counts, cycles) = counted(&nesting, what, hypervisors, 3, false);
                    for vm in 1..=hypervisors {
                        for reason in ExitReason::ALL {
                            let expected = machine.exits(vm.into(), reason);
                            let here = counts.get(&(vm, reason)).copied().unwrap_or(0);
                            assert_eq!(
                                here, expected,
                                "{what:?} L{vm} of {hypervisors} {reason:?}"
                            );
                        }
                    }
                    assert_eq!(cycles, machine.exit_cycles(&costs), "{what:?} {setup:?}");
                }
            }
        }
    }
}

#[test]
fn direct_timers_of_a_guest_are_the_hosts() {
    let native = Setup::native();
    let costs = ExitCosts::default();
    let nesting = Nesting::new(native.cpu, costs.clone(), 2);
    let (_, all) = counted(&nesting, Happening::Tick, 2, 1, true);
    // Without the ticks of L0 and of L1, of which one is handed on and the other two exits are L1's.
    let (_, of_host) = counted(&nesting, Happening::Tick, 1, 1, true);
    let switches = Switches { direct_timers: true, ..native.switches };
    let setup = Setup { levels: vec![Level::Nested; 2], switches, ..native };
    let mut machine = Machine::new(setup).unwrap();
    machine.happens(Event::ExternalInterrupt, ExternalInterrupt, &[Apic]);
    machine.happens(Event::Always, Apic, &[]);
    machine.happens(Event::Always, Apic, &[Apic]);
    let of_guest = machine.exit_cycles(&costs);
    let handed_on = nesting.exit(2, 1, ExternalInterrupt).cycles;
    assert_eq!(of_host, costs.external_interrupt + of_guest);
    assert_eq!(all, costs.external_interrupt + handed_on + 2 * costs.apic + of_guest);
}

proptest! {
    #[test]
    fn a_hypervisor_is_below_the_vm_and_each_level_does_its_part(
        vm in 1u8..=8, accesses in 1u64..30, dvh: bool,
    ) {
        for what in Happening::ALL {
            let exits = what.exits(vm, accesses, dvh);
            for exit in &exits {
                prop_assert!(exit.handler < exit.vm && exit.vm <= vm && exit.times > 0);
                let times = if exit.reason == Io { accesses } else { exit.times };
                prop_assert_eq!(exit.times, times);
            }
            // Whatever is asked of hardware gets to L0 once for each level.
            for level in 1..=vm {
                let of = |reason| {
                    exits.iter().filter(move |exit| (exit.vm, exit.reason) == (level, reason))
                };
                let expects = matches!(what, Happening::Request | Happening::AwaitedRequest);
                prop_assert_eq!(of(Io).count(), usize::from(expects));
                let halts = matches!(what, Happening::Halt | Happening::AwaitedRequest);
                prop_assert_eq!(of(Halt).count(), usize::from(halts));
                prop_assert!(of(Apic).count() > 0, "{what:?}");
            }
        }
    }
}
