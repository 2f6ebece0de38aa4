//! The kernel of the upper bound: whatever its programs touch is a huge page from then on, whatever
//! areas are there, and stays one until nothing is left in its region.
//!
//! What would split a huge page elsewhere clears the part of it that is given back, or copies all of it. That
//! costs more than what real kernels do; the bound is one of TLB misses.

use crate::fault::frame_of;
use crate::kernel::{Kernel, OutOfMemory};
use crate::owner::{Owner, SpaceId};
use strata_addr::{Frame, PageSize, Range, space::Upper};
use strata_paging::{Region, Rights};

impl Kernel {
    /// A range is to be unmapped. Huge pages over its ends stay where areas have more of their regions:
    /// what the range has of them is cleared. Where they have not, all of the region goes.
    /// Returns what is left to unmap.
    pub(crate) fn keep_whole(&mut self, space: SpaceId, range: Range<Upper>) -> Range<Upper> {
        let mut rest = range;
        let (first, last) = (range.start.floor(PageSize::Huge), range.end.floor(PageSize::Huge));
        let ends = [Some(first), Some(last).filter(|last| *last != first)];
        for region in ends.into_iter().flatten() {
            let region = Range::sized(region, PageSize::Huge.bytes());
            let part = region.intersection(&range);
            if part.is_empty() || part == region || !self.is_huge(space, region.start.page()) {
                continue;
            }
            let vmas = &self.alive_mut(space).vmas;
            let outside = [Range::new(region.start, part.start), Range::new(part.end, region.end)];
            let used = outside.iter().any(|outside| !vmas.overlapping(*outside).is_empty());
            let cleared = used && self.clear(space, part);
            if part.start == rest.start {
                rest.start = match (used, cleared) {
                    (true, true) => part.end,
                    (true, false) => rest.start,
                    (false, _) => region.start,
                };
            }
            if part.end == rest.end && rest.start < rest.end {
                rest.end = match (used, cleared) {
                    (true, true) => part.start.max(rest.start),
                    (true, false) => rest.end,
                    (false, _) => region.end,
                };
            }
        }
        rest
    }

    /// Clears a part of a huge page, copying it first where it is shared. Returns whether that could be done.
    fn clear(&mut self, space: SpaceId, part: Range<Upper>) -> bool {
        let first = part.start.page();
        if !self.is_own(space, first) && !self.copy_whole(space, first) {
            return false;
        }
        let mapping = self.alive_mut(space).table.mapping(part.start).expect("it is huge");
        for i in 0..part.bytes() >> PageSize::BASE_SHIFT {
            self.zeroed(frame_of(&mapping, first) + i, 0);
        }
        true
    }

    /// Whether no other space has any frame of the huge page at `page`.
    fn is_own(&self, space: SpaceId, page: Frame<Upper>) -> bool {
        let behind = self.frame_behind(space, page.floor(PageSize::Huge));
        let mut frames = behind.into_iter().flat_map(|first| (0..512).map(move |i| first + i));
        frames.all(|frame| !self.is_shared(frame))
    }

    /// Copies the huge page at `page` for one of those who share it. Returns whether it was one, and there was
    /// room.
    pub(crate) fn copy_whole(&mut self, space: SpaceId, page: Frame<Upper>) -> bool {
        if !self.is_huge(space, page) {
            return false;
        }
        let Some(copy) = self.take(PageSize::Huge.order(), None) else { return false };
        let page = page.floor(PageSize::Huge);
        let old = self.frame_behind(space, page).expect("it is mapped");
        let table = &mut self.alive_mut(space).table;
        let updated = table.update(page.addr(), |_| (copy, Rights::ALL));
        debug_assert!(updated, "it is mapped");
        for i in 0..PageSize::Huge.base_pages() {
            self.set_owner(copy + i, Owner::Page(space, page + i));
            self.copied(old + i, copy + i);
            self.drop_reference(old + i);
        }
        self.changed(space, page, PageSize::Huge.base_pages());
        true
    }

    /// What is mapped in `from` is copied to huge pages at `to`; the caller unmaps `from`.
    ///
    /// # Errors
    /// [`OutOfMemory`] when there was no frame for a page or a table.
    pub(crate) fn copy_range(
        &mut self,
        space: SpaceId,
        from: Range<Upper>,
        to: Range<Upper>,
    ) -> Result<(), OutOfMemory> {
        let (first, target) = (from.start.page(), to.start.page());
        for i in 0..from.bytes() >> PageSize::BASE_SHIFT {
            let Some(frame) = self.frame_behind(space, first + i) else { continue };
            let at = target + i;
            self.map_whole(space, at)?;
            if !self.is_own(space, at) {
                self.copy_whole(space, at);
            }
            let there = self.frame_behind(space, at).expect("just mapped");
            self.copied(frame, there);
        }
        Ok(())
    }

    /// Maps the page at `page`, with all of its region where nothing of that is mapped and there is room.
    fn map_whole(&mut self, space: SpaceId, page: Frame<Upper>) -> Result<(), OutOfMemory> {
        if self.frame_behind(space, page).is_some() {
            return Ok(());
        }
        let region = page.floor(PageSize::Huge);
        let absent = matches!(self.alive_mut(space).table.region(region), Region::Absent);
        let block = if absent { self.take(PageSize::Huge.order(), None) } else { None };
        let (first, frame, size) = match block {
            Some(block) => (region, block, PageSize::Huge),
            None => (page, self.take(0, None).ok_or(OutOfMemory)?, PageSize::Base),
        };
        let (place, frames) = self.space_and_frames(space);
        if place.table.map(first, size, frame, Rights::ALL, frames).is_err() {
            self.frames.memory.free(frame, size.order());
            return Err(OutOfMemory);
        }
        for i in 0..size.base_pages() {
            self.set_owner(frame + i, Owner::Page(space, first + i));
        }
        self.zeroed(frame, size.order());
        Ok(())
    }
}
