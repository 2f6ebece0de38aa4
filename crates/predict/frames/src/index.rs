//! The fragmentation indices of Linux (`mm/vmstat.c`).

use crate::occupancy::{WORD_ORDER, aligned_blocks};
use crate::{HUGE_ORDER, MAX_ORDER, Memory, REGION_FRAMES};

impl Memory {
    /// FMFI: the *unusable free space index* for `order`, the share of free memory that no
    /// request of this order can use,
    ///
    /// ```text
    /// (F - S * 2^order) / F
    /// ```
    ///
    /// with `F` free frames and `S` the free blocks of at least this order, counted in units of
    /// `2^order`. From 0 (all usable) to 1 (none). With no free frame at all it is 1, as in Linux
    /// (`unusable_free_index`: "no free memory is interpreted as all free memory is unusable").
    ///
    /// A reserved region counts as the free memory it is: its free frames are in `F`, and the
    /// blocks among them are in `S`, as if the region alone were a free list. So reserving a
    /// region changes no index up to order 9, and a region reserved and half used counts as half
    /// a region used. For order 10 reserved frames are unusable. See
    /// [`buddy_fmfi`](Self::buddy_fmfi) for the view without them.
    ///
    /// Constant time for orders 9 and 10; below, one pass over the reserved regions.
    ///
    /// # Panics
    /// When `order` is above [`MAX_ORDER`].
    pub fn fmfi(&self, order: u32) -> f64 {
        let suitable = self.suitable(order) + self.suitable_reserved(order);
        unusable(self.free_frames() + self.reserved_free_frames(), suitable, order)
    }

    /// [`fmfi`](Self::fmfi) of the buddy allocator alone: reserved frames are not free. This is
    /// what Linux would show (`/sys/kernel/debug/extfrag/unusable_index`), where booked pages are
    /// off the free lists.
    ///
    /// # Panics
    /// When `order` is above [`MAX_ORDER`].
    pub fn buddy_fmfi(&self, order: u32) -> f64 {
        unusable(self.free_frames(), self.suitable(order), order)
    }

    /// Linux's *external fragmentation index* for `order`: near 0, a request fails for want of
    /// memory; near 1, because memory is in pieces:
    ///
    /// ```text
    /// 1 - (1 + F / 2^order) / B
    /// ```
    ///
    /// with `F` free frames in `B` free blocks, reserved regions not counted. Defined only when a
    /// request of this order would fail, `None` otherwise (Linux shows -1). With nothing free it
    /// is 0. Slightly negative when there is a single free block, as in Linux.
    ///
    /// # Panics
    /// When `order` is above [`MAX_ORDER`].
    pub fn extfrag(&self, order: u32) -> Option<f64> {
        if self.suitable(order) > 0 {
            return None;
        }
        let blocks: u64 = self.counts.iter().sum();
        if blocks == 0 {
            return Some(0.0);
        }
        let wanted = self.free_frames() as f64 / (1u64 << order) as f64;
        Some(1.0 - (1.0 + wanted) / blocks as f64)
    }

    /// HPAS regions that are wholly free, reserved or not.
    pub(crate) fn suitable_regions(&self) -> u64 {
        self.suitable(HUGE_ORDER) + self.suitable_reserved(HUGE_ORDER)
    }

    /// Free blocks of at least `order`, in units of `1 << order` frames.
    fn suitable(&self, order: u32) -> u64 {
        assert!(order <= MAX_ORDER, "order {order} is above {MAX_ORDER}");
        (order..=MAX_ORDER).map(|k| self.counts[k as usize] << (k - order)).sum()
    }

    /// The same inside reserved regions.
    fn suitable_reserved(&self, order: u32) -> u64 {
        match order {
            HUGE_ORDER => self.reservations.whole,
            MAX_ORDER.. => 0,
            _ => self.reservations.map.iter().map(|region| self.suitable_in(region, order)).sum(),
        }
    }

    /// Free naturally aligned blocks of `order < 9` in a region.
    fn suitable_in(&self, region: u64, order: u32) -> u64 {
        let words = self.used.region(region);
        if order <= WORD_ORDER {
            words.iter().map(|word| u64::from(aligned_blocks(!word, order))).sum()
        } else {
            let base = region * REGION_FRAMES;
            let starts = (base..base + REGION_FRAMES).step_by(1 << order);
            starts.filter(|&frame| self.used.all_free(frame, order)).count() as u64
        }
    }
}

/// The unusable free space index.
pub(crate) fn unusable(free: u64, suitable: u64, order: u32) -> f64 {
    if free == 0 {
        return 1.0;
    }
    (free - (suitable << order)) as f64 / free as f64
}
