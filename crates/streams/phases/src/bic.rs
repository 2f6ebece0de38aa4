//! How many clusters there are: the Bayesian information criterion.
//!
//! More clusters always fit better. The score of a clustering is how likely the points are if they lie around
//! the centres as normal variables of one variance, less a charge for every number that the clustering has to
//! say (Pelleg and Moore, X-means, ICML 2000). As in SimPoint 3.0 the fewest clusters are taken whose score is
//! at least nine tenths of the way from the lowest to the highest.

use crate::clusters::Clusters;
use crate::random::Random;
use crate::sketch::{DIMENSIONS, Vector};

/// Beginnings that are tried for each number of clusters; the one of least cost counts.
const BEGINNINGS: u64 = 3;

/// Of the way from the lowest score to the highest.
const ENOUGH: f64 = 0.9;

/// A variance below this is none: intervals that differ by less are the same.
const LEAST_VARIANCE: f64 = 1e-9;

/// The clusters of points, `most` at most.
pub(crate) fn clusters(points: &[Vector], most: usize, seed: u64) -> Clusters {
    let best = |k: usize| {
        let tried = (0..BEGINNINGS).map(|n| {
            let mut random = Random::new(seed, k as u64 * BEGINNINGS + n);
            Clusters::of(points, k, &mut random)
        });
        tried.min_by(|a, b| a.cost.total_cmp(&b.cost)).expect("there are beginnings")
    };
    let mut found: Vec<(Clusters, f64)> = Vec::new();
    for k in 1..=most.clamp(1, points.len().max(1)) {
        let clusters = best(k);
        // There are no more different points.
        if clusters.centres.len() < k && k > 1 {
            break;
        }
        let score = score(&clusters);
        found.push((clusters, score));
    }
    let scores = || found.iter().map(|(_, score)| *score);
    let (low, high) =
        (scores().fold(f64::INFINITY, f64::min), scores().fold(f64::NEG_INFINITY, f64::max));
    let enough = low + ENOUGH * (high - low);
    let at = scores().position(|score| score >= enough).unwrap_or(0);
    found.swap_remove(at).0
}

/// See the module.
fn score(clusters: &Clusters) -> f64 {
    let (all, k, d) = (clusters.of.len() as f64, clusters.centres.len() as f64, DIMENSIONS as f64);
    let mut sizes = vec![0.0; clusters.centres.len()];
    clusters.of.iter().for_each(|of| sizes[*of] += 1.0);
    let variance = (clusters.cost / (d * (all - k).max(1.0))).max(LEAST_VARIANCE);
    let shares: f64 = sizes.iter().filter(|n| **n > 0.0).map(|n: &f64| n * (n / all).ln()).sum();
    let likelihood = shares
        - all * d / 2.0 * (2.0 * std::f64::consts::PI * variance).ln()
        - clusters.cost / (2.0 * variance);
    let numbers = k - 1.0 + d * k + 1.0;
    likelihood - numbers / 2.0 * all.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusters::tests::corners;

    #[test]
    fn as_many_clusters_are_found_as_there_are() {
        for count in [1, 2, 4, 9] {
            let points = corners(count, 25, 5);
            for seed in 0..3 {
                let found = clusters(&points, 20, seed);
                assert_eq!(found.centres.len(), count, "seed {seed}");
            }
            assert_eq!(clusters(&points, 20, 1), clusters(&points, 20, 1), "the same each time");
        }
    }

    #[test]
    fn no_more_are_found_than_allowed_or_than_there_are_points() {
        let points = corners(9, 25, 5);
        assert!(clusters(&points, 3, 1).centres.len() <= 3);
        assert_eq!(clusters(&points[..1], 9, 1).centres.len(), 1);
        assert_eq!(clusters(&vec![points[0]; 40], 9, 1).centres.len(), 1, "all alike");
    }

    #[test]
    fn a_score_pays_for_what_it_says() {
        // A cloud without structure: two halves of it fit better, and not by as much as they cost.
        let points = corners(1, 200, 9);
        let of = |k| score(&Clusters::of(&points, k, &mut Random::new(1, k as u64)));
        assert!(of(1) > of(2) && of(2) > of(8));
        let two = corners(2, 100, 9);
        let of = |k| score(&Clusters::of(&two, k, &mut Random::new(1, k as u64)));
        assert!(of(2) > of(1) && of(2) > of(5));
    }
}
