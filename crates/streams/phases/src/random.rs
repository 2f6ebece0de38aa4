//! Numbers that look random and are the same each time.

use strata_stream::mixed;

/// A sequence of them.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    seed: u64,
    taken: u64,
}

impl Random {
    /// The sequence of a seed and a subject: subjects have sequences of their own.
    pub(crate) fn new(seed: u64, subject: u64) -> Self {
        Self { seed: mixed(seed, subject), taken: 0 }
    }

    fn next(&mut self) -> u64 {
        self.taken += 1;
        mixed(self.seed, self.taken)
    }

    /// From 0 to 1, without 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One of `0..count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    /// So many of a list, at random, in the order of the list.
    pub(crate) fn some_of(&mut self, list: &[usize], count: usize) -> Vec<usize> {
        let mut left = list.to_vec();
        let count = count.min(left.len());
        for at in 0..count {
            let other = at + self.below(left.len() - at);
            left.swap(at, other);
        }
        left.truncate(count);
        left.sort_unstable();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_drawn_as_often_as_another() {
        let list: Vec<usize> = (0..10).collect();
        let mut drawn = [0; 10];
        for subject in 0..2000 {
            let some = Random::new(7, subject).some_of(&list, 3);
            assert!(some.is_sorted() && some.windows(2).all(|pair| pair[0] != pair[1]));
            some.into_iter().for_each(|one| drawn[one] += 1);
        }
        // 600 each, with a standard deviation of 20.
        assert!(drawn.iter().all(|count| (520..680).contains(count)), "{drawn:?}");
        assert_eq!(Random::new(1, 2).some_of(&list, 99), list);
        assert_ne!(Random::new(1, 2).some_of(&list, 5), Random::new(2, 2).some_of(&list, 5));
    }
}
