//! The innermost guest's kernel: its page table and its frames.

use super::table::{Pool, Table};

/// Where the kernel's direct map of its own memory begins, in pages: its pages are mapped from the start, by
/// tables that are never written.
const DIRECT: u64 = 1 << 35;

/// The kernel.
pub(super) struct Guest {
    pub(super) table: Table,
    pub(super) pool: Pool,
}

impl Guest {
    pub(super) fn new() -> Self {
        let mut pool = Pool::default();
        Self { table: Table::of_pages(&mut pool), pool }
    }

    /// The page at which the kernel gets at a frame of its memory.
    pub(super) const fn direct(frame: u64) -> u64 {
        DIRECT + frame
    }

    /// What a page maps to, and whether it may be written.
    pub(super) fn get(&self, page: u64) -> Option<(u64, bool)> {
        if page >= DIRECT { Some((page - DIRECT, true)) } else { self.table.get(page) }
    }

    /// Frames of the table pages that a walk to a page reads. Those of the direct map are not told apart.
    pub(super) fn walk(&self, page: u64) -> Vec<u64> {
        if page >= DIRECT { Vec::new() } else { self.table.walk(page) }
    }
}
