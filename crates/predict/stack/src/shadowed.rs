//! What a hypervisor keeps for a process of its guest where it has no second stage.

use crate::frames::Frames;
use crate::kernel::PageTable;
use rustc_hash::FxHashMap;
use strata_addr::space::{Lower, Upper};
use strata_addr::{Frame, PageSize, Range};
use strata_paging::{Format, NoFrame, Rights, TableId, X86, index};

/// How a hypervisor has memory for its VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paging {
    /// A second stage that hardware walks.
    #[default]
    Nested,
    /// A shadow of each page table of the guest's; in a nested VM on L0's second stage.
    Shadow,
    /// In a nested VM, a shadow of each page table of the guest's, and L0 a shadow of that.
    ShadowOnShadow,
}

impl Paging {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Nested, Self::Shadow, Self::ShadowOnShadow];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nested => "nested",
            Self::Shadow => "shadow",
            Self::ShadowOnShadow => "shadow-on-shadow",
        }
    }

    /// Whether there are shadows of page tables.
    pub const fn has_shadows(self) -> bool {
        !matches!(self, Self::Nested)
    }
}

/// Where a walk of a table went: page-table pages from the root on, each with its entry.
pub(crate) type Walk = Vec<(TableId, usize)>;

pub(crate) fn walk(table: &PageTable, page: Frame<Upper>) -> Walk {
    let (mut at, mut walk) = (TableId::ROOT, Vec::new());
    for level in (1..=table.levels()).rev() {
        let index = index(page.addr().get(), level);
        walk.push((at, index));
        let entry = table.entry(at, index);
        if !X86::is_present(entry) || X86::is_leaf(entry, level) {
            break;
        }
        at = table.child(at, index);
    }
    walk
}

/// Frames of the pages of a table that a walk to a page reads.
pub(crate) fn pages_of_walk(table: &PageTable, page: Frame<Upper>) -> Vec<Frame<Lower>> {
    walk(table, page).into_iter().map(|(at, _)| table.frame_of(at)).collect()
}

/// Pages of the table that a shadow is of: write-protected, but for leaf tables that went unsync.
#[derive(Debug, Default)]
pub(crate) struct Originals {
    /// By frame, of those that something is shadowed of: whether they may be written.
    pages: FxHashMap<u64, bool>,
    /// Those that may.
    unsync: Vec<u64>,
}

impl Originals {
    /// Something of a page is shadowed; gives whether nothing was.
    pub(crate) fn protect(&mut self, table: Frame<Lower>) -> bool {
        let before = self.pages.len();
        self.pages.entry(table.get()).or_insert(false);
        self.pages.len() > before
    }

    pub(crate) fn is_protected(&self, table: Frame<Lower>) -> bool {
        self.pages.get(&table.get()) == Some(&false)
    }

    /// So many entries of a page are written, which may go unsync or not; gives the writes that exit.
    pub(crate) fn write(&mut self, table: Frame<Lower>, may_unsync: bool, entries: u64) -> u64 {
        match self.pages.get_mut(&table.get()) {
            Some(unsync) if !*unsync && may_unsync => {
                *unsync = true;
                self.unsync.push(table.get());
                1
            }
            Some(false) => entries,
            _ => 0,
        }
    }

    /// What is unsync was read anew, and is protected again; gives those pages.
    pub(crate) fn synchronise(&mut self) -> Vec<Frame<Lower>> {
        let unsync = std::mem::take(&mut self.unsync);
        for table in &unsync {
            self.pages.insert(*table, false);
        }
        unsync.into_iter().map(Frame::new).collect()
    }

    /// A page is no table any more.
    fn forget(&mut self, table: Frame<Lower>) {
        if self.pages.remove(&table.get()) == Some(true) {
            self.unsync.retain(|other| *other != table.get());
        }
    }
}

/// A table in place of another one, from a process's addresses to the frames of whoever keeps it.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) table: PageTable,
    pub(crate) originals: Originals,
}

impl Shadow {
    pub(crate) fn new(table: PageTable) -> Self {
        Self { table, originals: Originals::default() }
    }

    /// Whether it is known of a page which the original lacks that it does, after a `walk` of the original: the leaf
    /// table is shadowed, and in step.
    pub(crate) fn knows_absent(&self, page: Frame<Upper>, original: &PageTable) -> bool {
        let levels = usize::from(self.table.levels());
        let tables = pages_of_walk(original, page);
        original.mapping(page.addr()).is_none()
            && tables.len() == levels
            && walk(&self.table, page).len() == levels
            && tables.last().is_some_and(|leaf| self.originals.is_protected(*leaf))
    }
}

/// The shadow of a process's page table.
#[derive(Debug)]
pub(crate) struct Shadowed {
    /// What its hypervisor keeps.
    pub(crate) shadow: Shadow,
    /// L0's shadow of that, if it is L1's and L0 has no second stage for it.
    pub(crate) below: Option<Box<Below>>,
}

/// L0's shadow of a shadow that L1 keeps.
#[derive(Debug)]
pub(crate) struct Below {
    pub(crate) shadow: Shadow,
    /// Pages, from a first one so many, that L1's shadow lets be written since it was read last.
    pub(crate) upgraded: Vec<(Frame<Upper>, u64)>,
}

/// Entries of one page of a table that were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) table: Frame<Lower>,
    pub(crate) is_leaf: bool,
    pub(crate) entries: u64,
}

/// What became of a table.
#[derive(Debug, Default)]
pub(crate) struct Rewritten {
    /// The first page that is mapped otherwise than before or not at all, and how many are from there on.
    pub(crate) changed: Option<(Frame<Upper>, u64)>,
    /// All that changed is that they may be written.
    pub(crate) is_upgrade: bool,
    pub(crate) written: Vec<Written>,
    freed: Vec<Frame<Lower>>,
}

impl Rewritten {
    /// Whether something is not as it was for whoever knew it.
    pub(crate) fn takes_away(&self) -> bool {
        self.changed.is_some() && !self.is_upgrade
    }

    fn write(&mut self, table: Frame<Lower>, is_leaf: bool) {
        match self.written.last_mut().filter(|last| last.table == table) {
            Some(last) => last.entries += 1,
            None => self.written.push(Written { table, is_leaf, entries: 1 }),
        }
    }

    /// Pages that are no tables any more are forgotten.
    pub(crate) fn forget_freed(&self, originals: &mut Originals) {
        self.freed.iter().for_each(|table| originals.forget(*table));
    }
}

/// Takes all that a table maps of some pages out of it. `counted`: entries written are told apart.
pub(crate) fn clear(
    table: &mut PageTable,
    first: Frame<Upper>,
    pages: u64,
    frames: &mut Frames,
    counted: bool,
) -> Rewritten {
    let mut rewritten = Rewritten::default();
    let mut rest = Range::new(first.addr(), (first + pages).addr());
    while let Some((page, mapping)) = table.first_mapped(rest) {
        let before = if counted { pages_of_walk(table, page) } else { Vec::new() };
        table.unmap(page.addr(), frames);
        let end = page + mapping.size.base_pages();
        let start = rewritten.changed.map_or(page, |(start, _)| start);
        rewritten.changed = Some((start, end - start));
        rest.start = end.addr();
        if !counted {
            continue;
        }
        let left = pages_of_walk(table, page).len();
        let levels = usize::from(table.levels());
        // The page's own entry, and one for each table that is empty now.
        for depth in (left - 1..before.len()).rev() {
            rewritten.write(before[depth], depth + 1 == levels);
        }
        rewritten.freed.extend(&before[left..]);
    }
    rewritten
}

/// An entry that a table is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) size: PageSize,
    /// The first frame of the page.
    pub(crate) frame: Frame<Lower>,
    pub(crate) rights: Rights,
}

/// Makes a table map a page, in place of what it has there, which is gone even if there is no frame for a table.
pub(crate) fn put(
    table: &mut PageTable,
    page: Frame<Upper>,
    new: Entry,
    frames: &mut Frames,
) -> (Rewritten, Result<(), NoFrame>) {
    let Entry { size, frame, rights } = new;
    let old = table.mapping(page.addr());
    let (first, levels) = (page.floor(size), usize::from(table.levels()));
    let is_leaf = |tables: &[Frame<Lower>]| tables.len() == levels;
    if let Some(old) = old.as_ref().filter(|old| old.size == size) {
        let mut rewritten = Rewritten::default();
        if (old.frame, old.rights) != (frame, rights) {
            table.update(page.addr(), |_| (frame, rights));
            let tables = pages_of_walk(table, page);
            rewritten.write(tables[tables.len() - 1], is_leaf(&tables));
            rewritten.changed = Some((first, size.base_pages()));
            rewritten.is_upgrade = old.frame == frame && rights.write && !old.rights.write;
        }
        return (rewritten, Ok(()));
    }
    // What is there may be of another size, or pieces of what is whole now.
    let cleared = old.map_or(size, |old| old.size.max(size));
    let mut rewritten = clear(table, page.floor(cleared), cleared.base_pages(), frames, true);
    let before = pages_of_walk(table, page);
    let mapped = table.map(first, size, frame, rights, frames).map(drop);
    // Of the tables that are new nothing is known yet.
    rewritten.write(before[before.len() - 1], is_leaf(&before));
    (rewritten, mapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mmu_try_to_unsync_pages`: the first write of a leaf table exits, the next ones do not, and what is unsync is
    /// protected again when it was read anew. A page that is no table any more is not read.
    #[test]
    fn an_unsync_table_is_written_without_exits_until_it_is_read_anew() {
        let (table, other) = (Frame::new(1), Frame::new(2));
        let mut originals = Originals::default();
        assert_eq!(originals.write(table, true, 5), 0, "nothing of it is shadowed");
        assert!(originals.protect(table) && originals.protect(other));
        assert!(!originals.protect(table), "it was before");
        assert_eq!(originals.write(table, false, 5), 5, "tables further up are never unsync");
        assert_eq!([0, 0].map(|_| originals.write(table, true, 5)), [1, 0]);
        assert!(!originals.is_protected(table) && originals.is_protected(other));
        assert_eq!(originals.write(other, true, 5), 1);
        originals.forget(table);
        assert_eq!(originals.synchronise(), [other]);
        assert!(originals.is_protected(other) && !originals.is_protected(table));
        assert!(originals.synchronise().is_empty());
    }
}
