//! The fully associative cache that misses are compared with.

use crate::host;
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

/// Bits of a place in the log. Places are counted modulo twice as many as the longest log has, so that those
/// of lines dropped lately differ from those of lines held.
const PLACE_BITS: u32 = 26;

/// All bits of a place.
const PLACES: u64 = (1 << PLACE_BITS) - 1;

/// A slot of the table that nothing was ever in; no line has so high a number.
const FREE: u64 = u64::MAX;

/// Lines may be dropped so many places before the table must forget them: then their places come again.
const FORGET: usize = 1 << (PLACE_BITS - 2);

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
        Self::with_buckets(capacity, (capacity / 3).next_power_of_two())
    }

    fn with_buckets(capacity: usize, buckets: usize) -> Self {
        let entries = (2 * capacity).next_power_of_two().max(u64::BITS as usize);
        debug_assert!(entries <= 1 << (PLACE_BITS - 1));
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
    pub(super) fn read(&mut self, line: u64) -> Held {
        match self.put(line) {
            true => Held::Yes,
            false if self.seen.insert(line) => Held::Never,
            false => Held::Dropped,
        }
    }

    /// Reads a line, which leaves when it is there.
    #[inline(always)]
    pub(super) fn take(&mut self, line: u64) -> Held {
        let is_new = self.seen.insert(line);
        match self.table.take(line, self.span()) {
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
    pub(super) fn put(&mut self, line: u64) -> bool {
        if self.next - self.first == self.log.len() {
            self.compact();
        }
        let place = self.append(line);
        if let Some(before) = self.table.put(entry(line, place), self.span()) {
            self.mark_stale(before);
            return true;
        }
        self.held += 1;
        if self.held > self.capacity {
            self.drop_oldest();
        }
        false
    }

    /// The part of the log that there is.
    #[inline(always)]
    fn span(&self) -> Span {
        Span { first: self.first as u64, len: (self.next - self.first) as u64 }
    }

    #[inline(always)]
    fn append(&mut self, line: u64) -> usize {
        let at = self.next & (self.log.len() - 1);
        self.log[at] = line;
        self.stale[at / 64] &= !(1 << (at % 64));
        self.next += 1;
        self.next - 1
    }

    #[inline(always)]
    fn mark_stale(&mut self, place: u64) {
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
        self.table.sweep(self.span());
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
            let before = entry(line, self.first);
            self.first += 1;
            if !is_stale {
                let place = self.append(line);
                self.table.replace(before, entry(line, place));
            }
        }
        self.swept = self.first;
    }
}

/// A line with its place in the log.
#[inline(always)]
fn entry(line: u64, place: usize) -> u64 {
    line << PLACE_BITS | place as u64 & PLACES
}

/// A part of the log.
#[derive(Clone, Copy)]
struct Span {
    first: u64,
    len: u64,
}

impl Span {
    /// Whether an entry of the table is of a line that is held.
    #[inline(always)]
    fn has(self, entry: u64) -> bool {
        (entry.wrapping_sub(self.first) & PLACES < self.len) & (entry != FREE)
    }
}

/// Slots of a bucket: as many as one line of the computer's cache has.
const SLOTS: usize = 8;

#[derive(Clone)]
#[repr(align(64))]
struct Bucket([u64; SLOTS]);

/// Lines and their places: each line in its bucket, or, where that is full, among the rest.
struct Table {
    buckets: Box<[Bucket]>,
    shift: u32,
    /// A bit for each bucket of which lines may be among the rest.
    spilled: Box<[u64]>,
    rest: BTreeMap<u64, u64>,
    /// How many of them there may be before those not held are looked for.
    most: usize,
}

/// Lines among the rest before anybody looks whether they are held.
const LEAST_REST: usize = 1024;

impl Table {
    /// A power of two of buckets.
    fn new(buckets: usize) -> Self {
        Self {
            // A shift by all bits of a number is none.
            shift: (u64::BITS - buckets.trailing_zeros()).min(u64::BITS - 1),
            buckets: vec![Bucket([FREE; SLOTS]); buckets].into_boxed_slice(),
            spilled: vec![0; buckets.div_ceil(64)].into(),
            rest: BTreeMap::new(),
            most: LEAST_REST,
        }
    }

    /// The bucket of a line.
    #[inline(always)]
    fn home(&self, line: u64) -> usize {
        // 2^64 divided by the golden ratio: Fibonacci hashing (Knuth, volume 3, section 6.4).
        let hash = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> self.shift) as usize & (self.buckets.len() - 1)
    }

    #[inline(always)]
    fn may_have_spilled(&self, bucket: usize) -> bool {
        self.spilled[bucket / 64] >> (bucket % 64) & 1 != 0
    }

    /// Puts an entry in the place of its line's; returns the place it had, if it was held.
    #[inline(always)]
    fn put(&mut self, entry: u64, span: Span) -> Option<u64> {
        let line = entry >> PLACE_BITS;
        let home = self.home(line);
        let Bucket(slots) = &mut self.buckets[home];
        let (mut found, mut free) = (0u32, 0u32);
        for (at, slot) in slots.iter().enumerate() {
            found |= u32::from(*slot >> PLACE_BITS == line) << at;
            free |= u32::from(!span.has(*slot)) << at;
        }
        if found != 0 {
            let before = std::mem::replace(&mut slots[found.trailing_zeros() as usize], entry);
            return (found & free == 0).then_some(before & PLACES);
        }
        if self.may_have_spilled(home)
            && let Some(before) = self.rest.get_mut(&line)
        {
            let before = std::mem::replace(before, entry);
            return span.has(before).then_some(before & PLACES);
        }
        match free {
            0 => self.spill(home, entry, span),
            free => self.buckets[home].0[free.trailing_zeros() as usize] = entry,
        }
        None
    }

    /// Puts an entry among the rest.
    #[cold]
    #[inline(never)]
    fn spill(&mut self, home: usize, entry: u64, span: Span) {
        self.spilled[home / 64] |= 1 << (home % 64);
        self.rest.insert(entry >> PLACE_BITS, entry);
        if self.rest.len() > self.most {
            self.sweep_rest(span);
        }
    }

    fn sweep_rest(&mut self, span: Span) {
        self.rest.retain(|_, entry| span.has(*entry));
        self.spilled.fill(0);
        for line in self.rest.keys() {
            let home = self.home(*line);
            self.spilled[home / 64] |= 1 << (home % 64);
        }
        self.most = LEAST_REST.max(2 * self.rest.len());
    }

    /// Takes a line out that is held; returns its place.
    #[inline(always)]
    fn take(&mut self, line: u64, span: Span) -> Option<u64> {
        let home = self.home(line);
        let slots = &mut self.buckets[home].0;
        if let Some(slot) = slots.iter_mut().find(|slot| **slot >> PLACE_BITS == line) {
            let before = std::mem::replace(slot, FREE);
            return span.has(before).then_some(before & PLACES);
        }
        if !self.may_have_spilled(home) {
            return None;
        }
        self.rest.remove(&line).filter(|before| span.has(*before)).map(|before| before & PLACES)
    }

    /// Puts an entry in the place of another of its line, which is there.
    fn replace(&mut self, before: u64, after: u64) {
        let line = before >> PLACE_BITS;
        let home = self.home(line);
        match self.buckets[home].0.iter_mut().find(|slot| **slot == before) {
            Some(slot) => *slot = after,
            None => drop(self.rest.insert(line, after)),
        }
    }

    fn sweep(&mut self, span: Span) {
        let slots = self.buckets.iter_mut().flat_map(|bucket| &mut bucket.0);
        slots.filter(|slot| !span.has(**slot)).for_each(|slot| *slot = FREE);
        self.sweep_rest(span);
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
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn the_twin_is_a_list_in_order_of_use(
            capacity in 1usize..40,
            // Short distances, long ones, and lines far apart.
            reads in prop::collection::vec((0u64..60, 0u64..3, any::<bool>(), 0u8..3), 1..900),
            base in 0u64..1 << 37,
            takes in any::<bool>(),
            crowded in any::<bool>(),
        ) {
            // With one bucket most lines are among the rest.
            let buckets = if crowded { 1 } else { 16 };
            let mut twin = Twin::with_buckets(capacity, buckets);
            let (mut list, mut seen) = (Vec::new(), BTreeSet::new());
            for (near, far, again, what) in reads {
                let line = if again { base + near % 4 } else { base + near + (far << 20) };
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
                    1 if takes => prop_assert_eq!(twin.take(line), expected),
                    _ if is_put => prop_assert_eq!(twin.put(line), at.is_some()),
                    _ => prop_assert_eq!(twin.read(line), expected),
                }
                prop_assert_eq!(twin.held, list.len());
                let (span, table) = (twin.span(), &twin.table);
                let known = table.buckets.iter().flat_map(|bucket| bucket.0).chain(table.rest.values().copied());
                let used = known.filter(|entry| span.has(*entry)).count();
                prop_assert_eq!(used, list.len());
            }
        }
    }

    /// Places come again after many reads; lines that were dropped long before stay dropped.
    #[test]
    fn what_was_dropped_stays_so_when_places_come_again() {
        let mut twin = Twin::with_buckets(64, 64);
        (0..64).for_each(|line| assert_eq!(twin.read(line), Held::Never));
        // The 96 lines in turn drop each other, and those of before.
        for i in 0..3 << (PLACE_BITS - 1) {
            twin.read(1000 + i % 96);
        }
        for line in 0..64 {
            assert_eq!(twin.take(line), Held::Dropped, "{line}");
        }
        assert_eq!(twin.held, 64);
    }
}
