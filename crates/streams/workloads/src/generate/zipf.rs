//! Zipf's distribution over any number of ranks, without a table.
//!
//! Rejection-inversion: W. Hörmann, G. Derflinger, "Rejection-inversion to generate variates from
//! monotone discrete distributions", ACM TOMACS 6(3), 1996. Rank `k` has probability proportional
//! to `k^-theta`; time and memory do not depend on the number of ranks. The functions come from
//! the `libm` crate rather than the system, as results must not depend on the machine.

use super::random::SplitMix64;

/// The distribution.
#[derive(Clone, Debug)]
pub struct Zipf {
    ranks: f64,
    theta: f64,
    /// The integral of the density at 1.5, less the density at 1.
    low: f64,
    /// The integral at `ranks` + 0.5.
    high: f64,
    /// What may be accepted without a test.
    near: f64,
}

impl Zipf {
    /// The distribution over ranks 1 to `ranks` with exponent `theta`, which is at least 0.
    pub fn new(ranks: u64, theta: f64) -> Self {
        let mut zipf = Self { ranks: ranks as f64, theta, low: 0.0, high: 0.0, near: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.ranks + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// A rank, counted from 0.
    #[inline]
    pub fn sample(&self, random: &mut SplitMix64) -> u64 {
        loop {
            let area = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(area);
            let rank = libm::floor(x + 0.5).clamp(1.0, self.ranks);
            if rank - x <= self.near || area >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        libm::exp(-self.theta * libm::log(x))
    }

    /// `(x^(1 - theta) - 1) / (1 - theta)`, which is `ln x` for `theta` = 1.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let t = (1.0 - self.theta) * log;
        let ratio = if t.abs() > 1e-8 { libm::expm1(t) / t } else { 1.0 + t / 2.0 };
        ratio * log
    }

    /// The inverse of [`Self::integral`].
    fn inverse(&self, area: f64) -> f64 {
        // Rounding may take the product just below -1, where the logarithm ends.
        let t = (area * (1.0 - self.theta)).max(-1.0);
        let ratio = if t.abs() > 1e-8 { libm::log1p(t) / t } else { 1.0 - t / 2.0 };
        libm::exp(ratio * area)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chi-square statistic against the exact probabilities, over the ranks below 30 and the
    /// rest: 30 degrees of freedom, beyond 60 with probability 0.1 %.
    #[test]
    fn frequencies_are_near_theory() {
        for (ranks, theta) in [(1000u64, 0.99), (1000, 1.0), (50_000, 0.5), (100, 2.0), (64, 0.0)] {
            let weight = |rank: u64| (rank as f64 + 1.0).powf(-theta);
            let total: f64 = (0..ranks).map(weight).sum();
            let (zipf, mut random) = (Zipf::new(ranks, theta), SplitMix64::new(5, 0));
            let draws = 200_000;
            let mut seen = [0u32; 31];
            for _ in 0..draws {
                let rank = zipf.sample(&mut random);
                assert!(rank < ranks);
                seen[rank.min(30) as usize] += 1;
            }
            let head: f64 = (0..30).map(weight).sum();
            let mut chi_square = 0.0;
            for (rank, &seen) in seen.iter().enumerate() {
                let mass = if rank < 30 { weight(rank as u64) } else { total - head };
                let expected = mass / total * f64::from(draws);
                chi_square += (f64::from(seen) - expected).powi(2) / expected;
            }
            assert!(chi_square < 60.0, "{ranks} ranks, theta {theta}: {chi_square}");
        }
    }

    #[test]
    fn extremes_end_and_stay_in_range() {
        for ranks in [1, 2, 1 << 46] {
            for theta in [0.0, 1e-12, 0.5, 1.0 - 1e-12, 1.0, 1.0 + 1e-9, 2.5, 8.0] {
                let (zipf, mut random) = (Zipf::new(ranks, theta), SplitMix64::new(9, 0));
                assert!((0..2000).all(|_| zipf.sample(&mut random) < ranks), "{ranks} {theta}");
            }
        }
    }

    #[test]
    fn ranks_far_beyond_any_table_work() {
        let (zipf, mut random) = (Zipf::new(1 << 43, 0.99), SplitMix64::new(1, 0));
        let ranks: Vec<_> = (0..10_000).map(|_| zipf.sample(&mut random)).collect();
        assert!(ranks.iter().any(|&rank| rank > 1 << 40));
        assert!(ranks.iter().filter(|&&rank| rank == 0).count() > 100);
    }
}
