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
    /// A second stage that hardware walks: EPT on Intel, NPT on AMD.
    Nested,
}

/// What can be switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Page faults of pages that are not present go to the guest without an exit (NestCloud, section V.A). VMX only,
    /// as it is a VMCS that tells page faults apart by their error codes.
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
    /// The hypervisor that L1 runs, of whose time the guest's kernel is.
    pub hypervisor: Hypervisor,
}

/// Levels and switches that do not go together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// A second stage on a shadow.
    #[error(
        "L1 cannot have a second stage while L0 keeps a shadow of its page table: L0 offers virtual EPT by \
         forwarding to EPT, and virtual NPT to NPT; give L0 a second stage, too"
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
    /// Bypass on AMD's instructions.
    #[error(
        "page-fault bypass lets page faults exit by their error codes, for which a VMCS has a mask and a match; with \
         AMD's VMCB all of them exit or none, so leave bypass out or take an Intel CPU"
    )]
    BypassOnAmd,
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
        if switches.bypass && cpu.instructions == Instructions::Svm {
            return Err(Refused::BypassOnAmd);
        }
        if switches.bypass && !levels.contains(&Level::Shadow) {
            return Err(Refused::NothingToBypass);
        }
        if switches.access != Access::Instructions && levels.len() < 2 {
            return Err(Refused::NothingToShare);
        }
        accesses_fit(switches.access, cpu)
    }

    /// How each hypervisor has memory for its VM, as its VMCS or VMCB says it.
    pub(super) fn modes(&self) -> Vec<MemoryMode> {
        let mode = |level: &Level| match level {
            Level::Nested => MemoryMode::Nested,
            Level::Shadow => MemoryMode::Shadow { bypass: self.switches.bypass },
        };
        self.levels.iter().map(mode).collect()
    }

    /// Whether L0 reads tables of L1's that went unsync anew, and protects them again, whenever L1 enters L2. It
    /// does on AMD (Linux 6.12, `nested_svm_transition_tlb_flush`, which asks for `kvm_mmu_sync_roots`). On Intel an
    /// entry leaves alone what is cached of a second stage, and of a page table of an L1 that uses VPID, as today's
    /// does and that of 2009 did not: L0 waits for INVEPT or INVVPID (`nested_vmx_transition_tlb_flush`), which L1
    /// does not execute for entries it adds.
    pub(super) fn is_synchronised_at_entry(&self) -> bool {
        let svm = self.cpu.instructions == Instructions::Svm;
        match self.levels[..] {
            [Level::Shadow, Level::Shadow] => svm || self.hypervisor == Hypervisor::Kvm84,
            [Level::Nested, Level::Nested] => svm,
            _ => false,
        }
    }

    /// Whether L1 executes INVVPID for what it takes out of the shadow that it keeps
    /// (`kvm_flush_remote_tlbs_range`, `vmx_flush_tlb_current`).
    pub(super) fn invalidates_by_vpid(&self) -> bool {
        matches!(self.levels[..], [_, Level::Shadow])
            && self.cpu.instructions == Instructions::Vmx
            && self.hypervisor == Hypervisor::Kvm612
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
