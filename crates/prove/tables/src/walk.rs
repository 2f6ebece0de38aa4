//! Page walks in memory that was not built by this program. Slow and obviously right: the twin of
//! the hardware model's walker over captured tables, and what the search proves roots with.

use crate::LEVELS;
use crate::ram::{Page, Pages};
use std::sync::Arc;
use strata_addr::space::{GuestPhysical, HostPhysical, Space};
use strata_addr::{Frame, PageSize};
use strata_paging::{Format, X86, index};

/// The end of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit<L: Space> {
    /// The base page that the address is mapped to.
    pub frame: Frame<L>,
    /// Size of the mapping.
    pub size: PageSize,
}

/// Walks for a base page from the root in frame `root`. `None` where nothing is mapped or the tables leave
/// memory.
pub fn walk<U: Space, L: Space>(
    pages: &dyn Pages<L>,
    root: Frame<L>,
    page: Frame<U>,
) -> Option<Hit<L>> {
    let mut table = root;
    for level in (1..=LEVELS).rev() {
        let bits = pages.page(table)?[index(page.addr().get(), level)];
        if !is_used(bits) {
            return None;
        }
        if X86::is_leaf(bits, level) {
            let size = PageSize::at_level(level)?;
            return Some(Hit { frame: leaf_frame::<L>(bits, size) + page.index_in(size), size });
        }
        table = Frame::new(X86::frame(bits));
    }
    None
}

/// Whether an entry maps something or leads on. The bit that says so is in EPT the one that allows reads; an
/// entry without it is KVM's for memory of devices (`VMX_EPT_MISCONFIG_WX_VALUE`), and frame and size are in
/// the same bits. Address bits from 48 on are reserved on every machine that is emulated; with AMD's format
/// KVM marks memory of devices with one of them (`arch/x86/kvm/mmu/spte.c`, `kvm_mmu_reset_all_pte_masks`).
fn is_used(bits: u64) -> bool {
    X86::is_present(bits) && bits & (0xf << 48) == 0
}

/// The first base frame of a leaf. Bits below its size are not part of it.
fn leaf_frame<L>(bits: u64, size: PageSize) -> Frame<L> {
    Frame::new(X86::frame(bits)).floor(size)
}

/// A guest's physical memory: that of `below` through the nested table whose root is in `root`.
pub struct Behind<'a, B: Space> {
    /// What the nested table maps to, and where it lies itself.
    pub below: &'a dyn Pages<B>,
    /// The nested table's root.
    pub root: Frame<B>,
}

impl<L: Space, B: Space> Pages<L> for Behind<'_, B> {
    fn page(&self, frame: Frame<L>) -> Option<Arc<Page>> {
        self.below.page(walk(self.below, self.root, frame)?.frame)
    }
}

/// The memory of a guest without a hypervisor: guest physical is host physical.
pub struct Native<'a>(pub &'a dyn Pages<HostPhysical>);

impl Pages<GuestPhysical> for Native<'_> {
    fn page(&self, frame: Frame<GuestPhysical>) -> Option<Arc<Page>> {
        self.0.page(frame.cross())
    }
}

/// Table pages that a visit looks at, at most: more than any table of a machine that a lab runs,
/// and an end where garbage looks like a table.
const TABLE_LIMIT: usize = 1 << 20;

/// Shows every leaf below `root` whose entry in the root is one of `indices`: its first page, and what it
/// maps to. Returns whether that were all.
pub fn leaves<U: Space, L: Space>(
    pages: &dyn Pages<L>,
    root: Frame<L>,
    indices: std::ops::Range<usize>,
    visit: &mut dyn FnMut(Frame<U>, Hit<L>),
) -> bool {
    tables(pages, root, indices, &mut |_, _| {}, visit)
}

/// The same, and shows every table page: frame, content.
pub fn tables<U: Space, L: Space>(
    pages: &dyn Pages<L>,
    root: Frame<L>,
    indices: std::ops::Range<usize>,
    table: &mut dyn FnMut(Frame<L>, &Arc<Page>),
    leaf: &mut dyn FnMut(Frame<U>, Hit<L>),
) -> bool {
    let mut waiting = vec![(LEVELS, root, Frame::new(0))];
    let mut looked_at = 0;
    while let Some((level, frame, first)) = waiting.pop() {
        let Some(page) = pages.page(frame) else { continue };
        looked_at += 1;
        if looked_at > TABLE_LIMIT {
            return false;
        }
        table(frame, &page);
        let span = 1u64 << (9 * (u32::from(level) - 1));
        for (at, &bits) in page.iter().enumerate().rev() {
            if !is_used(bits) || level == LEVELS && !indices.contains(&at) {
                continue;
            }
            let first = first + at as u64 * span;
            if !X86::is_leaf(bits, level) {
                waiting.push((level - 1, Frame::new(X86::frame(bits)), first));
            } else if let Some(size) = PageSize::at_level(level) {
                leaf(first, Hit { frame: leaf_frame(bits, size), size });
            }
        }
    }
    true
}
