//! The workloads, as sequences on a machine: what a program touches, unmaps and does besides, and what its kernel's
//! timer does.

use super::conditions::{
    COMPILATION, COMPILATIONS, FAULT_PAGES, FAULT_ROUNDS, HZ, PORT_ACCESSES, STATEMENTS, SWITCHES,
};
use super::constants::Constants;
use strata_nested::ExitReason::{Apic, ExternalInterrupt, Halt, Io};
use strata_nested::modes::{Machine, Setup};
use strata_nested::vmx::Event;

/// First page of what programs map.
const FIRST: u64 = 512;

/// A machine that a sequence was run on, and how many units of it.
pub(super) struct Ran {
    pub(super) machine: Machine,
    pub(super) units: f64,
}

impl Ran {
    /// Cycles of a unit: page faults of kernels, walks, exits.
    pub(super) fn cycles(&self, constants: &Constants) -> f64 {
        let counts = self.machine.counts();
        let faults = counts.guest_faults + counts.backed.iter().sum::<u64>();
        let faults = faults as f64 * constants.fault();
        let walks = counts.references as f64 * constants.reference;
        (faults + walks + self.machine.exit_cycles(&constants.exits) as f64) / self.units
    }

    /// Exits of a unit, of all levels, each once.
    pub(super) fn exits(&self) -> f64 {
        use strata_nested::ExitReason;
        let reasons = ExitReason::ALL.into_iter().filter(|reason| *reason != ExitReason::HandedOn);
        let all = reasons.flat_map(|reason| [1, 2].map(|vm| self.machine.exits(vm, reason)));
        all.sum::<u64>() as f64 / self.units
    }
}

fn machine(setup: &Setup) -> Machine {
    Machine::new(setup.clone()).expect("configurations can be")
}

/// How often something is done at a scale; once at least.
fn times(count: f64, scale: f64) -> u64 {
    ((count * scale).round() as u64).max(1)
}

/// PF-Bench; a unit is a page fault of the program.
pub(super) fn page_faults(setup: &Setup, scale: f64) -> Ran {
    let mut machine = machine(setup);
    let round = |machine: &mut Machine| {
        (FIRST..FIRST + FAULT_PAGES).for_each(|page| machine.touch(page, true));
        machine.unmap(FIRST, FAULT_PAGES);
    };
    round(&mut machine);
    machine.reset();
    let rounds = times(FAULT_ROUNDS, scale);
    (0..rounds).for_each(|_| round(&mut machine));
    Ran { machine, units: (rounds * FAULT_PAGES) as f64 }
}

/// One tick of every kernel.
fn tick(machine: &mut Machine, hypervisors: usize) {
    machine.interrupt_of_host();
    if hypervisors == 2 {
        // L1's own: its end, and the timer set anew.
        machine.happens(Event::ExternalInterrupt, ExternalInterrupt, &[Apic, Apic]);
    }
    // The guest's timer is one of its hypervisor's, which has to set it for the guest.
    machine.happens(Event::ExternalInterrupt, ExternalInterrupt, &[Apic]);
    machine.happens(Event::Always, Apic, &[]);
    machine.happens(Event::Always, Apic, &[Apic]);
}

/// What comes of time alone; a unit is a second.
pub(super) fn seconds(setup: &Setup) -> Ran {
    let mut machine = machine(setup);
    for _ in 0..HZ {
        tick(&mut machine, setup.levels.len());
    }
    Ran { machine, units: 1.0 }
}

/// SysBench's OLTP; a unit is a transaction.
pub(super) fn transactions(setup: &Setup) -> Ran {
    let mut machine = machine(setup);
    (0..STATEMENTS * SWITCHES).for_each(|_| machine.flush());
    disk_request(&mut machine);
    Ran { machine, units: 1.0 }
}

/// A request to a disk that software plays; a hypervisor in a VM makes one of its own for it.
fn disk_request(machine: &mut Machine) {
    let port = Event::Io { port: 0x1f0, bytes: 1 };
    let mut own = vec![Io; PORT_ACCESSES as usize];
    own.extend([Halt, Apic]);
    (1..PORT_ACCESSES).for_each(|_| {
        machine.happens(port, Io, &[]);
    });
    machine.happens(port, Io, &own);
    machine.happens(Event::Halt, Halt, &[]);
    // The interrupt comes with the end of waiting, and has to be ended.
    machine.happens(Event::Always, Apic, &[]);
}

/// A kernel build; a unit is a compilation.
pub(super) fn compilations(setup: &Setup, scale: f64) -> Ran {
    let (seconds, faults, switches) = COMPILATION;
    let mut machine = machine(setup);
    let compile = |machine: &mut Machine| {
        for page in 0..faults {
            machine.touch(FIRST + page, true);
            if page % (faults / switches) == 0 {
                machine.flush();
            }
        }
        machine.unmap(FIRST, faults);
        for _ in 0..(seconds * HZ as f64).round() as u64 {
            tick(machine, setup.levels.len());
        }
    };
    compile(&mut machine);
    machine.reset();
    let compilations = times(COMPILATIONS, scale);
    (0..compilations).for_each(|_| compile(&mut machine));
    Ran { machine, units: compilations as f64 }
}

/// What a program or a kernel does once, in the manner of lmbench.
pub(super) fn primitives(setup: &Setup) -> Vec<(&'static str, Ran)> {
    let hypervisors = setup.levels.len();
    // In the middle of a leaf table that was in use before.
    let ready = || {
        let mut machine = machine(setup);
        for _ in 0..2 {
            (FIRST..FIRST + 512).for_each(|page| machine.touch(page, true));
            machine.unmap(FIRST, 511);
        }
        (FIRST..FIRST + 256).for_each(|page| machine.touch(page, true));
        machine.reset();
        machine
    };
    let one = |work: &dyn Fn(&mut Machine)| {
        let mut machine = ready();
        work(&mut machine);
        Ran { machine, units: 1.0 }
    };
    vec![
        ("page fault", one(&|machine| machine.touch(FIRST + 256, true))),
        ("unmap a page", one(&|machine| machine.unmap(FIRST, 1))),
        ("change of process", one(&Machine::flush)),
        ("tick of every kernel", one(&|machine| tick(machine, hypervisors))),
        ("disk request", one(&disk_request)),
    ]
}
