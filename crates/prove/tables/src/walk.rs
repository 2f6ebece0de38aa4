//! Page walks in memory that was not built by this program. Slow and obviously right: the twin of
//! the hardware model's walker over captured tables, and what the search proves roots with.

use crate::LEVELS;
use crate::ram::{Page, Pages};
use std::sync::Arc;
use strata_addr::PageSize;
use strata_paging::{Format, X86, index};

/// The end of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The base page that the address is mapped to.
    pub frame: u64,
    /// Size of the mapping.
    pub size: PageSize,
}

/// Walks for a base page, given by number, from the root in frame `root`. `None` where nothing is
/// mapped or the tables leave memory.
pub fn walk(pages: &dyn Pages, root: u64, page: u64) -> Option<Hit> {
    let mut table = root;
    for level in (1..=LEVELS).rev() {
        let bits = pages.page(table)?[index(page << PageSize::BASE_SHIFT, level)];
        if !is_used(bits) {
            return None;
        }
        if X86::is_leaf(bits, level) {
            let size = PageSize::at_level(level)?;
            return Some(Hit { frame: leaf_frame(bits, size) + page % size.base_pages(), size });
        }
        table = X86::frame(bits);
    }
    None
}

/// Whether an entry maps something or leads on. Address bits from 48 on are reserved on every
/// machine that is emulated; KVM marks memory of devices with one of them
/// (`arch/x86/kvm/mmu/spte.c`, `kvm_mmu_reset_all_pte_masks`).
fn is_used(bits: u64) -> bool {
    X86::is_present(bits) && bits & (0xf << 48) == 0
}

/// The first base frame of a leaf. Bits below its size are not part of it.
pub(crate) fn leaf_frame(bits: u64, size: PageSize) -> u64 {
    X86::frame(bits) & !(size.base_pages() - 1)
}

/// A guest's physical memory: that of `below` through the nested table whose root is in `root`.
pub struct Behind<'a> {
    /// What the nested table maps to, and where it lies itself.
    pub below: &'a dyn Pages,
    /// The nested table's root.
    pub root: u64,
}

impl Pages for Behind<'_> {
    fn page(&self, frame: u64) -> Option<Arc<Page>> {
        self.below.page(walk(self.below, self.root, frame)?.frame)
    }
}

/// Table pages that a visit looks at, at most: more than any table of a machine that a lab runs,
/// and an end where garbage looks like a table.
const TABLE_LIMIT: usize = 1 << 20;

/// Shows every leaf below `root` whose entry in the root is one of `indices`: the number of its
/// first page, and what it maps to. Returns whether that were all.
pub fn leaves(
    pages: &dyn Pages,
    root: u64,
    indices: std::ops::Range<usize>,
    visit: &mut dyn FnMut(u64, Hit),
) -> bool {
    tables(pages, root, indices, &mut |_, _, _| {}, visit)
}

/// The same, and shows every table page: level, frame, content.
pub fn tables(
    pages: &dyn Pages,
    root: u64,
    indices: std::ops::Range<usize>,
    table: &mut dyn FnMut(u8, u64, &Arc<Page>),
    leaf: &mut dyn FnMut(u64, Hit),
) -> bool {
    let mut waiting = vec![(LEVELS, root, 0)];
    let mut looked_at = 0;
    while let Some((level, frame, first)) = waiting.pop() {
        let Some(page) = pages.page(frame) else { continue };
        looked_at += 1;
        if looked_at > TABLE_LIMIT {
            return false;
        }
        table(level, frame, &page);
        let span = 1u64 << (9 * (u32::from(level) - 1));
        for (at, &bits) in page.iter().enumerate().rev() {
            if !is_used(bits) || level == LEVELS && !indices.contains(&at) {
                continue;
            }
            let first = first + at as u64 * span;
            if !X86::is_leaf(bits, level) {
                waiting.push((level - 1, X86::frame(bits), first));
            } else if let Some(size) = PageSize::at_level(level) {
                leaf(first, Hit { frame: leaf_frame(bits, size), size });
            }
        }
    }
    true
}
