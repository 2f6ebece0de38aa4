//! The fully associative cache that misses are compared with.

use crate::host;

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

/// Bits of a place in the log.
const PLACE_BITS: u32 = 26;

/// A slot of the table without a line.
const FREE: u64 = u64::MAX;

/// A fully associative cache with LRU replacement, and all lines ever read.
///
/// Reads are written into a log, a ring. A table of the lines held says where in it each was read last.
/// When a line must go, the oldest entry that is still its line's last is the one least recently used.
/// Entries are passed once, so that a read takes constant time on average.
pub(super) struct Twin {
    /// Lines it can hold.
    capacity: usize,
    held: usize,
    /// Lines in the order of reads; a power of two, at least twice the capacity.
    log: Box<[u64]>,
    /// The first entry that may be the last of its line, and the next to be written. They count on, and
    /// their lowest bits are places.
    first: usize,
    next: usize,
    table: Table,
    seen: Seen,
}

impl Twin {
    pub(super) fn new(capacity: usize) -> Self {
        let log = vec![0; (2 * capacity).next_power_of_two()].into_boxed_slice();
        debug_assert!(log.len() <= 1 << PLACE_BITS);
        let table = Table::new(capacity);
        Self { capacity, held: 0, log, first: 0, next: 0, table, seen: Seen::default() }
    }

    /// Asks for what a read of this line will need.
    #[inline(always)]
    pub(super) fn prefetch(&self, line: u64) {
        host::prefetch(&self.table.slots, self.table.home(line));
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
        match self.table.find(line) {
            Ok(slot) => {
                self.table.remove(slot);
                self.held -= 1;
                Held::Yes
            }
            Err(_) if is_new => Held::Never,
            Err(_) => Held::Dropped,
        }
    }

    /// Makes a line the most recently used one; returns whether it was there.
    #[inline(always)]
    pub(super) fn put(&mut self, line: u64) -> bool {
        if self.next - self.first == self.log.len() {
            self.compact();
        }
        let place = self.append(line);
        match self.table.find(line) {
            Ok(slot) => {
                self.table.slots[slot] = entry(line, place);
                true
            }
            Err(slot) => {
                self.table.slots[slot] = entry(line, place);
                self.held += 1;
                if self.held > self.capacity {
                    self.drop_oldest();
                }
                false
            }
        }
    }

    #[inline(always)]
    fn append(&mut self, line: u64) -> usize {
        let place = self.next & (self.log.len() - 1);
        self.log[place] = line;
        self.next += 1;
        place
    }

    /// The slot of the line of the oldest entry, if that is the line's last.
    #[inline(always)]
    fn oldest(&mut self) -> (u64, Option<usize>) {
        let place = self.first & (self.log.len() - 1);
        let line = self.log[place];
        self.first += 1;
        // The one to be looked for some entries later.
        let later = self.log[(place + 16) & (self.log.len() - 1)];
        host::prefetch(&self.table.slots, self.table.home(later));
        let slot = self.table.find(line).ok();
        (line, slot.filter(|slot| self.table.slots[*slot] == entry(line, place)))
    }

    #[inline(always)]
    fn drop_oldest(&mut self) {
        // There are more lines than it can hold, and each has an entry.
        loop {
            if let (_, Some(slot)) = self.oldest() {
                self.table.remove(slot);
                self.held -= 1;
                return;
            }
        }
    }

    /// The log is full: entries that are not the last of their line go. At least half of it is free
    /// then.
    #[cold]
    fn compact(&mut self) {
        for _ in 0..self.log.len() {
            if let (line, Some(slot)) = self.oldest() {
                let place = self.append(line);
                self.table.slots[slot] = entry(line, place);
            }
        }
    }
}

/// A line with its place in the log.
#[inline(always)]
fn entry(line: u64, place: usize) -> u64 {
    line << PLACE_BITS | place as u64
}

/// Lines and their places, open-addressed, at most half full.
struct Table {
    slots: Box<[u64]>,
    shift: u32,
}

impl Table {
    /// A table of up to `lines` lines and one more.
    fn new(lines: usize) -> Self {
        let slots = (2 * (lines + 1)).next_power_of_two();
        let shift = u64::BITS - slots.trailing_zeros();
        Self { slots: vec![FREE; slots].into_boxed_slice(), shift }
    }

    /// Where the search for a line begins.
    #[inline(always)]
    fn home(&self, line: u64) -> usize {
        // 2^64 divided by the golden ratio: Fibonacci hashing (Knuth, volume 3, section 6.4).
        (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The slot of a line, or the free one where it would be.
    #[inline(always)]
    fn find(&self, line: u64) -> Result<usize, usize> {
        let mut slot = self.home(line);
        loop {
            match self.slots[slot] {
                FREE => return Err(slot),
                found if found >> PLACE_BITS == line => return Ok(slot),
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
    }

    /// Empties a slot. What was pushed past it moves back (Knuth, volume 3, section 6.4, algorithm R).
    #[inline(always)]
    fn remove(&mut self, mut free: usize) {
        let last = self.slots.len() - 1;
        let mut slot = free;
        loop {
            slot = (slot + 1) & last;
            let other = self.slots[slot];
            if other == FREE {
                break;
            }
            let home = self.home(other >> PLACE_BITS);
            // Its home is not after the free slot: it may move there.
            if slot.wrapping_sub(home) & last >= slot.wrapping_sub(free) & last {
                self.slots[free] = other;
                free = slot;
            }
        }
        self.slots[free] = FREE;
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
        ) {
            let mut twin = Twin::new(capacity);
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
                let used = twin.table.slots.iter().filter(|slot| **slot != FREE).count();
                prop_assert_eq!(used, list.len());
            }
        }
    }
}
