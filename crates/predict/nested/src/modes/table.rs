//! A page table of one kernel, in frames of its memory, and what writing it writes.

use strata_addr::space::{Lower, Upper};
use strata_addr::{Addr, Frame, PageSize, Range};
use strata_paging::{Ept, Format, FrameSource, Radix, Rights, TableId, X86, index};

/// Levels of every table here.
pub(super) const LEVELS: u8 = 4;

/// Pages that a leaf table maps.
pub(super) const LEAF_TABLE: u64 = 512;

/// Frames of one kernel's memory, the one last freed first, as page allocators of that time had them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    next: u64,
    free: Vec<u64>,
}

impl Pool {
    pub(super) fn take(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next
        })
    }

    pub(super) fn give(&mut self, frame: u64) {
        self.free.push(frame);
    }
}

impl FrameSource<Lower> for Pool {
    fn table_frame(&mut self) -> Option<Frame<Lower>> {
        Some(Frame::new(self.take()))
    }

    fn free_table_frame(&mut self, frame: Frame<Lower>) {
        self.give(frame.get());
    }
}

/// An entry that was written: in which table page, of which level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) page: u64,
    pub(super) level: u8,
    /// The table page was made just now.
    pub(super) is_new: bool,
}

enum Tree {
    X86(Radix<X86, Upper, Lower>),
    Ept(Radix<Ept, Upper, Lower>),
}

/// A table with entries of one of two formats. Addresses and frames are numbers of pages here.
pub(super) struct Table(Tree);

macro_rules! with {
    ($table:expr, $radix:ident => $value:expr) => {
        match $table {
            Tree::X86($radix) => $value,
            Tree::Ept($radix) => $value,
        }
    };
}

const fn address(page: u64) -> Addr<Upper> {
    Addr::new(page << PageSize::BASE_SHIFT)
}

impl Table {
    /// An empty page table.
    pub(super) fn of_pages(pool: &mut Pool) -> Self {
        Self(Tree::X86(Radix::new(LEVELS, Frame::new(pool.take()))))
    }

    /// An empty second stage that hardware walks.
    pub(super) fn second_stage(pool: &mut Pool) -> Self {
        Self(Tree::Ept(Radix::new(LEVELS, Frame::new(pool.take()))))
    }

    /// What a page maps to, and whether it may be written.
    pub(super) fn get(&self, page: u64) -> Option<(u64, bool)> {
        let mapping = with!(&self.0, radix => radix.mapping(address(page)));
        mapping.map(|mapping| (mapping.frame.get(), mapping.rights.write))
    }

    /// Frames of the table pages that a walk to a page reads, the root's first.
    pub(super) fn walk(&self, page: u64) -> Vec<u64> {
        with!(&self.0, radix => walk(radix, page))
    }

    /// Whether there is a leaf table for a page.
    pub(super) fn has_leaf_table(&self, page: u64) -> bool {
        self.walk(page).len() == usize::from(LEVELS)
    }

    /// Pages that are mapped from a first one to one before the end.
    pub(super) fn mapped(&self, first: u64, end: u64) -> Vec<u64> {
        let range = Range::new(address(first), address(end));
        with!(&self.0, radix => radix.mapped(range).map(|(page, _)| page.get()).collect())
    }

    /// Maps a page, or maps it anew; gives the entries written, the uppermost first.
    pub(super) fn set(
        &mut self,
        page: u64,
        frame: u64,
        write: bool,
        pool: &mut Pool,
    ) -> Vec<Written> {
        let rights = Rights { write, execute: true };
        let frame = Frame::new(frame);
        let entries = with!(&mut self.0, radix => {
            if radix.update(address(page), |_| (frame, rights)) {
                1
            } else {
                let at = Frame::new(page);
                radix.map(at, PageSize::Base, frame, rights, pool).expect("pools have no end")
            }
        });
        // Each entry but the leaf leads to a page that was made for it.
        let walk = self.walk(page);
        let first = walk.len() - entries as usize;
        let written = walk.into_iter().enumerate().skip(first);
        written
            .map(|(depth, page)| Written {
                page,
                level: LEVELS - depth as u8,
                is_new: depth > first,
            })
            .collect()
    }

    /// Unmaps a page; gives the entries written, the leaf's first. A table page that is empty then is freed.
    pub(super) fn clear(&mut self, page: u64, pool: &mut Pool) -> Vec<Written> {
        let before = self.walk(page);
        if with!(&mut self.0, radix => radix.unmap(address(page), pool)).is_none() {
            return Vec::new();
        }
        let left = self.walk(page).len();
        let written = before.into_iter().enumerate().skip(left - 1).rev();
        written
            .map(|(depth, page)| Written { page, level: LEVELS - depth as u8, is_new: false })
            .collect()
    }
}

fn walk<F: Format>(radix: &Radix<F, Upper, Lower>, page: u64) -> Vec<u64> {
    let address = address(page).get();
    let mut table = TableId::ROOT;
    let mut frames = vec![radix.frame_of(table).get()];
    for level in (2..=radix.levels()).rev() {
        let at = index(address, level);
        if !F::is_present(radix.entry(table, at)) {
            break;
        }
        table = radix.child(table, at);
        frames.push(radix.frame_of(table).get());
    }
    frames
}

/// The pages that an entry of this level leads to which leads to a page.
pub(super) const fn region(page: u64, level: u8) -> (u64, u64) {
    let pages = LEAF_TABLE.pow(level as u32 - 1);
    let first = page / pages * pages;
    (first, first + pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_the_entry_and_those_that_lead_to_new_pages() {
        let mut pool = Pool::default();
        let mut table = Table::of_pages(&mut pool);
        let levels = |written: &[Written]| -> Vec<(u8, bool)> {
            written.iter().map(|entry| (entry.level, entry.is_new)).collect()
        };
        let first = table.set(5, 100, true, &mut pool);
        assert_eq!(levels(&first), [(4, false), (3, true), (2, true), (1, true)]);
        assert_eq!(levels(&table.set(6, 101, true, &mut pool)), [(1, false)]);
        assert_eq!(levels(&table.set(6, 101, false, &mut pool)), [(1, false)]);
        assert_eq!(table.get(6), Some((101, false)));
        assert_eq!(levels(&table.set(512 + 5, 102, true, &mut pool)), [(2, false), (1, true)]);
        assert_eq!(levels(&table.clear(5, &mut pool)), [(1, false)]);
        assert_eq!(levels(&table.clear(6, &mut pool)), [(1, false), (2, false)]);
        assert_eq!(levels(&table.clear(6, &mut pool)), []);
        assert_eq!((table.has_leaf_table(5), table.has_leaf_table(517)), (false, true));
    }
}
