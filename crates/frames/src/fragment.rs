//! Bringing a memory to a wanted degree of fragmentation.
//!
//! The papers fragment guest and host with a program that takes pages until the FMFI is as wanted
//! (Gemini, section 6.1; xGemini, section VI). Here the same is done in one call.

use crate::index::unusable;
use crate::occupancy::REGION_WORDS;
use crate::random::Random;
use crate::{Frame, HUGE_ORDER, Memory, REGION_FRAMES};

/// Whether the content of a frame can be migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Movability {
    /// Compaction may move it.
    Movable,
    /// It stays for good, and with it the region it is in.
    Unmovable,
}

/// Takes frames at random until the memory has a wanted FMFI.
///
/// Whole free HPAS regions are chosen at random, and in each of them every frame is taken with
/// probability `occupied`, on its own, at least one. The same memory, settings and seed give the
/// same frames.
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
    /// Those of them that are movable.
    pub movable: u64,
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

impl Fragmenter {
    /// Fragments `memory`: allocates frames until its FMFI for order 9 is as near the target as
    /// whole regions allow. One of `n` free regions moves the index by at most about
    /// `1 / (n * (1 - occupied))`, and half of that is the largest error: with a quarter occupied,
    /// 0.01 from 67 free regions (134 MiB) on. The result says what was reached.
    ///
    /// A memory that is fragmented more than wanted is left as it is. Reserved regions are left
    /// alone.
    ///
    /// `mark` is called for every frame taken, ascending in a region, and returns its owner (see
    /// [`Memory::owner`]), 0 for none.
    ///
    /// # Errors
    /// When a setting is outside its range; the memory is unchanged then.
    pub fn apply(
        &self,
        memory: &mut Memory,
        mut mark: impl FnMut(Frame, Movability) -> u64,
    ) -> Result<Fragmented, FragmenterError> {
        self.validate()?;
        let mut random = Random::new(self.seed);
        let mut done =
            Fragmented { regions: 0, frames: 0, movable: 0, fmfi: memory.fmfi(HUGE_ORDER) };
        // A shuffle of the free regions, drawn as far as it is needed.
        let mut candidates: Vec<u64> = memory.regions.iter().collect();
        for next in 0..candidates.len() {
            if done.fmfi >= self.target_fmfi {
                break;
            }
            let drawn = next + random.below((candidates.len() - next) as u64) as usize;
            candidates.swap(next, drawn);
            let region = candidates[next];

            let holes = self.draw_frames(&mut random);
            let taken: u32 = holes.iter().map(|word| word.count_ones()).sum();
            let fmfi = memory.fmfi_without(u64::from(taken));
            if (fmfi - self.target_fmfi).abs() > (done.fmfi - self.target_fmfi).abs() {
                break;
            }
            memory.isolate_region(region);
            memory.used.take_scattered(region, &holes);
            memory.list_region(region);
            done.regions += 1;
            done.frames += u64::from(taken);
            done.movable += self.mark_frames(memory, region, &holes, &mut random, &mut mark);
            done.fmfi = fmfi;
        }
        debug_assert_eq!(done.fmfi, memory.fmfi(HUGE_ORDER));
        Ok(done)
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

    /// The frames to take in one region: a bit each.
    fn draw_frames(&self, random: &mut Random) -> [u64; REGION_WORDS] {
        let mut frames = std::array::from_fn(|_| random.word(self.occupied));
        if frames == [0; REGION_WORDS] {
            let frame = random.below(REGION_FRAMES) as usize;
            frames[frame / 64] = 1 << (frame % 64);
        }
        frames
    }

    /// Reports the frames taken; returns the number of movable ones.
    fn mark_frames(
        &self,
        memory: &mut Memory,
        region: u64,
        frames: &[u64; REGION_WORDS],
        random: &mut Random,
        mark: &mut impl FnMut(Frame, Movability) -> u64,
    ) -> u64 {
        let mut movable_frames = 0;
        for (at, &word) in frames.iter().enumerate() {
            let movable = random.word(self.movable);
            movable_frames += u64::from((word & movable).count_ones());
            let mut rest = word;
            while rest != 0 {
                let bit = rest.trailing_zeros();
                rest &= rest - 1;
                let movability = match movable >> bit & 1 {
                    0 => Movability::Unmovable,
                    _ => Movability::Movable,
                };
                let number = region * REGION_FRAMES + at as u64 * 64 + u64::from(bit);
                let owner = mark(Frame::new(number), movability);
                if owner != 0 {
                    memory.set_owner(Frame::new(number), owner);
                }
            }
        }
        movable_frames
    }
}

impl Memory {
    /// The FMFI for order 9 after one more free region loses `frames` of its frames.
    fn fmfi_without(&self, frames: u64) -> f64 {
        let free = self.free_frames() + self.reserved_free_frames();
        let suitable = self.suitable_regions();
        unusable(free - frames, suitable - 1, HUGE_ORDER)
    }
}
