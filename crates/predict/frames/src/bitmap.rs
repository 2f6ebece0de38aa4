//! A bitmap in which the next set bit is found in a few steps at any size.
//!
//! Level 0 holds the bits. A bit of level `n + 1` says that the word of level `n` with its number
//! is not zero, up to a level of one word:
//!
//! ```text
//! level 2                       1
//! level 1          1 0 1 ...                  (64 bits a word)
//! level 0   0110.. 0000.. 1000..              (64 bits a word)
//! ```

/// Enough for 64^6 bits, 256 TiB of frames.
const MAX_LEVELS: usize = 6;

pub(crate) struct Bitmap {
    /// All levels in one zeroed allocation, level 0 first.
    words: Vec<u64>,
    /// Where each level starts in `words`.
    starts: [usize; MAX_LEVELS],
    levels: usize,
    /// Words of level 0.
    leaves: usize,
}

impl Bitmap {
    /// A bitmap of at least `bits` bits, all clear, committed on touch.
    pub fn new(bits: u64) -> Self {
        let mut starts = [0; MAX_LEVELS];
        let leaves = (bits.max(1) as usize).div_ceil(64);
        let (mut levels, mut words, mut width) = (1, leaves, leaves);
        while width > 1 {
            assert!(levels < MAX_LEVELS, "a memory is at most 256 TiB");
            starts[levels] = words;
            levels += 1;
            width = width.div_ceil(64);
            words += width;
        }
        Self { words: vec![0; words], starts, levels, leaves }
    }

    #[inline]
    pub fn test(&self, index: u64) -> bool {
        self.words[index as usize / 64] >> (index % 64) & 1 != 0
    }

    #[inline]
    pub fn set(&mut self, index: u64) {
        let mut index = index as usize;
        for &start in &self.starts[..self.levels] {
            let word = &mut self.words[start + index / 64];
            let before = *word;
            *word = before | 1 << (index % 64);
            if before != 0 {
                return;
            }
            index /= 64;
        }
    }

    #[inline]
    pub fn clear(&mut self, index: u64) {
        let mut index = index as usize;
        for &start in &self.starts[..self.levels] {
            let word = &mut self.words[start + index / 64];
            *word &= !(1 << (index % 64));
            if *word != 0 {
                return;
            }
            index /= 64;
        }
    }

    /// Sets the bits below `end`, by whole words.
    pub fn set_below(&mut self, end: u64) {
        let mut end = end as usize;
        for &start in &self.starts[..self.levels] {
            self.words[start..start + end / 64].fill(u64::MAX);
            if !end.is_multiple_of(64) {
                self.words[start + end / 64] |= (1 << (end % 64)) - 1;
            }
            end = end.div_ceil(64);
        }
    }

    /// The lowest set bit.
    #[inline]
    pub fn first(&self) -> Option<u64> {
        let mut index = 0;
        for &start in self.starts[..self.levels].iter().rev() {
            let word = self.words[start + index];
            if word == 0 {
                return None;
            }
            index = index * 64 + word.trailing_zeros() as usize;
        }
        Some(index as u64)
    }

    /// The lowest set bit at or above `from`.
    pub fn next_set(&self, from: u64) -> Option<u64> {
        let mut index = from as usize;
        for level in 0..self.levels {
            let width = self.starts.get(level + 1).copied().filter(|_| level + 1 < self.levels);
            let end = width.unwrap_or(self.words.len());
            let at = self.starts[level] + index / 64;
            if at >= end {
                return None;
            }
            let word = self.words[at] >> (index % 64);
            if word != 0 {
                return Some(self.descend(level, index + word.trailing_zeros() as usize));
            }
            index = index / 64 + 1;
        }
        None
    }

    /// The lowest bit below bit `index` of `level`, which is set.
    fn descend(&self, level: usize, mut index: usize) -> u64 {
        for &start in self.starts[..level].iter().rev() {
            index = index * 64 + self.words[start + index].trailing_zeros() as usize;
        }
        index as u64
    }

    /// The lowest clear bit at or above `from`; past the end all are clear.
    pub fn next_clear(&self, from: u64) -> u64 {
        let mut at = from as usize / 64;
        let mut inverted = match self.words[..self.leaves].get(at) {
            Some(word) => !word >> (from % 64) << (from % 64),
            None => return from,
        };
        while inverted == 0 {
            at += 1;
            match self.words[..self.leaves].get(at) {
                Some(word) => inverted = !word,
                None => return at as u64 * 64,
            }
        }
        at as u64 * 64 + u64::from(inverted.trailing_zeros())
    }

    /// The lowest `start >= from` with `length` set bits in a row from it on.
    pub fn next_run(&self, from: u64, length: u64) -> Option<u64> {
        let mut at = from as usize / 64;
        let mut cut = u64::MAX << (from % 64);
        // Set bits at the end of the words seen so far.
        let mut carry = 0;
        while at < self.leaves {
            let word = self.words[at] & cut;
            cut = u64::MAX;
            if word == 0 {
                carry = 0;
                at = self.next_set((at as u64 + 1) * 64)? as usize / 64;
                continue;
            }
            let base = at as u64 * 64;
            if carry + u64::from(word.trailing_ones()) >= length {
                return Some(base - carry);
            }
            if word == u64::MAX {
                carry += 64;
            } else {
                let starts = run_starts(word, length);
                if starts != 0 {
                    return Some(base + u64::from(starts.trailing_zeros()));
                }
                carry = u64::from(word.leading_ones());
            }
            at += 1;
        }
        None
    }

    /// Start and length of the longest run of set bits, the lowest of equals.
    pub fn longest_run(&self) -> Option<(u64, u64)> {
        let (mut start, mut length) = (0, 0);
        while let Some(found) = self.next_run(start + length, length + 1) {
            start = found;
            length = self.next_clear(found) - found;
        }
        (length > 0).then_some((start, length))
    }

    /// The set bits, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let found = self.next_set(from)?;
            from = found + 1;
            Some(found)
        })
    }

    /// Makes the top level say something that the others do not.
    #[cfg(test)]
    pub fn damage_top(&mut self) {
        *self.words.last_mut().expect("a bitmap has words") ^= 1;
    }

    /// Whether every upper level says what the one below it holds.
    pub fn is_consistent(&self) -> bool {
        (1..self.levels).all(|level| {
            let below = &self.words[self.starts[level - 1]..self.starts[level]];
            below.iter().enumerate().all(|(i, &word)| {
                let bit = self.words[self.starts[level] + i / 64] >> (i % 64) & 1;
                (bit != 0) == (word != 0)
            })
        })
    }
}

/// The bits of `word` at which `length` set bits in a row begin, inside the word.
fn run_starts(word: u64, length: u64) -> u64 {
    if length > 64 {
        return 0;
    }
    // Invariant: a bit of `starts` is set where `have` set bits begin.
    let (mut starts, mut have) = (word, 1);
    while have < length && starts != 0 {
        let step = have.min(length - have);
        starts &= starts >> step;
        have += step;
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn naive_run(set: &BTreeSet<u64>, from: u64, length: u64, bits: u64) -> Option<u64> {
        (from..bits).find(|&start| (start..start + length).all(|bit| set.contains(&bit)))
    }

    fn naive_longest(set: &BTreeSet<u64>) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        let mut run = (0, 0);
        for &bit in set {
            run = if run.0 + run.1 == bit { (run.0, run.1 + 1) } else { (bit, 1) };
            if best.is_none_or(|(_, longest)| run.1 > longest) {
                best = Some(run);
            }
        }
        best
    }

    proptest! {
        /// Ranges rather than single bits, so that runs cross words and levels; some begin and end
        /// with a word, where runs are carried over.
        #[test]
        fn agrees_with_a_set(
            bits in 1..9000u64,
            full in any::<bool>(),
            changes in prop::collection::vec(
                prop_oneof![
                    (0..9000u64, 1..300u64, any::<bool>()),
                    (0..140u64, 1..4u64, any::<bool>()).prop_map(|(a, n, on)| (a * 64, n * 64, on)),
                ],
                0..60,
            ),
            queries in prop::collection::vec((0..9200u64, 1..400u64), 20),
        ) {
            let mut map = Bitmap::new(bits);
            let mut twin = BTreeSet::new();
            if full {
                map.set_below(bits);
                twin.extend(0..bits);
            }
            for (at, length, on) in changes {
                for bit in (at..at + length).filter(|&bit| bit < bits) {
                    if on {
                        map.set(bit);
                        twin.insert(bit);
                    } else {
                        map.clear(bit);
                        twin.remove(&bit);
                    }
                }
            }
            prop_assert!(map.is_consistent());
            prop_assert_eq!(map.first(), twin.first().copied());
            prop_assert!(map.iter().eq(twin.iter().copied()));
            prop_assert_eq!(map.longest_run(), naive_longest(&twin));
            for (from, length) in queries {
                prop_assert_eq!(map.next_set(from), twin.range(from..).next().copied());
                prop_assert_eq!(map.next_clear(from), (from..).find(|b| !twin.contains(b)).unwrap());
                prop_assert_eq!(map.next_run(from, length), naive_run(&twin, from, length, bits));
                if from < bits {
                    prop_assert_eq!(map.test(from), twin.contains(&from));
                }
            }
        }
    }

    #[test]
    fn large_maps_are_found_from_both_ends() {
        let mut map = Bitmap::new(1 << 28);
        map.set((1 << 28) - 1);
        assert_eq!(map.first(), Some((1 << 28) - 1));
        assert_eq!(map.next_set(5), Some((1 << 28) - 1));
        map.set(3);
        assert_eq!((map.first(), map.next_set(4)), (Some(3), Some((1 << 28) - 1)));
        map.clear((1 << 28) - 1);
        assert_eq!(map.next_set(4), None);
        assert!(map.is_consistent());
    }
}
