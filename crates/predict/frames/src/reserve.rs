//! Reservations of HPAS regions: Gemini's huge booking and huge bucket (sections 4 and 5).

use crate::memory::Memory;
use crate::{Frame, HUGE_ORDER, REGION_FRAMES};

impl Memory {
    /// Sets aside the HPAS region that holds `frame`, if all of it is free and unreserved.
    ///
    /// Its frames are then given out only by [`alloc_reserved`](Self::alloc_reserved), and
    /// frames of it that are freed come back to the reservation, until
    /// [`release_region`](Self::release_region).
    ///
    /// ```
    /// use strata_frames::{Frame, Memory, REGION_FRAMES};
    /// let mut memory = Memory::new(2 * REGION_FRAMES);
    /// let booked = Frame::new(0);
    /// assert!(memory.reserve_region(booked));
    /// // Others get frames elsewhere; who booked the region takes its frames by name.
    /// assert_eq!(memory.alloc(0), Some(Frame::new(REGION_FRAMES)));
    /// assert!(memory.alloc_reserved(booked + 3, 0));
    /// assert_eq!(memory.release_region(booked), REGION_FRAMES - 1);
    /// assert!(memory.is_allocated(booked + 3) && !memory.is_reserved(booked));
    /// ```
    pub fn reserve_region(&mut self, frame: Frame) -> bool {
        let region = frame.get() / REGION_FRAMES;
        if region >= self.frames() / REGION_FRAMES || !self.regions.test(region) {
            return false;
        }
        self.isolate_region(region);
        self.reservations.map.set(region);
        self.reservations.regions += 1;
        self.reservations.free += REGION_FRAMES;
        self.reservations.whole += 1;
        true
    }

    /// Allocates exactly the block at `frame` in a reserved region, if all of it is free there.
    ///
    /// # Panics
    /// In debug builds, when `frame` is not a multiple of the block's size, or `order` above
    /// [`HUGE_ORDER`].
    pub fn alloc_reserved(&mut self, frame: Frame, order: u32) -> bool {
        self.debug_check_block(frame, order);
        debug_assert!(order <= HUGE_ORDER, "order {order} is more than a region");
        let number = frame.get();
        if !self.is_reserved(frame) || !self.used.all_free(number, order) {
            return false;
        }
        self.reservations.whole -= u64::from(self.used.is_whole(number / REGION_FRAMES));
        self.reservations.free -= 1 << order;
        self.used.take(number, order);
        true
    }

    /// Ends the reservation of the HPAS region that holds `frame`: its free frames return to the
    /// buddy allocator, the others stay allocated. Returns the number of frames returned, 0 also
    /// when the region was not reserved.
    pub fn release_region(&mut self, frame: Frame) -> u64 {
        if !self.is_reserved(frame) {
            return 0;
        }
        let region = frame.get() / REGION_FRAMES;
        self.reservations.map.clear(region);
        self.reservations.regions -= 1;
        self.reservations.whole -= u64::from(self.used.is_whole(region));
        let returned = self.list_region(region);
        self.reservations.free -= returned;
        returned
    }

    /// Ends every reservation, for when memory is short. Returns the number of frames returned.
    pub fn release_all_regions(&mut self) -> u64 {
        let mut returned = 0;
        self.reservations.all_released += 1;
        while let Some(region) = self.reservations.map.first() {
            returned += self.release_region(Frame::new(region * REGION_FRAMES));
        }
        returned
    }

    /// How often every reservation was ended at once, so that whoever has one knows it is gone.
    pub fn times_all_released(&self) -> u64 {
        self.reservations.all_released
    }

    /// Whether `frame` lies in a reserved region, allocated or not. False past the end of memory.
    #[inline]
    pub fn is_reserved(&self, frame: Frame) -> bool {
        frame.get() < self.frames() && self.reservations.holds(frame.get())
    }

    /// Number of reserved regions.
    #[inline]
    pub fn reserved_regions(&self) -> u64 {
        self.reservations.regions
    }

    /// Free frames inside reserved regions; they are not among
    /// [`free_frames`](Self::free_frames).
    #[inline]
    pub fn reserved_free_frames(&self) -> u64 {
        self.reservations.free
    }

    /// The first frames of the reserved regions, ascending.
    pub fn reservations(&self) -> impl Iterator<Item = Frame> + '_ {
        self.reservations.map.iter().map(|region| Frame::new(region * REGION_FRAMES))
    }

    /// [`free`](Self::free) inside a reserved region.
    pub(crate) fn free_reserved(&mut self, frame: u64, order: u32) {
        self.used.give(frame, order);
        self.reservations.free += 1 << order;
        self.reservations.whole += u64::from(self.used.is_whole(frame / REGION_FRAMES));
    }
}
