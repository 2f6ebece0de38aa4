//! One level of data cache.

use crate::host;
use crate::model::CacheGeometry;
use wide::i32x4;

/// log2 of the bytes in a cache line, on every CPU modelled.
pub(crate) const LINE_SHIFT: u32 = 6;

/// Tags compared and moved together: one 128-bit vector.
const GROUP: usize = 4;

/// Host physical addresses below this are told apart by every cache: 16 TiB, less the last lines,
/// whose tags would be that of an empty way.
pub const PHYSICAL_LIMIT: u64 = (MIN_SETS * u32::MAX as u64) << LINE_SHIFT;

/// With fewer sets the tags would not fit 32 bits.
pub(crate) const MIN_SETS: u64 = 64;

/// With more, the division by multiplication would not be exact.
pub(crate) const MAX_SETS: u64 = 1 << 24;

/// How a line number becomes a set and a tag: remainder and quotient by the number of sets.
#[derive(Clone, Copy)]
struct Divider {
    sets: u64,
    /// log2 of the sets, if they are a power of two.
    shift: Option<u32>,
    /// 2^63 / sets, rounded up: a division by a multiplication, exact for the numbers in question.
    reciprocal: u64,
}

impl Divider {
    fn new(sets: u64) -> Self {
        let shift = sets.is_power_of_two().then_some(sets.trailing_zeros());
        Self { sets, shift, reciprocal: (1u64 << 63).div_ceil(sets) }
    }

    /// Set, and a tag that is never [`EMPTY`].
    #[inline(always)]
    fn split(&self, line: u64) -> (usize, i32) {
        debug_assert!(line < PHYSICAL_LIMIT >> LINE_SHIFT, "beyond {PHYSICAL_LIMIT:#x}");
        let (quotient, remainder) = match self.shift {
            Some(shift) => (line >> shift, line & (self.sets - 1)),
            None => {
                let quotient = ((u128::from(line) * u128::from(self.reciprocal)) >> 63) as u64;
                (quotient, line - quotient * self.sets)
            }
        };
        (remainder as usize, quotient as u32 as i32 + 1)
    }
}

/// Tag of a way that holds nothing.
const EMPTY: i32 = 0;

/// Tags of sets with up to `GROUPS` x 4 ways.
pub(crate) struct Tags<const GROUPS: usize> {
    sets: Box<[[[i32; GROUP]; GROUPS]]>,
    ways: usize,
    divider: Divider,
}

impl<const GROUPS: usize> Tags<GROUPS> {
    fn new(sets: u64, ways: usize) -> Self {
        debug_assert!(ways <= GROUPS * GROUP);
        let sets_of_tags = vec![[[EMPTY; GROUP]; GROUPS]; sets as usize];
        Self { sets: sets_of_tags.into_boxed_slice(), ways, divider: Divider::new(sets) }
    }

    #[inline(always)]
    fn prefetch(&self, line: u64) {
        let set = self.divider.split(line).0;
        host::prefetch(&self.sets, set);
        if size_of::<[[i32; GROUP]; GROUPS]>() > 1 << LINE_SHIFT {
            host::prefetch(self.sets[set].as_flattened(), self.ways - 1);
        }
    }

    #[inline(always)]
    fn is_newest(&self, line: u64) -> bool {
        let (set, tag) = self.divider.split(line);
        self.sets[set][0][0] == tag
    }

    #[inline(always)]
    fn touch(&mut self, line: u64) -> bool {
        let (set, tag) = self.divider.split(line);
        search_and_move(&mut self.sets[set], self.ways, tag)
    }
}

/// The tags of a set-associative cache with true LRU replacement. Within a set the tags are in
/// order of use, so that one pass both searches and moves; there is no payload to move with them.
///
/// A tag is the line number divided by the number of sets, plus 1, in 32 bits. The usual
/// associativities have code of their own, unrolled.
pub(crate) enum Cache {
    /// No cache: every lookup misses.
    Absent,
    UpTo8(Tags<2>),
    UpTo12(Tags<3>),
    UpTo16(Tags<4>),
    UpTo20(Tags<5>),
    UpTo32(Tags<8>),
    UpTo64(Tags<16>),
}

/// The same expression for every associativity, and one for no cache.
macro_rules! each {
    ($cache:expr, $absent:expr, $tags:pat => $do:expr) => {
        match $cache {
            Cache::Absent => $absent,
            Cache::UpTo8($tags) => $do,
            Cache::UpTo12($tags) => $do,
            Cache::UpTo16($tags) => $do,
            Cache::UpTo20($tags) => $do,
            Cache::UpTo32($tags) => $do,
            Cache::UpTo64($tags) => $do,
        }
    };
}

/// The largest associativity of a data cache.
pub(crate) const MAX_WAYS: u32 = 64;

impl Cache {
    /// An empty cache; its geometry has been checked.
    pub(crate) fn new(geometry: &CacheGeometry) -> Self {
        let (sets, ways) = (geometry.sets(), geometry.ways as usize);
        match ways {
            _ if sets == 0 => Self::Absent,
            0..=8 => Self::UpTo8(Tags::new(sets, ways)),
            9..=12 => Self::UpTo12(Tags::new(sets, ways)),
            13..=16 => Self::UpTo16(Tags::new(sets, ways)),
            17..=20 => Self::UpTo20(Tags::new(sets, ways)),
            21..=32 => Self::UpTo32(Tags::new(sets, ways)),
            _ => Self::UpTo64(Tags::new(sets, ways)),
        }
    }

    /// Asks the computer that runs the model to have the set of a line at hand soon.
    #[inline]
    pub(crate) fn prefetch(&self, line: u64) {
        each!(self, (), tags => tags.prefetch(line));
    }

    /// Whether the line is the most recently used of its set: then touching it would find it and
    /// change nothing.
    #[inline(always)]
    pub(crate) fn is_newest(&self, line: u64) -> bool {
        each!(self, false, tags => tags.is_newest(line))
    }

    /// Looks a line up, and puts it in when it is not there; either way it becomes the most
    /// recently used of its set. Returns whether it was there. `line` is the physical address
    /// divided by the line size.
    ///
    /// Inlined into each place of use: a level's associativity never changes, so its branches
    /// there are always the same.
    #[inline(always)]
    pub(crate) fn touch(&mut self, line: u64) -> bool {
        each!(self, false, tags => tags.touch(line))
    }
}

/// Moves `tag` to the front of its set, the tags before it back by one; when it was not there, the
/// last one drops out. Returns whether it was there. No branch depends on where it was.
#[inline(always)]
fn search_and_move<const GROUPS: usize>(
    tags: &mut [[i32; GROUP]; GROUPS],
    ways: usize,
    tag: i32,
) -> bool {
    const FIRST_WAYS: i32x4 = i32x4::new([0, 1, 2, 3]);
    let wanted = i32x4::splat(tag);
    // A bit for each way.
    let mut found = 0u64;
    for (group, first) in tags.iter().zip((0..).step_by(GROUP)) {
        found |= u64::from(i32x4::new(*group).simd_eq(wanted).to_bitmask()) << first;
    }
    let tags = tags.as_flattened_mut();
    if found == 0 {
        for first in (1..GROUPS).rev().map(|group| group * GROUP) {
            let moved = group_at(tags, first - 1);
            tags[first..first + GROUP].copy_from_slice(&moved);
        }
        let moved = [tag, tags[0], tags[1], tags[2]];
        tags[..GROUP].copy_from_slice(&moved);
        if ways < GROUPS * GROUP {
            tags[ways..].fill(EMPTY);
        }
        return false;
    }
    let last = i32x4::splat(found.trailing_zeros() as i32);
    for first in (0..GROUPS).rev().map(|group| group * GROUP) {
        let old = group_at(tags, first);
        let moved =
            if first == 0 { [tag, old[0], old[1], old[2]] } else { group_at(tags, first - 1) };
        let stays = (FIRST_WAYS + i32x4::splat(first as i32)).simd_gt(last);
        let new = stays & i32x4::new(old) | !stays & i32x4::new(moved);
        tags[first..first + GROUP].copy_from_slice(&new.to_array());
    }
    true
}

/// The tags of one vector, from any way on.
#[inline(always)]
fn group_at(tags: &[i32], first: usize) -> [i32; GROUP] {
    tags[first..first + GROUP].try_into().expect("the slice has this length")
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
            ways in prop_oneof![1u32..23, 30u32..=64],
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
            let expected = ((line % sets) as usize, (line / sets) as u32 as i32 + 1);
            prop_assert_eq!(Divider::new(sets).split(line), expected);
            let by_multiplication = Divider { shift: None, ..Divider::new(sets) };
            prop_assert_eq!(by_multiplication.split(line), expected);
        }
    }

    #[test]
    fn a_cache_without_bytes_always_misses() {
        let mut cache = Cache::new(&CacheGeometry { bytes: 0, ways: 1, cycles: 0 });
        assert!(!cache.touch(5));
        assert!(!cache.touch(5));
    }
}
