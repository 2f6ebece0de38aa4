//! A set-associative array of tagged entries with true LRU replacement.

/// One set: a payload of 64 bits behind a tag of 64 bits in each way. The tag 0 is "empty".
#[derive(Clone)]
struct Set<const WAYS: usize> {
    tags: [u64; WAYS],
    /// When the way was last used, in units of [`TICK`], plus the number of the way, so that the
    /// least stamp says which way is oldest without a branch. An empty way has time 0: a fill
    /// takes it first. A way that the array does not have is of the end of time: a fill never
    /// takes it.
    stamps: [u64; WAYS],
    payloads: [u64; WAYS],
}

/// Ways that a stamp can name, and the unit of time above them.
const TICK: u64 = 64;

/// Sets with the same number of ways, at most `WAYS`. A hit is one store; only a fill looks for the
/// oldest.
pub(crate) struct SetsOf<const WAYS: usize> {
    sets: Box<[Set<WAYS>]>,
    clock: u64,
}

impl<const WAYS: usize> SetsOf<WAYS> {
    fn new(sets: usize, ways: usize) -> Self {
        debug_assert!(sets.is_power_of_two() && (1..=WAYS).contains(&ways));
        let stamps = std::array::from_fn(|way| if way < ways { way as u64 } else { u64::MAX });
        let set = Set { tags: [0; WAYS], stamps, payloads: [0; WAYS] };
        Self { sets: vec![set; sets].into_boxed_slice(), clock: 0 }
    }

    #[inline(always)]
    fn set(&mut self, page: u64) -> &mut Set<WAYS> {
        let mask = self.sets.len() - 1;
        &mut self.sets[page as usize & mask]
    }

    #[inline(always)]
    fn lookup(&mut self, page: u64, tag: u64) -> Option<u64> {
        self.clock += TICK;
        let clock = self.clock;
        let set = self.set(page);
        let way = set.way(tag);
        if way == WAYS {
            return None;
        }
        set.stamps[way] = clock | way as u64;
        Some(set.payloads[way])
    }

    fn payload_mut(&mut self, page: u64, tag: u64) -> Option<&mut u64> {
        let set = self.set(page);
        let way = set.way(tag);
        set.payloads.get_mut(way)
    }

    #[inline(always)]
    fn fill(&mut self, page: u64, tag: u64, payload: u64) {
        self.clock += TICK;
        let clock = self.clock;
        let set = self.set(page);
        debug_assert!(tag != 0 && set.way(tag) == WAYS);
        let way = set.stamps.iter().copied().fold(u64::MAX, u64::min) % TICK;
        let at = way as usize % WAYS;
        set.tags[at] = tag;
        set.stamps[at] = clock | way;
        set.payloads[at] = payload;
    }

    fn remove(&mut self, page: u64, tag: u64) {
        let set = self.set(page);
        let way = set.way(tag);
        if way < WAYS {
            set.empty(way);
        }
    }

    fn remove_where(&mut self, mut drop: impl FnMut(u64, &u64) -> bool) {
        for set in &mut self.sets {
            for way in 0..WAYS {
                if set.tags[way] != 0 && drop(set.tags[way], &set.payloads[way]) {
                    set.empty(way);
                }
            }
        }
    }
}

impl<const WAYS: usize> Set<WAYS> {
    /// Way of `tag`, or `WAYS`. Every way is compared: which one hits is random, so leaving early
    /// would mispredict.
    #[inline(always)]
    fn way(&self, tag: u64) -> usize {
        let mut found = WAYS;
        for (way, other) in self.tags.iter().enumerate() {
            found = if *other == tag { way } else { found };
        }
        found
    }

    fn empty(&mut self, way: usize) {
        self.tags[way] = 0;
        self.stamps[way] %= TICK;
    }
}

/// An array of any usual associativity; each has code of its own, unrolled.
pub(crate) enum Sets {
    UpTo4(SetsOf<4>),
    UpTo6(SetsOf<6>),
    UpTo8(SetsOf<8>),
    UpTo12(SetsOf<12>),
    UpTo16(SetsOf<16>),
    UpTo64(SetsOf<64>),
}

/// The largest associativity of [`Sets`].
pub(crate) const MAX_WAYS: u32 = 64;

/// The same expression for every associativity.
macro_rules! each {
    ($sets:expr, $of:pat => $do:expr) => {
        match $sets {
            Sets::UpTo4($of) => $do,
            Sets::UpTo6($of) => $do,
            Sets::UpTo8($of) => $do,
            Sets::UpTo12($of) => $do,
            Sets::UpTo16($of) => $do,
            Sets::UpTo64($of) => $do,
        }
    };
}

impl Sets {
    /// `sets` sets (a power of two) of `ways` ways (at most [`MAX_WAYS`]).
    pub(crate) fn new(sets: usize, ways: usize) -> Self {
        match ways {
            0..=4 => Self::UpTo4(SetsOf::new(sets, ways)),
            5..=6 => Self::UpTo6(SetsOf::new(sets, ways)),
            7..=8 => Self::UpTo8(SetsOf::new(sets, ways)),
            9..=12 => Self::UpTo12(SetsOf::new(sets, ways)),
            13..=16 => Self::UpTo16(SetsOf::new(sets, ways)),
            _ => Self::UpTo64(SetsOf::new(sets, ways)),
        }
    }

    /// The payload behind `tag` in the set of `page`, which becomes the most recently used there.
    #[inline(always)]
    pub(crate) fn lookup(&mut self, page: u64, tag: u64) -> Option<u64> {
        each!(self, sets => sets.lookup(page, tag))
    }

    /// The payload behind `tag`, to be changed in place; recency stays.
    pub(crate) fn payload_mut(&mut self, page: u64, tag: u64) -> Option<&mut u64> {
        each!(self, sets => sets.payload_mut(page, tag))
    }

    /// Puts an entry that is not there in the place of the least recently used one of its set.
    #[inline(always)]
    pub(crate) fn fill(&mut self, page: u64, tag: u64, payload: u64) {
        each!(self, sets => sets.fill(page, tag, payload));
    }

    /// Drops one entry, if it is there.
    pub(crate) fn remove(&mut self, page: u64, tag: u64) {
        each!(self, sets => sets.remove(page, tag));
    }

    /// Drops every entry whose tag and payload satisfy `drop`.
    pub(crate) fn remove_where(&mut self, drop: impl FnMut(u64, &u64) -> bool) {
        each!(self, sets => sets.remove_where(drop));
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.remove_where(|_, _| true);
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
            ways in prop_oneof![1usize..17, Just(40)],
            ops in prop::collection::vec((0u8..10, 0u64..128, any::<u64>()), 1..400),
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
                        fast.remove_where(|tag, _| tag % 4 == key);
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
