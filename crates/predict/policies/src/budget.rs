//! How much background work a policy may do.

use strata_addr::PageSize;
use strata_stack::{Collapsed, NodeId, PromoteError, Stack};

/// Bounds background work: to a share of one CPU, to what khugepaged of a kernel would do, or to both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Cycles of background work at which it is used up.
    pub(crate) end: u64,
    /// The kernel, and how many of the pages that its khugepaged may look at are to be left for others.
    pub(crate) khugepaged: Option<(NodeId, u64)>,
}

impl Budget {
    /// What is within both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { end: self.end.min(other.end), khugepaged: self.khugepaged.or(other.khugepaged) }
    }

    /// Whether it is used up, as far as a region needs of it.
    pub(crate) fn is_spent(self, stack: &Stack) -> bool {
        let of_khugepaged = self.khugepaged.is_some_and(|(node, rest)| {
            stack.khugepaged_left(node) < rest + PageSize::Huge.base_pages()
        });
        of_khugepaged || stack.background_cycles() >= self.end
    }

    /// A region is looked at, with what became of it.
    pub(crate) fn note(self, stack: &mut Stack, outcome: Collapsed) {
        if let Some((node, _)) = self.khugepaged {
            let failed = outcome == Collapsed::Unchanged(PromoteError::NoBlock);
            stack.khugepaged_looked(node, PageSize::Huge.base_pages(), failed);
        }
    }
}
