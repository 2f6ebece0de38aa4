//! A set-associative array with least recently used replacement: enough of a cache or a TLB to see how fast
//! it fills.

/// The array. Keys are never 0.
#[derive(Clone, Debug)]
pub(super) struct Lru {
    ways: usize,
    sets: u64,
    /// Keys, set by set, the most recent first; 0 is nothing.
    keys: Vec<u64>,
}

impl Lru {
    /// An empty one of so many entries.
    pub(super) fn new(entries: u64, ways: u32) -> Self {
        let ways = u64::from(ways.max(1)).min(entries.max(1));
        let sets = (entries / ways).max(1);
        Self { ways: ways as usize, sets, keys: vec![0; (sets * ways) as usize] }
    }

    /// Uses a key, in the set that `index` says. Gives whether it was there.
    #[inline]
    pub(super) fn touch(&mut self, key: u64, index: u64) -> bool {
        // Most have a power of two of sets, and a division takes as long as all the rest.
        let set = match self.sets.is_power_of_two() {
            true => index & (self.sets - 1),
            false => index % self.sets,
        };
        let first = set as usize * self.ways;
        let set = &mut self.keys[first..first + self.ways];
        let found = set.iter().position(|known| *known == key);
        set[..=found.unwrap_or(self.ways - 1)].rotate_right(1);
        set[0] = key;
        found.is_some()
    }
}

/// A number that looks random for each key (the finaliser of MurmurHash3).
#[inline]
pub(super) fn spread(key: u64) -> u64 {
    let key = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let key = (key ^ (key >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    key ^ (key >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recent_goes() {
        let mut array = Lru::new(4, 4);
        let mut touch = |key| array.touch(key, 0);
        assert!([1, 2, 3, 4].into_iter().all(|key| !touch(key)));
        assert!(touch(1));
        assert!(!touch(5), "takes the place of 2");
        assert!(touch(3) && touch(1) && !touch(2));
        // More ways than entries are as many as there are.
        assert!(!Lru::new(0, 8).touch(7, 7));
    }

    #[test]
    fn sets_are_by_index() {
        let mut array = Lru::new(8, 1);
        assert!((1..=8).all(|key| !array.touch(key, key)));
        assert!((1..=8).all(|key| array.touch(key, key)), "each has a set of its own");
        assert!(!array.touch(9, 9) && !array.touch(1, 1), "nine follows eight sets after one");
    }

    #[test]
    fn keys_are_spread_over_sets() {
        let mut array = Lru::new(1024, 8);
        (1..=512).for_each(|key| {
            array.touch(key * 4096, spread(key * 4096));
        });
        let kept =
            (1..=512).filter(|key| array.clone().touch(key * 4096, spread(key * 4096))).count();
        assert!(kept > 500, "{kept}");
    }
}
