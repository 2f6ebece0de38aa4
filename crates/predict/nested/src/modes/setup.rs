//! Which levels there are, how each has memory for the next, and what is switched on.

use crate::access::Access;
use crate::script::Hypervisor;
use crate::second_stage_writes::SecondStageWrites;
use crate::tower::MemoryMode;
use crate::virtualization::{Instructions, Virtualization};
use thiserror::Error;

/// How a hypervisor has memory for its VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A shadow of the VM's page table.
    Shadow,
    /// A second stage that hardware walks: EPT.
    Nested,
}

/// What can be switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Page faults of pages that are not present go to the guest without an exit (NestCloud, section V.A).
    pub bypass: bool,
    /// How a hypervisor in a VM gets at its VMCS (NestCloud, section V.C, and what came of it).
    pub access: Access,
    /// Timers of the guest are L0's affair whoever its hypervisor is (DVH, ASPLOS'20, section 3).
    pub direct_timers: bool,
    /// Writes to tables that are shadowed exit each, or the first only.
    pub writes: SecondStageWrites,
}

/// Levels and switches. Without levels the guest is on bare metal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// By level of the hypervisor: L0's way to have memory for L1, then L1's for L2.
    pub levels: Vec<Level>,
    /// What is switched on.
    pub switches: Switches,
    /// What the CPU has.
    pub cpu: Virtualization,
    /// The hypervisor that L1 runs.
    pub hypervisor: Hypervisor,
}

/// Levels and switches that do not go together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// A second stage on a shadow.
    #[error(
        "L1 cannot have a second stage while L0 keeps a shadow of its page table: L0 offers virtual EPT by \
         forwarding to EPT; give L0 a second stage, too"
    )]
    VirtualEptOnShadow,
    /// Bypass without shadow paging.
    #[error(
        "page-fault bypass concerns page faults that exit, and with second stages none does; give L1 a shadow \
         or leave bypass out"
    )]
    NothingToBypass,
    /// More levels than there are here.
    #[error("memory modes are for a VM and a nested VM; there are {0} hypervisors, take at most 2")]
    TooDeep(usize),
    /// Instructions that are not Intel's.
    #[error("memory modes are there for VMX only; take an Intel CPU")]
    NotVmx,
    /// A shared VMCS without one to share.
    #[error("without a hypervisor in a VM there is no VMCS to share; add a level or leave it out")]
    NothingToShare,
    /// Two ways around the same exits.
    #[error(
        "a VMCS in shared memory and a shadow VMCS serve the same accesses, and KVM uses only one of them; \
         switch one off"
    )]
    SharedAndShadowed,
    /// A switch of Intel's on AMD's instructions.
    #[error(
        "{0} is for VMCSs; AMD's VMCB is plain memory to begin with, so leave it out or take an Intel CPU"
    )]
    NotOfAmd(&'static str),
}

impl Setup {
    /// On bare metal, with a CPU like NestCloud's, which has no shadow VMCSs.
    pub const fn native() -> Self {
        Self {
            levels: Vec::new(),
            switches: Switches {
                bypass: false,
                access: Access::Instructions,
                direct_timers: false,
                writes: SecondStageWrites::Trap,
            },
            cpu: Virtualization {
                instructions: Instructions::Vmx,
                vmcs_shadowing: false,
                vls: false,
                vgif: false,
            },
            hypervisor: Hypervisor::Kvm84,
        }
    }

    /// Whether there can be such a machine.
    ///
    /// # Errors
    /// With what is wrong and what to do about it.
    pub fn check(&self) -> Result<(), Refused> {
        let Self { levels, switches, cpu, .. } = self;
        if levels.len() > 2 {
            return Err(Refused::TooDeep(levels.len()));
        }
        if levels[..] == [Level::Shadow, Level::Nested] {
            return Err(Refused::VirtualEptOnShadow);
        }
        if switches.bypass && !levels.contains(&Level::Shadow) {
            return Err(Refused::NothingToBypass);
        }
        if switches.access != Access::Instructions && levels.len() < 2 {
            return Err(Refused::NothingToShare);
        }
        accesses_fit(switches.access, cpu)?;
        match cpu.instructions {
            Instructions::Svm if !levels.is_empty() => Err(Refused::NotVmx),
            _ => Ok(()),
        }
    }

    /// How each hypervisor has memory for its VM, as its VMCS says it.
    pub(super) fn modes(&self) -> Vec<MemoryMode> {
        let mode = |level: &Level| match level {
            Level::Nested => MemoryMode::Nested,
            Level::Shadow => MemoryMode::Shadow { bypass: self.switches.bypass },
        };
        self.levels.iter().map(mode).collect()
    }
}

/// Whether a way to get at a VMCS fits a CPU that has this.
///
/// # Errors
/// With what is wrong and what to do about it.
pub fn accesses_fit(access: Access, cpu: &Virtualization) -> Result<(), Refused> {
    match (access, cpu.instructions) {
        (Access::Instructions, _) => Ok(()),
        (_, Instructions::Svm) => Err(Refused::NotOfAmd("a VMCS in shared memory")),
        (_, Instructions::Vmx) if cpu.vmcs_shadowing => Err(Refused::SharedAndShadowed),
        (_, Instructions::Vmx) => Ok(()),
    }
}
