//! What a guest exits for, and where that leads.

use crate::reason::ExitReason;
use crate::script::Work;

/// What a guest exits for by itself, and what the hypervisor that handles it does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Why it exits.
    pub reason: ExitReason,
    /// What there is to do.
    pub work: Work,
    /// Error code of a page fault.
    pub error_code: u32,
}

impl Cause {
    /// An exit with what its reason usually asks for.
    pub const fn of(reason: ExitReason) -> Self {
        Self { reason, work: Work::of(reason), error_code: 0 }
    }
}

/// The memory of its VM, as a hypervisor has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryMode {
    /// A second stage that hardware walks.
    #[default]
    Nested,
    /// A shadow of the VM's page table, for which page faults exit: those of pages that are not present do not
    /// if `bypass` (NestCloud, section V.A).
    Shadow {
        /// Faults of pages that are not present do not exit.
        bypass: bool,
    },
}

/// Where an exit of the guest leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Nowhere: hardware does what is to be done, and the guest goes on.
    NoExit,
    /// To the hypervisor at this level.
    Handler(usize),
}
