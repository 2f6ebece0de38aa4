//! In which set of which slice a line is.

use crate::{ColourError, SliceHash};

/// How a cache is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheIndex {
    /// Bytes in a line: a power of two, at most a page.
    pub line_bytes: u32,
    /// Sets in a slice.
    pub sets: u64,
    /// Slices.
    pub slices: u32,
    /// How lines are spread over them.
    pub hash: SliceHash,
}

impl CacheIndex {
    /// Whether there can be such a cache.
    ///
    /// # Errors
    /// [`ColourError`], with what would be right.
    pub fn check(&self) -> Result<(), ColourError> {
        let Self { line_bytes, sets, slices, hash } = *self;
        let wrong = |cause| Err(ColourError::Geometry { line_bytes, sets, slices, cause });
        if !line_bytes.is_power_of_two() || line_bytes > 4096 {
            return wrong("a line must be a power of two of bytes, at most 4096");
        }
        if sets == 0 || slices == 0 {
            return wrong("sets and slices must be above 0");
        }
        hash.check(slices)
    }

    /// Sets of all slices.
    pub fn all_sets(&self) -> u64 {
        self.sets * u64::from(self.slices)
    }

    /// The set of a line, by its address divided by the line's bytes; dense from 0 over all slices.
    /// Without a hash it is the remainder by the number of sets.
    #[inline]
    pub fn set(&self, line: u64) -> u64 {
        match self.hash {
            SliceHash::None => line % self.all_sets(),
            _ => self.slice(line) * self.sets + line % self.sets,
        }
    }

    /// The slice of a line.
    #[inline]
    pub fn slice(&self, line: u64) -> u64 {
        self.hash.slice(line, self.line_bytes.trailing_zeros(), self.sets, self.slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Those that spread lines evenly.
    fn even() -> impl Strategy<Value = CacheIndex> {
        let intel = (0u32..=3).prop_map(|log| (1 << log, SliceHash::Intel));
        let even = (1u32..30).prop_map(|slices| (slices, SliceHash::Even));
        let none = (1u32..30).prop_map(|slices| (slices, SliceHash::None));
        prop_oneof![intel, even, none].prop_map(|(slices, hash)| CacheIndex {
            line_bytes: 64,
            sets: 2048,
            slices,
            hash,
        })
    }

    const SKYLAKE: CacheIndex =
        CacheIndex { line_bytes: 64, sets: 2048, slices: 20, hash: SliceHash::Skylake };

    /// In how many lines two frames meet.
    fn met(index: CacheIndex, one: u64, other: u64) -> usize {
        let meets = |line: &u64| index.set(one * 64 + line) == index.set(other * 64 + line);
        (0..64).filter(meets).count()
    }

    proptest! {
        #[test]
        fn a_way_of_memory_fills_a_way_of_the_cache(index in even(), piece in 0u64..1 << 12) {
            let sets = index.all_sets();
            let mut seen = vec![false; sets as usize];
            for line in piece * sets..(piece + 1) * sets {
                let before = std::mem::replace(&mut seen[index.set(line) as usize], true);
                prop_assert!(!before, "two lines in set {}", index.set(line));
            }
        }

        #[test]
        fn frames_meet_in_all_lines_or_in_none(
            index in even(),
            one in 0u64..1 << 24,
            other in 0u64..1 << 24,
        ) {
            let met = met(index, one, other / 32 * 32 + one % 32);
            prop_assert!(met == 0 || met == 64, "{met}");
        }

        #[test]
        fn frames_on_skylake_meet_in_some_lines(one in 0u64..1 << 24, other in 0u64..1 << 24) {
            let met = met(SKYLAKE, one, other / 32 * 32 + one % 32);
            prop_assert!(matches!(met, 0 | 8 | 12 | 40 | 56 | 64), "{met}");
        }
    }

    /// Ways that a slice needs to hold an aligned piece of memory as large as one way of all slices.
    #[test]
    fn a_way_of_memory_on_skylake_needs_more_than_a_way() {
        let sets = SKYLAKE.all_sets();
        for piece in 0..256 {
            let mut lines = vec![0; sets as usize];
            for line in piece * sets..(piece + 1) * sets {
                lines[SKYLAKE.set(line) as usize] += 1;
            }
            let most = lines.into_iter().max();
            assert!(matches!(most, Some(2..=4)), "{most:?}");
        }
    }

    #[test]
    fn impossible_geometries_are_refused() {
        let good = CacheIndex { line_bytes: 64, sets: 64, slices: 3, hash: SliceHash::None };
        assert_eq!(good.check(), Ok(()));
        for bad in [
            CacheIndex { line_bytes: 48, ..good },
            CacheIndex { line_bytes: 8192, ..good },
            CacheIndex { sets: 0, ..good },
            CacheIndex { slices: 0, ..good },
            CacheIndex { hash: SliceHash::Intel, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
