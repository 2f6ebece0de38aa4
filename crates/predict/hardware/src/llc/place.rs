//! Where a line is in the last-level cache.

use crate::limits::{LINE_SHIFT, PHYSICAL_LIMIT};
use strata_colours::{CacheIndex, SliceHash};

/// Tag of a way that holds nothing.
pub(super) const EMPTY: i32 = 0;

/// How a line number becomes a set and a tag that is never [`EMPTY`], and back.
///
/// A tag is the line number divided by the sets of one slice, plus 1, in 32 bits. Without a hash there is
/// one slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    index: CacheIndex,
    /// 2^63 / sets of a slice, rounded up: a division by a multiplication, exact for every line below
    /// the limit.
    reciprocal: u64,
}

impl Places {
    pub(super) fn new(index: CacheIndex) -> Self {
        Self { index, reciprocal: (1u64 << 63).div_ceil(index.sets) }
    }

    /// The set, numbered over all slices, and the tag.
    #[inline(always)]
    pub(super) fn of(&self, line: u64) -> (usize, i32) {
        debug_assert!(line < PHYSICAL_LIMIT >> LINE_SHIFT, "beyond {PHYSICAL_LIMIT:#x}");
        let quotient = ((u128::from(line) * u128::from(self.reciprocal)) >> 63) as u64;
        let remainder = line - quotient * self.index.sets;
        let set = match self.index.hash {
            SliceHash::None => remainder,
            _ => self.index.slice(line) * self.index.sets + remainder,
        };
        (set as usize, quotient as u32 as i32 + 1)
    }

    /// The line with this tag in this set.
    #[inline]
    pub(super) fn line(&self, set: usize, tag: i32) -> u64 {
        u64::from(tag as u32 - 1) * self.index.sets + set as u64 % self.index.sets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sets_are_those_of_the_index_and_lines_are_found_again(
            line in 0..PHYSICAL_LIMIT >> LINE_SHIFT,
            sets in prop_oneof![64u64..5000, Just(2048), Just(1 << 24)],
            slices in prop_oneof![Just(1u32), Just(2), Just(4), Just(8)],
            hash in prop::sample::select(&SliceHash::ALL[..]),
        ) {
            let slices = match hash {
                SliceHash::None => 1,
                SliceHash::Skylake => 20,
                _ => slices,
            };
            let index = CacheIndex { line_bytes: 64, sets, slices, hash };
            let places = Places::new(index);
            let (set, tag) = places.of(line);
            prop_assert_eq!(set as u64, index.set(line));
            prop_assert!(tag != EMPTY);
            prop_assert_eq!(places.line(set, tag), line);
        }
    }
}
