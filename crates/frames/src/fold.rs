//! Fragmented regions that nothing has touched yet: their seed stands for their frames.
//!
//! A [`Fragmenter`](crate::Fragmenter) *folds* the regions it fragments: they are counted, and what
//! is asked about their frames is worked out from their numbers, but no bit and no owner is written
//! for them. The first change in a region unfolds it. So a fragmented memory costs in proportion to
//! what is touched, and behaves as one in which everything was written at once.

use crate::bitmap::Bitmap;
use crate::occupancy::for_each_free_block;
use crate::pattern::{ORDERS, PATTERNS, Patterns};
use crate::{HUGE_ORDER, MAX_ORDER, Memory, REGION_FRAMES};

/// Who has the frames that a [`Fragmenter`](crate::Fragmenter) takes: owner words (see
/// [`Memory::owner`]), 0 for nobody.
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
    patterns: Option<Patterns>,
    holders: Holders,
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

    fn remove(&mut self, region: u64) {
        self.map.clear(region);
        self.regions -= 1;
        self.frames -= self.patterns().of(region).frames;
        for order in (0..ORDERS).filter(|&order| self.lowest[order] == region).collect::<Vec<_>>() {
            self.lowest[order] = self.next_with(order, region + 1);
        }
    }
}

impl Memory {
    /// Frames allocated by a [`Fragmenter`](crate::Fragmenter) of which nothing is written: they
    /// take none of this computer's memory.
    pub fn folded_frames(&self) -> u64 {
        self.folds.frames
    }

    /// Folds the free regions that `is_chosen` says, by their ranks. None may be folded yet.
    pub(crate) fn fold(
        &mut self,
        patterns: Patterns,
        holders: Holders,
        is_chosen: impl Fn(u64) -> bool,
    ) {
        debug_assert_eq!(self.folds.regions, 0, "there is room for one fragmenter's patterns");
        let mut folds = Folds { map: Bitmap::new(self.frames() / REGION_FRAMES), ..Folds::none() };
        let mut with_pattern = vec![0u64; PATTERNS];
        let mut orders_seen = 0;
        let mut from = 0;
        while let Some(region) = self.regions.next_set(from) {
            from = region + 1;
            let shape = patterns.shape(region);
            if !is_chosen(shape.rank) {
                continue;
            }
            self.isolate_region(region);
            folds.map.set(region);
            folds.regions += 1;
            with_pattern[shape.pattern] += 1;
            let orders = patterns.pattern(shape.pattern).orders;
            if orders & !orders_seen != 0 {
                (0..ORDERS)
                    .filter(|order| (orders & !orders_seen) >> order & 1 != 0)
                    .for_each(|order| folds.lowest[order] = region);
                orders_seen |= orders;
            }
        }
        for (number, &regions) in with_pattern.iter().enumerate() {
            let pattern = patterns.pattern(number);
            folds.frames += regions * pattern.frames;
            self.free += regions * (REGION_FRAMES - pattern.frames);
            for (count, &blocks) in self.counts.iter_mut().zip(&pattern.blocks) {
                *count += regions * u64::from(blocks);
            }
        }
        self.nonempty |= u32::from(orders_seen);
        self.folds = Folds { patterns: Some(patterns), holders, ..folds };
    }

    /// Writes a folded region out; its blocks and frames are counted already.
    #[cold]
    #[inline(never)]
    pub(crate) fn unfold(&mut self, region: u64) {
        let patterns = self.folds.patterns();
        let (taken, movable) = (patterns.taken(region), patterns.movable(region));
        let base = region * REGION_FRAMES;
        self.used.take_scattered(region, &taken);
        for_each_free_block(&taken, |order, frame| {
            self.blocks[order as usize].set((base + frame) >> order);
        });
        let both = |is_movable: bool| {
            std::array::from_fn(|at| {
                taken[at] & if is_movable { movable[at] } else { !movable[at] }
            })
        };
        self.owners.set_all(base, &both(true), self.folds.holders.movable);
        self.owners.set_all(base, &both(false), self.folds.holders.unmovable);
        self.folds.remove(region);
    }

    /// Unfolds the regions of a block, so that it can be changed.
    #[cold]
    #[inline(never)]
    pub(crate) fn unfold_block(&mut self, frame: u64, order: u32) {
        for start in (frame..frame + (1 << order)).step_by(REGION_FRAMES as usize) {
            if self.folds.holds(start) {
                self.unfold(start / REGION_FRAMES);
            }
        }
    }

    /// Unfolds everything.
    pub(crate) fn unfold_all(&mut self) {
        while let Some(region) = self.folds.map.first() {
            self.unfold(region);
        }
    }
}
