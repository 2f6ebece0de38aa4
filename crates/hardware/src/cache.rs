//! One level of data cache.

use crate::host;
use crate::model::CacheGeometry;
use wide::i32x4;

/// log2 of the bytes in a cache line, on every CPU modelled.
pub(crate) const LINE_SHIFT: u32 = 6;

/// Tags compared and moved together: one 128-bit vector.
const GROUP: usize = 4;

/// The tags of a set-associative cache with true LRU replacement. Within a set the tags are in
/// order of use, so that one pass both searches and moves; there is no payload to move with them.
///
/// A tag is the line number divided by the number of sets, plus 1, in 32 bits; 0 is "empty".
pub(crate) struct Cache {
    tags: Box<[i32]>,
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

    /// Set and tag of a line.
    #[inline]
    fn split(&self, line: u64) -> (usize, i32) {
        debug_assert!(line < PHYSICAL_LIMIT >> LINE_SHIFT, "beyond {PHYSICAL_LIMIT:#x}");
        let quotient = ((u128::from(line) * u128::from(self.reciprocal)) >> 63) as u64;
        ((line - quotient * self.sets) as usize, quotient as u32 as i32 + 1)
    }

    /// Asks the computer that runs the model to have the set of a line at hand soon.
    #[inline]
    pub(crate) fn prefetch(&self, line: u64) {
        if self.sets > 0 {
            let first = self.split(line).0 * self.stride;
            host::prefetch(&self.tags, first);
            host::prefetch(&self.tags, first + self.stride - 1);
        }
    }

    /// Looks a line up, and puts it in when it is not there; either way it becomes the most
    /// recently used of its set. Returns whether it was there. `line` is the physical address
    /// divided by the line size.
    ///
    /// Inlined into each place of use: a level's associativity never changes, so its branches
    /// there are always the same.
    #[inline(always)]
    pub(crate) fn touch(&mut self, line: u64) -> bool {
        if self.sets == 0 {
            return false;
        }
        let (set, tag) = self.split(line);
        let first = set * self.stride;
        let tags = &mut self.tags[first..first + self.stride];
        // Ways in whole groups, so that the compiler can unroll and use vectors.
        if self.stride == 8 {
            search_and_move::<2>(tags, self.ways, tag)
        } else if self.stride == 20 {
            search_and_move::<5>(tags, self.ways, tag)
        } else if self.stride == 16 {
            search_and_move::<4>(tags, self.ways, tag)
        } else if self.stride == 12 {
            search_and_move::<3>(tags, self.ways, tag)
        } else {
            search_and_move_any(&mut tags[..self.ways], tag)
        }
    }

    /// Whether the line is the most recently used of its set: then touching it would find it and
    /// change nothing.
    #[inline(always)]
    pub(crate) fn is_newest(&self, line: u64) -> bool {
        let (set, tag) = self.split(line);
        self.tags.get(set * self.stride) == Some(&tag)
    }
}

/// Moves `tag` to the front of its set, the tags before it back by one; when it was not there, the
/// last one drops out. Returns whether it was there. No branch depends on where it was.
#[inline(always)]
fn search_and_move<const GROUPS: usize>(tags: &mut [i32], ways: usize, tag: i32) -> bool {
    const FIRST_WAYS: i32x4 = i32x4::new([0, 1, 2, 3]);
    let (tags, _) = tags.as_chunks_mut::<GROUP>();
    let tags: &mut [[i32; GROUP]; GROUPS] = tags.try_into().expect("the slice has this length");
    let wanted = i32x4::splat(tag);
    let mut found = i32x4::ZERO;
    let mut at = i32x4::ZERO;
    for (group, first) in tags.iter().zip((0..).step_by(GROUP)) {
        let same = i32x4::new(*group).simd_eq(wanted);
        found |= same;
        at |= same & (FIRST_WAYS + i32x4::splat(first));
    }
    let tags = tags.as_flattened_mut();
    if !found.any() {
        tags.copy_within(0..GROUPS * GROUP - 1, 1);
        tags[0] = tag;
        if ways < GROUPS * GROUP {
            tags[ways..].fill(0);
        }
        return false;
    }
    let [a, b, c, d] = at.to_array();
    let last = i32x4::splat(a | b | c | d);
    for first in (0..GROUPS).rev().map(|group| group * GROUP) {
        let old = [tags[first], tags[first + 1], tags[first + 2], tags[first + 3]];
        let before = if first == 0 { tag } else { tags[first - 1] };
        let moved = i32x4::new([before, old[0], old[1], old[2]]);
        let stays = (FIRST_WAYS + i32x4::splat(first as i32)).simd_gt(last);
        let new = stays & i32x4::new(old) | !stays & moved;
        tags[first..first + GROUP].copy_from_slice(&new.to_array());
    }
    true
}

/// The same for any associativity.
fn search_and_move_any(tags: &mut [i32], tag: i32) -> bool {
    let mut moved = tag;
    for other in tags {
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
