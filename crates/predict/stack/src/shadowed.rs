//! What a hypervisor keeps for a process of its guest where it has no second stage.

use crate::kernel::PageTable;
use rustc_hash::FxHashMap;

/// How a hypervisor has memory for its VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paging {
    /// A second stage that hardware walks.
    #[default]
    Nested,
    /// A shadow of each page table of the guest's.
    Shadow,
}

impl Paging {
    /// Every way.
    pub const ALL: [Self; 2] = [Self::Nested, Self::Shadow];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nested => "nested",
            Self::Shadow => "shadow",
        }
    }
}

/// The shadow of a process's page table.
#[derive(Debug)]
pub(crate) struct Shadowed {
    /// The process's addresses to the hypervisor's frames.
    pub(crate) table: PageTable,
    /// Pages of the original that something is shadowed of, by their frame: whether the guest may write them.
    pub(crate) pages: FxHashMap<u64, bool>,
}
