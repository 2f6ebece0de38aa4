//! HPAS regions: the 2 MiB granule at which base pages become a huge page and back.

use crate::radix::decode_leaf;
use crate::{ENTRIES, Format, FrameSource, Mapping, NoFrame, Radix, Rights, TableId, index};
use strata_addr::{Frame, PageSize, space::Space};

const HUGE_LEVEL: u8 = 2;

/// How an HPAS region is mapped.
///
/// ```
/// use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
/// use strata_paging::{FrameSource, Radix, Region, Rights, X86};
/// # struct Upwards(u64);
/// # impl FrameSource<Lower> for Upwards {
/// #     fn table_frame(&mut self) -> Option<Frame<Lower>> {
/// #         self.0 += 1;
/// #         Some(Frame::new(self.0))
/// #     }
/// #     fn free_table_frame(&mut self, _: Frame<Lower>) {}
/// # }
/// # let mut frames = Upwards(0);
/// let mut table = Radix::<X86, Upper, Lower>::new(4, frames.table_frame().unwrap());
/// let region = Frame::new(512);
/// assert!(matches!(table.region(region), Region::Absent));
///
/// // Two of its pages are mapped, somewhere.
/// for page in [0, 7] {
///     let frame = Frame::new(9000 - page);
///     table.map(region + page, PageSize::Base, frame, Rights::ALL, &mut frames)?;
/// }
/// assert!(matches!(table.region(region), Region::Base { present: 2, .. }));
///
/// // One huge page takes the place of both, as khugepaged does when it has copied them.
/// assert_eq!(table.collapse(region, Frame::new(1024), Rights::ALL, &mut frames), Ok(2));
/// assert!(matches!(table.region(region), Region::Huge(now) if now.frame == Frame::new(1024)));
/// # Ok::<(), strata_paging::NoFrame>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Region<'a, L: Space> {
    /// Not at all: not even a leaf table.
    Absent,
    /// By one huge page, or as part of a larger one.
    Huge(Mapping<L>),
    /// By a leaf table.
    Base {
        /// The raw entries.
        entries: &'a [u64; ENTRIES],
        /// How many are present.
        present: u16,
    },
}

impl<F: Format, U: Space, L: Space> Radix<F, U, L> {
    /// How the HPAS region that starts at `page` is mapped.
    pub fn region(&self, page: Frame<U>) -> Region<'_, L> {
        let addr = page.addr();
        if let Some(leaf_table) = self.table_at(addr, 1) {
            let table = &self.tables[leaf_table.0 as usize];
            return Region::Base { entries: &table.entries, present: table.present };
        }
        self.mapping(addr).map_or(Region::Absent, Region::Huge)
    }

    /// Calls `visit` for every huge page (and larger), in address order, without reading leaf
    /// tables.
    pub fn for_each_huge(&self, mut visit: impl FnMut(Frame<U>, Mapping<L>)) {
        self.visit_huge(TableId::ROOT, self.levels(), 0, &mut visit);
    }

    /// Visits every HPAS region that something is mapped in, in ascending order. A page larger than a
    /// huge page is as many of them.
    pub fn for_each_region(&self, mut visit: impl FnMut(Frame<U>, Region<'_, L>)) {
        self.visit_regions(TableId::ROOT, self.levels(), 0, &mut visit);
    }

    fn visit_regions(
        &self,
        table: TableId,
        level: u8,
        base: u64,
        visit: &mut impl FnMut(Frame<U>, Region<'_, L>),
    ) {
        for at in 0..ENTRIES {
            let bits = self.entry(table, at);
            if !F::is_present(bits) {
                continue;
            }
            let start = base + ((at as u64) << (9 * (u32::from(level) - 1)));
            if level > HUGE_LEVEL && !F::is_leaf(bits, level) {
                self.visit_regions(self.child(table, at), level - 1, start, visit);
                continue;
            }
            for region in 0..1 << (9 * u32::from(level - HUGE_LEVEL)) {
                let page = Frame::new(start + region * PageSize::Huge.base_pages());
                visit(page, self.region(page));
            }
        }
    }

    fn visit_huge(
        &self,
        table: TableId,
        level: u8,
        base: u64,
        visit: &mut impl FnMut(Frame<U>, Mapping<L>),
    ) {
        for at in 0..ENTRIES {
            let bits = self.entry(table, at);
            if !F::is_present(bits) {
                continue;
            }
            let start = base + ((at as u64) << (9 * (u32::from(level) - 1)));
            if F::is_leaf(bits, level) {
                visit(Frame::new(start), decode_leaf::<F, L>(bits, level));
            } else if level > HUGE_LEVEL {
                self.visit_huge(self.child(table, at), level - 1, start, visit);
            }
        }
    }

    /// Replaces whatever base pages map the region at `page` by one huge page; the leaf table
    /// goes back to `frames`. The accessed and dirty flags are the union of the small ones'.
    /// Returns the number of base pages replaced.
    ///
    /// # Errors
    /// [`NoFrame`] when the region had no table above it and `frames` had none.
    ///
    /// # Panics
    /// In debug builds, when the region is mapped huge already or something is not aligned.
    pub fn collapse(
        &mut self,
        page: Frame<U>,
        frame: Frame<L>,
        rights: Rights,
        frames: &mut impl FrameSource<L>,
    ) -> Result<u16, NoFrame> {
        debug_assert!(page.is_aligned(PageSize::Huge) && frame.is_aligned(PageSize::Huge));
        let addr = page.addr();
        let Some(leaf_table) = self.table_at(addr, 1) else {
            return self.map(page, PageSize::Huge, frame, rights, frames).map(|_| 0);
        };
        let table = &self.tables[leaf_table.0 as usize];
        let present = table.present;
        let flags = table.entries.iter().fold(0, |all, entry| {
            all | if F::is_present(*entry) { entry & (F::ACCESSED | F::DIRTY) } else { 0 }
        });
        let parent = self.table_at(addr, HUGE_LEVEL).expect("a leaf table has a parent");
        self.free_table(leaf_table, frames);
        self.tables[parent.0 as usize].entries[index(addr.get(), HUGE_LEVEL)] =
            F::leaf(frame.get(), PageSize::Huge, rights) | flags;
        Ok(present)
    }

    /// Replaces the huge page at `page` by 512 base pages over the same frames, with the same
    /// rights and flags.
    ///
    /// # Errors
    /// [`NoFrame`] when there is no frame for the leaf table; nothing is changed then.
    ///
    /// # Panics
    /// When the region is not mapped by one huge page.
    pub fn split(
        &mut self,
        page: Frame<U>,
        frames: &mut impl FrameSource<L>,
    ) -> Result<(), NoFrame> {
        let addr = page.addr();
        let parent = self.table_at(addr, HUGE_LEVEL).expect("the region is mapped");
        let at = index(addr.get(), HUGE_LEVEL);
        let bits = self.entry(parent, at);
        assert!(F::is_present(bits) && F::is_leaf(bits, HUGE_LEVEL), "{page:?} is not huge");
        let huge = decode_leaf::<F, L>(bits, HUGE_LEVEL);
        let table_frame = frames.table_frame().ok_or(NoFrame)?;
        self.tables[parent.0 as usize].present -= 1;
        let child = self.add_table(parent, at, HUGE_LEVEL, table_frame);
        let table = &mut self.tables[child.0 as usize];
        let flags = bits & (F::ACCESSED | F::DIRTY);
        for (offset, entry) in (0u64..).zip(table.entries.iter_mut()) {
            *entry = F::leaf(huge.frame.get() + offset, PageSize::Base, huge.rights) | flags;
        }
        table.present = ENTRIES as u16;
        Ok(())
    }
}
