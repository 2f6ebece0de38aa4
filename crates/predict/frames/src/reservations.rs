//! Which HPAS regions of a memory are reserved.

use crate::REGION_FRAMES;
use crate::bitmap::Bitmap;

/// The reserved regions and their counters.
pub(crate) struct Reservations {
    /// Bit `r`: HPAS region `r` is reserved; none of its frames is in a free block.
    pub map: Bitmap,
    /// Reserved regions.
    pub regions: u64,
    /// Free frames in them.
    pub free: u64,
    /// Those of which every frame is free.
    pub whole: u64,
    /// How often all were ended at once.
    pub all_released: u64,
}

impl Reservations {
    pub fn new(regions: u64) -> Self {
        // One more: the frames past the last whole region ask too.
        Self { map: Bitmap::new(regions + 1), regions: 0, free: 0, whole: 0, all_released: 0 }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.regions == 0
    }

    #[inline]
    pub fn holds(&self, frame: u64) -> bool {
        self.regions != 0 && self.map.test(frame / REGION_FRAMES)
    }
}
