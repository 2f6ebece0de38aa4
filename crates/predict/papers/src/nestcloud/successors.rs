//! Where the ideas of 2011 went: the same exits with what hardware and hypervisors have today.

use crate::Table;
use strata_nested::modes::{Level, Machine, Setup, Switches};
use strata_nested::vmx::Event;
use strata_nested::{
    Access, ExitCosts, ExitReason, Hypervisor, Instructions, Nesting, Virtualization,
};

/// A way to spare exits.
struct Way {
    name: &'static str,
    of_2011: &'static str,
    cpu: Virtualization,
    access: Access,
}

const NEHALEM: Virtualization = Virtualization {
    instructions: Instructions::Vmx,
    vmcs_shadowing: false,
    vls: false,
    vgif: false,
};
const HASWELL: Virtualization = Virtualization { vmcs_shadowing: true, ..NEHALEM };
const K10: Virtualization = Virtualization { instructions: Instructions::Svm, ..NEHALEM };
const VLS: Virtualization = Virtualization { vls: true, ..K10 };
const VGIF: Virtualization = Virtualization { vgif: true, ..K10 };
const ZEN: Virtualization = Virtualization { vls: true, vgif: true, ..K10 };

const fn way(
    name: &'static str,
    of_2011: &'static str,
    cpu: Virtualization,
    access: Access,
) -> Way {
    Way { name, of_2011, cpu, access }
}

const WAYS: [Way; 8] = [
    way("Intel, nothing", "basic", NEHALEM, Access::Instructions),
    way("Intel, paravirtual VMCS", "PV VMCS", NEHALEM, Access::Paravirtual),
    way("Intel, enlightened VMCS", "PV VMCS", NEHALEM, Access::Enlightened),
    way("Intel, VMCS shadowing", "PV VMCS", HASWELL, Access::Instructions),
    way("AMD, nothing", "PV VMCS by nature", K10, Access::Instructions),
    way("AMD, virtual VMLOAD and VMSAVE", "none", VLS, Access::Instructions),
    way("AMD, virtual GIF", "none", VGIF, Access::Instructions),
    way("AMD, both", "none", ZEN, Access::Instructions),
];

/// Exits of an EPT violation of L2 that L1 handles.
pub(super) fn of_vmcs() -> Table {
    let mut table = Table::new(
        "Where PV VMCS went",
        &[
            "One second-stage violation of L2 that L1 handles: exits that L1 takes for the instructions of its \
             hypervisor, and cycles of all of it, with KVM-84 and with KVM of Linux 6.12 as L1's hypervisor. On \
             AMD the VMCB is plain memory, and the scripts are the same.",
        ],
        &["CPU and host", "of 2011", "exits, 2009", "cycles", "exits, 6.12", "cycles"],
    );
    for way in WAYS {
        let [old, new] = Hypervisor::ALL.map(|hypervisor| {
            let costs = ExitCosts { hypervisor, vmcs_access: way.access, ..ExitCosts::default() };
            let nesting = Nesting::new(way.cpu, costs, 2);
            let handled = nesting.exit(2, 1, ExitReason::SecondStageViolation);
            let of_l1 = handled.exits.iter().filter(|(level, ..)| *level == 1);
            let exits: u64 = of_l1.map(|(.., count)| count).sum();
            [exits.to_string(), handled.cycles.to_string()]
        });
        let names = [way.name, way.of_2011].map(str::to_owned);
        table.row(names.into_iter().chain(old).chain(new));
    }
    table
}

/// What a tick of L2's timer costs.
pub(super) fn of_timers() -> Table {
    let mut table = Table::new(
        "Where the timers went",
        &[
            "One interrupt of L2's timer, its end, and the timer set anew, L0 and L1 with EPT. Without DVH \
             (ASPLOS'20) L1 handles all three. KVM-84's script is an average over all exits; that of 6.12 is the \
             one of each.",
        ],
        &["L1's hypervisor", "timers", "exits of L1 and L2", "cycles"],
    );
    for hypervisor in Hypervisor::ALL {
        for (name, direct_timers) in [("L1's", false), ("direct, DVH", true)] {
            let native = Setup::native();
            let setup = Setup {
                levels: vec![Level::Nested, Level::Nested],
                switches: Switches { direct_timers, ..native.switches },
                hypervisor,
                ..native
            };
            let mut machine = Machine::new(setup).expect("there can be such a machine");
            let (interrupt, apic) = (ExitReason::ExternalInterrupt, ExitReason::Apic);
            machine.happens(Event::ExternalInterrupt, interrupt, &[apic]);
            machine.happens(Event::Always, apic, &[]);
            machine.happens(Event::Always, apic, &[apic]);
            let reasons = ExitReason::ALL.into_iter();
            let reasons = reasons.filter(|reason| *reason != ExitReason::HandedOn);
            let exits = reasons.flat_map(|reason| [1, 2].map(|vm| machine.exits(vm, reason)));
            table.row([
                hypervisor.name().to_owned(),
                name.to_owned(),
                exits.sum::<u64>().to_string(),
                machine.exit_cycles(&ExitCosts::default()).to_string(),
            ]);
        }
    }
    table
}
