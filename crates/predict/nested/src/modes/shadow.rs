//! A shadow of a table that a kernel in the VM writes: another table, with frames of this hypervisor's
//! memory, kept right by write-protecting the pages of the original.
//!
//! The rules are those of KVM of 2009 (Linux 2.6.29, `arch/x86/kvm/mmu.c`, `paging_tmpl.h`):
//!
//! - A table page that is shadowed is write-protected. A write to it exits, and is done by the hypervisor,
//!   which mends the shadow's entry at once (`kvm_mmu_pte_write`).
//! - Or, from the first write on, a leaf table is *unsync*: it may be written, and is read anew when the VM
//!   loads a page table (`kvm_unsync_page`, `kvm_sync_page`); one entry of it when the VM invalidates a page
//!   (`kvm_mmu_invlpg`).
//! - The third write to a page in a row, none of whose entries was used since, is taken as a sign that it is no
//!   table any more: its shadow goes, and with it the protection (`last_pt_write_count`).
//! - With page-fault bypass, an entry of which the original maps nothing is known to be the VM's own affair
//!   (`shadow_notrap_nonpresent_pte`), unless its page is unsync (`mmu_convert_notrap`).

use super::table::{LEAF_TABLE, Table};
use std::collections::BTreeMap;

/// Writes in a row to a table page that end its being one.
const FLOOD: u32 = 3;

/// What is known of a page of the original that is shadowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shadowed {
    /// The first page that the table maps.
    first: u64,
    /// How many it can map.
    pages: u64,
    is_unsync: bool,
}

/// A shadow.
pub(super) struct Shadow {
    /// What takes the place of the original.
    pub(super) table: Table,
    /// By the frame of the original's page, in the VM's memory.
    shadowed: BTreeMap<u64, Shadowed>,
    /// The page last written, and how often in a row.
    last_written: (u64, u32),
    /// The entry last mended, and whether it was used since.
    last_mended: Option<(u64, bool)>,
}

/// What a write to a protected page leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The hypervisor did it.
    Emulated,
    /// The page may be written from now on.
    Unsync,
    /// The page is taken for no table: its shadow, of pages from the first to behind the last, is to go.
    Flooded(u64, u64),
}

impl Shadow {
    pub(super) fn new(table: Table) -> Self {
        Self { table, shadowed: BTreeMap::new(), last_written: (0, 0), last_mended: None }
    }

    /// Whether a page of the VM's memory must not be written.
    pub(super) fn is_protected(&self, frame: u64) -> bool {
        self.shadowed.get(&frame).is_some_and(|shadowed| !shadowed.is_unsync)
    }

    /// Whether it is a leaf table that may be written, and is to be read anew.
    pub(super) fn is_unsync(&self, frame: u64) -> bool {
        self.shadowed.get(&frame).is_some_and(|shadowed| shadowed.is_unsync)
    }

    /// From now on, pages of the original on the way to a page are shadowed. Gives those that were not, which
    /// are to be write-protected.
    pub(super) fn protect(&mut self, page: u64, walk: &[u64]) -> Vec<u64> {
        let mut new = Vec::new();
        let levels = (1..=super::table::LEVELS).rev();
        for (frame, level) in walk.iter().zip(levels) {
            let pages = LEAF_TABLE.pow(level.into());
            let shadowed = Shadowed { first: page / pages * pages, pages, is_unsync: false };
            let known = self.shadowed.get(frame);
            if known.is_none_or(|known| (known.first, known.pages) != (shadowed.first, pages)) {
                self.shadowed.insert(*frame, shadowed);
                new.push(*frame);
            }
        }
        new
    }

    /// The VM used an entry.
    pub(super) fn used(&mut self, page: u64) {
        if let Some((last, used)) = &mut self.last_mended {
            *used |= *last == page;
        }
    }

    /// The VM wrote to a protected page; `may_unsync`: leaf tables may go unsync.
    pub(super) fn write(&mut self, frame: u64, may_unsync: bool) -> Written {
        let shadowed = self.shadowed.get_mut(&frame).expect("it is protected");
        if may_unsync && shadowed.pages == LEAF_TABLE {
            shadowed.is_unsync = true;
            return Written::Unsync;
        }
        let was_used = self.last_mended.is_some_and(|(_, used)| used);
        let (last, count) = self.last_written;
        let count = if last == frame && !was_used { count + 1 } else { 1 };
        if count == 1 {
            self.last_mended = None;
        }
        self.last_written = (frame, count);
        if count >= FLOOD {
            self.last_written = (0, 0);
            let (first, end) = (shadowed.first, shadowed.first + shadowed.pages);
            self.shadowed.remove(&frame);
            return Written::Flooded(first, end);
        }
        Written::Emulated
    }

    /// The hypervisor mended an entry after a write.
    pub(super) fn mended(&mut self, page: u64) {
        self.last_mended = Some((page, false));
    }

    /// Leaf tables that are unsync: frame, and the first page that each maps.
    pub(super) fn unsync(&self) -> Vec<(u64, u64)> {
        let unsync = self.shadowed.iter().filter(|(_, shadowed)| shadowed.is_unsync);
        unsync.map(|(frame, shadowed)| (*frame, shadowed.first)).collect()
    }

    /// A leaf table was read anew, and is protected again.
    pub(super) fn synchronised(&mut self, frame: u64) {
        self.shadowed.get_mut(&frame).expect("it is shadowed").is_unsync = false;
    }

    /// Whether a page that the original does not map, on the way `walk` of it, is known as such.
    pub(super) fn knows_absent(&self, page: u64, walk: &[u64]) -> bool {
        let is_whole = walk.len() == usize::from(super::table::LEVELS);
        is_whole
            && self.table.has_leaf_table(page)
            && walk.last().is_some_and(|leaf| self.is_protected(*leaf))
    }
}
