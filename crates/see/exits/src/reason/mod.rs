//! Why a VM exits: the processor's codes, their names, and what kind of work they are.

mod amd;
mod intel;
mod kind;

pub use kind::Kind;

/// Whose virtualisation extension a code is of, numbered as KVM's tracepoints do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Intel's VMX.
    Vmx = 1,
    /// AMD's SVM.
    Svm = 2,
}

/// A reason: an exit reason of VMX, or an exit code of SVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reason {
    /// Whose code.
    pub isa: Isa,
    /// The code, with the flags that it may have.
    pub code: u64,
}

impl Reason {
    /// Its name: of Intel's (SDM volume 3D, appendix C) as KVM has it, of AMD's (APM volume 2,
    /// appendix C) without its prefix. The code itself where it has none.
    ///
    /// ```
    /// use strata_exits::{Isa, Kind, Reason};
    /// let violation = Reason { isa: Isa::Vmx, code: 48 };
    /// assert_eq!((&*violation.name(), violation.kind()), ("EPT_VIOLATION", Kind::Memory));
    /// assert_eq!(Reason { isa: Isa::Svm, code: 0x400 }.name(), "NPF");
    /// ```
    pub fn name(self) -> String {
        match self.isa {
            Isa::Vmx => intel::name(self.code),
            Isa::Svm => amd::name(self.code),
        }
    }

    /// What kind of work it is.
    pub fn kind(self) -> Kind {
        Kind::of(&self.name())
    }
}
