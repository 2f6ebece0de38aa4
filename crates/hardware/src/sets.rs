//! A set-associative array of tagged entries with true LRU replacement.

/// A payload of 64 bits behind a tag of 64 bits, in sets of a few ways. The tag 0 is "empty".
///
/// Recency is a stamp per way: a hit is one store, and only a fill looks for the oldest. The way
/// itself is in the low bits of its stamp, so that the least stamp says which way is oldest without
/// a branch. An empty way has a stamp of time 0, so a fill takes it first.
pub(crate) struct Sets {
    tags: Box<[u64]>,
    stamps: Box<[u64]>,
    payloads: Box<[u64]>,
    ways: usize,
    mask: u64,
    /// Time in multiples of [`TICK`].
    clock: u64,
}

/// Ways that a stamp can name, and the time unit above them.
pub(crate) const TICK: u64 = 64;

impl Sets {
    /// `sets` sets (a power of two) of `ways` ways (at most [`TICK`]).
    pub(crate) fn new(sets: usize, ways: usize) -> Self {
        debug_assert!(sets.is_power_of_two() && (1..=TICK as usize).contains(&ways));
        let empty = || vec![0; sets * ways].into_boxed_slice();
        Self {
            tags: empty(),
            stamps: (0..sets).flat_map(|_| 0..ways as u64).collect(),
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

    /// Way within the set that starts at `first`; the ways in all when `tag` is not there.
    #[inline(always)]
    fn way(&self, first: usize, tag: u64) -> usize {
        let tags = &self.tags[first..first + self.ways];
        // The usual associativities as constants: the loop is unrolled.
        match self.ways {
            4 => way_of::<4>(tags, tag),
            6 => way_of::<6>(tags, tag),
            8 => way_of::<8>(tags, tag),
            12 => way_of::<12>(tags, tag),
            16 => way_of::<16>(tags, tag),
            _ => tags.iter().position(|other| *other == tag).unwrap_or(self.ways),
        }
    }

    /// Way of the least recently used entry of the set that starts at `first`.
    #[inline(always)]
    fn oldest(&self, first: usize) -> u64 {
        let stamps = &self.stamps[first..first + self.ways];
        let least = match self.ways {
            4 => least_of::<4>(stamps),
            6 => least_of::<6>(stamps),
            8 => least_of::<8>(stamps),
            12 => least_of::<12>(stamps),
            16 => least_of::<16>(stamps),
            _ => stamps.iter().copied().fold(u64::MAX, u64::min),
        };
        least % TICK
    }

    fn position(&self, set: u64, tag: u64) -> Option<usize> {
        let first = self.first_way(set);
        let way = self.way(first, tag);
        (way < self.ways).then(|| first + way)
    }

    /// The payload behind `tag`, which becomes the most recently used of its set.
    #[inline(always)]
    pub(crate) fn lookup(&mut self, set: u64, tag: u64) -> Option<u64> {
        let first = self.first_way(set);
        let way = self.way(first, tag);
        if way == self.ways {
            return None;
        }
        self.clock += TICK;
        self.stamps[first + way] = self.clock | way as u64;
        Some(self.payloads[first + way])
    }

    /// The payload behind `tag`, to be changed in place; recency stays.
    pub(crate) fn payload_mut(&mut self, set: u64, tag: u64) -> Option<&mut u64> {
        let at = self.position(set, tag)?;
        Some(&mut self.payloads[at])
    }

    /// Puts an entry that is not there in the place of the least recently used one.
    #[inline(always)]
    pub(crate) fn fill(&mut self, set: u64, tag: u64, payload: u64) {
        debug_assert!(tag != 0 && self.position(set, tag).is_none());
        let first = self.first_way(set);
        let way = self.oldest(first);
        let at = first + way as usize;
        self.clock += TICK;
        self.tags[at] = tag;
        self.stamps[at] = self.clock | way;
        self.payloads[at] = payload;
    }

    /// Drops one entry, if it is there.
    pub(crate) fn remove(&mut self, set: u64, tag: u64) {
        if let Some(at) = self.position(set, tag) {
            self.tags[at] = 0;
            self.stamps[at] %= TICK;
        }
    }

    /// Drops every entry whose tag satisfies `drop`.
    pub(crate) fn remove_where(&mut self, mut drop: impl FnMut(u64) -> bool) {
        for (tag, stamp) in self.tags.iter_mut().zip(self.stamps.iter_mut()) {
            if *tag != 0 && drop(*tag) {
                *tag = 0;
                *stamp %= TICK;
            }
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.tags.fill(0);
        for stamp in &mut self.stamps {
            *stamp %= TICK;
        }
    }
}

/// Position of `tag`, or `WAYS`. Every way is compared: which one hits is random, so leaving early
/// would mispredict.
#[inline]
fn way_of<const WAYS: usize>(tags: &[u64], tag: u64) -> usize {
    let tags: &[u64; WAYS] = tags.try_into().expect("the slice has this length");
    let mut found = WAYS;
    for (way, other) in tags.iter().enumerate() {
        found = if *other == tag { way } else { found };
    }
    found
}

#[inline]
fn least_of<const WAYS: usize>(stamps: &[u64]) -> u64 {
    let stamps: &[u64; WAYS] = stamps.try_into().expect("the slice has this length");
    stamps.iter().copied().fold(u64::MAX, u64::min)
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
