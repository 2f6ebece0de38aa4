//! One level of data cache.

use crate::model::CacheGeometry;

/// log2 of the bytes in a cache line, on every CPU modelled.
pub(crate) const LINE_SHIFT: u32 = 6;

/// Tags compared and moved together: one 128-bit vector.
const GROUP: usize = 4;

/// The tags of a set-associative cache with true LRU replacement. Within a set the tags are in
/// order of use, so that one pass both searches and moves; there is no payload to move with them.
///
/// A tag is the line number divided by the number of sets, plus 1, in 32 bits; 0 is "empty".
pub(crate) struct Cache {
    tags: Box<[u32]>,
    ways: usize,
    /// Ways rounded up to whole groups.
    stride: usize,
    sets: u64,
    /// 2^63 / sets, rounded up: a division by a multiplication, exact for the numbers in question.
    reciprocal: u64,
}

/// Host physical addresses below this are told apart by every cache: 16 TiB, less the last lines,
/// whose tags would be that of an empty way.
pub const PHYSICAL_LIMIT: u64 = (MIN_SETS * u32::MAX as u64) << LINE_SHIFT;

/// With fewer sets the tags would not fit 32 bits.
pub(crate) const MIN_SETS: u64 = 64;

/// With more, the division by multiplication would not be exact.
pub(crate) const MAX_SETS: u64 = 1 << 24;

impl Cache {
    pub(crate) fn new(geometry: &CacheGeometry) -> Self {
        let ways = geometry.ways as usize;
        let stride = ways.next_multiple_of(GROUP);
        let sets = geometry.sets();
        Self {
            tags: vec![0; sets as usize * stride].into_boxed_slice(),
            ways,
            stride,
            sets,
            reciprocal: if sets == 0 { 0 } else { (1u64 << 63).div_ceil(sets) },
        }
    }

    /// Looks a line up, and puts it in when it is not there; either way it becomes the most
    /// recently used of its set. Returns whether it was there. `line` is the physical address
    /// divided by the line size.
    #[inline]
    pub(crate) fn touch(&mut self, line: u64) -> bool {
        if self.sets == 0 {
            return false;
        }
        debug_assert!(line < PHYSICAL_LIMIT >> LINE_SHIFT, "beyond {PHYSICAL_LIMIT:#x}");
        let quotient = ((u128::from(line) * u128::from(self.reciprocal)) >> 63) as u64;
        let set = (line - quotient * self.sets) as usize;
        let tag = quotient as u32 + 1;
        let first = set * self.stride;
        if self.tags[first] == tag {
            return true;
        }
        // Ways in whole groups, so that the compiler can unroll and use vectors.
        let tags = &mut self.tags[first..first + self.stride];
        match self.stride {
            4 => search_and_move::<4>(tags, self.ways, tag),
            8 => search_and_move::<8>(tags, self.ways, tag),
            12 => search_and_move::<12>(tags, self.ways, tag),
            16 => search_and_move::<16>(tags, self.ways, tag),
            20 => search_and_move::<20>(tags, self.ways, tag),
            _ => search_and_move_any(tags, self.ways, tag),
        }
    }
}

/// Moves `tag` to the front of its set, the tags before it back by one; when it was not there, the
/// last one drops out. Returns whether it was there.
#[inline]
fn search_and_move<const WAYS: usize>(tags: &mut [u32], ways: usize, tag: u32) -> bool {
    let tags: &mut [u32; WAYS] = tags.try_into().expect("the slice has this length");
    let mut equal = 0u32;
    for other in tags.iter() {
        equal |= u32::from(*other == tag);
    }
    if equal != 0 {
        return search_and_move_any(tags, ways, tag);
    }
    tags.copy_within(0..WAYS - 1, 1);
    tags[0] = tag;
    if WAYS != ways {
        tags[ways..].fill(0);
    }
    false
}

fn search_and_move_any(tags: &mut [u32], ways: usize, tag: u32) -> bool {
    let mut moved = tag;
    for other in &mut tags[..ways] {
        std::mem::swap(other, &mut moved);
        if moved == tag {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::NaiveSets;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_cache_equals_its_naive_twin(
            sets in prop_oneof![1u64..9, Just(40_960), Just(16_384)],
            ways in 1u32..23,
            lines in prop::collection::vec((0u64..60, 0u64..3), 1..600),
            base in 0u64..1 << 28,
        ) {
            let geometry = CacheGeometry { bytes: sets * u64::from(ways) * 64, ways, cycles: 1 };
            let mut fast = Cache::new(&geometry);
            let mut naive = NaiveSets::new(sets as usize, ways as usize);
            for (step, far) in lines {
                // Neighbouring lines, and lines of the same set.
                let line = base + far + step * if far == 0 { 1 } else { sets };
                let hit = naive.lookup(line, line + 1).is_some();
                if !hit {
                    naive.fill(line, line + 1, 0);
                }
                prop_assert_eq!(fast.touch(line), hit);
            }
        }

        #[test]
        fn sets_and_tags_are_quotient_and_remainder(
            line in 0..PHYSICAL_LIMIT >> LINE_SHIFT, sets in 1..=MAX_SETS,
        ) {
            let reciprocal = (1u64 << 63).div_ceil(sets);
            let quotient = ((u128::from(line) * u128::from(reciprocal)) >> 63) as u64;
            prop_assert_eq!(quotient, line / sets);
        }
    }

    #[test]
    fn a_cache_without_bytes_always_misses() {
        let mut cache = Cache::new(&CacheGeometry { bytes: 0, ways: 1, cycles: 0 });
        assert!(!cache.touch(5));
        assert!(!cache.touch(5));
    }
}
