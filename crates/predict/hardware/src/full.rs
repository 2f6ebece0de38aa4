//! A fully associative array of tagged entries with true LRU replacement.

/// Buckets for each entry. With so many, a miss mostly finds its bucket empty and a hit mostly
/// finds its slot first, so that the branches of a search are predictable.
const BUCKETS_PER_ENTRY: usize = 16;

/// No slot.
const NIL: u16 = u16::MAX;

struct Slot<P> {
    /// 0 is "empty".
    tag: u64,
    payload: P,
    /// Towards more recent use; from the newest slot to the oldest one.
    newer: u16,
    /// Towards less recent use; from the oldest slot to the newest one.
    older: u16,
    /// Next slot whose tag falls into the same bucket.
    chain: u16,
}

/// Entries behind tags of 64 bits. Hardware compares all tags at once; here a bucket per tag and
/// a ring in order of use find hit and victim without looking at the other entries.
pub(crate) struct Full<P> {
    slots: Box<[Slot<P>]>,
    buckets: Box<[u16]>,
    shift: u32,
    /// Where the ring begins. The slot before is the oldest, so that a fill, which takes that one,
    /// only moves the beginning.
    newest: u16,
}

impl<P: Copy + Default> Full<P> {
    /// Room for `entries` entries; with 0, every lookup misses.
    pub(crate) fn new(entries: u16) -> Self {
        debug_assert!(entries < NIL);
        let slot = |at: u16| Slot {
            tag: 0,
            payload: P::default(),
            newer: at.checked_sub(1).unwrap_or(entries - 1),
            older: if at + 1 == entries { 0 } else { at + 1 },
            chain: NIL,
        };
        let buckets = (BUCKETS_PER_ENTRY * entries as usize).next_power_of_two().max(2);
        Self {
            slots: (0..entries).map(slot).collect(),
            buckets: vec![NIL; buckets].into_boxed_slice(),
            shift: 64 - buckets.trailing_zeros(),
            newest: 0,
        }
    }

    #[inline]
    fn bucket(&self, tag: u64) -> usize {
        // Fibonacci hashing: neighbouring pages spread evenly.
        (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn position(&self, tag: u64) -> u16 {
        let mut at = self.buckets[self.bucket(tag)];
        while at != NIL && self.slots[at as usize].tag != tag {
            at = self.slots[at as usize].chain;
        }
        at
    }

    /// The payload behind `tag`, which becomes the most recently used.
    #[inline]
    pub(crate) fn lookup(&mut self, tag: u64) -> Option<P> {
        let at = self.position(tag);
        if at == NIL {
            return None;
        }
        self.make_newest(at);
        Some(self.slots[at as usize].payload)
    }

    /// The payload behind `tag`, to be changed in place; recency stays.
    pub(crate) fn payload_mut(&mut self, tag: u64) -> Option<&mut P> {
        let at = self.position(tag);
        (at != NIL).then(|| &mut self.slots[at as usize].payload)
    }

    /// Puts an entry that is not there in the place of the least recently used one.
    #[inline]
    pub(crate) fn fill(&mut self, tag: u64, payload: P) {
        debug_assert!(tag != 0 && self.position(tag) == NIL);
        let Some(newest) = self.slots.get(self.newest as usize) else { return };
        let at = newest.newer;
        if self.slots[at as usize].tag != 0 {
            self.unchain(at);
        }
        let bucket = self.bucket(tag);
        let slot = &mut self.slots[at as usize];
        slot.tag = tag;
        slot.payload = payload;
        slot.chain = self.buckets[bucket];
        self.buckets[bucket] = at;
        self.newest = at;
    }

    /// Drops one entry, if it is there.
    pub(crate) fn remove(&mut self, tag: u64) {
        let at = self.position(tag);
        if at != NIL {
            self.empty(at);
        }
    }

    /// Drops every entry whose tag and payload satisfy `drop`.
    pub(crate) fn remove_where(&mut self, mut drop: impl FnMut(u64, &P) -> bool) {
        for at in 0..self.slots.len() {
            let slot = &self.slots[at];
            if slot.tag != 0 && drop(slot.tag, &slot.payload) {
                self.empty(at as u16);
            }
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        // The order of empty slots does not matter: each is filled before any other is replaced.
        for slot in &mut self.slots {
            slot.tag = 0;
        }
        self.buckets.fill(NIL);
    }

    /// Empties a slot and makes it the next to be filled.
    fn empty(&mut self, at: u16) {
        self.unchain(at);
        self.slots[at as usize].tag = 0;
        self.make_newest(at);
        self.newest = self.slots[at as usize].older;
    }

    fn unchain(&mut self, at: u16) {
        let bucket = self.bucket(self.slots[at as usize].tag);
        let after = self.slots[at as usize].chain;
        let mut before = self.buckets[bucket];
        if before == at {
            self.buckets[bucket] = after;
            return;
        }
        while self.slots[before as usize].chain != at {
            before = self.slots[before as usize].chain;
        }
        self.slots[before as usize].chain = after;
    }

    #[inline]
    fn make_newest(&mut self, at: u16) {
        let newest = self.newest;
        if at == newest {
            return;
        }
        let oldest = self.slots[newest as usize].newer;
        self.newest = at;
        if at == oldest {
            return;
        }
        let Slot { newer, older, .. } = self.slots[at as usize];
        self.slots[newer as usize].older = older;
        self.slots[older as usize].newer = newer;
        self.slots[at as usize].newer = oldest;
        self.slots[at as usize].older = newest;
        self.slots[oldest as usize].older = at;
        self.slots[newest as usize].newer = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::NaiveSets;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_array_equals_its_naive_twin(
            entries in 0u16..20,
            ops in prop::collection::vec((0u8..10, 0u64..40, any::<u64>()), 1..400),
        ) {
            let mut fast = Full::new(entries);
            let mut naive = NaiveSets::new(1, entries as usize);
            for (op, key, payload) in ops {
                let tag = key + 1;
                match op {
                    0 => {
                        fast.remove(tag);
                        naive.remove(0, tag);
                    }
                    1 if key == 0 => {
                        fast.clear();
                        naive.remove_where(|_| true);
                    }
                    2 if key < 4 => {
                        fast.remove_where(|tag, _| tag % 4 == key);
                        naive.remove_where(|tag| tag % 4 == key);
                    }
                    _ => {
                        let got = fast.lookup(tag);
                        prop_assert_eq!(got, naive.lookup(0, tag));
                        if got.is_none() {
                            fast.fill(tag, payload);
                            naive.fill(0, tag, payload);
                        }
                    }
                }
            }
        }
    }
}
