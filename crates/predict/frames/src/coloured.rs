//! Frames of wanted cache colours: the buddy allocator as xPlace changes it (section 5.3), and its
//! per-CPU page lists by colour (section 6).

use crate::colour_counts::ColouredParameters;
use crate::memory::Memory;
use crate::runs::{Row, Wanted};
use crate::{Frame, HUGE_ORDER, MAX_ORDER, REGION_FRAMES};
use strata_addr::space::Lower;
use strata_colours::{Colour, Colours};

/// Most colours a memory can tell apart: what keeps the books below a thousandth of the memory.
pub const MAX_COLOURS: u32 = 1024;

/// Most frames of a memory whose colours are told apart: 16 TiB.
const MAX_FRAMES: u64 = 1 << 32;

/// A memory cannot tell that many colours or frames apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColouringError {
    /// Too many colours.
    #[error(
        "{0} cache colours are more than {MAX_COLOURS}: choose a last-level cache with fewer sets in \
         a slice"
    )]
    Colours(u32),
    /// Too many frames.
    #[error("a memory of {0} frames is more than 16 TiB, too much to tell cache colours apart")]
    Frames(u64),
}

impl Memory {
    /// Tells cache colours apart from now on: [`take_coloured`](Self::take_coloured) and
    /// [`alloc_coloured`](Self::alloc_coloured) work. A memory that nobody asks to has no cost of it.
    ///
    /// ```
    /// use strata_colours::{CacheIndex, Colours, SliceHash};
    /// use strata_frames::{ColouredParameters, Memory};
    ///
    /// // 2048 sets of 64 bytes in each slice: 32 colours, which follow one another from frame to frame.
    /// let index = CacheIndex { line_bytes: 64, sets: 2048, slices: 1, hash: SliceHash::None };
    /// let colours = Colours::new(&index).expect("a cache that there can be");
    /// let mut memory = Memory::new(1 << 12);
    /// memory.tell_colours(colours, ColouredParameters::default())?;
    ///
    /// let red = colours.all().nth(5).expect("there are 32");
    /// let frame = memory.take_coloured(red).expect("all is free");
    /// assert_eq!(colours.of(frame), red);
    /// // One of 32 frames has the colour, and one of these is taken.
    /// assert_eq!(memory.free_of(red), (1 << 12) / 32 - 1);
    /// # Ok::<(), strata_frames::ColouringError>(())
    /// ```
    ///
    /// # Errors
    /// [`ColouringError`]; nothing has changed then.
    pub fn tell_colours(
        &mut self,
        colours: Colours,
        settings: ColouredParameters,
    ) -> Result<(), ColouringError> {
        if colours.count() > MAX_COLOURS {
            return Err(ColouringError::Colours(colours.count()));
        }
        if self.frames() >= MAX_FRAMES {
            return Err(ColouringError::Frames(self.frames()));
        }
        self.drain();
        if !settings.contiguity {
            // A buddy allocator goes through its lists, and these must be there.
            self.unfold_all();
        }
        self.coloured = Some(Box::new(self.fresh_colours(colours, settings)));
        Ok(())
    }

    /// The colours told apart.
    pub fn colours(&self) -> Option<Colours> {
        self.coloured.as_ref().map(|coloured| coloured.colours)
    }

    /// Frames of a colour that can be had: free and unreserved, or in the page lists. 0 when colours are
    /// not told apart.
    pub fn free_of(&self, colour: Colour<Lower>) -> u64 {
        let index = colour.index() as usize;
        self.coloured
            .as_ref()
            .map_or(0, |coloured| coloured.free[index] + coloured.lists[index].len() as u64)
    }

    /// The lowest wholly free HPAS region of a colour of huge pages, which is allocated.
    pub fn alloc_region_of(&mut self, colours: Colours, colour: Colour<Lower>) -> Option<Frame> {
        let found = self
            .regions_of_colour(colours, colour)
            .find(|region| self.is_free(*region, HUGE_ORDER))?;
        self.alloc_at(found, HUGE_ORDER).then_some(found)
    }

    /// Wholly free HPAS regions of a colour of huge pages.
    pub fn free_regions_of(&self, colours: Colours, colour: Colour<Lower>) -> u64 {
        let regions = self.regions_of_colour(colours, colour);
        regions.filter(|region| self.is_free(*region, HUGE_ORDER)).count() as u64
    }

    fn regions_of_colour(
        &self,
        colours: Colours,
        colour: Colour<Lower>,
    ) -> impl Iterator<Item = Frame> + use<> {
        debug_assert!(colours.are_of_huge_pages());
        let regions = u64::from(colour.index())..self.frames() / REGION_FRAMES;
        regions.step_by(colours.count() as usize).map(|region| Frame::new(region * REGION_FRAMES))
    }

    /// Frames in the page lists by colour: off the free lists, and used by nobody.
    #[inline]
    pub fn listed_frames(&self) -> u64 {
        self.coloured.as_ref().map_or(0, |coloured| coloured.listed)
    }

    /// Whether nothing is known of a region but that it is fragmented; see
    /// [`folded_frames`](Self::folded_frames).
    pub fn is_folded(&self, frame: Frame) -> bool {
        self.folds.holds(frame.get())
    }

    /// Allocates consecutive frames of these colours, without the page lists: of the shortest free run
    /// that has them the lowest such frames, as blocks from the free lists. Runs end with their HPAS
    /// region. Fragmented regions that nothing has touched yet come after all others, wholly free ones
    /// last of all. Returns the first frame; `None` when there are no such frames, the colours do not
    /// follow one another, or colours are not told apart.
    pub fn alloc_coloured(&mut self, wanted: &[Colour<Lower>]) -> Option<Frame> {
        let colours = self.colours()?;
        let first = *wanted.first()?;
        let follows =
            |pair: &[Colour<Lower>]| (pair[0].index() + 1) % colours.count() == pair[1].index();
        if !wanted.windows(2).all(follows) {
            return None;
        }
        let frames = wanted.len() as u64;
        let found = self.find(Wanted { first: u64::from(first.index()), frames })?;
        self.take_row(found.at, frames);
        Some(Frame::new(found.at))
    }

    /// Allocates a frame of a colour: from the list of the colour, which is filled first if it is empty.
    /// `None` when there is none, or colours are not told apart.
    pub fn take_coloured(&mut self, colour: Colour<Lower>) -> Option<Frame> {
        let coloured = self.coloured.as_mut()?;
        let index = colour.index() as usize;
        if coloured.lists[index].is_empty() {
            if coloured.free[index] == 0 {
                return None;
            }
            self.refill(colour)?;
        }
        let coloured = self.coloured.as_mut()?;
        let frame = coloured.lists[index].pop()?;
        coloured.listed -= 1;
        Some(Frame::new(u64::from(frame)))
    }

    /// Fills the lists with a batch of frames that has the colour in it: neighbours, so that no hole is
    /// left between them.
    fn refill(&mut self, colour: Colour<Lower>) -> Option<()> {
        let ColouredParameters { batch, high, .. } = self.coloured.as_ref()?.settings;
        let batch = batch.max(1);
        if self.listed_frames() + batch > high.max(1) * batch {
            self.drain();
        }
        let found = self.find(Wanted { first: u64::from(colour.index()), frames: 1 })?;
        let start = if found.at - found.start < batch { found.start } else { found.at };
        let frames = batch.min(found.end - start);
        self.take_row(start, frames);
        let coloured = self.coloured.as_mut()?;
        // The lowest frame of a colour is given out first.
        for frame in (start..start + frames).rev() {
            let colour = coloured.of(frame);
            coloured.lists[colour].push(frame as u32);
        }
        coloured.listed += frames;
        Some(())
    }

    /// Gives the frames in the page lists back to the free lists; returns their number. Happens on its
    /// own when [`alloc`](Self::alloc) or [`alloc_at`](Self::alloc_at) would fail for want of them
    /// (Linux, `drain_all_pages`).
    pub fn drain(&mut self) -> u64 {
        let listed = self.listed_frames();
        if listed > 0 {
            let coloured = self.coloured.as_mut().expect("lists are of a coloured memory");
            coloured.listed = 0;
            let lists: Vec<Vec<u32>> = coloured.lists.iter_mut().map(std::mem::take).collect();
            for frame in lists.into_iter().flatten() {
                self.free(Frame::new(u64::from(frame)), 0);
            }
        }
        listed
    }

    /// Takes frames that are free, as blocks off the free lists.
    fn take_row(&mut self, start: u64, frames: u64) {
        let (mut at, end) = (start, start + frames);
        while at < end {
            let order = (end - at).ilog2().min(at.trailing_zeros()).min(HUGE_ORDER);
            let taken = self.alloc_at(Frame::new(at), order);
            debug_assert!(taken, "{at:#x} order {order} is part of a free row");
            at += 1 << order;
        }
    }

    /// Where the frames wanted are best taken.
    fn find(&mut self, wanted: Wanted) -> Option<Found> {
        let coloured = self.coloured.as_ref()?;
        if !coloured.settings.contiguity {
            return self.find_block(wanted);
        }
        if wanted.frames > REGION_FRAMES {
            return None;
        }
        if let Some((region, length)) = coloured.runs.shortest(wanted) {
            let rows = crate::runs::rows(self.used.region(region));
            let mut of_length = rows.filter(|row| row.len() == length);
            return of_length.find_map(|row| self.in_row(region * REGION_FRAMES, row, wanted));
        }
        self.find_folded(wanted).or_else(|| self.find_whole(wanted))
    }

    /// The frames wanted in the lowest folded region that has them, which is written out.
    fn find_folded(&mut self, wanted: Wanted) -> Option<Found> {
        let mut folded = self.folds.iter();
        let (region, found) = folded.find_map(|region| {
            let taken = self.folds.patterns().taken(region);
            let base = region * REGION_FRAMES;
            let rows = crate::runs::rows(&taken);
            let suitable = rows.filter_map(|row| self.in_row(base, row, wanted));
            Some((region, suitable.min_by_key(|found| found.end - found.start)?))
        })?;
        drop(folded);
        self.unfold(region);
        Some(found)
    }

    /// The frames wanted in a wholly free region: one without a free neighbour rather than half of a
    /// larger block, as a buddy allocator would.
    fn find_whole(&self, wanted: Wanted) -> Option<Found> {
        let whole = Row { start: 0, end: REGION_FRAMES };
        let fits = |region: u64| self.in_row(region * REGION_FRAMES, whole, wanted);
        let single = self.blocks[HUGE_ORDER as usize].iter().find_map(fits);
        single.or_else(|| self.regions.iter().find_map(fits))
    }

    /// The smallest free block with the frames wanted in it, of equals the lowest.
    fn find_block(&self, wanted: Wanted) -> Option<Found> {
        let least = wanted.frames.next_power_of_two().ilog2();
        (least..=MAX_ORDER).find_map(|order| {
            let whole = Row { start: 0, end: 1 << order };
            let mut blocks = self.blocks[order as usize].iter();
            blocks.find_map(|index| self.in_row(index << order, whole, wanted))
        })
    }

    /// The first frames in a row that are as wanted.
    fn in_row(&self, base: u64, row: Row, wanted: Wanted) -> Option<Found> {
        let colours = u64::from(self.colours()?.count());
        let start = base + row.start;
        let before = (wanted.first + colours - start % colours) % colours;
        let fits = before + wanted.frames <= row.len();
        fits.then_some(Found { at: start + before, start, end: base + row.end })
    }
}

/// Frames as wanted from `at` on, in a row of free ones.
#[derive(Clone, Copy, Debug)]
struct Found {
    at: u64,
    start: u64,
    end: u64,
}
