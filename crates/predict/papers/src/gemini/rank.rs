//! How far two lists are in the same order.

/// Kendall's rank correlation tau-b (Kendall 1945), which allows for ties: 1 where both lists are in the same
/// order, -1 where one is the reverse of the other. `None` where one of them has no order: fewer than two values,
/// or all equal.
pub(super) fn tau(pairs: &[(f64, f64)]) -> Option<f64> {
    let (mut score, mut of_first, mut of_second) = (0.0, 0.0, 0.0);
    for (at, one) in pairs.iter().enumerate() {
        for other in &pairs[at + 1..] {
            let [first, second] = [(one.0, other.0), (one.1, other.1)].map(sign);
            score += first * second;
            of_first += first.abs();
            of_second += second.abs();
        }
    }
    let norm = f64::sqrt(of_first * of_second);
    (norm > 0.0).then(|| score / norm)
}

fn sign((one, other): (f64, f64)) -> f64 {
    if one == other { 0.0 } else { (one - other).signum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `scipy.stats.kendalltau`.
    #[test]
    fn tau_is_that_of_others() {
        let of = |first: &[f64], second: &[f64]| {
            tau(&first.iter().copied().zip(second.iter().copied()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[1.0, 2.0, 3.0], &[10.0, 20.0, 21.0]), Some(1.0));
        assert_eq!(of(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
        let tied = of(&[12.0, 2.0, 1.0, 12.0, 2.0], &[1.0, 4.0, 7.0, 1.0, 0.0]).unwrap();
        assert!((tied - -0.471_404_520_791_031_7).abs() < 1e-12, "{tied}");
        assert_eq!(of(&[1.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(of(&[1.0], &[1.0]), None);
    }
}
