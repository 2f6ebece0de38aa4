//! The contiguity list: free memory as maximal runs of whole HPAS regions (Gemini, section 5,
//! Figure 6).
//!
//! Free memory in pieces smaller than a region is not tracked, nor are reserved regions.

use crate::{Frame, Memory, REGION_FRAMES};

/// Consecutive free HPAS regions.
///
/// ```
/// use strata_frames::{Frame, Memory, REGION_FRAMES, Run};
/// let mut memory = Memory::new(8 * REGION_FRAMES);
/// let region = |number: u64| Frame::new(number * REGION_FRAMES);
/// memory.alloc_at(region(2), 0); // One frame, and the region is whole no longer.
/// let runs = [Run { start: region(0), regions: 2 }, Run { start: region(3), regions: 5 }];
/// assert_eq!(memory.runs().collect::<Vec<_>>(), runs);
/// assert_eq!(memory.largest_run(), Some(runs[1]));
///
/// // From where the last search ended, and from the beginning if there is nothing above.
/// assert_eq!(memory.next_fit(region(1), 2), Some(Run { start: region(3), regions: 2 }));
/// assert_eq!(memory.next_fit(region(7), 2), Some(Run { start: region(0), regions: 2 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First frame, aligned to 2 MiB.
    pub start: Frame,
    /// Number of HPAS regions.
    pub regions: u64,
}

impl Memory {
    /// The next place for `regions` consecutive HPAS regions: the lowest at or above `cursor`,
    /// else the lowest of all. The result has exactly `regions` regions.
    ///
    /// Gemini's next-fit "starts from the place where it left off the previous time": pass the
    /// end of the region chosen before. Of the run that holds the cursor, the first pass sees
    /// what is above the cursor, rounded up to a region.
    ///
    /// # Panics
    /// In debug builds, when `regions` is 0.
    pub fn next_fit(&self, cursor: Frame, regions: u64) -> Option<Run> {
        debug_assert!(regions > 0, "a run has at least one region");
        let from = cursor.get().div_ceil(REGION_FRAMES);
        self.regions
            .next_run(from, regions)
            .or_else(|| self.regions.next_run(0, regions))
            .map(|start| Run { start: Frame::new(start * REGION_FRAMES), regions })
    }

    /// The longest run, the lowest of equals; `None` when no region is wholly free.
    pub fn largest_run(&self) -> Option<Run> {
        let (start, regions) = self.regions.longest_run()?;
        Some(Run { start: Frame::new(start * REGION_FRAMES), regions })
    }

    /// The maximal runs, ascending.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.regions.next_set(from)?;
            from = self.regions.next_clear(start);
            Some(Run { start: Frame::new(start * REGION_FRAMES), regions: from - start })
        })
    }
}
