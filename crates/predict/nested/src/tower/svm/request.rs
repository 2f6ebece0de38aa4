//! What exits on SVM, with its exit code, and what an intercept is looked up for.

use crate::reason::ExitReason;
use crate::script::Work;
use crate::svm::exits::Event;
use crate::tower::cause::Cause;

/// What an instruction of a hypervisor asks for, or what a guest exits for by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// CLGI.
    Clear,
    /// STGI.
    Set,
    /// VMLOAD from an address in the hypervisor's memory.
    Load(u64),
    /// VMSAVE to one.
    Save(u64),
    /// VMRUN of the VMCB at one.
    Run(u64),
    /// An exit that a guest takes by itself.
    Guest(Cause),
}

/// Vector of a page fault.
pub(super) const PAGE_FAULT: u8 = 14;

impl Request {
    pub(super) const fn reason(self) -> ExitReason {
        match self {
            Self::Clear => ExitReason::Clgi,
            Self::Set => ExitReason::Stgi,
            Self::Load(_) => ExitReason::Vmload,
            Self::Save(_) => ExitReason::Vmsave,
            Self::Run(_) => ExitReason::Vmrun,
            Self::Guest(cause) => cause.reason,
        }
    }

    /// The exit code (APM volume 2, appendix C).
    pub(super) const fn code(self) -> u64 {
        match self {
            Self::Run(_) => 0x80,
            Self::Load(_) => 0x82,
            Self::Save(_) => 0x83,
            Self::Set => 0x84,
            Self::Clear => 0x85,
            Self::Guest(cause) => match cause.reason {
                ExitReason::PageFault => 0x40 + PAGE_FAULT as u64,
                ExitReason::ControlRegister => 0x13,
                ExitReason::ExternalInterrupt => 0x60,
                ExitReason::Halt => 0x78,
                ExitReason::Invalidation if matches!(cause.work, Work::Forget) => 0x79,
                ExitReason::Invalidation => 0x7a,
                ExitReason::Io => 0x7b,
                // The interrupt controller of today's guests is behind MSRs.
                ExitReason::Apic | ExitReason::Msr => 0x7c,
                // Nested page faults, writes to second stages among them.
                _ => 0x400,
            },
        }
    }

    /// What the VMCB says how it exits, of an instruction.
    pub(super) const fn event(self) -> Option<Event> {
        Some(match self {
            Self::Clear => Event::Clgi,
            Self::Set => Event::Stgi,
            Self::Load(_) => Event::Vmload,
            Self::Save(_) => Event::Vmsave,
            Self::Run(_) => Event::Vmrun,
            Self::Guest(_) => return None,
        })
    }
}
