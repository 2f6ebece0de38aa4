//! The tower below a guest, of the instructions that the CPU has.

use super::setup::Setup;
use crate::costs::ExitCosts;
use crate::reason::ExitReason;
use crate::svm::exits::Event as OfSvm;
use crate::tower::{Cause, Route, svm, vmx};
use crate::virtualization::Instructions;
use crate::vmx::Event;

/// A tower of either kind. What a guest does is told in events of VMX, which each kind looks up in its own way.
pub(super) enum Tower {
    Vmx(vmx::Tower),
    Svm(svm::Tower),
}

macro_rules! with {
    ($tower:expr, $either:ident => $value:expr) => {
        match $tower {
            Tower::Vmx($either) => $value,
            Tower::Svm($either) => $value,
        }
    };
}

impl Tower {
    pub(super) fn new(setup: &Setup) -> Self {
        let (modes, hypervisor) = (setup.modes(), setup.hypervisor);
        match setup.cpu.instructions {
            Instructions::Vmx => Self::Vmx(vmx::Tower::with_memory(
                &modes,
                setup.cpu,
                hypervisor,
                setup.switches.access,
            )),
            Instructions::Svm => Self::Svm(svm::Tower::with_memory(&modes, setup.cpu, hypervisor)),
        }
    }

    pub(super) fn reset(&mut self) {
        with!(self, tower => tower.reset());
    }

    pub(super) fn exits(&self, vm: usize, reason: ExitReason) -> u64 {
        with!(self, tower => tower.exits(vm, reason))
    }

    pub(super) fn cycles(&self, costs: &ExitCosts) -> u64 {
        with!(self, tower => tower.cycles(costs))
    }

    pub(super) const fn copied_fields(&self) -> u64 {
        match self {
            Self::Vmx(tower) => tower.copied_fields(),
            // Nobody has a copy of a VMCB: it is plain memory.
            Self::Svm(_) => 0,
        }
    }

    pub(super) fn guest_exits_for(&mut self, handler: usize, cause: Cause, own: Vec<Cause>) {
        with!(self, tower => tower.guest_exits_for(handler, cause, own));
    }

    /// Where an event leads.
    ///
    /// # Panics
    /// On SVM, for an event that there is on VMX only.
    pub(super) fn route(&self, event: Event, owns: impl Fn(usize) -> bool) -> Route {
        match self {
            Self::Vmx(tower) => tower.route(event, owns),
            Self::Svm(tower) => {
                let event = of_svm(event).unwrap_or_else(|| panic!("{event:?} is VMX's alone"));
                tower.route(event, owns)
            }
        }
    }
}

/// The same on SVM. Which fields, windows and timers there are is a matter of VMX.
const fn of_svm(event: Event) -> Option<OfSvm> {
    Some(match event {
        // A VMCB has one intercept for all error codes, and all values of a control register.
        Event::Exception { vector, .. } => OfSvm::Exception(vector),
        Event::ExternalInterrupt => OfSvm::Interrupt,
        Event::Nmi => OfSvm::Nmi,
        Event::SecondStageViolation => OfSvm::NestedPageFault,
        // Nothing has to exit on SVM but VMRUN; CPUID is what every hypervisor wants to see there, too.
        Event::Always => OfSvm::Cpuid,
        Event::Halt => OfSvm::Halt,
        Event::Invlpg => OfSvm::Invlpg,
        Event::WriteCr0(_) => OfSvm::WriteCr(0),
        Event::WriteCr3(_) => OfSvm::WriteCr(3),
        Event::ReadCr3 => OfSvm::ReadCr(3),
        Event::WriteCr4(_) => OfSvm::WriteCr(4),
        Event::Io { port, bytes } => OfSvm::Io { port, bytes },
        Event::ReadMsr(msr) => OfSvm::ReadMsr(msr),
        Event::WriteMsr(msr) => OfSvm::WriteMsr(msr),
        Event::InterruptWindow
        | Event::NmiWindow
        | Event::PreemptionTimer
        | Event::Vmread(_)
        | Event::Vmwrite(_) => return None,
    })
}
