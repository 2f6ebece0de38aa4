//! A set-associative array of tagged entries with true LRU replacement.

/// A payload of 64 bits behind a tag of 64 bits, in sets of a few ways. The tag 0 is "empty".
///
/// Recency is a stamp per way: a hit is one store, and only a fill looks for the oldest. An empty
/// way has the stamp 0, so a fill takes it first.
pub(crate) struct Sets {
    tags: Box<[u64]>,
    stamps: Box<[u64]>,
    payloads: Box<[u64]>,
    ways: usize,
    mask: u64,
    clock: u64,
}

impl Sets {
    /// `sets` sets (a power of two) of `ways` ways.
    pub(crate) fn new(sets: usize, ways: usize) -> Self {
        debug_assert!(sets.is_power_of_two() && ways > 0);
        let empty = || vec![0; sets * ways].into_boxed_slice();
        Self {
            tags: empty(),
            stamps: empty(),
            payloads: empty(),
            ways,
            mask: sets as u64 - 1,
            clock: 0,
        }
    }

    #[inline]
    fn first_way(&self, set: u64) -> usize {
        (set & self.mask) as usize * self.ways
    }

    #[inline]
    fn position(&self, set: u64, tag: u64) -> Option<usize> {
        let first = self.first_way(set);
        // Every way is compared: which one hits is random, so leaving early would mispredict.
        let mut found = usize::MAX;
        for (way, other) in self.tags[first..first + self.ways].iter().enumerate() {
            if *other == tag {
                found = way;
            }
        }
        (found != usize::MAX).then(|| first + found)
    }

    /// The payload behind `tag`, which becomes the most recently used of its set.
    #[inline]
    pub(crate) fn lookup(&mut self, set: u64, tag: u64) -> Option<u64> {
        let at = self.position(set, tag)?;
        self.clock += 1;
        self.stamps[at] = self.clock;
        Some(self.payloads[at])
    }

    /// The payload behind `tag`, to be changed in place; recency stays.
    pub(crate) fn payload_mut(&mut self, set: u64, tag: u64) -> Option<&mut u64> {
        let at = self.position(set, tag)?;
        Some(&mut self.payloads[at])
    }

    /// Puts an entry that is not there in the place of the least recently used one.
    #[inline]
    pub(crate) fn fill(&mut self, set: u64, tag: u64, payload: u64) {
        debug_assert!(tag != 0 && self.position(set, tag).is_none());
        let first = self.first_way(set);
        let mut oldest = u64::MAX;
        let mut victim = 0;
        for (way, stamp) in self.stamps[first..first + self.ways].iter().enumerate() {
            if *stamp < oldest {
                oldest = *stamp;
                victim = way;
            }
        }
        self.clock += 1;
        self.tags[first + victim] = tag;
        self.stamps[first + victim] = self.clock;
        self.payloads[first + victim] = payload;
    }

    /// Drops one entry, if it is there.
    pub(crate) fn remove(&mut self, set: u64, tag: u64) {
        if let Some(at) = self.position(set, tag) {
            self.tags[at] = 0;
            self.stamps[at] = 0;
        }
    }

    /// Drops every entry whose tag satisfies `drop`.
    pub(crate) fn remove_where(&mut self, mut drop: impl FnMut(u64) -> bool) {
        for (tag, stamp) in self.tags.iter_mut().zip(self.stamps.iter_mut()) {
            if *tag != 0 && drop(*tag) {
                *tag = 0;
                *stamp = 0;
            }
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.tags.fill(0);
        self.stamps.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::NaiveSets;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sets_equal_their_naive_twin(
            log_sets in 0u32..4,
            ways in 1usize..9,
            ops in prop::collection::vec((0u8..10, 0u64..64, any::<u64>()), 1..400),
        ) {
            let sets = 1usize << log_sets;
            let mut fast = Sets::new(sets, ways);
            let mut naive = NaiveSets::new(sets, ways);
            for (op, key, payload) in ops {
                let (set, tag) = (key, key + 1);
                match op {
                    0 => {
                        fast.remove(set, tag);
                        naive.remove(set, tag);
                    }
                    1 if key == 0 => {
                        fast.clear();
                        naive.remove_where(|_| true);
                    }
                    2 if key < 4 => {
                        fast.remove_where(|tag| tag % 4 == key);
                        naive.remove_where(|tag| tag % 4 == key);
                    }
                    _ => {
                        let got = fast.lookup(set, tag);
                        prop_assert_eq!(got, naive.lookup(set, tag));
                        if got.is_none() {
                            fast.fill(set, tag, payload);
                            naive.fill(set, tag, payload);
                        }
                    }
                }
            }
        }
    }
}
