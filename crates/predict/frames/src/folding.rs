//! Folding regions of a memory, and writing them out at their first change; see [`crate::fold`].

use crate::REGION_FRAMES;
use crate::bitmap::Bitmap;
use crate::fold::{Folds, Holders};
use crate::memory::Memory;
use crate::occupancy::for_each_free_block;
use crate::pattern::{ORDERS, PATTERNS, Patterns};

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
        self.recount_colours();
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
        self.colours_unfolded(region);
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
