//! Page faults of one kernel.

use crate::kernel::{Kernel, OutOfMemory};
use crate::owner::{Owner, SpaceId};
use crate::ppm::Purpose;
use crate::thp::Fallback;
use crate::tree::NodeId;
use crate::vma::{HugeAdvice, Vma};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::Colour;
use strata_paging::{Mapping, Region, Rights};
use strata_stream::Backing;

/// A fault on a page that is not mapped, for a policy to place.
#[derive(Clone, Copy, Debug)]
pub struct PageFault {
    /// Where it happened.
    pub space: SpaceId,
    /// The VM whose memory it is; `None` for a program's.
    pub vm: Option<NodeId>,
    /// The page of that VM's memory.
    pub vm_page: Option<Frame<Upper>>,
    /// The guest whose memory it is in the end, and the page of it, if the host knows: the guest hypervisors
    /// between map it in their second stages. `None` for other kernels' faults, and where the policy does
    /// not ask for it ([`Policy::wants_backs`](crate::Policy::wants_backs)).
    pub backs: Option<(NodeId, Frame<Upper>)>,
    /// The base page.
    pub page: Frame<Upper>,
    /// The area it is in.
    pub vma: Vma,
    /// It was a store.
    pub store: bool,
    /// A huge page may be mapped: the area covers the region, huge pages are allowed there, and
    /// no part of it is mapped.
    pub huge_possible: bool,
}

/// Where a policy wants a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// As Linux: a huge page if possible and there is a free block, else any base page.
    Linux,
    /// Any base page.
    Base,
    /// A base page of this colour, if there is one; else any base page.
    BaseOf(Colour<Lower>),
    /// The base page in this frame, if it is still free; else any base page, of the frame's colour if memory
    /// is told apart by colours.
    BaseAt(Frame<Lower>),
    /// A huge page in this HPAS region, if it is still free; else as [`Placement::Linux`].
    HugeAt(Frame<Lower>),
}

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faulted {
    /// A page of this size was mapped.
    Mapped(PageSize),
    /// The page was mapped already; it is writable now (perhaps by copy on write).
    Writable,
    /// Nothing had to be done: somebody else's fault was first.
    Spurious,
}

impl Kernel {
    /// What the policy needs to know of a fault at `page`, or `None` when the page is mapped.
    /// The page must be in an area.
    pub(crate) fn describe_fault(
        &self,
        space: SpaceId,
        page: Frame<Upper>,
        store: bool,
    ) -> Option<PageFault> {
        let place = self.space(space)?;
        let vma = *place.vmas.find(page.addr())?;
        let huge_possible = match place.table.region(page.floor(PageSize::Huge)) {
            Region::Huge(_) => return None,
            Region::Base { entries, .. } => {
                let bits = entries[page.index_in(PageSize::Huge) as usize];
                if <strata_paging::X86 as strata_paging::Format>::is_present(bits) {
                    return None;
                }
                false
            }
            Region::Absent => self.whole || self.thp.allows(&vma) && vma.fits_huge(page),
        };
        let (vm, vm_page, backs) = (None, None, None);
        Some(PageFault { space, vm, vm_page, backs, page, vma, store, huge_possible })
    }

    /// Maps the page of `fault` where `placement` says. Where the program asked for huge pages, a
    /// fault that finds none compacts, looking at up to `compact_regions` regions (Linux,
    /// `transparent_hugepage/defrag` at its default, `madvise`).
    ///
    /// # Errors
    /// [`OutOfMemory`] when not even a base page could be had; nothing is mapped then.
    pub(crate) fn map_fault(
        &mut self,
        fault: &PageFault,
        placement: Placement,
        compact_regions: u64,
    ) -> Result<PageSize, OutOfMemory> {
        let wanted = match placement {
            Placement::HugeAt(frame) => Some(Some(frame)),
            Placement::Linux => Some(None),
            Placement::Base | Placement::BaseAt(_) | Placement::BaseOf(_) => None,
        };
        if let Some(at) = wanted.filter(|_| fault.huge_possible) {
            let purpose = Purpose::Page(fault.space, fault.page);
            let there = at.and_then(|at| self.take(PageSize::Huge.order(), Some(at)));
            let mut block = there.or_else(|| self.frames.huge_page(purpose));
            if block.is_none() && fault.vma.huge == HugeAdvice::Wanted {
                block = self.compact(compact_regions);
            }
            if let Some(frame) = block {
                return self.map_huge(fault, frame);
            }
        }
        self.note_fallback(fault, wanted.is_some());
        let frame = self.map_base(fault, placement)?;
        self.zeroed(frame, 0);
        Ok(PageSize::Base)
    }

    /// Maps a base page where `placement` says; the caller says what is in it. Gives its frame.
    ///
    /// # Errors
    /// [`OutOfMemory`] when there is no frame, or none for a page table; nothing is mapped then.
    pub(crate) fn map_base(
        &mut self,
        fault: &PageFault,
        placement: Placement,
    ) -> Result<Frame<Lower>, OutOfMemory> {
        let purpose = Purpose::Page(fault.space, fault.page);
        let frame = self.base_page_at(placement, purpose).ok_or(OutOfMemory)?;
        let (place, frames) = self.space_and_frames(fault.space);
        let rights = rights_of_fault(fault);
        if place.table.map(fault.page, PageSize::Base, frame, rights, frames).is_err() {
            self.frames.memory.free(frame, 0);
            return Err(OutOfMemory);
        }
        self.set_owner(frame, Owner::Page(fault.space, fault.page));
        Ok(frame)
    }

    /// Takes a base page where `placement` says, else where the kernel places such pages.
    fn base_page_at(&mut self, placement: Placement, purpose: Purpose) -> Option<Frame<Lower>> {
        let at = match placement {
            Placement::BaseAt(frame) => self.take(0, Some(frame)).or_else(|| {
                let colours = self.frames.memory.colours()?;
                self.frames.memory.take_coloured(colours.of(frame))
            }),
            Placement::BaseOf(colour) => self.frames.memory.take_coloured(colour),
            Placement::Linux | Placement::Base | Placement::HugeAt(_) => None,
        };
        at.or_else(|| self.frames.base_page(purpose))
    }

    /// Makes a mapped page writable for a store, copying it to where `placement` says when it is shared.
    ///
    /// # Errors
    /// [`OutOfMemory`] when a copy was needed and there was no frame, or no page table.
    pub(crate) fn write_fault(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        placement: Placement,
    ) -> Result<Faulted, OutOfMemory> {
        let mapping =
            self.spaces[space.0 as usize].as_ref().and_then(|s| s.table.mapping(page.addr()));
        let Some(mapping) = mapping else { return Ok(Faulted::Spurious) };
        if mapping.rights.write {
            return Ok(Faulted::Spurious);
        }
        let frame = frame_of(&mapping, page);
        match self.owner(frame) {
            Owner::Shared { mappings } => {
                if mappings > 1 && self.whole && self.copy_whole(space, page) {
                    // All of it is the writer's now.
                } else if mappings > 1 {
                    let copy = self.base_page_at(placement, Purpose::Page(space, page));
                    self.copy_on_write(space, page, mapping, copy.ok_or(OutOfMemory)?)?;
                } else {
                    self.own(space, page, mapping)?;
                }
                self.frames.counters.cow_faults += 1;
            }
            _ => self.make_writable(space, page),
        }
        // Counted when done: one that finds no memory is tried again.
        self.frames.counters.faults += 1;
        self.changed(space, page, 1);
        Ok(Faulted::Writable)
    }

    /// The last sharer of a page becomes its owner. A huge page stays whole if all of it is the
    /// sharer's (Linux, `do_huge_pmd_wp_page`).
    fn own(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        mapping: Mapping<Lower>,
    ) -> Result<(), OutOfMemory> {
        if mapping.size == PageSize::Huge {
            let frames = (0..mapping.size.base_pages()).map(|i| mapping.frame + i);
            if !frames.clone().any(|frame| self.is_shared(frame)) {
                let first = page.floor(mapping.size);
                for (i, frame) in (0..).zip(frames) {
                    self.set_owner(frame, Owner::Page(space, first + i));
                }
                self.make_writable(space, page);
                return Ok(());
            }
            self.split(space, page)?;
        }
        self.set_owner(frame_of(&mapping, page), Owner::Page(space, page));
        self.make_writable(space, page);
        Ok(())
    }

    /// A shared page is copied for the one who writes, to a frame taken already. A huge page is split
    /// first, so that one base page is copied and not 512 (Linux, `do_huge_pmd_wp_page`).
    pub(crate) fn copy_on_write(
        &mut self,
        space: SpaceId,
        page: Frame<Upper>,
        mapping: Mapping<Lower>,
        copy: Frame<Lower>,
    ) -> Result<(), OutOfMemory> {
        if mapping.size == PageSize::Huge {
            self.split(space, page).inspect_err(|_| self.frames.memory.free(copy, 0))?;
        }
        let old = frame_of(&mapping, page);
        self.set_owner(copy, Owner::Page(space, page));
        self.copied(old, copy);
        let place = self.alive_mut(space);
        let updated = place.table.update(page.addr(), |_| (copy, Rights::ALL));
        debug_assert!(updated);
        self.drop_reference(old);
        Ok(())
    }

    fn make_writable(&mut self, space: SpaceId, page: Frame<Upper>) {
        let place = self.alive_mut(space);
        place.table.update(page.addr(), |m| (m.frame, Rights { write: true, ..m.rights }));
    }

    fn map_huge(
        &mut self,
        fault: &PageFault,
        frame: Frame<Lower>,
    ) -> Result<PageSize, OutOfMemory> {
        let page = fault.page.floor(PageSize::Huge);
        let whole = self.whole;
        let (place, frames) = self.space_and_frames(fault.space);
        let rights = if whole { Rights::ALL } else { rights_of(&fault.vma) };
        if place.table.map(page, PageSize::Huge, frame, rights, frames).is_err() {
            self.frames.memory.free(frame, PageSize::Huge.order());
            return Err(OutOfMemory);
        }
        for i in 0..PageSize::Huge.base_pages() {
            self.set_owner(frame + i, Owner::Page(fault.space, page + i));
        }
        self.zeroed(frame, PageSize::Huge.order());
        self.frames.counters.huge_faults += 1;
        Ok(PageSize::Huge)
    }

    /// Remembers why a region starts with base pages, once per region.
    fn note_fallback(&mut self, fault: &PageFault, tried_huge: bool) {
        let region = fault.page.floor(PageSize::Huge);
        let table = &self.spaces[fault.space.0 as usize].as_ref().expect("alive").table;
        if !matches!(table.region(region), Region::Absent) {
            return;
        }
        let why = if !fault.vma.fits_huge(fault.page) {
            Fallback::DoesNotFit
        } else if !self.thp.allows(&fault.vma) {
            Fallback::Disabled
        } else if tried_huge {
            Fallback::NoFreeBlock
        } else {
            Fallback::Policy
        };
        self.fallbacks.insert((fault.space, region.get()), why);
    }
}

/// The frame of one base page within a mapping.
#[inline]
pub(crate) fn frame_of(mapping: &Mapping<Lower>, page: Frame<Upper>) -> Frame<Lower> {
    mapping.frame + page.index_in(mapping.size)
}

/// The rights of a base page that a fault maps. What was read of a file is the page cache's: the first store to it
/// faults again, and gets a copy or marks it dirty.
fn rights_of_fault(fault: &PageFault) -> Rights {
    let rights = rights_of(&fault.vma);
    let write = rights.write && (fault.store || fault.vma.backing != Backing::File);
    Rights { write, ..rights }
}

/// An area without any rights, a guard or a reserve, is mapped readable when something touches
/// it all the same: the stream shows accesses that did happen.
pub(crate) fn rights_of(vma: &Vma) -> Rights {
    Rights { write: vma.protection.write, execute: vma.protection.execute }
}
