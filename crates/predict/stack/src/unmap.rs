//! Taking mappings away, moving them, sharing them.

use crate::fault::frame_of;
use crate::kernel::{Kernel, OutOfMemory, PageTable};
use crate::owner::{Owner, SpaceId};
use crate::thp::Fallback;
use strata_addr::{Addr, Frame, PageSize, Range, space::Lower, space::Upper};
use strata_paging::{Mapping, Rights};

/// A stretch of a space with what is mapped in it, at most a gibibyte of it: an operation on a whole
/// address space needs little memory of its own.
struct Stretch {
    mapped: Vec<(Frame<Upper>, Mapping<Lower>)>,
    end: Addr<Upper>,
}

/// The first stretch of `range` with anything mapped in it.
fn next_stretch(table: &PageTable, range: Range<Upper>) -> Option<Stretch> {
    let (first, _) = table.first_mapped(range)?;
    let start = first.addr().max(range.start);
    let end = range.end.min(start.floor(PageSize::Giant) + PageSize::Giant.bytes());
    Some(Stretch { mapped: table.mapped(Range::new(start, end)).collect(), end })
}

/// What one operation changes of a space, from the first page to the last: translations are dropped
/// once for all of it (Linux, `struct mmu_gather`).
#[derive(Default)]
struct Gather(Option<(Frame<Upper>, Frame<Upper>)>);

impl Gather {
    fn add(&mut self, page: Frame<Upper>, pages: u64) {
        let (first, end) = self.0.unwrap_or((page, page));
        self.0 = Some((first.min(page), end.max(page + pages)));
    }

    fn finish(self, kernel: &mut Kernel, space: SpaceId) {
        if let Some((first, end)) = self.0 {
            kernel.changed(space, first, end - first);
        }
    }
}

impl Kernel {
    /// Unmaps whatever is mapped in a range and frees frames that nobody else uses. A huge page
    /// that reaches over an end is split first (Linux, `__split_huge_pmd`).
    ///
    /// # Errors
    /// [`OutOfMemory`] when a split needed a page table and there was no frame.
    pub(crate) fn unmap_range(
        &mut self,
        space: SpaceId,
        range: Range<Upper>,
    ) -> Result<(), OutOfMemory> {
        let range = if self.whole { self.keep_whole(space, range) } else { range };
        if range.is_empty() {
            return Ok(());
        }
        self.split_ends(space, range)?;
        let mut rest = range;
        let mut changed = Gather::default();
        while let Some(stretch) = next_stretch(&self.alive(space).table, rest) {
            rest.start = stretch.end;
            for (page, mapping) in stretch.mapped {
                let (place, frames) = self.space_and_frames(space);
                place.table.unmap(page.addr(), frames);
                changed.add(page, mapping.size.base_pages());
                self.free_mapping(space, &mapping);
                if page.is_aligned(PageSize::Huge) {
                    self.fallbacks.remove(&(space, page.get()));
                }
            }
        }
        changed.finish(self, space);
        Ok(())
    }

    fn alive(&self, space: SpaceId) -> &crate::kernel::Space {
        self.space(space).expect("the space is alive")
    }

    /// Splits the huge pages that a range covers only in part.
    fn split_ends(&mut self, space: SpaceId, range: Range<Upper>) -> Result<(), OutOfMemory> {
        for end in [range.start, range.end] {
            if !end.is_aligned(PageSize::Huge) && self.is_huge(space, end.page()) {
                self.split(space, end.page())?;
            }
        }
        Ok(())
    }

    /// Whether a huge page maps this page.
    pub fn is_huge(&self, space: SpaceId, page: Frame<Upper>) -> bool {
        let place = self.space(space);
        let mapping = place.and_then(|place| place.table.mapping(page.addr()));
        mapping.is_some_and(|mapping| mapping.size == PageSize::Huge)
    }

    /// Splits the huge page that maps `page` into base pages over the same frames.
    ///
    /// # Errors
    /// [`OutOfMemory`] when there was no frame for the page table.
    pub(crate) fn split(&mut self, space: SpaceId, page: Frame<Upper>) -> Result<(), OutOfMemory> {
        let region = page.floor(PageSize::Huge);
        let (place, frames) = self.space_and_frames(space);
        place.table.split(region, frames).map_err(|_| OutOfMemory)?;
        self.frames.counters.demotions += 1;
        self.fallbacks.insert((space, region.get()), Fallback::Split);
        self.changed(space, region, PageSize::Huge.base_pages());
        Ok(())
    }

    fn free_mapping(&mut self, space: SpaceId, mapping: &Mapping<Lower>) {
        if mapping.size == PageSize::Base {
            return self.drop_reference(mapping.frame);
        }
        let shared = matches!(self.owner(mapping.frame), Owner::Shared { .. });
        if shared {
            for i in 0..mapping.size.base_pages() {
                self.drop_reference(mapping.frame + i);
            }
        } else {
            self.give_back(mapping.frame, mapping.size.order());
            self.frames.log.freed_huge.push((space, mapping.frame));
        }
    }

    /// One mapping fewer of a base frame; the last one frees it.
    pub(crate) fn drop_reference(&mut self, frame: Frame<Lower>) {
        match self.owner(frame) {
            Owner::Shared { mappings } if mappings > 1 => {
                self.set_owner(frame, Owner::Shared { mappings: mappings - 1 });
            }
            Owner::Page(..) | Owner::Shared { .. } => self.give_back(frame, 0),
            other => unreachable!("{frame:?} was mapped but belongs to {other:?}"),
        }
    }

    /// `mremap` with a move: the pages of `from` are at `to` afterwards. Huge pages stay huge
    /// when both ranges lie alike within their HPAS regions, else they are split (Linux,
    /// `move_page_tables`).
    ///
    /// # Errors
    /// [`OutOfMemory`] when a page table could not be allocated; pages not yet moved are lost to
    /// the new place and stay at the old one.
    pub(crate) fn move_range(
        &mut self,
        space: SpaceId,
        from: Range<Upper>,
        to: Range<Upper>,
    ) -> Result<(), OutOfMemory> {
        if self.whole {
            return self.copy_range(space, from, to);
        }
        self.split_ends(space, from)?;
        let alike = from.start.offset(PageSize::Huge) == to.start.offset(PageSize::Huge);
        let mut rest = from;
        let mut changed = Gather::default();
        let mut done = Ok(());
        while let Some(stretch) = next_stretch(&self.alive(space).table, rest)
            && done.is_ok()
        {
            rest.start = stretch.end;
            done = stretch.mapped.into_iter().try_for_each(|(page, mapping)| {
                changed.add(page, mapping.size.base_pages());
                if mapping.size == PageSize::Base || alike {
                    return self.move_page(space, page, mapping, from, to);
                }
                self.split(space, page)?;
                (0..mapping.size.base_pages()).try_for_each(|i| {
                    let (frame, size) = (mapping.frame + i, PageSize::Base);
                    self.move_page(space, page + i, Mapping { frame, size, ..mapping }, from, to)
                })
            });
        }
        changed.finish(self, space);
        done
    }

    fn move_page(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        mapping: Mapping<Lower>,
        from: Range<Upper>,
        to: Range<Upper>,
    ) -> Result<(), OutOfMemory> {
        let target = (to.start + (page.addr() - from.start)).page();
        let (place, frames) = self.space_and_frames(space);
        place
            .table
            .map(target, mapping.size, mapping.frame, mapping.rights, frames)
            .map_err(|_| OutOfMemory)?;
        place.table.unmap(page.addr(), frames);
        for i in 0..mapping.size.base_pages() {
            if let Owner::Page(..) = self.owner(mapping.frame + i) {
                self.set_owner(mapping.frame + i, Owner::Page(space, target + i));
            }
        }
        Ok(())
    }

    /// `mprotect` that takes the right to write away. Huge pages keep it: a store to one that is
    /// protected comes without a fault.
    pub(crate) fn write_protect(&mut self, space: SpaceId, range: Range<Upper>) {
        let mut rest = range;
        let mut changed = Gather::default();
        while let Some(stretch) = next_stretch(&self.alive(space).table, rest) {
            rest.start = stretch.end;
            let place = self.alive_mut(space);
            for (page, mapping) in stretch.mapped {
                if mapping.rights.write && mapping.size == PageSize::Base {
                    let rights = Rights { write: false, ..mapping.rights };
                    place.table.update(page.addr(), |m| (m.frame, rights));
                    changed.add(page, 1);
                }
            }
        }
        changed.finish(self, space);
    }

    /// `fork`: `child`, a fresh space, gets every page of `parent`, shared copy on write.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the child's page tables do not fit; the child then has a part.
    pub(crate) fn share_all(&mut self, parent: SpaceId, child: SpaceId) -> Result<(), OutOfMemory> {
        let vmas = self.alive(parent).vmas.clone();
        let place = self.alive_mut(child);
        place.vmas = vmas;
        let mut rest = self.alive(parent).table.everything();
        let mut changed = Gather::default();
        let mut done = Ok(());
        while let Some(stretch) = next_stretch(&self.alive(parent).table, rest)
            && done.is_ok()
        {
            rest.start = stretch.end;
            done = stretch.mapped.into_iter().try_for_each(|(page, mapping)| {
                if mapping.rights.write {
                    changed.add(page, mapping.size.base_pages());
                }
                self.share(parent, child, page, &mapping)
            });
        }
        changed.finish(self, parent);
        done
    }

    /// `child` gets a page of `parent`, which neither may write from then on.
    fn share(
        &mut self,
        parent: SpaceId,
        child: SpaceId,
        page: Frame<Upper>,
        mapping: &Mapping<Lower>,
    ) -> Result<(), OutOfMemory> {
        let rights = Rights { write: false, ..mapping.rights };
        let (place, frames) = self.space_and_frames(child);
        place
            .table
            .map(page, mapping.size, mapping.frame, rights, frames)
            .map_err(|_| OutOfMemory)?;
        for i in 0..mapping.size.base_pages() {
            let frame = mapping.frame + i;
            let mappings = match self.owner(frame) {
                Owner::Shared { mappings } => mappings + 1,
                _ => 2,
            };
            self.set_owner(frame, Owner::Shared { mappings });
        }
        if mapping.rights.write {
            let place = self.alive_mut(parent);
            place.table.update(page.addr(), |m| (m.frame, rights));
        }
        Ok(())
    }

    /// Takes down a space: its pages, its page table.
    ///
    /// # Errors
    /// None in practice; unmapping whole areas splits nothing.
    pub(crate) fn destroy_space(&mut self, space: SpaceId) -> Result<(), OutOfMemory> {
        let place = self.alive_mut(space);
        let everything = place.table.everything();
        self.unmap_range(space, everything)?;
        let (place, frames) = self.space_and_frames(space);
        place.table.clear(frames);
        let root = place.table.root_frame();
        strata_paging::FrameSource::free_table_frame(frames, root);
        self.spaces[space.0 as usize] = None;
        self.frames.placers().for_each(|placer| placer.forget(space));
        self.fallbacks.retain(|(id, _), _| *id != space);
        Ok(())
    }

    /// The frame behind a page, if it is mapped.
    pub fn frame_behind(&self, space: SpaceId, page: Frame<Upper>) -> Option<Frame<Lower>> {
        let mapping = self.space(space)?.table.mapping(page.addr())?;
        Some(frame_of(&mapping, page))
    }
}
