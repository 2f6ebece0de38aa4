//! Fragmented regions that nothing has touched yet: their seed stands for their frames.
//!
//! A [`Fragmenter`](crate::Fragmenter) *folds* the regions it fragments: they are counted, and what
//! is asked about their frames is worked out from their numbers, but no bit and no owner is written
//! for them. The first change in a region unfolds it. So a fragmented memory costs in proportion to
//! what is touched, and behaves as one in which everything was written at once.

use crate::bitmap::Bitmap;
use crate::pattern::{ORDERS, Patterns};
use crate::{HUGE_ORDER, MAX_ORDER, REGION_FRAMES};

/// Who has the frames that a [`Fragmenter`](crate::Fragmenter) takes: owner words (see
/// [`Memory::owner`](crate::Memory::owner)), 0 for nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Of the frames whose content compaction may move.
    pub movable: u64,
    /// Of those that stay for good, and with them the region they are in.
    pub unmovable: u64,
}

/// No region.
const NONE: u64 = u64::MAX;

/// The folded regions of a memory.
pub(crate) struct Folds {
    /// Bit `r`: region `r` is folded; nothing is written of it anywhere else.
    pub map: Bitmap,
    /// Folded regions.
    pub regions: u64,
    /// Frames taken in them.
    pub frames: u64,
    /// For each order the lowest folded region with a free block of it.
    pub lowest: [u64; MAX_ORDER as usize + 1],
    /// What they look like; `None` before the first.
    pub patterns: Option<Patterns>,
    pub holders: Holders,
}

impl Folds {
    pub fn none() -> Self {
        Self {
            map: Bitmap::new(0),
            regions: 0,
            frames: 0,
            lowest: [NONE; MAX_ORDER as usize + 1],
            patterns: None,
            holders: Holders::default(),
        }
    }

    /// Whether the region of a frame is folded.
    #[inline]
    pub fn holds(&self, frame: u64) -> bool {
        self.regions != 0 && self.map.test(frame / REGION_FRAMES)
    }

    /// Whether a region of a block is folded.
    #[inline]
    pub fn overlaps(&self, frame: u64, order: u32) -> bool {
        self.holds(frame) || order > HUGE_ORDER && self.holds(frame + REGION_FRAMES)
    }

    /// What the regions look like, of which there is one.
    pub fn patterns(&self) -> &Patterns {
        self.patterns.as_ref().expect("a folded region has a pattern")
    }

    /// The owner of a frame of a folded region.
    #[cold]
    pub fn owner(&self, frame: u64) -> u64 {
        let patterns = self.patterns();
        match (patterns.is_taken(frame), patterns.is_movable(frame)) {
            (false, _) => 0,
            (true, true) => self.holders.movable,
            (true, false) => self.holders.unmovable,
        }
    }

    /// The folded regions, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.map.iter()
    }

    /// Free blocks of an order in them.
    pub fn free_blocks(&self, order: usize) -> u64 {
        let of = |region| self.patterns().of(region).blocks.get(order).copied();
        self.iter().map(|region| u64::from(of(region).unwrap_or(0))).sum()
    }

    /// The lowest folded region at or above `from` with a free block of `order`.
    pub fn next_with(&self, order: usize, from: u64) -> u64 {
        let mut from = from;
        while let Some(region) = self.map.next_set(from) {
            if self.patterns().of(region).orders >> order & 1 != 0 {
                return region;
            }
            from = region + 1;
        }
        NONE
    }

    /// A region is written out: it is folded no more.
    pub fn remove(&mut self, region: u64) {
        self.map.clear(region);
        self.regions -= 1;
        self.frames -= self.patterns().of(region).frames;
        for order in (0..ORDERS).filter(|&order| self.lowest[order] == region).collect::<Vec<_>>() {
            self.lowest[order] = self.next_with(order, region + 1);
        }
    }
}
