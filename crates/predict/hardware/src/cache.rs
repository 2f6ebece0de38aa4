//! One level of data cache.

use crate::geometry::CacheGeometry;
use crate::host::{self, LANES, Vectors, Work};
use crate::limits::{LINE_SHIFT, PHYSICAL_LIMIT};
use crate::read::{Hits, Read};

/// How a line number becomes a set and a tag that is never [`EMPTY`]: remainder and quotient by the
/// number of sets.
trait Split: Copy {
    fn split(self, line: u64) -> (usize, i32);

    /// The line with this tag in this set.
    fn line(self, set: usize, tag: i32) -> u64;
}

/// A power of two of sets.
#[derive(Clone, Copy)]
struct Shift(u32);

impl Split for Shift {
    #[inline(always)]
    fn split(self, line: u64) -> (usize, i32) {
        debug_assert!(line < PHYSICAL_LIMIT >> LINE_SHIFT, "beyond {PHYSICAL_LIMIT:#x}");
        ((line & ((1 << self.0) - 1)) as usize, (line >> self.0) as u32 as i32 + 1)
    }

    #[inline(always)]
    fn line(self, set: usize, tag: i32) -> u64 {
        u64::from((tag as u32).wrapping_sub(1)) << self.0 | set as u64
    }
}

/// Any number of sets.
#[derive(Clone, Copy)]
struct Divide {
    sets: u64,
    /// 2^63 / sets, rounded up: a division by a multiplication, exact for the numbers in question.
    reciprocal: u64,
}

impl Divide {
    fn new(sets: u64) -> Self {
        Self { sets, reciprocal: (1u64 << 63).div_ceil(sets) }
    }
}

impl Split for Divide {
    #[inline(always)]
    fn split(self, line: u64) -> (usize, i32) {
        debug_assert!(line < PHYSICAL_LIMIT >> LINE_SHIFT, "beyond {PHYSICAL_LIMIT:#x}");
        let quotient = ((u128::from(line) * u128::from(self.reciprocal)) >> 63) as u64;
        ((line - quotient * self.sets) as usize, quotient as u32 as i32 + 1)
    }

    #[inline(always)]
    fn line(self, set: usize, tag: i32) -> u64 {
        u64::from((tag as u32).wrapping_sub(1)) * self.sets + set as u64
    }
}

/// No line at all.
pub(crate) const NO_LINE: u64 = u64::MAX;

/// What is told of the lines that drop out: for each read that misses the line that it puts out, or
/// [`NO_LINE`].
trait Victims {
    /// The read with this number, of those that missed, puts a line out if it misses.
    fn note(&mut self, missed: usize, line: impl FnOnce() -> u64);
}

/// Nobody wants to know.
impl Victims for () {
    #[inline(always)]
    fn note(&mut self, _: usize, _: impl FnOnce() -> u64) {}
}

impl Victims for &mut [u64] {
    #[inline(always)]
    fn note(&mut self, missed: usize, line: impl FnOnce() -> u64) {
        self[missed] = line();
    }
}

/// Tags of more bytes are asked for ahead: they are far from the core that runs the model.
const FAR: usize = 128 << 10;

/// How many reads ahead.
const AHEAD: usize = 32;

/// Tag of a way that holds nothing.
const EMPTY: i32 = 0;

/// The tags of one set, in order of use. Aligned, so that it lies in as few cache lines as can be.
#[derive(Clone)]
#[repr(align(32))]
struct Set<const GROUPS: usize>([[i32; LANES]; GROUPS]);

/// Tags of sets with up to `GROUPS` x 8 ways.
pub(crate) struct Tags<const GROUPS: usize> {
    sets: Box<[Set<GROUPS>]>,
    ways: usize,
}

impl<const GROUPS: usize> Tags<GROUPS> {
    fn new(sets: u64, ways: usize) -> Self {
        debug_assert!(ways <= GROUPS * LANES);
        let sets_of_tags = vec![Set([[EMPTY; LANES]; GROUPS]); sets as usize];
        Self { sets: sets_of_tags.into_boxed_slice(), ways }
    }

    /// See [`Cache::remove`]. The lines used before it move up.
    fn remove(&mut self, line: u64) -> bool {
        let sets = self.sets.len() as u64;
        let (set, tag) = match sets.is_power_of_two() {
            true => Shift(sets.trailing_zeros()).split(line),
            false => Divide::new(sets).split(line),
        };
        let tags = &mut self.sets[set].0.as_flattened_mut()[..self.ways];
        let Some(at) = tags.iter().position(|other| *other == tag) else { return false };
        tags[at..].rotate_left(1);
        tags[self.ways - 1] = EMPTY;
        true
    }

    /// See [`Cache::read`].
    #[inline(always)]
    fn read(
        &mut self,
        reads: &mut [Read],
        data_only: bool,
        hits: &mut Hits,
        victims: impl Victims,
        vectors: impl Vectors,
    ) -> usize {
        let sets = self.sets.len() as u64;
        if sets.is_power_of_two() {
            self.read_by(Shift(sets.trailing_zeros()), reads, data_only, hits, victims, vectors)
        } else {
            self.read_by(Divide::new(sets), reads, data_only, hits, victims, vectors)
        }
    }

    /// Inlined into each place of use, so that the loop is one geometry's.
    #[inline(always)]
    fn read_by(
        &mut self,
        by: impl Split,
        reads: &mut [Read],
        data_only: bool,
        hits: &mut Hits,
        mut victims: impl Victims,
        vectors: impl Vectors,
    ) -> usize {
        let (sets, ways) = (&mut *self.sets, self.ways);
        let far = size_of_val(sets) > FAR;
        if far {
            reads[..AHEAD.min(reads.len())].iter().for_each(|read| prefetch(sets, ways, *read, by));
        }
        let mut missed = 0;
        for at in 0..reads.len() {
            if far && let Some(later) = reads.get(at + AHEAD) {
                prefetch(sets, ways, *later, by);
            }
            let read = reads[at];
            let (number, tag) = by.split(read.line());
            let set = &mut sets[number].0;
            victims.note(missed, || match set.as_flattened()[ways - 1] {
                EMPTY => NO_LINE,
                last => by.line(number, last),
            });
            // Data is often the most recently used of its set: nothing moves. A table's entry
            // rarely is, and a branch that guesses so would often be wrong.
            let hit = if (set[0][0] == tag) & read.is_data() {
                true
            } else if data_only & !read.is_data() {
                false
            } else {
                search_and_move(set, ways, tag, vectors)
            };
            hits[read.class()] += u32::from(hit);
            reads[missed] = read;
            missed += usize::from(!hit);
        }
        missed
    }
}

#[inline(always)]
fn prefetch<const GROUPS: usize>(sets: &[Set<GROUPS>], ways: usize, read: Read, by: impl Split) {
    let set = by.split(read.line()).0;
    host::prefetch(sets, set);
    if size_of::<Set<GROUPS>>() > 1 << LINE_SHIFT {
        host::prefetch(sets[set].0.as_flattened(), ways - 1);
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
    UpTo8(Tags<1>),
    UpTo16(Tags<2>),
    UpTo24(Tags<3>),
    UpTo64(Tags<8>),
}

/// The same expression for every associativity, and one for no cache.
macro_rules! each {
    ($cache:expr, $absent:expr, $tags:pat => $do:expr) => {
        match $cache {
            Cache::Absent => $absent,
            Cache::UpTo8($tags) => $do,
            Cache::UpTo16($tags) => $do,
            Cache::UpTo24($tags) => $do,
            Cache::UpTo64($tags) => $do,
        }
    };
}

impl Cache {
    /// An empty cache; its geometry has been checked.
    pub(crate) fn new(geometry: &CacheGeometry) -> Self {
        let (sets, ways) = (geometry.sets(), geometry.ways as usize);
        match ways {
            _ if sets == 0 => Self::Absent,
            0..=8 => Self::UpTo8(Tags::new(sets, ways)),
            9..=16 => Self::UpTo16(Tags::new(sets, ways)),
            17..=24 => Self::UpTo24(Tags::new(sets, ways)),
            _ => Self::UpTo64(Tags::new(sets, ways)),
        }
    }

    /// Looks lines up in order, and puts in those that are not there; either way each becomes the
    /// most recently used of its set. The reads that missed are moved to the front, in order;
    /// returns how many. The others are counted in `hits`. With `data_only`, reads of tables miss,
    /// and nothing is put in.
    pub(crate) fn read(&mut self, reads: &mut [Read], data_only: bool, hits: &mut Hits) -> usize {
        host::with_vectors(Look { cache: self, reads, data_only, hits, victims: () })
    }

    /// The same with all kinds of reads; for each one that missed, the line that dropped out for it is
    /// put into `victims`, or [`NO_LINE`]. There must be room for as many as there are reads.
    pub(crate) fn read_telling(
        &mut self,
        reads: &mut [Read],
        hits: &mut Hits,
        victims: &mut [u64],
    ) -> usize {
        host::with_vectors(Look { cache: self, reads, data_only: false, hits, victims })
    }

    /// Drops a line; returns whether it was there.
    pub(crate) fn remove(&mut self, line: u64) -> bool {
        each!(self, false, tags => tags.remove(line))
    }

    /// Whether it holds a line.
    #[cfg(test)]
    pub(crate) fn holds(&self, line: u64) -> bool {
        each!(self, false, tags => {
            let (set, tag) = Divide::new(tags.sets.len() as u64).split(line);
            tags.sets[set].0.as_flattened().contains(&tag)
        })
    }
}

/// The arguments of [`Cache::read`] and [`Cache::read_telling`].
struct Look<'a, V> {
    cache: &'a mut Cache,
    reads: &'a mut [Read],
    data_only: bool,
    hits: &'a mut Hits,
    victims: V,
}

impl<V: Victims> Work for Look<'_, V> {
    type Result = usize;

    #[inline(always)]
    fn work(self, vectors: impl Vectors) -> usize {
        let Self { cache, reads, data_only, hits, victims } = self;
        each!(cache, reads.len(), tags => tags.read(reads, data_only, hits, victims, vectors))
    }
}

/// Moves `tag` to the front of its set, the tags before it back by one; when it was not there, the
/// last one drops out. Returns whether it was there. No branch depends on where it was, or whether.
#[inline(always)]
fn search_and_move<const GROUPS: usize>(
    tags: &mut [[i32; LANES]; GROUPS],
    ways: usize,
    tag: i32,
    vectors: impl Vectors,
) -> bool {
    // A bit for each way.
    let mut found = 0u64;
    for (group, first) in tags.iter().zip((0..).step_by(LANES)) {
        found |= u64::from(vectors.equal(group, tag)) << first;
    }
    // Where it was, or else the last way.
    let last = (found | 1 << (ways - 1)).trailing_zeros() as i32;
    let tags = tags.as_flattened_mut();
    for first in (0..GROUPS).rev().map(|group| group * LANES) {
        let old = group_at(tags, first);
        let moved = if first == 0 { vectors.shift(tag, &old) } else { group_at(tags, first - 1) };
        let new = vectors.join(&moved, &old, last - first as i32);
        tags[first..first + LANES].copy_from_slice(&new);
    }
    found != 0
}

/// Tags next to each other, from any way on.
#[inline(always)]
fn group_at(tags: &[i32], first: usize) -> [i32; LANES] {
    tags[first..first + LANES].try_into().expect("the slice has this length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{MAX_SETS, MIN_SETS};
    use crate::naive::NaiveSets;
    use crate::read::{NO_HITS, class};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_cache_equals_its_naive_twin(
            // The last is large enough to be asked for ahead.
            sets in prop_oneof![1u64..9, Just(40_960), Just(16_384)],
            ways in prop_oneof![1u32..28, 30u32..=64],
            lines in prop::collection::vec((0u64..60, 0u64..3, any::<bool>()), 1..600),
            base in 0u64..1 << 28,
            batch in 1usize..200,
            data_only in any::<bool>(),
        ) {
            let geometry = CacheGeometry { bytes: sets * u64::from(ways) * 64, ways, cycles: 1 };
            let mut fast = [Cache::new(&geometry), Cache::new(&geometry)];
            let mut naive = NaiveSets::new(sets as usize, ways as usize);
            // Neighbouring lines, and lines of the same set.
            let line = |step, far| base + far + step * if far == 0 { 1 } else { sets };
            let class = |is_data| if is_data { class::DATA } else { class::STORE };
            let reads: Vec<Read> = lines
                .iter()
                .map(|(step, far, is_data)| Read::new(line(*step, *far), class(*is_data)))
                .collect();
            for reads in reads.chunks(batch) {
                let (mut missed, mut hits) = (Vec::new(), NO_HITS);
                for read in reads {
                    let (line, skipped) = (read.line(), data_only && !read.is_data());
                    if !skipped && naive.lookup(line, line + 1).is_some() {
                        hits[read.class()] += 1;
                        continue;
                    }
                    missed.push(*read);
                    if !skipped {
                        naive.fill(line, line + 1, 0);
                    }
                }
                for (cache, portable) in fast.iter_mut().zip([false, true]) {
                    let (mut reads, mut counted) = (reads.to_vec(), NO_HITS);
                    let left = if portable {
                        let (reads, hits) = (&mut reads[..], &mut counted);
                        Look { cache, reads, data_only, hits, victims: () }.work(host::Portable)
                    } else {
                        cache.read(&mut reads, data_only, &mut counted)
                    };
                    prop_assert_eq!(&reads[..left], &missed[..]);
                    prop_assert_eq!(counted, hits);
                }
            }
        }

        #[test]
        fn sets_and_tags_are_quotient_and_remainder(
            line in 0..PHYSICAL_LIMIT >> LINE_SHIFT,
            sets in prop_oneof![1..=MAX_SETS, (0..=24u32).prop_map(|log| 1 << log)],
        ) {
            let expected = ((line % sets) as usize, (line / sets) as u32 as i32 + 1);
            let (set, tag) = expected;
            prop_assert_eq!(Divide::new(sets).split(line), expected);
            // With fewer sets than any cache has, tags have more than 32 bits.
            prop_assert!(sets < MIN_SETS || Divide::new(sets).line(set, tag) == line);
            if sets.is_power_of_two() {
                let shift = Shift(sets.trailing_zeros());
                prop_assert_eq!(shift.split(line), expected);
                prop_assert!(sets < MIN_SETS || shift.line(set, tag) == line);
            }
        }

        /// What was in a set and is not any more is what was told, and only reads that miss put lines out.
        #[test]
        fn lines_that_drop_out_are_told(
            sets in prop_oneof![1u64..9, Just(16)],
            ways in prop_oneof![1u32..28, 30u32..=64],
            lines in prop::collection::vec((0u64..200, any::<bool>()), 1..600),
            batch in 1usize..200,
        ) {
            let geometry = CacheGeometry { bytes: sets * u64::from(ways) * 64, ways, cycles: 1 };
            let (mut told, mut plain) = (Cache::new(&geometry), Cache::new(&geometry));
            let mut held = std::collections::BTreeSet::new();
            for lines in lines.chunks(batch) {
                let class = |is_data: bool| if is_data { class::DATA } else { class::STORE };
                let read = |(line, is_data): &(u64, bool)| Read::new(*line, class(*is_data));
                let mut reads: Vec<Read> = lines.iter().map(read).collect();
                let mut same = reads.clone();
                let mut victims = vec![0; reads.len()];
                let mut hits = [NO_HITS; 2];
                let left = told.read_telling(&mut reads, &mut hits[0], &mut victims);
                let left_too = plain.read(&mut same, false, &mut hits[1]);
                prop_assert_eq!(&reads[..left], &same[..left_too]);
                prop_assert_eq!(hits[0], hits[1]);
                for (read, victim) in reads[..left].iter().zip(victims) {
                    prop_assert!(held.insert(read.line()));
                    prop_assert!(victim == NO_LINE || held.remove(&victim));
                    prop_assert!(victim == NO_LINE || victim % sets == read.line() % sets);
                }
                prop_assert!(held.iter().all(|line| told.holds(*line)));
                let full = held.iter().filter(|line| *line % sets == 0).count();
                prop_assert!(full <= ways as usize);
            }
        }
    }

    #[test]
    fn a_cache_without_bytes_always_misses() {
        let mut cache = Cache::new(&CacheGeometry { bytes: 0, ways: 1, cycles: 0 });
        let mut reads = [Read::new(5, class::DATA); 2];
        assert_eq!(cache.read(&mut reads, false, &mut { NO_HITS }), 2);
    }
}
