//! How far a sum over sampled intervals may be off.
//!
//! Each interval of a stream is a stratum with one window at a random place in it. The variance is that of
//! successive differences: neighbouring intervals are alike where a program has phases longer than an
//! interval, and where they are not the interval becomes too wide rather than too narrow (Wolter,
//! Introduction to Variance Estimation, 2nd edition, chapter 8, estimator v2; Wunderlich et al., SMARTS, ISCA
//! 2003, sample in the same way, with the variance of simple random samples).

/// Windows from which on an interval is told.
pub const FEWEST_WINDOWS: usize = 4;

/// Half the width of the 95 % interval of a sum over strata, of each its instructions and its rate. `None`
/// where too few windows say anything, or none has seen any of it.
pub fn half_width(strata: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let strata: Vec<(f64, f64)> = strata.collect();
    let count = strata.len();
    // What no window has seen may be rare, and how rare they do not say.
    if count < FEWEST_WINDOWS || strata.iter().all(|(_, rate)| *rate == 0.0) {
        return None;
    }
    let squares = strata.windows(2).map(|pair| {
        let [(first, before), (second, after)] = pair else { unreachable!("windows of two") };
        let difference = (after - before) * (first + second) / 2.0;
        difference * difference
    });
    let pairs = (count - 1) as f64;
    let variance = squares.sum::<f64>() / (2.0 * pairs) * count as f64;
    // Successive differences have about two thirds of the degrees of freedom (Wolter, 8.2).
    Some(quantile(2.0 / 3.0 * pairs) * variance.sqrt())
}

/// The 0.975 quantile of Student's t distribution, to a percent (Abramowitz and Stegun, 26.7.5).
pub(crate) fn quantile(freedom: f64) -> f64 {
    const TABLE: [f64; 6] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447];
    let below = freedom.floor().max(1.0) as usize;
    if below < TABLE.len() {
        let part = (freedom - below as f64).max(0.0);
        return TABLE[below - 1] * (1.0 - part) + TABLE[below] * part;
    }
    let (z, v) = (1.959_964_f64, freedom);
    let g1 = (z.powi(3) + z) / 4.0;
    let g2 = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    z + g1 / v + g2 / (v * v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, expected) in
            [(1.0, 12.706), (4.0, 2.776), (6.0, 2.447), (7.0, 2.365), (10.0, 2.228), (30.0, 2.042)]
        {
            assert!((quantile(freedom) / expected - 1.0).abs() < 0.01, "{freedom}");
        }
        assert!((quantile(1e9) - 1.959_964).abs() < 1e-6);
    }

    #[test]
    fn intervals_of_independent_strata_are_those_of_a_random_sample() {
        // Rates 1 and 3 in turn: each difference is 2, the variance of one is 2, as of a sample of two.
        let strata = (0..100).map(|index| (10.0, 1.0 + 2.0 * f64::from(index % 2)));
        let expected = quantile(66.0) * (2.0 * 100.0 * 100.0_f64).sqrt();
        assert!((half_width(strata).unwrap() / expected - 1.0).abs() < 1e-9);
        // A slow trend is no noise.
        let trend = half_width((0..100).map(|index| (10.0, f64::from(index)))).unwrap();
        assert!(trend < 0.01 * 10.0 * 4950.0 * 2.0, "{trend}");
        assert_eq!(half_width((0..3).map(|_| (1.0, 1.0))), None, "too few to say");
    }
}
