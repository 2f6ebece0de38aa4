//! How far a sum over strata may be off of which some units each were drawn at random.
//!
//! The variance is that of stratified random sampling without replacement, so a stratum of which all was drawn
//! adds none (Cochran, Sampling Techniques, 3rd edition, sections 5.3 and 5.4). Student's quantile is for as many
//! degrees of freedom as strata of different variances have together (Satterthwaite; Cochran, 5.4).

use crate::interval::quantile;

/// One stratum.
#[derive(Clone, Debug, PartialEq)]
pub struct Stratum {
    /// Its units.
    pub units: f64,
    /// What a unit's figure is multiplied by in the sum if it stands for all of the stratum.
    pub weight: f64,
    /// Figures of the units that were drawn.
    pub drawn: Vec<f64>,
}

impl Stratum {
    /// The variance of its part of the sum, and how many differences that is made of.
    fn variance(&self) -> Option<(f64, f64)> {
        let count = self.drawn.len() as f64;
        let left = 1.0 - count / self.units;
        if left <= 0.0 {
            return Some((0.0, 0.0));
        }
        if count < 2.0 {
            return None;
        }
        let mean = self.drawn.iter().sum::<f64>() / count;
        let squares: f64 = self.drawn.iter().map(|figure| (figure - mean) * (figure - mean)).sum();
        let of_one = squares / (count - 1.0);
        Some((self.weight * self.weight * left * of_one / count, count - 1.0))
    }
}

/// Half the width of the 95 % interval of a sum over strata. `None` where one has too few units drawn to say
/// anything, or none that has seen any of it.
pub fn stratified_half_width(strata: &[Stratum]) -> Option<f64> {
    // What no unit has seen may be rare, and how rare they do not say.
    if strata.iter().flat_map(|stratum| &stratum.drawn).all(|figure| *figure == 0.0) {
        return None;
    }
    let parts: Vec<(f64, f64)> = strata.iter().map(Stratum::variance).collect::<Option<_>>()?;
    let variance: f64 = parts.iter().map(|(variance, _)| variance).sum();
    if variance == 0.0 {
        return Some(0.0);
    }
    let squares = parts.iter().filter(|(variance, _)| *variance > 0.0);
    let squares: f64 = squares.map(|(variance, freedom)| variance * variance / freedom).sum();
    Some(quantile(variance * variance / squares) * variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stratum(units: f64, drawn: &[f64]) -> Stratum {
        Stratum { units, weight: units, drawn: drawn.to_vec() }
    }

    #[test]
    fn one_stratum_is_a_random_sample() {
        // Of 100 units five, of variance 2.5: 100² x 0.95 x 2.5 / 5, and the quantile for four differences.
        let found = stratified_half_width(&[stratum(100.0, &[1.0, 2.0, 3.0, 4.0, 5.0])]).unwrap();
        let expected = quantile(4.0) * (10_000.0 * 0.95 * 2.5 / 5.0_f64).sqrt();
        assert!((found / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn strata_of_which_all_was_drawn_add_nothing() {
        let one = stratum(10.0, &[1.0, 3.0]);
        let alone = stratified_half_width(std::slice::from_ref(&one));
        let all = [stratum(1.0, &[50.0]), one.clone(), stratum(2.0, &[7.0, 9.0])];
        assert_eq!(stratified_half_width(&all), alone);
        assert_eq!(stratified_half_width(&all[..1]), Some(0.0));
        // As many differences as two equal strata have together.
        let found = stratified_half_width(&[one.clone(), one.clone()]).unwrap();
        let expected = alone.unwrap() / quantile(1.0) * quantile(2.0) * 2.0_f64.sqrt();
        assert!((found / expected - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        assert_eq!(stratified_half_width(&[stratum(10.0, &[1.0])]), None, "one of ten");
        assert_eq!(stratified_half_width(&[stratum(10.0, &[])]), None, "none of ten");
        assert_eq!(stratified_half_width(&[stratum(10.0, &[0.0, 0.0])]), None, "never seen");
        assert_eq!(stratified_half_width(&[]), None);
    }
}
