//! The enhanced memory allocator of one layer (Gemini 4.2, EMA; xGemini IV.C, NEMA guest part).
//!
//! Base pages of an area land at a constant offset in booked HPAS regions, so that a region that
//! fills up becomes a huge page in place. Regions that the other layer backs with huge pages are
//! used first.

use crate::booking::Booking;
use crate::offsets::Offsets;
use crate::timeout::{BookingParameters, Timeout};
use std::collections::{BTreeSet, VecDeque};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_frames::HUGE_ORDER;
use strata_paging::Region;
use strata_stack::{Feedback, Kernel, PageFault, Placement, SpaceId};

strata_params::parameters! {
    /// Enhanced memory allocator and huge preallocation.
    pub struct AllocatorParameters {
        /// Base pages of an area go to a constant offset (Gemini 4.2; the guest's part of xGemini's
        /// NEMA). Off, to see what it brings: pages go where Linux puts them.
        enabled: bool = true, "ema.enabled", "";
        /// A region is completed and promoted when more base pages than this are present
        /// (Gemini 4.2).
        prealloc_pages: u64 = 256, "ema.prealloc_pages", "pages";
        /// ... and fragmentation is at most this (Gemini 4.2).
        prealloc_fmfi: f64 = 0.5, "ema.prealloc_fmfi", "share";
    }
}

/// When a fault on an empty HPAS region takes a huge page at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultHuge {
    /// As under Linux's `always`: Gemini changes where a huge page lies, not whether the fault
    /// path asks for one (Gemini section 3: no more huge pages than before).
    AsLinux,
    /// Never: memory use follows touch (xGemini IV.C).
    Never,
}

/// FMFI of a layer as its free lists show it: booked memory is not free.
pub(crate) fn fmfi(kernel: &Kernel) -> f64 {
    kernel.memory().buddy_fmfi(HUGE_ORDER)
}

/// The allocator of one layer.
#[derive(Clone, Debug)]
pub struct Allocator {
    pub(crate) offsets: Offsets,
    pub(crate) booking: Booking,
    /// Regions of this layer's memory that the layer below backs huge and nothing here uses.
    pub(crate) preferred: BTreeSet<u64>,
    /// Huge bucket (Gemini section 5): regions whose huge page was freed, in the order in which they were;
    /// all of them are booked.
    bucket: VecDeque<Frame<Lower>>,
    fault_huge: FaultHuge,
    settings: AllocatorParameters,
    cap: f64,
    /// Regions are booked for areas, and not only for the bucket.
    books: bool,
    timeout: Timeout,
    /// The time, in seconds.
    pub(crate) now: f64,
}

impl Allocator {
    /// An allocator that knows nothing yet. With it `sharers` book the same memory.
    pub fn new(
        fault_huge: FaultHuge,
        settings: AllocatorParameters,
        booking: &BookingParameters,
        sharers: u16,
    ) -> Self {
        Self {
            offsets: Offsets::default(),
            booking: Booking::among(sharers),
            preferred: BTreeSet::new(),
            bucket: VecDeque::new(),
            fault_huge,
            settings,
            cap: booking.cap,
            books: booking.enabled,
            timeout: Timeout::new(booking.initial),
            now: 0.0,
        }
    }

    /// When a booking made now ends, in seconds.
    pub fn until(&self) -> f64 {
        self.now + self.timeout.effective()
    }

    /// A period of Algorithm 1 is over: of this layer's bookings, by this layer's fragmentation. `booked`
    /// says whether the layer has anything booked; what happens while it has not says nothing about
    /// time-outs.
    pub fn end_period(&mut self, feedback: Feedback, fmfi: f64, booked: bool) {
        if booked {
            self.timeout.adjust(feedback, fmfi);
        } else {
            self.timeout.skip();
        }
    }

    /// Where the page of a fault goes.
    pub fn place(&mut self, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        let region = fault.page.floor(PageSize::Huge);
        // Regions at the ends of the area have an offset too, for the area may grow over them: the
        // offset runs from the start of the region, wherever the area starts (Gemini 4.2, fig. 5).
        if !fault.vma.backing.is_private_anonymous()
            || fault.vma.range.bytes() < PageSize::Huge.bytes()
        {
            return Placement::Base;
        }
        let target = self.settings.enabled.then(|| self.target(kernel, fault, region)).flatten();
        let Some(target) = target else {
            return match self.fault_huge {
                FaultHuge::AsLinux => Placement::Linux,
                FaultHuge::Never => Placement::Base,
            };
        };
        if fault.huge_possible && self.fault_huge == FaultHuge::AsLinux {
            return Placement::HugeAt(target);
        }
        Placement::BaseAt(target + fault.page.index_in(PageSize::Huge))
    }

    /// The lower region for an upper one, chosen now if it is not yet or no longer possible.
    fn target(
        &mut self,
        kernel: &mut Kernel,
        fault: &PageFault,
        region: Frame<Upper>,
    ) -> Option<Frame<Lower>> {
        let index = fault.page.index_in(PageSize::Huge);
        if let Some(target) = self.offsets.target(fault.space, region) {
            if self.is_open(kernel, target, index) {
                return Some(target);
            }
            // Somebody has the frame: another place for what is left of the area.
            if region_is_started(kernel, fault.space, region) {
                return None;
            }
            self.offsets.cut(fault.space, region);
        } else if region_is_started(kernel, fault.space, region) {
            // Its pages lie anywhere already; an offset would not bring them together.
            return None;
        }
        if let Some(preferred) = self.take_preferred(kernel) {
            self.offsets.assign(fault.space, region, 1, preferred);
            self.book(kernel, preferred);
            return Some(preferred);
        }
        let run = self.offsets.choose(kernel.memory(), fault.space, region, fault.vma.range)?;
        // All of it is booked, or the next area would be sent to the same place.
        for i in 0..run.regions {
            if !self.book(kernel, run.start + i * PageSize::Huge.base_pages()) {
                break;
            }
        }
        Some(run.start)
    }

    /// Books a wholly free region for an area, if that is not switched off. Returns whether it is booked
    /// now.
    pub(crate) fn book(&mut self, kernel: &mut Kernel, region: Frame<Lower>) -> bool {
        let until = self.until();
        self.books && self.booking.book(kernel.memory_mut(), region, until, self.cap)
    }

    /// Whether the wanted frame is free; a region not used so far is booked on the way.
    fn is_open(&mut self, kernel: &mut Kernel, target: Frame<Lower>, index: u64) -> bool {
        if kernel.memory().is_reserved(target) {
            return !kernel.memory().is_allocated(target + index);
        }
        if kernel.memory().is_free(target, HUGE_ORDER) {
            self.book(kernel, target);
            return true;
        }
        kernel.memory().is_free(target + index, 0)
    }

    /// A free region that the layer below backs huge.
    fn take_preferred(&mut self, kernel: &Kernel) -> Option<Frame<Lower>> {
        while let Some(region) = self.preferred.pop_first() {
            let region = Frame::new(region);
            let memory = kernel.memory();
            let whole = memory.is_reserved(region)
                && memory.free_in_region(region) == PageSize::Huge.base_pages() as u32;
            if whole || memory.is_free(region, HUGE_ORDER) {
                return Some(region);
            }
        }
        None
    }

    /// Whether the region of a page just mapped is ready to be a huge page in place: complete, or
    /// complete enough for huge preallocation.
    pub fn is_ripe(&self, kernel: &Kernel, space: SpaceId, page: Frame<Upper>) -> bool {
        let region = page.floor(PageSize::Huge);
        if self.offsets.target(space, region).is_none() {
            return false;
        }
        let Some(place) = kernel.space(space) else { return false };
        let Region::Base { present, .. } = place.table().region(region) else { return false };
        let present = u64::from(present);
        present == PageSize::Huge.base_pages()
            || present > self.settings.prealloc_pages && fmfi(kernel) <= self.settings.prealloc_fmfi
    }

    /// A huge page is over this target now: the booking has served.
    pub fn served(&mut self, kernel: &mut Kernel, target: Frame<Lower>) {
        self.booking.end(kernel.memory_mut(), target);
        self.preferred.remove(&target.get());
    }

    /// A region whose huge page was freed is kept whole in the bucket, for as long as a booking lasts.
    pub fn keep(&mut self, kernel: &mut Kernel, region: Frame<Lower>) {
        let until = self.until();
        if self.booking.book(kernel.memory_mut(), region, until, self.cap) {
            self.preferred.insert(region.get());
            self.bucket.push_back(region);
        }
    }

    /// Gives back this share of the bucket, and one region at least, those first that were kept first.
    /// What is booked for areas stays so. Returns whether there was anything.
    pub fn return_some(&mut self, kernel: &mut Kernel, share: f64) -> bool {
        self.tidy_bucket(kernel);
        let some = (share * self.bucket.len() as f64).ceil().max(1.0) as usize;
        let some = some.min(self.bucket.len());
        for region in self.bucket.drain(..some) {
            self.preferred.remove(&region.get());
            self.booking.end(kernel.memory_mut(), region);
        }
        some > 0
    }

    /// What somebody has used since, or took back, is not in the bucket any more.
    fn tidy_bucket(&mut self, kernel: &Kernel) {
        let (booking, preferred) = (&self.booking, &self.preferred);
        self.bucket.retain(|region| {
            preferred.contains(&region.get()) && booking.holds(kernel.memory(), *region)
        });
    }

    /// Memory is short: everything booked goes back. Returns whether there was anything.
    pub fn release_all(&mut self, kernel: &mut Kernel) -> bool {
        self.bucket.clear();
        self.preferred.clear();
        self.booking.release_all(kernel.memory_mut())
    }

    /// Bookings whose time is up go back, and what was decided for areas that are gone is forgotten.
    pub fn expire(&mut self, kernel: &mut Kernel, now: f64) {
        for region in self.booking.expire(kernel.memory_mut(), now) {
            self.preferred.remove(&region.get());
        }
        self.tidy_bucket(kernel);
        self.offsets.retain(|space, range| {
            let vmas = kernel.space(space).map(|space| space.vmas());
            vmas.is_some_and(|vmas| {
                vmas.find(range.start).is_some()
                    || vmas.next_after(range.start).is_some_and(|vma| vma.range.start < range.end)
            })
        });
    }
}

fn region_is_started(kernel: &Kernel, space: SpaceId, region: Frame<Upper>) -> bool {
    let place = kernel.space(space).expect("faults happen in live spaces");
    !matches!(place.table().region(region), Region::Absent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_kernel::OneKernel;
    use strata_stack::NodeId;

    /// A region that nothing uses, in the middle of the memory.
    const REGION: Frame<Lower> = Frame::new(9 * PageSize::Huge.base_pages());

    fn allocator() -> Allocator {
        let booking = BookingParameters::default();
        Allocator::new(FaultHuge::AsLinux, AllocatorParameters::default(), &booking, 1)
    }

    /// Where a fault in the area's `region`th HPAS region goes, and whether it is booked then.
    fn place(allocator: &mut Allocator, one: &mut OneKernel, region: u64) -> (Frame<Lower>, bool) {
        let fault = one.fault(region);
        let kernel = one.stack.kernel_mut(NodeId::HOST);
        let Placement::HugeAt(target) = allocator.place(kernel, &fault) else {
            panic!("memory is free");
        };
        (target, kernel.memory().is_reserved(target))
    }

    /// A huge page of the layer below is worth something only if the one above uses its region: such
    /// regions are handed out before any other (Gemini section 3).
    #[test]
    fn what_the_layer_below_backs_huge_is_used_first() {
        let mut one = OneKernel::new();
        assert_ne!(place(&mut allocator(), &mut one, 0).0, REGION, "not by chance");
        let mut one = OneKernel::new();
        let mut allocator = allocator();
        allocator.preferred.insert(REGION.get());
        assert_eq!(place(&mut allocator, &mut one, 0), (REGION, true));
        assert!(allocator.preferred.is_empty(), "it is handed out once");
    }

    /// A booking keeps a region from everybody else, so it must end: when its time is up, and not
    /// before (Gemini section 4.1).
    #[test]
    fn a_booking_lasts_until_its_time_is_up() {
        let mut one = OneKernel::new();
        let mut allocator = allocator();
        let (target, booked) = place(&mut allocator, &mut one, 0);
        assert!(booked);
        allocator.preferred.insert(target.get());
        let until = BookingParameters::default().initial;
        let kernel = one.stack.kernel_mut(NodeId::HOST);
        allocator.expire(kernel, until - 0.1);
        assert!(kernel.memory().is_reserved(target));
        assert!(allocator.preferred.contains(&target.get()));
        allocator.expire(kernel, until);
        assert!(!kernel.memory().is_reserved(target));
        assert!(!allocator.preferred.contains(&target.get()), "others may have it now");
    }

    /// An area that is gone needs no place: its decisions would grow without end. What is left of it stays
    /// where it is, though it begins in the middle of a region now.
    #[test]
    fn what_was_decided_for_a_region_is_forgotten_with_the_last_of_its_area() {
        let mut one = OneKernel::new();
        let mut allocator = allocator();
        // The decision is for this region alone.
        allocator.preferred.insert(REGION.get());
        assert_eq!(place(&mut allocator, &mut one, 0).0, REGION);
        let mut decided = |unmapped: u64| {
            one.unmap(unmapped);
            allocator.expire(one.stack.kernel_mut(NodeId::HOST), 0.0);
            allocator.offsets.target(one.space, one.page(0))
        };
        assert_eq!(decided(0), Some(REGION));
        assert_eq!(decided(PageSize::Huge.base_pages() - 1), Some(REGION));
        assert_eq!(decided(PageSize::Huge.base_pages()), None, "the area goes on behind it");
    }

    /// The booking is there for the huge page. Once that is over the region, it counts against the cap
    /// for nothing.
    #[test]
    fn a_booking_ends_when_the_huge_page_is_there() {
        let mut one = OneKernel::new();
        let mut allocator = allocator();
        let (target, _) = place(&mut allocator, &mut one, 0);
        allocator.preferred.insert(target.get());
        let booked = allocator.booking.len();
        let kernel = one.stack.kernel_mut(NodeId::HOST);
        allocator.served(kernel, target);
        assert!(!kernel.memory().is_reserved(target));
        assert_eq!(allocator.booking.len(), booked - 1);
        assert!(!allocator.preferred.contains(&target.get()), "it is not free");
    }
}
