//! Tables from pages that somebody else wrote: real ones, captured from a machine's memory.

use crate::{ENTRIES, Format, Radix, TableId};
use strata_addr::{Frame, PageSize, space::Space};

/// What of captured pages could not be taken over as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Entries that point to a table page that was not captured; they map nothing.
    pub missing: u64,
    /// Entries with the page-size flag at a level where it is reserved; they map nothing.
    pub malformed: u64,
    /// Entries with address bits beyond physical memory, which are reserved; they map nothing.
    /// KVM marks memory of devices so (`arch/x86/kvm/mmu/spte.c`, `kvm_mmu_reset_all_pte_masks`).
    pub beyond: u64,
}

/// Pages that are no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The root is not among them.
    #[error("the root of the page table is missing or beyond physical memory")]
    NoRoot,
    /// More table pages than there could be.
    #[error("more than {0} table pages, pages that several entries point to counted each time")]
    TooLarge(usize),
}

impl<F: Format, U: Space, L: Space> Radix<F, U, L> {
    /// The table of these `levels` whose root is in `root`; `page` gives the content of a frame.
    /// Physical memory ends at `end`.
    ///
    /// Entries keep their bits, with two exceptions: those counted in [`Left`] become absent, and
    /// bits of a large leaf's frame number below its size are cleared (the memory type of such
    /// leaves is there: SDM volume 3A, table 4-18). A page that several entries point to becomes
    /// several tables in one frame.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use strata_addr::{Addr, Frame, PageSize, space::Lower, space::Upper};
    /// use strata_paging::{ENTRIES, Format, Left, Radix, Rights, X86};
    ///
    /// // Of three levels: the root leads to a table whose last entry maps 2 MiB.
    /// let (mut root, mut middle) = ([0; ENTRIES], [0; ENTRIES]);
    /// root[0] = X86::table(5);
    /// middle[511] = X86::leaf(512, PageSize::Huge, Rights::ALL);
    /// root[1] = X86::table(6); // This page was not captured.
    /// let pages = BTreeMap::from([(Frame::new(4), root), (Frame::new(5), middle)]);
    ///
    /// let end = Frame::new(1 << 20);
    /// let (table, left) =
    ///     Radix::<X86, Upper, Lower>::from_pages(3, Frame::new(4), end, 10, |frame| pages.get(&frame))?;
    /// assert_eq!(left, Left { missing: 1, ..Left::default() });
    /// let addr = Addr::new((511 << 21) + 0x123);
    /// assert_eq!(table.translate(addr), Some(Addr::new((512 << 12) + 0x123)));
    /// # Ok::<(), strata_paging::LoadError>(())
    /// ```
    ///
    /// # Errors
    /// When there is no root, or the table would have more than `limit` pages.
    ///
    /// # Panics
    /// When `levels` is not 3, 4 or 5.
    pub fn from_pages<'p>(
        levels: u8,
        root: Frame<L>,
        end: Frame<L>,
        limit: usize,
        page: impl Fn(Frame<L>) -> Option<&'p [u64; ENTRIES]>,
    ) -> Result<(Self, Left), LoadError> {
        let mut radix = Self::new(levels, root);
        let mut left = Left::default();
        let entries = page(root).filter(|_| root < end).ok_or(LoadError::NoRoot)?;
        *radix.tables[0].entries = *entries;
        let mut waiting = vec![(0, levels)];
        while let Some((id, level)) = waiting.pop() {
            for at in 0..ENTRIES {
                let bits = radix.tables[id].entries[at];
                if !F::is_present(bits) {
                    continue;
                }
                let size = if F::is_leaf(bits, level) { PageSize::at_level(level) } else { None };
                let pages = size.map_or(1, PageSize::base_pages);
                if F::frame(bits) + pages > end.get() {
                    left.beyond += 1;
                    radix.tables[id].entries[at] = 0;
                } else if let Some(size) = size {
                    let below = (size.base_pages() - 1) << PageSize::BASE_SHIFT;
                    radix.tables[id].entries[at] = bits & !below;
                } else if F::is_leaf(bits, level) {
                    left.malformed += 1;
                    radix.tables[id].entries[at] = 0;
                } else if let Some(entries) = page(Frame::new(F::frame(bits))) {
                    if radix.tables.len() >= limit {
                        return Err(LoadError::TooLarge(limit));
                    }
                    let frame = Frame::new(F::frame(bits));
                    let child = radix.add_table(TableId(id as u32), at, level, frame).0 as usize;
                    *radix.tables[child].entries = *entries;
                    // A new table's entry allows everything; this one has rights and flags.
                    radix.tables[id].entries[at] = bits;
                    waiting.push((child, level - 1));
                } else {
                    left.missing += 1;
                    radix.tables[id].entries[at] = 0;
                }
            }
            let table = &mut radix.tables[id];
            table.present =
                table.entries.iter().filter(|bits| F::is_present(**bits)).count() as u16;
        }
        Ok((radix, left))
    }

    /// Every table page: its level, its frame and its entries, the root first.
    pub fn for_each_table(&self, mut visit: impl FnMut(u8, Frame<L>, &[u64; ENTRIES])) {
        let mut waiting = vec![(0u32, self.levels())];
        while let Some((id, level)) = waiting.pop() {
            let table = &self.tables[id as usize];
            visit(level, Frame::new(table.frame), &table.entries);
            let Some(children) = &table.children else { continue };
            for (bits, child) in table.entries.iter().zip(children.iter()) {
                if F::is_present(*bits) && !F::is_leaf(*bits, level) {
                    waiting.push((*child, level - 1));
                }
            }
        }
    }
}
