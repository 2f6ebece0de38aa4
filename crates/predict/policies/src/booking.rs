//! Huge Booking: HPAS regions set aside for a while (Gemini sections 4 and 5).

use rustc_hash::FxHashMap;
use strata_addr::{Frame, space::Lower};
use strata_frames::{Memory, REGION_FRAMES};

/// The regions of one kernel's memory that are booked for a VM, and until when.
#[derive(Clone, Debug, Default)]
pub struct Booking {
    expiry: FxHashMap<u64, f64>,
    /// Others that book regions of the same memory.
    others: u16,
    /// How often the memory had taken everything back when this was last looked at.
    taken_back: u64,
}

impl Booking {
    /// One of `sharers` who book regions of the same memory: each may have its part.
    pub fn among(sharers: u16) -> Self {
        Self { others: sharers.saturating_sub(1), ..Self::default() }
    }

    /// Forgets what the memory took back when it was short.
    fn notice(&mut self, memory: &Memory) {
        if self.taken_back != memory.times_all_released() {
            self.taken_back = memory.times_all_released();
            self.expiry.clear();
        }
    }

    /// Books a wholly free region until `until`, in seconds. Returns whether it is booked now.
    /// `cap` is the share of the memory that may be booked by all together.
    pub fn book(
        &mut self,
        memory: &mut Memory,
        region: Frame<Lower>,
        until: f64,
        cap: f64,
    ) -> bool {
        self.notice(memory);
        let most = (cap * (memory.frames() / REGION_FRAMES) as f64).max(1.0);
        let part = (most / f64::from(self.others + 1)).max(1.0);
        if memory.reserved_regions() as f64 >= most || self.expiry.len() as f64 >= part {
            return false;
        }
        if !memory.reserve_region(region) {
            return false;
        }
        self.expiry.insert(region.get(), until);
        true
    }

    /// A region needs no booking any more: it is used up, or wanted for something else.
    pub fn end(&mut self, memory: &mut Memory, region: Frame<Lower>) {
        self.notice(memory);
        if self.expiry.remove(&region.get()).is_some() {
            memory.release_region(region);
        }
    }

    /// Ends bookings whose time is up; they are returned, by address.
    pub fn expire(&mut self, memory: &mut Memory, now: f64) -> Vec<Frame<Lower>> {
        self.notice(memory);
        let mut over: Vec<u64> =
            self.expiry.iter().filter(|(_, until)| **until <= now).map(|(at, _)| *at).collect();
        over.sort_unstable();
        for region in &over {
            self.end(memory, Frame::new(*region));
        }
        over.into_iter().map(Frame::new).collect()
    }

    /// Ends all bookings of this memory, others' too, because it is short. Returns whether there were
    /// any.
    pub fn release_all(&mut self, memory: &mut Memory) -> bool {
        memory.release_all_regions() > 0
    }

    /// Whether a region is booked.
    pub fn holds(&self, memory: &Memory, region: Frame<Lower>) -> bool {
        self.taken_back == memory.times_all_released() && self.expiry.contains_key(&region.get())
    }

    /// Number of regions booked.
    pub fn len(&self) -> usize {
        self.expiry.len()
    }

    /// Whether nothing is booked.
    pub fn is_empty(&self) -> bool {
        self.expiry.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookings_end_when_their_time_is_up_and_never_exceed_the_cap() {
        let mut memory = Memory::new(10 * REGION_FRAMES);
        let mut booking = Booking::default();
        let region = |i| Frame::new(i * REGION_FRAMES);
        assert!(booking.book(&mut memory, region(1), 5.0, 0.2));
        assert!(!booking.book(&mut memory, region(1), 5.0, 0.2), "booked already");
        assert!(booking.book(&mut memory, region(2), 7.0, 0.2));
        assert!(!booking.book(&mut memory, region(3), 7.0, 0.2), "over the cap");
        assert_eq!(booking.expire(&mut memory, 5.0), [region(1)]);
        assert!(!memory.is_reserved(region(1)) && memory.is_reserved(region(2)));
        assert!(booking.release_all(&mut memory));
        assert_eq!(memory.reserved_regions(), 0);
        // Nothing is left that could end somebody else's booking.
        let mut other = Booking::default();
        assert!(other.book(&mut memory, region(2), 9.0, 0.2));
        assert!(booking.expire(&mut memory, 8.0).is_empty());
        assert!(booking.is_empty() && memory.is_reserved(region(2)));
    }

    #[test]
    fn those_who_share_a_memory_have_equal_parts_of_it() {
        let mut memory = Memory::new(10 * REGION_FRAMES);
        let mut bookings = [Booking::among(2), Booking::among(2)];
        for (at, booking) in bookings.iter_mut().enumerate() {
            let regions = (0..5).map(|i| Frame::new((2 * i + at as u64) * REGION_FRAMES));
            let booked = regions.filter(|region| booking.book(&mut memory, *region, 1.0, 0.4));
            assert_eq!(booked.count(), 2);
        }
    }
}
