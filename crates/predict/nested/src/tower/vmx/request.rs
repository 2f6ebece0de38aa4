//! What exits on VMX, and its basic exit reason.

use crate::reason::ExitReason;
use crate::script::Work;
use crate::tower::cause::Cause;
use crate::vmx::Field;

/// Basic exit reasons (SDM volume 3D, appendix C).
const EPT_VIOLATION: u32 = 48;

/// What an instruction of a hypervisor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Clear(u64),
    Load(u64),
    Read(Field),
    Write(Field, u64),
    Enter {
        resume: bool,
    },
    /// An exit that a guest takes by itself.
    Guest(Cause),
}

impl Request {
    pub(super) const fn reason(self) -> ExitReason {
        match self {
            Self::Clear(_) => ExitReason::Vmclear,
            Self::Load(_) => ExitReason::Vmptrld,
            Self::Read(_) => ExitReason::Vmread,
            Self::Write(..) => ExitReason::Vmwrite,
            Self::Enter { .. } => ExitReason::Vmresume,
            Self::Guest(cause) => cause.reason,
        }
    }

    /// The basic exit reason.
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::Clear(_) => 19,
            Self::Load(_) => 21,
            Self::Read(_) => 23,
            Self::Write(..) => 25,
            Self::Enter { resume: false } => 20,
            Self::Enter { resume: true } => 24,
            Self::Guest(cause) => code_of(cause),
        }
    }
}

/// That of an exit which a guest takes by itself.
const fn code_of(cause: Cause) -> u32 {
    match cause.reason {
        ExitReason::PageFault => 0,
        ExitReason::ExternalInterrupt => 1,
        ExitReason::Halt => 12,
        ExitReason::ControlRegister => 28,
        ExitReason::Io => 30,
        ExitReason::Msr => 31,
        ExitReason::Apic => 44,
        ExitReason::Invalidation if matches!(cause.work, Work::Forget) => 14,
        ExitReason::Invalidation => 50,
        _ => EPT_VIOLATION,
    }
}
