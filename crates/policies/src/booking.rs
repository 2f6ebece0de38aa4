//! Huge Booking: HPAS regions set aside for a while (Gemini sections 4 and 5).

use rustc_hash::FxHashMap;
use strata_addr::{Frame, space::Lower};
use strata_frames::{Memory, REGION_FRAMES};

/// The regions one layer has booked, and until when.
#[derive(Clone, Debug, Default)]
pub struct Booking {
    expiry: FxHashMap<u64, f64>,
}

impl Booking {
    /// Books a wholly free region until `until`, in seconds. Returns whether it is booked now.
    pub fn book(
        &mut self,
        memory: &mut Memory,
        region: Frame<Lower>,
        until: f64,
        cap: f64,
    ) -> bool {
        let regions = memory.frames() / REGION_FRAMES;
        if memory.reserved_regions() as f64 >= (cap * regions as f64).max(1.0) {
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
        if self.expiry.remove(&region.get()).is_some() {
            memory.release_region(region);
        }
    }

    /// Ends bookings whose time is up; they are returned, by address.
    pub fn expire(&mut self, memory: &mut Memory, now: f64) -> Vec<Frame<Lower>> {
        let mut over: Vec<u64> =
            self.expiry.iter().filter(|(_, until)| **until <= now).map(|(at, _)| *at).collect();
        over.sort_unstable();
        for region in &over {
            self.end(memory, Frame::new(*region));
        }
        over.into_iter().map(Frame::new).collect()
    }

    /// Ends all bookings, because memory is short. Returns whether there were any.
    pub fn release_all(&mut self, memory: &mut Memory) -> bool {
        self.expiry.clear();
        memory.release_all_regions() > 0
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
        assert!(booking.is_empty() && memory.reserved_regions() == 0);
    }
}
