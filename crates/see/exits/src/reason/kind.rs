//! What kind of work an exit is, and what makes such exits fewer.

use serde::{Deserialize, Serialize};

/// Kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Memory that a second stage does not map, or page tables that are shadowed.
    Memory,
    /// Instructions with which a guest runs guests of its own.
    Nesting,
    /// Timers, interrupts, and those that processors send each other.
    Interrupts,
    /// Devices.
    Devices,
    /// The guest has nothing to do.
    Idle,
    /// The guest waits for a lock.
    Spinning,
    /// Everything else.
    Other,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Memory,
        Self::Nesting,
        Self::Interrupts,
        Self::Devices,
        Self::Idle,
        Self::Spinning,
        Self::Other,
    ];

    /// Of the reason with this name.
    pub(super) fn of(name: &str) -> Self {
        match name {
            "EPT_VIOLATION" | "NPF" | "PF" | "EXCEPTION_NMI" | "INVLPG" | "INVPCID"
            | "PML_FULL" | "CR_ACCESS" | "CR3_READ" | "CR3_WRITE" | "CR0_WRITE" | "CR4_WRITE"
            | "CR0_SEL_WRITE" => Self::Memory,
            "VMCLEAR" | "VMLAUNCH" | "VMPTRLD" | "VMPTRST" | "VMREAD" | "VMRESUME" | "VMWRITE"
            | "VMOFF" | "VMON" | "INVEPT" | "INVVPID" | "VMRUN" | "VMLOAD" | "VMSAVE" | "STGI"
            | "CLGI" | "INVLPGA" => Self::Nesting,
            "EXTERNAL_INTERRUPT"
            | "INTERRUPT_WINDOW"
            | "NMI_WINDOW"
            | "PREEMPTION_TIMER"
            | "APIC_ACCESS"
            | "APIC_WRITE"
            | "EOI_INDUCED"
            | "TPR_BELOW_THRESHOLD"
            | "MSR_WRITE"
            | "MSR_READ"
            | "MSR"
            | "INTR"
            | "VINTR"
            | "NMI"
            | "AVIC_INCOMPLETE_IPI"
            | "AVIC_NOACCEL"
            | "INIT_SIGNAL"
            | "SIPI_SIGNAL"
            | "SMI"
            | "INIT" => Self::Interrupts,
            "IO_INSTRUCTION" | "IOIO" | "EPT_MISCONFIG" => Self::Devices,
            "HLT"
            | "MWAIT"
            | "MWAIT_INSTRUCTION"
            | "UMWAIT"
            | "TPAUSE"
            | "MONITOR"
            | "MONITOR_INSTRUCTION" => Self::Idle,
            "PAUSE" | "PAUSE_INSTRUCTION" => Self::Spinning,
            _ => Self::Other,
        }
    }

    /// What it is called in a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Nesting => "running guests of its own",
            Self::Interrupts => "timers and interrupts",
            Self::Devices => "devices",
            Self::Idle => "idling",
            Self::Spinning => "waiting for locks",
            Self::Other => "other instructions",
        }
    }

    /// What makes such exits fewer, or cheaper.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Memory => {
                "back its memory before it is used, and with huge pages in every layer: \
                 'strata scan' and 'strata join' show which layer breaks them"
            }
            Self::Nesting => {
                "VMCS shadowing or an enlightened VMCS on Intel, virtual VMLOAD, VMSAVE and GIF on AMD; \
                 fewer exits of its guests need fewer of these"
            }
            Self::Interrupts => {
                "posted interrupts or AVIC, no periodic tick in the guest (nohz_full) and in the host on \
                 these cores; a guest that sets timers all the time shows here"
            }
            Self::Devices => {
                "virtio with vhost, or a device passed through, in place of one that is emulated"
            }
            Self::Idle => "nothing: it costs no processor; halt polling makes waking up faster",
            Self::Spinning => "fewer vCPUs than processors, or vCPUs bound to processors",
            Self::Other => "see the reasons: each is an instruction that the hypervisor emulates",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Reason};

    #[test]
    fn both_makes_tell_the_same_work_alike() {
        let kind = |isa, code| Reason { isa, code }.kind();
        for (intel, amd, expected) in [
            (48, 0x400, Kind::Memory),
            (24, 0x80, Kind::Nesting),
            (1, 0x60, Kind::Interrupts),
            (30, 0x7b, Kind::Devices),
            (12, 0x78, Kind::Idle),
            (40, 0x77, Kind::Spinning),
            (10, 0x72, Kind::Other),
        ] {
            assert_eq!((kind(Isa::Vmx, intel), kind(Isa::Svm, amd)), (expected, expected));
        }
    }

    #[test]
    fn a_page_fault_of_a_nested_page_table_is_memory_whatever_its_flags() {
        assert_eq!(Reason { isa: Isa::Svm, code: 0x4e }.kind(), Kind::Memory);
        assert_eq!(Reason { isa: Isa::Vmx, code: 0x55 }.kind(), Kind::Other);
    }
}
