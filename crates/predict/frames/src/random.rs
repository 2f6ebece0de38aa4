//! SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a few lines that no release of a library can
//! change, so that a seed means the same memory for good.

pub(crate) struct Random(u64);

/// Between the states of two numbers.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn mix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// log2 of the steps in which a density is given.
const DENSITY_BITS: u32 = 16;

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// What [`next`](Self::next) gives after `n` others: any part of a stream without those before.
    /// A bijection of `n`.
    #[inline]
    pub fn nth(seed: u64, n: u64) -> u64 {
        mix(seed.wrapping_add(STEP.wrapping_mul(n.wrapping_add(1))))
    }

    /// A number below `end`; the bias is below `end / 2^64`.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// A word each of whose bits is set with probability `share`, to 1 in 65536.
    ///
    /// Built from the binary digits of the share, lowest first: a fair word or-ed in puts the
    /// probability at (1 + p) / 2, and-ed in at p / 2.
    #[inline]
    pub fn word(&mut self, share: f64) -> u64 {
        let digits = (share * f64::from(1u32 << DENSITY_BITS)).round() as u32;
        if digits >= 1 << DENSITY_BITS {
            return u64::MAX;
        }
        let mut word = 0;
        for digit in digits.trailing_zeros()..DENSITY_BITS {
            let fair = self.next();
            word = if digits >> digit & 1 != 0 { word | fair } else { word & fair };
        }
        word
    }
}

/// The numbers below `count` in an order drawn by `seed`; the same arguments give the same order.
pub fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed);
    let mut numbers: Vec<u64> = (0..count).collect();
    for next in 1..numbers.len() {
        let drawn = random.below(next as u64 + 1) as usize;
        numbers.swap(next, drawn);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_number_and_no_order() {
        let mut numbers = shuffled(1000, 3);
        assert_eq!(numbers, shuffled(1000, 3));
        assert_ne!(numbers, shuffled(1000, 4));
        let in_place = numbers.iter().enumerate().filter(|&(at, number)| at as u64 == *number);
        assert!(in_place.count() < 10);
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1000));
        assert!(shuffled(0, 1).is_empty());
    }

    /// The outputs of the reference implementation for seed 1234567.
    #[test]
    fn follows_the_reference() {
        let mut random = Random::new(1_234_567);
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!([random.next(), random.next(), random.next()], expected);
        assert_eq!([0, 1, 2].map(|n| Random::nth(1_234_567, n)), expected);
    }

    #[test]
    fn words_have_the_density_asked_for() {
        let mut random = Random::new(7);
        for share in [0.0, 0.01, 0.25, 0.3, 0.5, 0.9, 1.0] {
            let ones: u32 = (0..4000).map(|_| random.word(share).count_ones()).sum();
            let found = f64::from(ones) / (4000.0 * 64.0);
            assert!((found - share).abs() < 0.005, "{share}: {found}");
        }
    }
}
