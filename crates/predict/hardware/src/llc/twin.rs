//! The fully associative cache that misses are compared with.

use crate::host::{self, LANES, Vectors};
use crate::limits::{LINE_SHIFT, PHYSICAL_LIMIT};
use std::collections::BTreeMap;

/// Why a read missed, in the terms of Hill and Smith (IEEE Transactions on Computers 38(12), 1989), read by read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// A fully associative cache of as many lines would have had it.
    Yes,
    /// It would have dropped it.
    Dropped,
    /// Nobody has read it before.
    Never,
}

/// After so many places the table forgets lines that were dropped: places are counted modulo 2^32, and those
/// before the beginning of the log must differ from those after it.
const FORGET: usize = 1 << 24;

/// Entries of the log at most.
const LONGEST_LOG: usize = 1 << 30;

/// A fully associative cache with LRU replacement, and all lines ever read.
///
/// Reads are written into a log, a ring. A table says where in it each line was read last, and a bit for each
/// entry whether its line was read again. When a line must go, the oldest entry without that bit is the one
/// least recently used: the log then begins after it, and a line whose entry is before the beginning is not
/// held, though the table knows it until it needs the room. So a read that misses looks at one bucket of
/// the table, which is one line of the computer's own cache, and a drop at none.
pub(super) struct Twin {
    /// Lines it can hold.
    capacity: usize,
    held: usize,
    /// Lines in the order of reads; a power of two, at least twice the capacity.
    log: Box<[u64]>,
    /// A bit for each entry of the log: its line was read again, or has left.
    stale: Box<[u64]>,
    /// The first entry of the log, and the next to be written. They count on, and their lowest bits are
    /// places.
    first: usize,
    next: usize,
    /// Where the log began when the table was last rid of lines not held.
    swept: usize,
    table: Table,
    seen: Seen,
}

impl Twin {
    pub(super) fn new(capacity: usize) -> Self {
        // Two to three lines a bucket: few are full.
        let buckets = (capacity / 3).next_power_of_two().max(LEAST_BUCKETS);
        let entries = (2 * capacity).next_power_of_two().max(u64::BITS as usize);
        debug_assert!(entries <= LONGEST_LOG);
        let (log, stale) = (vec![0; entries].into(), vec![0; entries / u64::BITS as usize].into());
        let (table, seen) = (Table::new(buckets), Seen::default());
        Self { capacity, held: 0, log, stale, first: 0, next: 0, swept: 0, table, seen }
    }

    /// Asks for what a read of this line will need.
    #[inline(always)]
    pub(super) fn prefetch(&self, line: u64) {
        host::prefetch(&self.table.buckets, self.table.home(line));
        self.seen.prefetch(line);
    }

    /// Reads a line, which is put in when it is not there.
    #[inline(always)]
    pub(super) fn read(&mut self, line: u64, vectors: impl Vectors) -> Held {
        match self.put(line, vectors) {
            true => Held::Yes,
            false if self.seen.insert(line) => Held::Never,
            false => Held::Dropped,
        }
    }

    /// Reads a line, which leaves when it is there.
    #[inline(always)]
    pub(super) fn take(&mut self, line: u64, vectors: impl Vectors) -> Held {
        let is_new = self.seen.insert(line);
        match self.table.take(line, self.first as u32, vectors) {
            Some(place) => {
                self.mark_stale(place);
                self.held -= 1;
                Held::Yes
            }
            None if is_new => Held::Never,
            None => Held::Dropped,
        }
    }

    /// Makes a line the most recently used one; returns whether it was there.
    #[inline(always)]
    pub(super) fn put(&mut self, line: u64, vectors: impl Vectors) -> bool {
        if self.next - self.first == self.log.len() {
            self.compact();
        }
        let place = self.append(line);
        if let Some(before) = self.table.put(line, place, self.first as u32, vectors) {
            self.mark_stale(before);
            return true;
        }
        self.held += 1;
        if self.held > self.capacity {
            self.drop_oldest();
        }
        false
    }

    #[inline(always)]
    fn append(&mut self, line: u64) -> u32 {
        let at = self.next & (self.log.len() - 1);
        self.log[at] = line;
        self.stale[at / 64] &= !(1 << (at % 64));
        self.next += 1;
        (self.next - 1) as u32
    }

    #[inline(always)]
    fn mark_stale(&mut self, place: u32) {
        let at = place as usize & (self.log.len() - 1);
        self.stale[at / 64] |= 1 << (at % 64);
    }

    /// The oldest line held is no more. There is one, and its entry is the oldest that is not stale.
    #[inline(always)]
    fn drop_oldest(&mut self) {
        loop {
            let at = self.first & (self.log.len() - 1);
            let rest = !self.stale[at / 64] >> (at % 64);
            if rest != 0 {
                self.first += rest.trailing_zeros() as usize + 1;
                break;
            }
            self.first += 64 - at % 64;
        }
        self.held -= 1;
        if self.first - self.swept > FORGET {
            self.sweep();
        }
    }

    /// Rids the table of lines that are not held.
    #[cold]
    #[inline(never)]
    fn sweep(&mut self) {
        self.table.sweep(self.first as u32);
        self.swept = self.first;
    }

    /// The log is full: entries that are stale go. At least half of it is free then.
    #[cold]
    #[inline(never)]
    fn compact(&mut self) {
        self.sweep();
        for _ in 0..self.log.len() {
            let at = self.first & (self.log.len() - 1);
            let (line, is_stale) = (self.log[at], self.stale[at / 64] >> (at % 64) & 1 != 0);
            let before = self.first as u32;
            self.first += 1;
            if !is_stale {
                let place = self.append(line);
                self.table.replace(line, before, place);
            }
        }
        self.swept = self.first;
    }
}

/// Whether a place is in a log that begins with `first`. Places of the table are at most 2^31 before it.
#[inline(always)]
fn is_held(place: u32, first: u32) -> bool {
    place.wrapping_sub(first) as i32 >= 0
}

/// Bits of the number of a line, which are below [`PHYSICAL_LIMIT`].
const LINE_BITS: u32 = (PHYSICAL_LIMIT.ilog2() + 1) - LINE_SHIFT;

/// With fewer, what is left of a line's number besides its bucket's would not fit 31 bits.
const LEAST_BUCKETS: usize = 1 << (LINE_BITS - 31);

/// 2^LINE_BITS divided by the golden ratio, odd.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15 >> (u64::BITS - LINE_BITS) | 1;

/// Tag of a slot that nothing is in.
const EMPTY: i32 = 0;

/// As many lines as fit one line of the computer's cache, and the place of each.
#[derive(Clone)]
#[repr(align(64))]
struct Bucket {
    tags: [i32; LANES],
    places: [u32; LANES],
}

/// Lines and their places: each line in its bucket, or, where that is full, among the rest.
struct Table {
    buckets: Box<[Bucket]>,
    /// Bits of a mixed line number that are no bits of its bucket's.
    tag_bits: u32,
    /// A bit for each bucket of which lines may be among the rest.
    spilled: Box<[u64]>,
    rest: BTreeMap<u64, u32>,
    /// How many of them there may be before those not held are looked for.
    most: usize,
}

/// Lines among the rest before anybody looks whether they are held.
const LEAST_REST: usize = 1024;

impl Table {
    /// A power of two of buckets, at least [`LEAST_BUCKETS`].
    fn new(buckets: usize) -> Self {
        let bucket = Bucket { tags: [EMPTY; LANES], places: [u32::MAX; LANES] };
        Self {
            tag_bits: LINE_BITS - buckets.trailing_zeros(),
            buckets: vec![bucket; buckets].into_boxed_slice(),
            spilled: vec![0; buckets.div_ceil(64)].into(),
            rest: BTreeMap::new(),
            most: LEAST_REST,
        }
    }

    /// The bucket of a line, and its tag there. An odd factor permutes the numbers of lines, so that both
    /// together are the line.
    #[inline(always)]
    fn split(&self, line: u64) -> (usize, i32) {
        // Fibonacci hashing (Knuth, volume 3, section 6.4).
        let mixed = line.wrapping_mul(FACTOR) & ((1 << LINE_BITS) - 1);
        (
            (mixed >> self.tag_bits) as usize,
            ((mixed & ((1 << self.tag_bits) - 1)) as i32).wrapping_add(1),
        )
    }

    /// The bucket of a line.
    #[inline(always)]
    fn home(&self, line: u64) -> usize {
        self.split(line).0
    }

    #[inline(always)]
    fn may_have_spilled(&self, bucket: usize) -> bool {
        self.spilled[bucket / 64] >> (bucket % 64) & 1 != 0
    }

    /// A line has this place now; returns the one it had, if it was held.
    #[inline(always)]
    fn put(&mut self, line: u64, place: u32, first: u32, vectors: impl Vectors) -> Option<u32> {
        let (home, tag) = self.split(line);
        let Bucket { tags, places } = &mut self.buckets[home];
        let found = vectors.equal(tags, tag);
        if found != 0 {
            let at = found.trailing_zeros() as usize % LANES;
            let before = std::mem::replace(&mut places[at], place);
            return is_held(before, first).then_some(before);
        }
        if self.may_have_spilled(home)
            && let Some(before) = self.rest.get_mut(&line)
        {
            let before = std::mem::replace(before, place);
            return is_held(before, first).then_some(before);
        }
        let Bucket { tags, places } = &mut self.buckets[home];
        match places.iter().position(|place| !is_held(*place, first)) {
            Some(at) => (tags[at], places[at]) = (tag, place),
            None => self.spill(home, line, place, first),
        }
        None
    }

    /// Puts a line among the rest.
    #[cold]
    #[inline(never)]
    fn spill(&mut self, home: usize, line: u64, place: u32, first: u32) {
        self.spilled[home / 64] |= 1 << (home % 64);
        self.rest.insert(line, place);
        if self.rest.len() > self.most {
            self.sweep_rest(first);
        }
    }

    fn sweep_rest(&mut self, first: u32) {
        self.rest.retain(|_, place| is_held(*place, first));
        self.spilled.fill(0);
        for line in self.rest.keys() {
            let home = self.home(*line);
            self.spilled[home / 64] |= 1 << (home % 64);
        }
        self.most = LEAST_REST.max(2 * self.rest.len());
    }

    /// Takes a line out; returns the place it had, if it was held.
    #[inline(always)]
    fn take(&mut self, line: u64, first: u32, vectors: impl Vectors) -> Option<u32> {
        let (home, tag) = self.split(line);
        let Bucket { tags, places } = &mut self.buckets[home];
        let found = vectors.equal(tags, tag);
        if found != 0 {
            let at = found.trailing_zeros() as usize % LANES;
            let before = std::mem::replace(&mut places[at], first.wrapping_sub(1));
            tags[at] = EMPTY;
            return is_held(before, first).then_some(before);
        }
        if !self.may_have_spilled(home) {
            return None;
        }
        self.rest.remove(&line).filter(|before| is_held(*before, first))
    }

    /// A line that is held has another place now.
    fn replace(&mut self, line: u64, before: u32, after: u32) {
        let Bucket { places, .. } = &mut self.buckets[self.split(line).0];
        // No other line has its place.
        match places.iter_mut().find(|place| **place == before) {
            Some(place) => *place = after,
            None => drop(self.rest.insert(line, after)),
        }
    }

    fn sweep(&mut self, first: u32) {
        for Bucket { tags, places } in &mut self.buckets {
            for (tag, place) in tags.iter_mut().zip(places) {
                if !is_held(*place, first) {
                    (*tag, *place) = (EMPTY, first.wrapping_sub(1));
                }
            }
        }
        self.sweep_rest(first);
    }
}

/// log2 of the lines in a piece of [`Seen`]: 4 MiB of memory.
const PIECE_SHIFT: u32 = 16;

/// Words in a piece.
const WORDS: usize = 1 << (PIECE_SHIFT - u64::BITS.trailing_zeros());

/// A set of lines: a bit for each, in pieces where there are some.
#[derive(Default)]
struct Seen(Vec<Option<Box<[u64; WORDS]>>>);

impl Seen {
    #[inline(always)]
    fn split(line: u64) -> (usize, usize, u64) {
        let word = line as usize >> u64::BITS.trailing_zeros() & (WORDS - 1);
        ((line >> PIECE_SHIFT) as usize, word, 1 << (line % u64::from(u64::BITS)))
    }

    #[inline(always)]
    fn prefetch(&self, line: u64) {
        let (piece, word, _) = Self::split(line);
        if let Some(Some(piece)) = self.0.get(piece) {
            host::prefetch(&piece[..], word);
        }
    }

    /// Adds a line; returns whether it was not there.
    #[inline(always)]
    fn insert(&mut self, line: u64) -> bool {
        let (number, word, bit) = Self::split(line);
        if !matches!(self.0.get(number), Some(Some(_))) {
            self.add_piece(number);
        }
        let piece = self.0[number].as_mut().expect("it is there now");
        let is_new = piece[word] & bit == 0;
        piece[word] |= bit;
        is_new
    }

    #[cold]
    fn add_piece(&mut self, number: usize) {
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        self.0[number] = Some(Box::new([0; WORDS]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Portable;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The line whose mixed number is this one; a small one is of the first bucket.
    fn line_of(mixed: u64) -> u64 {
        // Newton's iteration: each step doubles the bits that are right.
        let inverse =
            (0..6).fold(1u64, |x, _| x.wrapping_mul(2u64.wrapping_sub(FACTOR.wrapping_mul(x))));
        mixed.wrapping_mul(inverse) & ((1 << LINE_BITS) - 1)
    }

    /// A twin that has seen so many reads.
    fn starting_at(reads: usize, capacity: usize) -> Twin {
        let mut twin = Twin::new(capacity);
        (twin.first, twin.next, twin.swept) = (reads, reads, reads);
        let before = (reads as u32).wrapping_sub(1);
        twin.table.buckets.iter_mut().for_each(|bucket| bucket.places = [before; LANES]);
        twin
    }

    #[test]
    fn a_bucket_that_is_full_leaves_lines_to_the_rest() {
        let buckets = Twin::new(40).table.buckets.len() as u64;
        for bucket in [0, buckets - 1] {
            let mut twin = Twin::new(40);
            let first = bucket << twin.table.tag_bits;
            for mixed in first..first + 40 {
                assert_eq!(twin.read(line_of(mixed), Portable), Held::Never);
            }
            assert_eq!(twin.table.rest.len(), 40 - LANES);
            for mixed in first..first + 40 {
                assert_eq!(twin.read(line_of(mixed), Portable), Held::Yes);
            }
        }
    }

    proptest! {
        #[test]
        fn the_twin_is_a_list_in_order_of_use(
            capacity in 1usize..40,
            // Short distances, long ones, and lines far apart.
            reads in prop::collection::vec((0u64..60, 0u64..3, any::<bool>(), 0u8..3), 1..900),
            base in 0u64..1 << 37,
            takes in any::<bool>(),
            crowded in any::<bool>(),
            start in prop_oneof![Just(0usize), Just((1 << 31) - 300), Just((1 << 32) - 300)],
        ) {
            let mut twin = starting_at(start, capacity);
            let (mut list, mut seen) = (Vec::new(), BTreeSet::new());
            for (near, far, again, what) in reads {
                let line = if again { base + near % 4 } else { base + near + (far << 20) };
                let line = if crowded { line_of(near + 64 * far) } else { line };
                let at = list.iter().position(|other| *other == line);
                // Whoever takes lines out puts them in without reading them.
                let what = if takes && what == 0 { 1 } else { what };
                let is_put = takes && what == 2;
                let expected = match (at, !is_put && seen.insert(line)) {
                    (Some(_), _) => Held::Yes,
                    (None, true) => Held::Never,
                    (None, false) => Held::Dropped,
                };
                at.map(|at| list.remove(at));
                if what != 1 || !takes {
                    list.insert(0, line);
                    list.truncate(capacity);
                }
                twin.prefetch(line);
                match what {
                    1 if takes => prop_assert_eq!(twin.take(line, Portable), expected),
                    _ if is_put => prop_assert_eq!(twin.put(line, Portable), at.is_some()),
                    _ => prop_assert_eq!(twin.read(line, Portable), expected),
                }
                prop_assert_eq!(twin.held, list.len());
                let first = twin.first as u32;
                let places = twin.table.buckets.iter().flat_map(|bucket| &bucket.places);
                let places = places.chain(twin.table.rest.values());
                let used = places.filter(|place| is_held(**place, first)).count();
                prop_assert_eq!(used, list.len());
            }
        }
    }

    /// Places come again after many reads; lines that were dropped long before stay dropped.
    #[test]
    fn what_was_dropped_stays_so_when_places_come_again() {
        let mut twin = Twin::new(64);
        (0..64).for_each(|line| assert_eq!(twin.read(line, Portable), Held::Never));
        // The 96 lines in turn drop each other, and those of before.
        for i in 0..3 * FORGET as u64 {
            twin.read(1000 + i % 96, Portable);
        }
        for line in 0..64 {
            assert_eq!(twin.take(line, Portable), Held::Dropped, "{line}");
        }
        assert_eq!(twin.held, 64);
        let first = twin.first as u32;
        let places = twin.table.buckets.iter().flat_map(|bucket| bucket.places);
        let oldest = places.map(|place| first.wrapping_sub(place) as i32).max();
        assert!(oldest.is_some_and(|oldest| oldest <= FORGET as i32 + 128), "{oldest:?}");
    }
}
