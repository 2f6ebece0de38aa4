//! Why a VM exits.

/// Why a VM exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ExitReason {
    /// The VM touched memory of its own that the second stage hardware walks for it does not map
    /// (EPT violation, SDM volume 3C, section 29.3.3.2; nested page fault, APM volume 2, section
    /// 15.25.6).
    SecondStageViolation = 0,
    /// The host hands an exit of a nested guest on to the guest hypervisor, because it is about
    /// something of that hypervisor's: its own second stage does not map the page either, or it has
    /// to emulate the instruction.
    HandedOn = 1,
    /// A hypervisor in the VM wrote an entry of its own second stage, which is write-protected.
    SecondStageWrite = 2,
    /// A hypervisor in the VM invalidated cached translations of a guest of its own (INVEPT, INVVPID, SDM
    /// volume 3C, section 31.3; INVLPGA, APM volume 3), or the VM one of a page of its own of whose table its
    /// hypervisor keeps a shadow (INVLPG, SDM volume 3C, section 26.1.3; APM volume 2, section 15.9).
    Invalidation = 3,
    /// A hypervisor in the VM read a field of a VMCS (VMREAD, SDM volume 3C, section 31.3).
    Vmread = 4,
    /// A hypervisor in the VM wrote a field of a VMCS (VMWRITE, SDM volume 3C, section 31.3).
    Vmwrite = 5,
    /// A hypervisor in the VM entered a guest of its own (VMLAUNCH, VMRESUME; SDM volume 3C, section
    /// 31.3).
    Vmresume = 6,
    /// A hypervisor in the VM changed to another VMCS (VMPTRLD, SDM volume 3C, section 31.3).
    Vmptrld = 7,
    /// A hypervisor in the VM put a VMCS back into memory (VMCLEAR, SDM volume 3C, section 31.3).
    Vmclear = 8,
    /// A hypervisor in the VM entered a guest of its own (VMRUN, APM volume 2, section 15.5).
    Vmrun = 9,
    /// A hypervisor in the VM loaded state that VMRUN leaves alone (VMLOAD, APM volume 2, section
    /// 15.5.2).
    Vmload = 10,
    /// A hypervisor in the VM saved such state (VMSAVE, APM volume 2, section 15.5.2).
    Vmsave = 11,
    /// A hypervisor in the VM allowed interrupts, by the global interrupt flag (STGI, APM volume 2,
    /// section 15.17).
    Stgi = 12,
    /// A hypervisor in the VM held interrupts back (CLGI, APM volume 2, section 15.17).
    Clgi = 13,
    /// A page fault of the VM that its hypervisor wants to see, as it keeps a shadow of the VM's page table
    /// (SDM volume 3C, section 26.2; APM volume 2, section 15.12).
    PageFault = 14,
    /// The VM loaded another page table, of which its hypervisor keeps a shadow (MOV to CR3, SDM volume
    /// 3C, section 26.1.3).
    ControlRegister = 15,
    /// A device or a timer interrupted while the VM ran (SDM volume 3C, section 26.2).
    ExternalInterrupt = 16,
    /// The VM used its interrupt controller: the end of an interrupt, an interrupt for another CPU, a
    /// timer set anew (SDM volume 3C, section 30.4).
    Apic = 17,
    /// The VM had nothing to do (HLT, SDM volume 3C, section 26.1.3).
    Halt = 18,
    /// The VM used a device that software plays (I/O instructions, SDM volume 3C, section 26.1.3).
    Io = 19,
    /// A hypervisor in the VM read a model-specific register that the host does not let it read (RDMSR, SDM volume
    /// 3C, section 26.1.3; APM volume 2, section 15.11).
    Msr = 20,
}

impl ExitReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 21] = [
        Self::SecondStageViolation,
        Self::HandedOn,
        Self::SecondStageWrite,
        Self::Invalidation,
        Self::Vmread,
        Self::Vmwrite,
        Self::Vmresume,
        Self::Vmptrld,
        Self::Vmclear,
        Self::Vmrun,
        Self::Vmload,
        Self::Vmsave,
        Self::Stgi,
        Self::Clgi,
        Self::PageFault,
        Self::ControlRegister,
        Self::ExternalInterrupt,
        Self::Apic,
        Self::Halt,
        Self::Io,
        Self::Msr,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SecondStageViolation => "second_stage_violation",
            Self::HandedOn => "handed_on",
            Self::SecondStageWrite => "second_stage_write",
            Self::Invalidation => "invalidation",
            Self::Vmread => "vmread",
            Self::Vmwrite => "vmwrite",
            Self::Vmresume => "vmresume",
            Self::Vmptrld => "vmptrld",
            Self::Vmclear => "vmclear",
            Self::Vmrun => "vmrun",
            Self::Vmload => "vmload",
            Self::Vmsave => "vmsave",
            Self::Stgi => "stgi",
            Self::Clgi => "clgi",
            Self::PageFault => "page_fault",
            Self::ControlRegister => "control_register",
            Self::ExternalInterrupt => "external_interrupt",
            Self::Apic => "apic",
            Self::Halt => "halt",
            Self::Io => "io",
            Self::Msr => "msr",
        }
    }

    /// Whether every run tells how often there was one. The others come where a workload is said to have
    /// timers and devices, a VM has shadow paging, or a hypervisor reads registers, and are told where there
    /// are any.
    pub const fn is_of_every_run(self) -> bool {
        self as u8 <= Self::Clgi as u8
    }

    /// Whether only VMs exit for it whose hypervisors keep shadows of their page tables.
    pub const fn is_of_shadow_paging(self) -> bool {
        matches!(self, Self::PageFault | Self::ControlRegister)
    }

    /// Whether it is no memory's: such exits come at the rates at which a workload uses devices and time.
    pub const fn is_of_devices_and_time(self) -> bool {
        matches!(self, Self::ExternalInterrupt | Self::Apic | Self::Halt | Self::Io)
    }

    /// Whether an instruction of a hypervisor in the VM causes it, as it enters and leaves guests of its
    /// own. Those that are about memory are not meant.
    pub const fn is_instruction(self) -> bool {
        let of_vms = self as u8 >= Self::Vmread as u8 && self as u8 <= Self::Clgi as u8;
        of_vms || matches!(self, Self::Msr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_in_their_order_and_named_apart() {
        for (index, reason) in ExitReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            let alike = ExitReason::ALL.iter().filter(|other| other.name() == reason.name());
            assert_eq!(alike.count(), 1, "{reason:?}");
        }
    }
}
