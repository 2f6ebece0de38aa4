//! Moving pages: promotion to a huge page, migration to a wanted frame, compaction.

use crate::fault::{frame_of, rights_of};
use crate::frames::Action;
use crate::kernel::{Kernel, OutOfMemory};
use crate::owner::{Owner, SpaceId};
use crate::ppm::Purpose;
use crate::thp::ThpParameters;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::Colour;
use strata_paging::{ENTRIES, Format, Region, X86};

/// How a region became huge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// It was huge before.
    AlreadyHuge,
    /// Its pages lay right; missing ones were filled in.
    InPlace,
    /// Its pages were copied to another HPAS region.
    Moved,
}

/// Why a region did not become huge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromoteError {
    /// The area does not cover the region, too many pages in it are shared, or nothing is mapped
    /// there.
    #[error("the region cannot be huge")]
    NotEligible,
    /// There is no free order-9 block.
    #[error("no free order-9 block")]
    NoBlock,
    /// The wanted frames are in use.
    #[error("the wanted frames are in use")]
    Taken,
    /// The policy wants its pages where they are.
    #[error("the policy wants its pages where they are")]
    Refused,
    /// No frame for a page table.
    #[error("no free frame left")]
    OutOfMemory,
}

/// What became of a region that was to be huge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collapsed {
    /// It is huge.
    Huge(Promotion),
    /// It is as before.
    Unchanged(PromoteError),
}

impl Collapsed {
    /// Whether the region is huge.
    pub fn is_huge(self) -> bool {
        matches!(self, Self::Huge(_))
    }
}

impl From<Result<Promotion, PromoteError>> for Collapsed {
    fn from(outcome: Result<Promotion, PromoteError>) -> Self {
        outcome.map_or_else(Self::Unchanged, Self::Huge)
    }
}

const REGION: u64 = PageSize::Huge.base_pages();

impl Kernel {
    /// Makes the region at `page` one huge page. When its pages lie in the wanted place already
    /// (`target`, or with `None` wherever they are contiguous) it is done in place, missing pages
    /// being filled with zeroes; else everything is copied into `target`, or into any free block,
    /// for which compaction may look at some regions. Shared pages are copied for this space; those
    /// who share them keep theirs (Linux, `hpage_collapse_scan_pmd`).
    ///
    /// # Errors
    /// [`PromoteError`]; the region is as before.
    pub(crate) fn collapse(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        target: Option<Frame<Lower>>,
        settings: &ThpParameters,
    ) -> Result<Promotion, PromoteError> {
        let page = page.floor(PageSize::Huge);
        let place = self.space(space).ok_or(PromoteError::NotEligible)?;
        let vma = *place.vmas.find(page.addr()).ok_or(PromoteError::NotEligible)?;
        let entries = match place.table.region(page) {
            Region::Huge(_) => return Ok(Promotion::AlreadyHuge),
            Region::Absent => return Err(PromoteError::NotEligible),
            Region::Base { entries, .. } => *entries,
        };
        let shared = self.region_pages(space, page).map_or(0, |pages| pages.shared);
        if !vma.fits_huge(page) || shared > settings.max_ptes_shared {
            return Err(PromoteError::NotEligible);
        }
        let lying = contiguous_at(&entries).filter(|_| shared == 0);
        let in_place = lying.filter(|at| target.is_none_or(|target| target == *at));
        if let Some(block) = in_place
            && self.fill_block(block, &entries)
        {
            self.install_huge(space, page, block, rights_of(&vma))?;
            self.frames.counters.promotions += 1;
            self.frames.counters.promotions_in_place += 1;
            return Ok(Promotion::InPlace);
        }
        let block = match target {
            Some(target) => {
                self.take(PageSize::Huge.order(), Some(target)).ok_or(PromoteError::Taken)?
            }
            None => self
                .frames
                .huge_page(Purpose::Page(space, page))
                .or_else(|| self.take_reserved_region())
                .or_else(|| self.compact(settings.compact_regions))
                .ok_or(PromoteError::NoBlock)?,
        };
        // Compaction may have moved pages of this very region.
        let Some(Region::Base { entries, .. }) = self.space(space).map(|s| s.table.region(page))
        else {
            unreachable!("compaction moves pages, it does not unmap them");
        };
        let entries = *entries;
        for (i, bits) in (0..REGION).zip(&entries) {
            if X86::is_present(*bits) {
                let frame = Frame::new(X86::frame(*bits));
                self.copied(frame, block + i);
                self.frames.counters.migrated_pages += u64::from(!self.is_shared(frame));
            } else {
                self.zeroed(block + i, 0);
            }
        }
        self.install_huge(space, page, block, rights_of(&vma))?;
        for bits in entries.iter().filter(|bits| X86::is_present(**bits)) {
            self.drop_reference(Frame::new(X86::frame(*bits)));
        }
        self.frames.counters.promotions += 1;
        Ok(Promotion::Moved)
    }

    /// Takes the frames of `block` whose entries are absent; all of them or none.
    fn fill_block(&mut self, block: Frame<Lower>, entries: &[u64; ENTRIES]) -> bool {
        let absent = |i: &u64| !X86::is_present(entries[*i as usize]);
        for i in (0..REGION).filter(absent) {
            if self.take(0, Some(block + i)).is_none() {
                for undo in (0..i).filter(absent) {
                    self.frames.memory.free(block + undo, 0);
                }
                return false;
            }
        }
        for i in (0..REGION).filter(absent) {
            self.zeroed(block + i, 0);
        }
        true
    }

    /// Replaces the region's base mappings by one huge page over `block`, all of it taken.
    fn install_huge(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        block: Frame<Lower>,
        rights: strata_paging::Rights,
    ) -> Result<(), PromoteError> {
        let (place, frames) = self.space_and_frames(space);
        // The region has a leaf table, so collapsing it allocates nothing.
        place.table.collapse(page, block, rights, frames).map_err(|_| PromoteError::OutOfMemory)?;
        for i in 0..REGION {
            self.set_owner(block + i, Owner::Page(space, page + i));
        }
        self.fallbacks.remove(&(space, page.get()));
        self.changed(space, page, REGION);
        Ok(())
    }

    /// Moves the base page at `page` to the frame `to`, which is free or reserved. Its content goes with
    /// it, which is a copy to pay for if it `copies`. Returns whether it is there now.
    ///
    /// # Errors
    /// [`OutOfMemory`] when a huge page had to be split and there was no frame for the table.
    pub(crate) fn migrate_to(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        to: Frame<Lower>,
        copies: bool,
    ) -> Result<bool, OutOfMemory> {
        let mapping = self.space(space).and_then(|s| s.table.mapping(page.addr()));
        let Some(mapping) = mapping else { return Ok(false) };
        let from = frame_of(&mapping, page);
        if from == to {
            return Ok(true);
        }
        if !matches!(self.owner(from), Owner::Page(..)) || self.take(0, Some(to)).is_none() {
            return Ok(false);
        }
        if mapping.size == PageSize::Huge {
            self.split(space, page).inspect_err(|_| self.frames.memory.free(to, 0))?;
        }
        self.relocate(from, to, copies);
        Ok(true)
    }

    /// The base page at `page` and the one that has the frame `to` change places. Returns whether they
    /// did: not if the other is no base page of a space, or shared.
    ///
    /// # Errors
    /// As [`migrate_to`](Self::migrate_to).
    pub(crate) fn exchange_with(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        to: Frame<Lower>,
    ) -> Result<bool, OutOfMemory> {
        let mapping = self.space(space).and_then(|s| s.table.mapping(page.addr()));
        let Some(mapping) = mapping else { return Ok(false) };
        let from = frame_of(&mapping, page);
        let (own, Some((other, at))) = (self.owner(from), self.base_page_in(to)) else {
            return Ok(false);
        };
        if from == to || own != Owner::Page(space, page) {
            return Ok(from == to);
        }
        if mapping.size == PageSize::Huge {
            self.split(space, page)?;
        }
        for (space, page, frame) in [(space, page, to), (other, at, from)] {
            let updated = self.alive_mut(space).table.update(page.addr(), |m| (frame, m.rights));
            debug_assert!(updated, "the owner of a frame maps it");
            self.changed(space, page, 1);
            self.set_owner(frame, Owner::Page(space, page));
        }
        self.frames.log.actions.push(Action::Exchange(from, to));
        self.frames.counters.copied_pages += 2;
        self.frames.counters.migrated_pages += 2;
        Ok(true)
    }

    /// The base page of a space that has a frame to itself.
    pub(crate) fn base_page_in(&self, frame: Frame<Lower>) -> Option<(SpaceId, Frame<Upper>)> {
        match self.owner(frame) {
            Owner::Page(space, page) if !self.is_huge(space, page) => Some((space, page)),
            _ => None,
        }
    }

    /// Moves the base page at `page` to a frame of a colour, unless it is in one. Its content goes with
    /// it, which is a copy to pay for if it `copies`. Returns whether it is there now.
    ///
    /// # Errors
    /// As [`migrate_to`](Self::migrate_to).
    pub(crate) fn recolour(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        colour: Colour<Lower>,
        copies: bool,
    ) -> Result<bool, OutOfMemory> {
        let Some(colours) = self.frames.memory.colours() else { return Ok(false) };
        let mapping = self.space(space).and_then(|s| s.table.mapping(page.addr()));
        let Some(mapping) = mapping else { return Ok(false) };
        let from = frame_of(&mapping, page);
        if colours.of(from) == colour {
            return Ok(true);
        }
        let owner = self.owner(from);
        if !matches!(owner, Owner::Page(..) | Owner::Shared { .. }) {
            return Ok(false);
        }
        let Some(to) = self.frames.memory.take_coloured(colour) else { return Ok(false) };
        if let Owner::Shared { .. } = owner {
            // The others have what they share where it is.
            self.copy_on_write(space, page, mapping, to)?;
            self.changed(space, page, 1);
            return Ok(true);
        }
        if mapping.size == PageSize::Huge {
            self.split(space, page).inspect_err(|_| self.frames.memory.free(to, 0))?;
        }
        self.relocate(from, to, copies);
        Ok(true)
    }

    /// Moves the content of one frame to another that is taken already, with everything that
    /// points to it.
    fn relocate(&mut self, from: Frame<Lower>, to: Frame<Lower>, copies: bool) {
        let owner = self.owner(from);
        debug_assert!(matches!(owner, Owner::Page(..) | Owner::Movable));
        if let Owner::Page(space, page) = owner {
            let place = self.alive_mut(space);
            let updated = place.table.update(page.addr(), |m| {
                debug_assert_eq!((m.frame, m.size), (from, PageSize::Base));
                (to, m.rights)
            });
            debug_assert!(updated, "the owner of {from:?} maps it");
            self.changed(space, page, 1);
        }
        self.set_owner(to, owner);
        self.frames.log.actions.push(Action::Copy(from, to));
        self.frames.counters.copied_pages += u64::from(copies);
        self.frames.counters.migrated_pages += 1;
        self.give_back(from, 0);
    }

    /// Takes a reserved region that nothing in it uses: huge pages are what it is reserved for
    /// (Gemini section 3).
    fn take_reserved_region(&mut self) -> Option<Frame<Lower>> {
        let region = self
            .frames
            .memory
            .reservations()
            .find(|region| u64::from(self.frames.memory.free_in_region(*region)) == REGION)?;
        self.take(PageSize::Huge.order(), Some(region))
    }

    /// Empties one HPAS region by moving its pages elsewhere and takes it. Looks at `limit`
    /// regions from where it stopped last (Linux, `mm/compaction.c`: the migration scanner).
    pub(crate) fn compact(&mut self, limit: u64) -> Option<Frame<Lower>> {
        if !self.compacts {
            return None;
        }
        // What is in page lists cannot be moved and need not be (Linux, `compact_zone_order`).
        self.frames.memory.drain();
        let regions = self.frames.memory.frames() / REGION;
        for _ in 0..limit.min(regions) {
            let region = Frame::new(self.compaction_cursor % regions * REGION);
            self.compaction_cursor = (self.compaction_cursor + 1) % regions;
            if self.empty_region(region) {
                self.frames.counters.compacted_regions += 1;
                return Some(region);
            }
        }
        None
    }

    /// Moves everything out of a region, which is then wholly taken for the caller, or changes
    /// nothing. A region without any hole is worth no moving to compaction.
    pub(crate) fn empty_region(&mut self, region: Frame<Lower>) -> bool {
        self.frames.memory.free_in_region(region) > 0 && self.move_all_out(region)
    }

    /// The same of any region.
    fn move_all_out(&mut self, region: Frame<Lower>) -> bool {
        if self.frames.memory.is_reserved(region) {
            return false;
        }
        let free = u64::from(self.frames.memory.free_in_region(region));
        let used: Vec<_> = self.frames.memory.allocated_in_region(region).collect();
        self.frames.counters.scanned_pages += REGION;
        if !used.iter().all(|frame| self.is_movable(*frame)) {
            return false;
        }
        // Room elsewhere, or the pages would only change places.
        if self.frames.memory.free_frames() - free < used.len() as u64 {
            return false;
        }
        if !self.has_colours_for(region, &used) {
            return false;
        }
        let holes: Vec<_> =
            (0..REGION).map(|i| region + i).filter(|f| self.frames.memory.is_free(*f, 0)).collect();
        for hole in &holes {
            let taken = self.frames.memory.alloc_at(*hole, 0);
            debug_assert!(taken, "{hole:?} was free");
        }
        // What has a colour to keep is first to choose.
        let (pages, others): (Vec<_>, Vec<_>) =
            used.into_iter().partition(|from| self.keeps_colour(*from));
        for from in pages.into_iter().chain(others) {
            let to = self.frames.base_page(Purpose::Moved(from)).expect("room was counted");
            self.relocate(from, to, true);
            let taken = self.frames.memory.alloc_at(from, 0);
            debug_assert!(taken, "{from:?} was just freed");
        }
        true
    }

    /// Splits the huge page at `page` and moves its pages elsewhere, one by one, so that its region is wholly
    /// taken for the caller. `None` when there is none or no room.
    pub(crate) fn take_apart(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
    ) -> Option<Frame<Lower>> {
        let region = self.frame_behind(space, page.floor(PageSize::Huge))?;
        let room = self.frames.memory.free_frames() > 2 * REGION;
        if !room || !self.is_huge(space, page) || !region.is_aligned(PageSize::Huge) {
            return None;
        }
        self.split(space, page).ok()?;
        self.move_all_out(region).then_some(region)
    }

    /// Whether compaction must leave the colour of a frame as it is: where the kernel tells colours apart
    /// for a policy, which placed it or will judge it by its colour.
    fn keeps_colour(&self, frame: Frame<Lower>) -> bool {
        self.frames.memory.colours().is_some()
            && self.frames.placer.is_none()
            && matches!(self.owner(frame), Owner::Page(..))
    }

    /// Whether outside of a region there is a free frame of the colour of each of these in it that keeps
    /// its colour.
    fn has_colours_for(&self, region: Frame<Lower>, used: &[Frame<Lower>]) -> bool {
        let memory = &self.frames.memory;
        let Some(colours) = memory.colours().filter(|_| self.frames.placer.is_none()) else {
            return true;
        };
        let mut wanted = vec![0u64; colours.count() as usize];
        for frame in used.iter().filter(|frame| self.keeps_colour(**frame)) {
            wanted[colours.of(*frame).index() as usize] += 1;
        }
        // Frames of the region itself are no place to go.
        for frame in (0..REGION).map(|i| region + i).filter(|frame| memory.is_free(*frame, 0)) {
            let wanted = &mut wanted[colours.of(frame).index() as usize];
            *wanted += u64::from(*wanted > 0);
        }
        colours.all().all(|colour| wanted[colour.index() as usize] <= memory.free_of(colour))
    }

    fn is_movable(&self, frame: Frame<Lower>) -> bool {
        match self.owner(frame) {
            Owner::Movable => true,
            Owner::Page(space, page) => !self.is_huge(space, page),
            // Shared pages are not found from their frame, and those of the balloon the host knows by number.
            Owner::Shared { .. } | Owner::Balloon => false,
            Owner::Nobody | Owner::Table | Owner::Pinned => false,
        }
    }
}

/// Where a region's base pages lie as parts of one aligned block, if they all do.
fn contiguous_at(entries: &[u64; ENTRIES]) -> Option<Frame<Lower>> {
    let mut block = None;
    for (i, bits) in (0..REGION).zip(entries) {
        if X86::is_present(*bits) {
            let start = X86::frame(*bits).checked_sub(i)?;
            if start % REGION != 0 || block.is_some_and(|block| block != start) {
                return None;
            }
            block = Some(start);
        }
    }
    block.map(Frame::new)
}
