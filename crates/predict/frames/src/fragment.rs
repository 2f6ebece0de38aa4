//! Bringing a memory to a wanted degree of fragmentation.
//!
//! The papers fragment guest and host with a program that takes pages until the FMFI is as wanted
//! (Gemini, section 6.1; xGemini, section VI). Here the same is done in one call.

use crate::fold::Holders;
use crate::index::unusable;
use crate::pattern::{Draw, Patterns};
use crate::{HUGE_ORDER, Memory};

/// Takes frames at random until the memory has a wanted FMFI.
///
/// Whole free HPAS regions are chosen at random, and in each of them every frame is taken with
/// probability `occupied`, on its own, at least one. The same memory, settings and seed give the
/// same frames.
///
/// ```
/// use strata_frames::{Fragmenter, HUGE_ORDER, Holders, Memory};
/// let mut memory = Memory::new(1 << 18); // 1 GiB
/// let fragmenter = Fragmenter { target_fmfi: 0.8, occupied: 0.1, ..Default::default() };
/// let done = fragmenter.apply(&mut memory, Holders { movable: 1, unmovable: 2 })?;
/// assert!((done.fmfi - 0.8).abs() < 0.01 && done.fmfi == memory.fmfi(HUGE_ORDER));
///
/// // Nine tenths of the frames are free, and four in five of these in no whole region.
/// assert!(memory.free_frames() > (1 << 18) * 9 / 10);
/// assert!(memory.free_regions() < 512 / 4);
/// # Ok::<(), strata_frames::FragmenterError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Fragmenter {
    /// Wanted [`fmfi`](Memory::fmfi) of order 9, from 0 to 1. 1 leaves no free order-9 block.
    pub target_fmfi: f64,
    /// Expected share of frames taken in a fragmented region, above 0 and below 1.
    pub occupied: f64,
    /// Expected share of the taken frames that are movable, from 0 to 1.
    pub movable: f64,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Default for Fragmenter {
    /// No fragmentation; a quarter of the frames of a fragmented region taken, half of them
    /// movable.
    fn default() -> Self {
        Self { target_fmfi: 0.0, occupied: 0.25, movable: 0.5, seed: 0 }
    }
}

/// What a [`Fragmenter`] did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fragmented {
    /// Regions it took frames in.
    pub regions: u64,
    /// Frames taken.
    pub frames: u64,
    /// The FMFI reached, for order 9.
    pub fmfi: f64,
}

/// A setting of a [`Fragmenter`] that has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum FragmenterError {
    /// The wanted FMFI is no share.
    #[error("target FMFI {0} is not possible: choose one from 0 to 1")]
    Target(f64),
    /// Nothing would be taken in a region, or nothing left free.
    #[error("occupied share {0} makes no holes: choose one above 0 and below 1")]
    Occupied(f64),
    /// The movable share is no share.
    #[error("movable share {0} is not possible: choose one from 0 to 1")]
    Movable(f64),
}

/// Ranks are sorted into as many parts, by their highest bits.
const PARTS: usize = 1 << 12;

impl Fragmenter {
    /// Fragments `memory`: allocates frames until its FMFI for order 9 is as near the target as
    /// whole regions allow. One of `n` free regions moves the index by at most about
    /// `1 / (n * (1 - occupied))`, and half of that is the largest error: with a quarter occupied,
    /// 0.01 from 67 free regions (134 MiB) on. The result says what was reached.
    ///
    /// A memory that is fragmented more than wanted is left as it is. Reserved regions are left
    /// alone. Costs some nanoseconds and a bit for each free region; the frames of a region are
    /// written when something there is first changed, or by the next fragmenter that has to do
    /// something.
    ///
    /// # Errors
    /// When a setting is outside its range; the memory is unchanged then.
    pub fn apply(
        &self,
        memory: &mut Memory,
        holders: Holders,
    ) -> Result<Fragmented, FragmenterError> {
        self.validate()?;
        if memory.fmfi(HUGE_ORDER) < self.target_fmfi {
            memory.unfold_all();
            let patterns = Patterns::draw(&self.draw());
            let end = self.end(memory, &patterns);
            memory.fold(patterns, holders, |rank| end.is_none_or(|end| rank < end));
            let (regions, frames) = (memory.folds.regions, memory.folds.frames);
            return Ok(Fragmented { regions, frames, fmfi: memory.fmfi(HUGE_ORDER) });
        }
        Ok(Fragmented { regions: 0, frames: 0, fmfi: memory.fmfi(HUGE_ORDER) })
    }

    fn draw(&self) -> Draw {
        Draw { occupied: self.occupied, movable: self.movable, seed: self.seed }
    }

    fn validate(&self) -> Result<(), FragmenterError> {
        if !(0.0..=1.0).contains(&self.target_fmfi) {
            return Err(FragmenterError::Target(self.target_fmfi));
        }
        if !(self.occupied > 0.0 && self.occupied < 1.0) {
            return Err(FragmenterError::Occupied(self.occupied));
        }
        if !(0.0..=1.0).contains(&self.movable) {
            return Err(FragmenterError::Movable(self.movable));
        }
        Ok(())
    }

    /// Free regions are fragmented in the order of their ranks. The rank to end at, `None` for all.
    fn end(&self, memory: &Memory, patterns: &Patterns) -> Option<u64> {
        let part = |rank: u64| (rank >> (u64::BITS - PARTS.ilog2())) as usize;
        let ranked = || {
            memory.regions.iter().map(|region| {
                let shape = patterns.shape(region);
                (shape.rank, patterns.pattern(shape.pattern).frames)
            })
        };
        let mut parts = vec![Lost::default(); PARTS];
        ranked().for_each(|(rank, frames)| parts[part(rank)].add(frames));
        // Whole parts, as far as they do not reach the target.
        let mut lost = Lost::default();
        let last = parts.iter().position(|more| {
            let sum =
                Lost { regions: lost.regions + more.regions, frames: lost.frames + more.frames };
            let reaches = memory.fmfi_without(sum) >= self.target_fmfi;
            if !reaches {
                lost = sum;
            }
            reaches
        })?;
        // Then one by one, as long as that comes nearer.
        let mut regions: Vec<(u64, u64)> =
            ranked().filter(|&(rank, _)| part(rank) == last).collect();
        regions.sort_unstable();
        let mut fmfi = memory.fmfi_without(lost);
        for (rank, frames) in regions {
            lost.add(frames);
            let next = memory.fmfi_without(lost);
            let is_nearer = (next - self.target_fmfi).abs() <= (fmfi - self.target_fmfi).abs();
            if fmfi >= self.target_fmfi || !is_nearer {
                return Some(rank);
            }
            fmfi = next;
        }
        // All of the part, and its ranks are the lowest left.
        ranked().map(|(rank, _)| rank).filter(|&rank| part(rank) > last).min()
    }
}

/// What a memory loses.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    /// Free regions that are whole no more.
    regions: u64,
    /// Frames.
    frames: u64,
}

impl Lost {
    /// One more region, and frames of it.
    fn add(&mut self, frames: u64) {
        self.regions += 1;
        self.frames += frames;
    }
}

impl Memory {
    /// The FMFI for order 9 after a loss.
    fn fmfi_without(&self, lost: Lost) -> f64 {
        let free = self.free_frames() + self.reserved_free_frames();
        unusable(free - lost.frames, self.suitable_regions() - lost.regions, HUGE_ORDER)
    }
}
