//! A walk over everything that verifies what the other files rely on.

use crate::bitmap::Bitmap;
use crate::colour_books::WrongColours;
use crate::{Frame, HUGE_ORDER, MAX_ORDER, Memory, REGION_FRAMES};

/// An invariant of [`Memory`] that does not hold: a bug of this crate, or of the caller in builds
/// without debug assertions (a block freed twice, a frame freed while owned).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A free block has a frame that is allocated, reserved or past the end.
    #[error("free block {0:?} of order {1} holds a frame that is not free")]
    NotFree(Frame, u32),
    /// Two free blocks share a frame.
    #[error("free block {0:?} of order {1} overlaps another")]
    Overlap(Frame, u32),
    /// Two free buddies are apart.
    #[error("free block {0:?} of order {1} is not merged with its buddy")]
    Unmerged(Frame, u32),
    /// A free frame is in no free block.
    #[error("{0:?} is free but in no free block")]
    Unlisted(Frame),
    /// A free frame has an owner.
    #[error("{0:?} is free but owned by {1:#x}")]
    Owned(Frame, u64),
    /// The contiguity list is wrong about a region.
    #[error("the contiguity list is wrong about the region of {0:?}")]
    Contiguity(Frame),
    /// Something is written of a region that is folded.
    #[error("the region of {0:?} is folded, and frames of it are in use")]
    Written(Frame),
    /// A counter differs from what it counts.
    #[error("counter of {what} is {counter}, counted {counted}")]
    Counter {
        /// What is counted.
        what: &'static str,
        /// The counter.
        counter: u64,
        /// The truth.
        counted: u64,
    },
    /// The list of free runs is not that of the memory.
    #[error("the list of free runs by size is wrong")]
    Runs,
    /// A frame in a page list is free, owned, of another colour, or in it twice.
    #[error("{0:?} cannot be in the page list it is in")]
    Listed(Frame),
    /// The upper levels of a bitmap differ from its bits.
    #[error("bitmap of {0} is inconsistent")]
    Summary(&'static str),
}

impl Memory {
    /// Verifies every invariant. Time grows with the memory: for tests, and for a debug build at
    /// the end of a run.
    ///
    /// # Errors
    /// The first invariant found not to hold.
    pub fn check(&self) -> Result<(), Violation> {
        let listed = self.check_blocks()?;
        self.check_frames(&listed)?;
        self.check_regions()?;
        self.check_folds()?;
        self.check_colours()?;
        for bitmap in &self.blocks {
            summary("free blocks", bitmap)?;
        }
        summary("free regions", &self.regions)?;
        summary("reservations", &self.reservations.map)?;
        summary("folded regions", &self.folds.map)
    }

    /// Each block on its own; returns the frames in blocks.
    fn check_blocks(&self) -> Result<Vec<bool>, Violation> {
        let mut listed = vec![false; self.frames() as usize];
        for order in 0..=MAX_ORDER {
            let blocks = &self.blocks[order as usize];
            for index in blocks.iter() {
                let block = Frame::new(index << order);
                let frames = block.get()..block.get() + (1 << order);
                if frames.end > self.frames()
                    || frames.clone().any(|frame| self.is_held(Frame::new(frame)))
                {
                    return Err(Violation::NotFree(block, order));
                }
                for frame in frames {
                    if std::mem::replace(&mut listed[frame as usize], true) {
                        return Err(Violation::Overlap(block, order));
                    }
                }
                if order < MAX_ORDER && blocks.test(index ^ 1) {
                    return Err(Violation::Unmerged(block, order));
                }
            }
            let folded = self.folds.free_blocks(order as usize);
            let counted = blocks.iter().count() as u64 + folded;
            counter("free blocks", self.counts[order as usize], counted)?;
            let nonempty = u64::from(self.nonempty >> order & 1);
            counter("orders with free blocks", nonempty, u64::from(counted != 0))?;
        }
        Ok(listed)
    }

    /// Whether a frame can be in no listed block.
    fn is_held(&self, frame: Frame) -> bool {
        self.is_allocated(frame) || self.is_reserved(frame) || self.folds.holds(frame.get())
    }

    fn check_frames(&self, listed: &[bool]) -> Result<(), Violation> {
        let (mut free, mut reserved) = (0, 0);
        for frame in (0..self.frames()).map(Frame::new) {
            if self.is_allocated(frame) {
                continue;
            }
            if self.owner(frame) != 0 {
                return Err(Violation::Owned(frame, self.owner(frame)));
            }
            if self.is_reserved(frame) {
                reserved += 1;
            } else if listed[frame.get() as usize] || self.folds.holds(frame.get()) {
                free += 1;
            } else {
                return Err(Violation::Unlisted(frame));
            }
        }
        counter("free frames", self.free, free)?;
        counter("free reserved frames", self.reservations.free, reserved)
    }

    fn check_colours(&self) -> Result<(), Violation> {
        match self.wrong_colours() {
            None => Ok(()),
            Some(WrongColours::Count { counter, counted }) => {
                Err(Violation::Counter { what: "frames of a colour", counter, counted })
            }
            Some(WrongColours::Runs) => Err(Violation::Runs),
            Some(WrongColours::Listed(frame)) => Err(Violation::Listed(frame)),
        }
    }

    fn check_folds(&self) -> Result<(), Violation> {
        let regions = self.folds.iter().count() as u64;
        counter("folded regions", self.folds.regions, regions)?;
        let start = |region| Frame::new(region * REGION_FRAMES);
        let taken = |region| self.allocated_in_region(start(region)).count() as u64;
        counter("folded frames", self.folds.frames, self.folds.iter().map(taken).sum())?;
        for (order, &lowest) in self.folds.lowest.iter().enumerate() {
            let found = self.folds.next_with(order, 0);
            counter("the lowest folded region with a block", lowest, found)?;
        }
        match self.folds.iter().find(|&region| !self.used.is_whole(region)) {
            Some(region) => Err(Violation::Written(start(region))),
            None => Ok(()),
        }
    }

    fn check_regions(&self) -> Result<(), Violation> {
        let (mut reserved, mut whole) = (0, 0);
        for region in 0..self.frames() / REGION_FRAMES {
            let start = Frame::new(region * REGION_FRAMES);
            let is_whole = self.free_in_region(start) == REGION_FRAMES as u32;
            let is_reserved = self.is_reserved(start);
            reserved += u64::from(is_reserved);
            whole += u64::from(is_reserved && is_whole);
            if self.regions.test(region) != (is_whole && !is_reserved)
                || self.is_free(start, HUGE_ORDER) != (is_whole && !is_reserved)
            {
                return Err(Violation::Contiguity(start));
            }
        }
        counter("reserved regions", self.reservations.regions, reserved)?;
        counter("whole reserved regions", self.reservations.whole, whole)
    }
}

fn counter(what: &'static str, counter: u64, counted: u64) -> Result<(), Violation> {
    if counter == counted { Ok(()) } else { Err(Violation::Counter { what, counter, counted }) }
}

fn summary(what: &'static str, bitmap: &Bitmap) -> Result<(), Violation> {
    if bitmap.is_consistent() { Ok(()) } else { Err(Violation::Summary(what)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fragmenter, Holders};

    /// What is found after `damage` to a memory with all kinds of blocks in it.
    fn after(damage: impl FnOnce(&mut Memory)) -> Result<(), Violation> {
        let mut memory = Memory::new(4 * 1024);
        memory.alloc(0).expect("a fresh memory has frames");
        assert!(memory.reserve_region(Frame::new(2048)));
        assert!(memory.alloc_reserved(Frame::new(2050), 0));
        memory.check().expect("nothing is wrong yet");
        damage(&mut memory);
        memory.check()
    }

    fn counted(what: &'static str, counter: u64, counted: u64) -> Result<(), Violation> {
        Err(Violation::Counter { what, counter, counted })
    }

    #[test]
    fn every_damage_is_found() {
        let frame = Frame::new;
        let found = after(|memory| memory.blocks[0].set(0));
        assert_eq!(found, Err(Violation::NotFree(frame(0), 0)));
        let found = after(|memory| memory.blocks[3].set(2049 / 8));
        assert_eq!(found, Err(Violation::NotFree(frame(2048), 3)));
        let found = after(|memory| memory.blocks[10].set(4));
        assert_eq!(found, Err(Violation::NotFree(frame(4096), 10)));

        let found = after(|memory| {
            memory.blocks[0].set(5);
            memory.counts[0] += 1;
        });
        assert_eq!(found, Err(Violation::Overlap(frame(4), 2)));

        let found = after(|memory| {
            memory.blocks[10].clear(3);
            memory.blocks[9].set(6);
            memory.blocks[9].set(7);
        });
        assert_eq!(found, Err(Violation::Unmerged(frame(3072), 9)));

        let found = after(|memory| memory.used.give(2050, 0));
        assert_eq!(found, counted("free reserved frames", 511, 512));
        let found = after(|memory| memory.used.give(0, 0));
        assert_eq!(found, Err(Violation::Unlisted(frame(0))));
        let found = after(|memory| memory.owners.set(9, 7));
        assert_eq!(found, Err(Violation::Owned(frame(9), 7)));
        let found = after(|memory| memory.regions.clear(2));
        assert_eq!(found, Err(Violation::Contiguity(frame(1024))));
        let found = after(|memory| memory.regions.set(0));
        assert_eq!(found, Err(Violation::Contiguity(frame(0))));
    }

    #[test]
    fn what_is_folded_is_checked() {
        let after = |damage: fn(&mut Memory)| {
            let mut memory = Memory::new(4 * 1024);
            let fragmenter = Fragmenter { target_fmfi: 1.0, ..Fragmenter::default() };
            fragmenter.apply(&mut memory, Holders::default()).expect("settings in range");
            memory.check().expect("nothing is wrong yet");
            damage(&mut memory);
            memory.check()
        };
        let found = after(|memory| memory.used.take(600, 0));
        assert_eq!(found, Err(Violation::Written(Frame::new(512))));
        let found = after(|memory| memory.blocks[0].set(600));
        assert!(matches!(found, Err(Violation::NotFree(..))), "{found:?}");
        let found = after(|memory| memory.folds.regions -= 1);
        assert_eq!(found, counted("folded regions", 7, 8));
        let found = after(|memory| memory.folds.frames = 0);
        assert!(
            matches!(found, Err(Violation::Counter { what: "folded frames", .. })),
            "{found:?}"
        );
        let found = after(|memory| memory.folds.lowest[0] = 3);
        assert_eq!(found, counted("the lowest folded region with a block", 3, 0));
    }

    #[test]
    fn colours_are_checked() {
        use crate::ColouredParameters;
        use strata_colours::{CacheIndex, Colour, Colours, SliceHash};
        let index = CacheIndex { line_bytes: 64, sets: 512, slices: 1, hash: SliceHash::None };
        let colours = Colours::new(&index).expect("eight colours");
        let after = |how| {
            after(|memory| {
                memory.tell_colours(colours, ColouredParameters::default()).expect("few colours");
                memory.take_coloured(Colour::new(5)).expect("most is free");
                memory.check().expect("nothing is wrong yet");
                memory.damage_colours(how);
            })
        };
        let is_counter = |found: Result<(), Violation>| {
            matches!(found, Err(Violation::Counter { what: "frames of a colour", .. }))
        };
        assert!(is_counter(after(0)));
        assert_eq!(after(1), Err(Violation::Runs));
        assert_eq!(after(2), Err(Violation::Listed(Frame::new(3))));
        assert!(is_counter(after(3)));
        assert!(matches!(after(4), Err(Violation::Listed(_))));
    }

    #[test]
    fn every_counter_is_checked() {
        assert_eq!(after(|memory| memory.counts[4] += 1), counted("free blocks", 2, 1));
        assert_eq!(after(|memory| memory.nonempty &= !1), counted("orders with free blocks", 0, 1));
        assert_eq!(after(|memory| memory.free -= 1), counted("free frames", 3582, 3583));
        assert_eq!(
            after(|memory| memory.reservations.regions = 2),
            counted("reserved regions", 2, 1)
        );
        assert_eq!(
            after(|memory| memory.reservations.whole = 1),
            counted("whole reserved regions", 1, 0)
        );
    }

    #[test]
    fn bitmap_levels_are_checked() {
        let mut memory = Memory::new(1 << 13);
        memory.blocks[0].damage_top();
        assert_eq!(memory.check(), Err(Violation::Summary("free blocks")));
    }
}
