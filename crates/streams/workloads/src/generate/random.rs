//! Random numbers and permutations that are the same everywhere, for ever.

/// The generator of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators"
/// (OOPSLA 2014): a counter and a mixing function, so one access costs a few multiplications.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A sequence for this seed and this member of a family, such as a thread.
    pub fn new(seed: u64, member: u64) -> Self {
        // Mixed, so that neighbouring seeds and members give unrelated sequences.
        Self(mix(seed ^ mix(member.wrapping_add(GOLDEN))))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound`, from the high bits of one draw.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        scale(self.bits(), bound)
    }

    /// A number from 0 up to, not including, 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Maps 64 random bits to a number below `bound` (Lemire 2019, without the correction of a bias
/// of at most `bound` / 2^64).
#[inline]
pub fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// A random order of the numbers below `size`, without a table.
///
/// Multiplications by odd numbers and shifted exclusive-ors permute the numbers of as many bits
/// as `size` has; numbers that land at or above `size` are sent through again until they do not
/// ("cycle walking"), less than once on average.
#[derive(Clone, Debug)]
pub struct Permutation {
    size: u64,
    mask: u64,
    shift: u32,
    factors: [u64; 3],
    offset: u64,
}

impl Permutation {
    /// The permutation of this size and seed.
    ///
    /// # Panics
    /// When `size` is 0.
    pub fn new(size: u64, seed: u64) -> Self {
        let bits = 64 - (size - 1).leading_zeros();
        let mut random = SplitMix64::new(seed, u64::MAX);
        Self {
            size,
            mask: if bits == 64 { u64::MAX } else { (1 << bits) - 1 },
            shift: bits.div_ceil(2).max(1),
            factors: std::array::from_fn(|_| random.bits() | 1),
            offset: random.bits(),
        }
    }

    /// What goes to `place`: the inverse of [`Self::apply`].
    pub fn invert(&self, place: u64) -> u64 {
        debug_assert!(place < self.size);
        let mut value = place;
        loop {
            for factor in self.factors.iter().rev() {
                // At least half of the bits are shifted out, so that this undoes itself.
                value ^= value >> self.shift;
                value = value.wrapping_mul(inverse(*factor)) & self.mask;
            }
            value = value.wrapping_sub(self.offset) & self.mask;
            if value < self.size {
                return value;
            }
        }
    }

    /// Where `index` goes.
    #[inline]
    pub fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.size);
        let mut value = index;
        loop {
            value = value.wrapping_add(self.offset) & self.mask;
            for factor in self.factors {
                value = value.wrapping_mul(factor) & self.mask;
                value ^= value >> self.shift;
            }
            if value < self.size {
                return value;
            }
        }
    }
}

/// The inverse of an odd number modulo 2^64, by Newton's method: each step doubles the bits that are right,
/// of which an odd number has three to begin with.
fn inverse(odd: u64) -> u64 {
    let step = |x: u64| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
    (0..5).fold(odd, |x, _| step(x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_permutation_hits_every_number_once(size in 1u64..3000, seed: u64) {
            let permutation = Permutation::new(size, seed);
            let mut hit = vec![false; size as usize];
            for index in 0..size {
                let place = &mut hit[permutation.apply(index) as usize];
                prop_assert!(!std::mem::replace(place, true));
                prop_assert_eq!(permutation.invert(permutation.apply(index)), index);
            }
        }
    }

    #[test]
    fn a_permutation_leaves_little_in_order() {
        let size = 100_000;
        let permutation = Permutation::new(size, 1);
        let near = (0..size - 1)
            .filter(|&i| permutation.apply(i).abs_diff(permutation.apply(i + 1)) < size / 100)
            .count();
        // Two random numbers are that near with probability 2 %.
        assert!((1500..2500).contains(&near), "{near}");
    }

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs for the counter 1234567, as in the reference implementation's tests.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
        assert_eq!(random.bits(), 9_817_491_932_198_370_423);
    }
}
