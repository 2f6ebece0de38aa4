//! The books of a memory that tells cache colours apart: how many frames of each are free, and the free
//! runs; kept up at every change of the memory, and checked.

use crate::colour_counts::{Coloured, ColouredParameters};
use crate::memory::Memory;
use crate::runs::{FreeRuns, Row, row_around};
use crate::{Frame, HUGE_ORDER, REGION_FRAMES};
use strata_colours::Colours;

impl Memory {
    /// The books of a memory as it is.
    pub(crate) fn fresh_colours(&self, colours: Colours, settings: ColouredParameters) -> Coloured {
        let count = colours.count() as usize;
        let regions = self.frames().div_ceil(REGION_FRAMES);
        let mut coloured = Coloured {
            colours,
            settings,
            free: vec![0; count],
            runs: FreeRuns::new(count as u64, regions),
            lists: vec![Vec::new(); count],
            listed: 0,
        };
        coloured.count(0, self.frames(), |free, more| *free += more);
        let whole = self.frames() / REGION_FRAMES;
        let partly = (0..regions).filter(|region| *region >= whole || !self.regions.test(*region));
        for region in partly {
            let base = region * REGION_FRAMES;
            if self.reservations.holds(base) {
                coloured.count(base, REGION_FRAMES, |free, less| *free -= less);
                continue;
            }
            let is_folded = self.folds.holds(base);
            let folded = is_folded.then(|| self.folds.patterns().taken(region));
            let used = folded.as_ref().unwrap_or(self.used.region(region));
            for (at, word) in (base..).step_by(64).zip(used) {
                let mut rest = *word;
                while rest != 0 {
                    let frame = at + u64::from(rest.trailing_zeros());
                    rest &= rest - 1;
                    if frame < self.frames() {
                        let colour = coloured.of(frame);
                        coloured.free[colour] -= 1;
                    }
                }
            }
            if !is_folded {
                coloured.runs.insert_all(region, used);
            }
        }
        coloured
    }

    /// Makes the books anew, after a change of the whole memory.
    pub(crate) fn recount_colours(&mut self) {
        if let Some(coloured) = self.coloured.take() {
            let Coloured { colours, settings, lists, listed, .. } = *coloured;
            if !settings.contiguity {
                self.unfold_all();
            }
            let fresh = self.fresh_colours(colours, settings);
            self.coloured = Some(Box::new(Coloured { lists, listed, ..fresh }));
        }
    }

    /// A free block was allocated.
    #[cold]
    #[inline(never)]
    pub(crate) fn colours_taken(&mut self, frame: u64, order: u32) {
        let Some(coloured) = self.coloured.as_mut() else { return };
        coloured.count(frame, 1 << order, |free, less| *free -= less);
        if order < HUGE_ORDER {
            let (region, block) = row_of(frame, order);
            let used = self.used.region(region);
            let around = row_around(used, block);
            coloured.runs.remove(region, around, used);
            coloured.runs.insert(region, Row { end: block.start, ..around });
            coloured.runs.insert(region, Row { start: block.end, ..around });
        }
    }

    /// A block became free.
    #[cold]
    #[inline(never)]
    pub(crate) fn colours_given(&mut self, frame: u64, order: u32) {
        let Some(coloured) = self.coloured.as_mut() else { return };
        coloured.count(frame, 1 << order, |free, more| *free += more);
        if order < HUGE_ORDER {
            let (region, block) = row_of(frame, order);
            let used = self.used.region(region);
            let around = row_around(used, block);
            coloured.runs.remove(region, Row { end: block.start, ..around }, used);
            coloured.runs.remove(region, Row { start: block.end, ..around }, used);
            coloured.runs.insert(region, around);
        }
    }

    /// A wholly free region was taken off the free lists.
    pub(crate) fn colours_isolated(&mut self, region: u64) {
        if let Some(coloured) = self.coloured.as_mut() {
            coloured.count(region * REGION_FRAMES, REGION_FRAMES, |free, less| *free -= less);
        }
    }

    /// The free frames of a region came to the free lists.
    pub(crate) fn colours_listed(&mut self, region: u64) {
        let Some(coloured) = self.coloured.as_mut() else { return };
        let used = self.used.region(region);
        for row in crate::runs::rows(used) {
            let first = region * REGION_FRAMES + row.start;
            coloured.count(first, row.len(), |free, more| *free += more);
        }
        coloured.runs.insert_all(region, used);
    }

    /// A folded region was written out: its frames are counted already.
    pub(crate) fn colours_unfolded(&mut self, region: u64) {
        if let Some(coloured) = self.coloured.as_mut() {
            coloured.runs.insert_all(region, self.used.region(region));
        }
    }

    /// What is wrong with the books, if anything is: the colour of which the counter is wrong, the list
    /// of runs, or a frame of a page list.
    pub(crate) fn wrong_colours(&self) -> Option<WrongColours> {
        let coloured = self.coloured.as_ref()?;
        let fresh = self.fresh_colours(coloured.colours, coloured.settings.clone());
        let counts = coloured.free.iter().zip(&fresh.free);
        let wrong = counts.enumerate().find(|(_, (counter, counted))| counter != counted);
        if let Some((_, (&counter, &counted))) = wrong {
            return Some(WrongColours::Count { counter, counted });
        }
        if !coloured.runs.is_same(&fresh.runs) {
            return Some(WrongColours::Runs);
        }
        let mut seen = std::collections::BTreeSet::new();
        for (colour, list) in coloured.lists.iter().enumerate() {
            for frame in list.iter().map(|frame| Frame::new(u64::from(*frame))) {
                let is_right = self.is_allocated(frame)
                    && self.owner(frame) == 0
                    && coloured.of(frame.get()) == colour
                    && seen.insert(frame.get());
                if !is_right {
                    return Some(WrongColours::Listed(frame));
                }
            }
        }
        let (counter, counted) = (coloured.listed, seen.len() as u64);
        (counter != counted).then_some(WrongColours::Count { counter, counted })
    }

    #[cfg(test)]
    pub(crate) fn damage_colours(&mut self, how: u32) {
        let coloured = self.coloured.as_mut().expect("colours are told apart");
        match how {
            0 => coloured.free[3] += 1,
            1 => coloured.runs.insert(0, Row { start: 0, end: 3 }),
            2 => coloured.lists[2].push(3),
            3 => coloured.listed += 1,
            _ => {
                let twice = coloured.lists.iter_mut().find(|list| !list.is_empty()).unwrap();
                twice.push(twice[0]);
            }
        }
    }
}

/// What is wrong with a coloured memory.
pub(crate) enum WrongColours {
    Count { counter: u64, counted: u64 },
    Runs,
    Listed(Frame),
}

/// A block of at most a region as a row of its region.
fn row_of(frame: u64, order: u32) -> (u64, Row) {
    let start = frame % REGION_FRAMES;
    (frame / REGION_FRAMES, Row { start, end: start + (1 << order) })
}
