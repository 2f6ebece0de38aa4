//! A hypervisor: its memory, and the processor that it sees.

use super::vmcb::{MERGED, OWN};
use crate::memory::Memory;
use crate::svm::{Processor, Vmcb};

/// A hypervisor.
pub(super) struct Level {
    pub(super) memory: Memory,
    pub(super) processor: Processor,
    /// A guest of a hypervisor in its VM is what it runs at the moment.
    pub(super) runs_nested: bool,
}

impl Level {
    /// The VMCB that it runs.
    pub(super) const fn runs(&self) -> Vmcb {
        if self.runs_nested { MERGED } else { OWN }
    }
}
