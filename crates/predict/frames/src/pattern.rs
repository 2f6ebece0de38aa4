//! What a fragmented HPAS region looks like: one of some drawn patterns, mirrored.
//!
//! A pattern is drawn frame by frame. A region has pattern and *mirror*, a number of 9 bits, by its
//! number: its frame `i` is taken if frame `i ^ mirror` of the pattern is. Mirroring changes places
//! at some levels of the buddy tree, so blocks stay blocks of the same order: all that is to be
//! counted of a region is counted once for its pattern, and every frame is taken equally often.
//! Patterns times mirrors, two million, is more than most memories have regions.

use crate::occupancy::{REGION_WORDS, all_clear, for_each_free_block};
use crate::random::Random;
use crate::{HUGE_ORDER, REGION_FRAMES};

/// A bit for each frame of a region.
pub(crate) type RegionBits = [u64; REGION_WORDS];

/// Orders that a free block of a fragmented region can have.
pub(crate) const ORDERS: usize = HUGE_ORDER as usize;

const PATTERN_BITS: u32 = 12;

/// How many patterns are drawn.
pub(crate) const PATTERNS: usize = 1 << PATTERN_BITS;

/// The frames of a region that are taken, and what follows from them.
pub(crate) struct Pattern {
    taken: RegionBits,
    /// Of any frame, taken or not.
    movable: RegionBits,
    /// Taken frames.
    pub frames: u64,
    /// Free blocks of each order.
    pub blocks: [u16; ORDERS],
    /// Bit `o` is set when there is a free block of order `o`.
    pub orders: u16,
}

impl Pattern {
    fn draw(of: &Draw, random: &mut Random) -> Self {
        let mut taken: RegionBits = std::array::from_fn(|_| random.word(of.occupied));
        if taken == [0; REGION_WORDS] {
            let frame = random.below(REGION_FRAMES) as usize;
            taken[frame / 64] = 1 << (frame % 64);
        }
        let movable = std::array::from_fn(|_| random.word(of.movable));
        let mut blocks = [0; ORDERS];
        for_each_free_block(&taken, |order, _| blocks[order as usize] += 1);
        let orders = (0..ORDERS).filter(|&order| blocks[order] > 0).map(|order| 1 << order).sum();
        let frames = taken.iter().map(|word| u64::from(word.count_ones())).sum();
        Self { taken, movable, frames, blocks, orders }
    }
}

/// Which pattern a region has, and how it is mirrored.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Number of the pattern.
    pub pattern: usize,
    mirror: u64,
    /// A number that no other region has, in no order: those with the lowest are fragmented first.
    pub rank: u64,
}

/// How patterns are drawn.
pub(crate) struct Draw {
    /// Expected share of frames taken.
    pub occupied: f64,
    /// Expected share of those that are movable.
    pub movable: f64,
    /// Seed of what is random.
    pub seed: u64,
}

/// The patterns drawn for a [`Fragmenter`](crate::Fragmenter).
pub(crate) struct Patterns {
    seed: u64,
    patterns: Vec<Pattern>,
}

impl Patterns {
    pub fn draw(of: &Draw) -> Self {
        // Not the stream that the shapes come from.
        let mut random = Random::new(!of.seed);
        let patterns = (0..PATTERNS).map(|_| Pattern::draw(of, &mut random)).collect();
        Self { seed: of.seed, patterns }
    }

    /// The shape of a region: a function of the seed and the region's number.
    #[inline]
    pub fn shape(&self, region: u64) -> Shape {
        let rank = Random::nth(self.seed, region);
        // The lowest bits: the rank is decided by the highest.
        let pattern = rank as usize % PATTERNS;
        Shape { pattern, mirror: rank >> PATTERN_BITS & (REGION_FRAMES - 1), rank }
    }

    /// A pattern.
    #[inline]
    pub fn pattern(&self, number: usize) -> &Pattern {
        &self.patterns[number]
    }

    /// The pattern of a region.
    #[inline]
    pub fn of(&self, region: u64) -> &Pattern {
        self.pattern(self.shape(region).pattern)
    }

    /// The pattern that says what a frame is, and the frame in it that does.
    fn locate(&self, frame: u64) -> (&Pattern, u64) {
        let shape = self.shape(frame / REGION_FRAMES);
        (self.pattern(shape.pattern), (frame % REGION_FRAMES) ^ shape.mirror)
    }

    pub fn is_taken(&self, frame: u64) -> bool {
        let (pattern, at) = self.locate(frame);
        !all_clear(&pattern.taken, at, 0)
    }

    /// Of a frame that is taken.
    pub fn is_movable(&self, frame: u64) -> bool {
        let (pattern, at) = self.locate(frame);
        !all_clear(&pattern.movable, at, 0)
    }

    /// Whether a block smaller than a region has no frame that is taken.
    pub fn is_free(&self, frame: u64, order: u32) -> bool {
        let (pattern, at) = self.locate(frame);
        all_clear(&pattern.taken, at & !((1 << order) - 1), order)
    }

    /// The frames of a region that are taken.
    pub fn taken(&self, region: u64) -> RegionBits {
        let shape = self.shape(region);
        mirrored(&self.pattern(shape.pattern).taken, shape.mirror)
    }

    /// The frames of a region that are movable if they are taken.
    pub fn movable(&self, region: u64) -> RegionBits {
        let shape = self.shape(region);
        mirrored(&self.pattern(shape.pattern).movable, shape.mirror)
    }
}

/// Bit `i` of the result is bit `i ^ mirror`.
fn mirrored(bits: &RegionBits, mirror: u64) -> RegionBits {
    /// The lower halves of pairs of groups of 1, 2, 4, ... bits.
    const LOWER: [u64; 6] = [
        0x5555_5555_5555_5555,
        0x3333_3333_3333_3333,
        0x0f0f_0f0f_0f0f_0f0f,
        0x00ff_00ff_00ff_00ff,
        0x0000_ffff_0000_ffff,
        0x0000_0000_ffff_ffff,
    ];
    std::array::from_fn(|at| {
        let mut word = bits[at ^ (mirror / 64) as usize];
        for (level, lower) in LOWER.iter().enumerate().filter(|(level, _)| mirror >> level & 1 != 0)
        {
            word = (word & lower) << (1 << level) | word >> (1 << level) & lower;
        }
        word
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bit(bits: &RegionBits, at: u64) -> bool {
        bits[at as usize / 64] >> (at % 64) & 1 != 0
    }

    proptest! {
        #[test]
        fn a_mirrored_region_has_the_same_blocks_in_other_places(
            bits in any::<[u64; 8]>(), more in any::<[u64; 8]>(), mirror in 0..REGION_FRAMES,
        ) {
            // Long runs as well as scattered frames.
            let bits = std::array::from_fn(|at| bits[at] & more[at] & more[at].rotate_left(1));
            let result = mirrored(&bits, mirror);
            for at in 0..REGION_FRAMES {
                prop_assert_eq!(bit(&result, at), bit(&bits, at ^ mirror));
            }
            let blocks = |bits| {
                let mut blocks = [0; ORDERS + 1];
                for_each_free_block(bits, |order, _| blocks[order as usize] += 1);
                blocks
            };
            prop_assert_eq!(blocks(&bits), blocks(&result));
        }

        #[test]
        fn single_frames_are_those_of_the_whole_region(seed: u64, region in 0..1u64 << 40) {
            let patterns = Patterns::draw(&Draw { occupied: 0.1, movable: 0.5, seed });
            let (taken, movable) = (patterns.taken(region), patterns.movable(region));
            for at in 0..REGION_FRAMES {
                let frame = region * REGION_FRAMES + at;
                prop_assert_eq!(patterns.is_taken(frame), bit(&taken, at));
                prop_assert_eq!(patterns.is_movable(frame), bit(&movable, at));
                for order in (0..HUGE_ORDER).filter(|order| at % (1 << order) == 0) {
                    let free = (at..at + (1 << order)).all(|at| !bit(&taken, at));
                    prop_assert_eq!(patterns.is_free(frame, order), free);
                }
            }
        }
    }
}
