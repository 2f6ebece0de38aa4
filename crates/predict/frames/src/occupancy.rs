//! Which frames are in use: one bit a frame.
//!
//! A zero bit is a free frame, so that a fresh memory needs no write. Frames past the end of the
//! memory, up to the next HPAS region, are in use for good.

use crate::{HUGE_ORDER, REGION_FRAMES};

/// Words that hold the bits of one HPAS region.
pub(crate) const REGION_WORDS: usize = (REGION_FRAMES / 64) as usize;

/// log2 of the frames whose bits are in one word.
pub(crate) const WORD_ORDER: u32 = 6;

pub(crate) struct Occupancy {
    words: Vec<u64>,
}

impl Occupancy {
    /// `frames` free frames.
    pub fn new(frames: u64) -> Self {
        let regions = frames.div_ceil(REGION_FRAMES);
        let mut words = vec![0; regions as usize * REGION_WORDS];
        let whole = (frames / 64) as usize;
        if !frames.is_multiple_of(64) {
            words[whole] = u64::MAX << (frames % 64);
            words[whole + 1..].fill(u64::MAX);
        } else {
            words[whole..].fill(u64::MAX);
        }
        Self { words }
    }

    #[inline]
    pub fn all_free(&self, frame: u64, order: u32) -> bool {
        all_clear(&self.words, frame, order)
    }

    #[inline]
    pub fn all_used(&self, frame: u64, order: u32) -> bool {
        let (words, mask) = span(frame, order);
        self.words[words].iter().all(|word| word & mask == mask)
    }

    #[inline]
    pub fn take(&mut self, frame: u64, order: u32) {
        let (words, mask) = span(frame, order);
        self.words[words].iter_mut().for_each(|word| *word |= mask);
    }

    #[inline]
    pub fn give(&mut self, frame: u64, order: u32) {
        let (words, mask) = span(frame, order);
        self.words[words].iter_mut().for_each(|word| *word &= !mask);
    }

    /// The bits of HPAS region number `region`.
    #[inline]
    pub fn region(&self, region: u64) -> &[u64; REGION_WORDS] {
        let start = region as usize * REGION_WORDS;
        self.words[start..].first_chunk().expect("memory ends with a whole region")
    }

    /// Takes the frames of a wholly free region whose bits are set in `mask`.
    pub fn take_scattered(&mut self, region: u64, mask: &[u64; REGION_WORDS]) {
        let start = region as usize * REGION_WORDS;
        self.words[start..start + REGION_WORDS].copy_from_slice(mask);
    }

    /// Free frames of a region.
    #[inline]
    pub fn free_in(&self, region: u64) -> u32 {
        self.region(region).iter().map(|word| word.count_zeros()).sum()
    }

    /// Whether nothing of a region is in use.
    #[inline]
    pub fn is_whole(&self, region: u64) -> bool {
        self.all_free(region << HUGE_ORDER, HUGE_ORDER)
    }
}

/// The words of a block, and the bits of each that are the block's.
#[inline]
fn span(frame: u64, order: u32) -> (std::ops::Range<usize>, u64) {
    let word = (frame / 64) as usize;
    if order < WORD_ORDER {
        (word..word + 1, ((1 << (1 << order)) - 1) << (frame % 64))
    } else {
        (word..word + (1 << (order - WORD_ORDER)), u64::MAX)
    }
}

/// Whether no bit of a block is set.
#[inline]
pub(crate) fn all_clear(words: &[u64], frame: u64, order: u32) -> bool {
    let (range, mask) = span(frame, order);
    words[range].iter().all(|word| word & mask == 0)
}

/// Calls `visit(order, frame)` for the maximal free blocks of a region, given the frames in use.
#[inline]
pub(crate) fn for_each_free_block(used: &[u64; REGION_WORDS], mut visit: impl FnMut(u32, u64)) {
    // Words that are free as a whole form blocks of orders 6 to 9, the others smaller ones.
    let mut whole_words = 0;
    for (word, &used) in used.iter().enumerate() {
        match !used {
            u64::MAX => whole_words |= 1 << word,
            free => {
                for_each_block(free, |order, bit| visit(order, word as u64 * 64 + u64::from(bit)))
            }
        }
    }
    for_each_block(whole_words, |order, word| visit(order + WORD_ORDER, u64::from(word) * 64));
}

/// Calls `visit(order, bit)` for the maximal naturally aligned blocks of ones in `word`.
#[inline]
pub(crate) fn for_each_block(mut word: u64, mut visit: impl FnMut(u32, u32)) {
    while word != 0 {
        // The block of the lowest one starts at it: all below is zero.
        let bit = word.trailing_zeros();
        let ones = (word >> bit).trailing_ones();
        let order = (bit | 64).trailing_zeros().min(ones.ilog2());
        visit(order, bit);
        word &= !(u64::MAX >> (64 - (1 << order)) << bit);
    }
}

/// Number of naturally aligned blocks of `order <= 6` among the ones of `word`, maximal or not.
pub(crate) fn aligned_blocks(mut word: u64, order: u32) -> u32 {
    // Bit i keeps a one when a block of the current width starts at i; only aligned i count.
    for k in 0..order {
        word &= word >> (1 << k);
    }
    let aligned = match order {
        WORD_ORDER => 1,
        _ => u64::MAX / ((1 << (1 << order)) - 1),
    };
    (word & aligned).count_ones()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_block(word: u64, order: u32, bit: u32) -> bool {
        (bit..bit + (1 << order)).all(|b| word >> b & 1 != 0)
    }

    /// Words with long runs as well as scattered bits.
    fn words() -> impl Strategy<Value = u64> {
        (any::<u64>(), any::<u64>(), any::<u64>(), 0..5usize)
            .prop_map(|(a, b, c, kind)| [a, a | b, a | b | c, u64::MAX << (a % 64), u64::MAX][kind])
    }

    proptest! {
        #[test]
        fn blocks_are_the_maximal_ones(word in words()) {
            let mut found = Vec::new();
            for_each_block(word, |order, bit| found.push((order, bit)));
            let mut expected = Vec::new();
            for order in 0..=WORD_ORDER {
                let blocks = (0..64).step_by(1 << order).filter(|&bit| is_block(word, order, bit));
                prop_assert_eq!(aligned_blocks(word, order) as usize, blocks.clone().count());
                expected.extend(blocks.map(|bit| (order, bit)).filter(|&(order, bit)| {
                    order == WORD_ORDER || !is_block(word, order + 1, bit & !((2 << order) - 1))
                }));
            }
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
