//! How a hypervisor in a VM gets at its VMCS.

use crate::virtualization::{Instructions, Virtualization};
use crate::vmx::Field;
use strata_params::{ParameterError, Value};

/// How a hypervisor in a VM gets at its VMCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// By instructions, which exit unless a shadow VMCS serves them.
    #[default]
    Instructions,
    /// In memory, in a layout that hypervisors agree on: NestCloud's PV VMCS (V.C). The hypervisor
    /// below copies all of it at every entry and exit.
    Paravirtual,
    /// The same with a note of what has changed, so that only that is copied: Hyper-V's enlightened
    /// VMCS.
    Enlightened,
}

impl Access {
    const ALL: [Self; 3] = [Self::Instructions, Self::Paravirtual, Self::Enlightened];

    /// Name, as a parameter's value.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Paravirtual => "paravirtual",
            Self::Enlightened => "enlightened",
        }
    }

    /// What the CPU has that is of use with it: whoever shares memory with the hypervisor below needs no
    /// shadow VMCS, and KVM has none then.
    pub const fn of_use(self, cpu: Virtualization) -> Virtualization {
        let vmcs_shadowing = cpu.vmcs_shadowing && matches!(self, Self::Instructions);
        Virtualization { vmcs_shadowing, ..cpu }
    }

    /// Whether a CPU with these instructions has something to get at in this way.
    pub const fn fits(self, instructions: Instructions) -> bool {
        matches!((self, instructions), (Self::Instructions, _) | (_, Instructions::Vmx))
    }

    /// Fields that the hypervisor below copies from an exit that it hands on to the entry after it, when
    /// `written` different fields are written meanwhile.
    pub(crate) fn copied_fields(self, written: usize) -> u64 {
        let all = Field::all().count();
        let copied = match self {
            Self::Instructions => 0,
            Self::Paravirtual => 2 * all,
            // At the exit nothing is noted as changed; there is always something to copy.
            Self::Enlightened => 1 + written.max(1),
        };
        copied as u64
    }
}

impl Access {
    /// Fields that the hypervisor below copies when another VMCS is loaded (VMPTRLD): with a note of what
    /// has changed, one at least.
    pub(crate) fn copied_at_load(self) -> u64 {
        match self {
            Self::Instructions => 0,
            Self::Paravirtual => Field::all().count() as u64,
            Self::Enlightened => 1,
        }
    }
}

impl Value for Access {
    fn parse(name: &str, text: &str, _: &str) -> Result<Self, ParameterError> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| ParameterError::Invalid {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "instructions, paravirtual or enlightened",
        })
    }

    fn print(&self) -> String {
        self.name().to_owned()
    }
}
