//! k-means: so many clusters of points that lie near each other (Lloyd, Least Squares Quantization in PCM, IEEE
//! Transactions on Information Theory 28, 1982), begun as k-means++ begins (Arthur and Vassilvitskii, SODA 2007).

use crate::random::Random;
use crate::sketch::{DIMENSIONS, Vector};

/// Rounds after which it is good enough; it mostly takes a few.
const ROUNDS: usize = 100;

/// Points in clusters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Clusters {
    /// The middle of each.
    pub(crate) centres: Vec<Vector>,
    /// The cluster of each point.
    pub(crate) of: Vec<usize>,
    /// Squares of the distances of points from their centres.
    pub(crate) cost: f64,
}

impl Clusters {
    /// `k` clusters at most: fewer where there are fewer different points.
    pub(crate) fn of(points: &[Vector], k: usize, random: &mut Random) -> Self {
        let mut centres = first(points, k, random);
        let mut found = assigned(points, &centres);
        for _ in 0..ROUNDS {
            centres = middles(points, &found);
            let next = assigned(points, &centres);
            let settled = next.of == found.of;
            found = next;
            if settled {
                break;
            }
        }
        found
    }

    /// The cluster whose centre is nearest to a point.
    pub(crate) fn nearest(&self, point: &Vector) -> usize {
        nearest(point, &self.centres).0
    }
}

/// Square of the distance between two points.
fn distance(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The nearest of centres, the first of equals, and the square of its distance.
fn nearest(point: &Vector, centres: &[Vector]) -> (usize, f64) {
    let distances = centres.iter().map(|centre| distance(point, centre)).enumerate();
    distances.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
}

/// Centres to begin with: points, each the likelier the further it lies from those that are centres.
fn first(points: &[Vector], k: usize, random: &mut Random) -> Vec<Vector> {
    let mut centres = Vec::with_capacity(k);
    let Some(start) = points.get(random.below(points.len())) else { return centres };
    centres.push(*start);
    let mut far: Vec<f64> = points.iter().map(|point| distance(point, start)).collect();
    while centres.len() < k {
        let mut left = random.share() * far.iter().sum::<f64>();
        // What rounding leaves over goes to the last that is not a centre.
        let drawn = far.iter().position(|far| {
            left -= far;
            *far > 0.0 && left <= 0.0
        });
        let Some(at) = drawn.or_else(|| far.iter().rposition(|far| *far > 0.0)) else { break };
        let centre = points[at];
        centres.push(centre);
        far.iter_mut()
            .zip(points)
            .for_each(|(far, point)| *far = far.min(distance(point, &centre)));
    }
    centres
}

/// Every point in the cluster of its nearest centre.
fn assigned(points: &[Vector], centres: &[Vector]) -> Clusters {
    let found = points.iter().map(|point| nearest(point, centres));
    let (of, distances): (Vec<usize>, Vec<f64>) = found.unzip();
    Clusters { centres: centres.to_vec(), of, cost: distances.iter().sum() }
}

/// The middle of each cluster; one without points stays where it is.
fn middles(points: &[Vector], clusters: &Clusters) -> Vec<Vector> {
    let mut sums = vec![([0.0; DIMENSIONS], 0_u32); clusters.centres.len()];
    for (point, of) in points.iter().zip(&clusters.of) {
        let (sum, count) = &mut sums[*of];
        sum.iter_mut().zip(point).for_each(|(sum, coordinate)| *sum += coordinate);
        *count += 1;
    }
    let middle = |((sum, count), before): ((Vector, u32), &Vector)| match count {
        0 => *before,
        count => sum.map(|sum| sum / f64::from(count)),
    };
    sums.into_iter().zip(&clusters.centres).map(middle).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Points around so many corners, `each` around each, far from each other.
    pub(crate) fn corners(count: usize, each: usize, seed: u64) -> Vec<Vector> {
        let mut random = Random::new(seed, 0);
        let mut point = |corner: usize| {
            let mut point: Vector = std::array::from_fn(|_| 0.02 * random.share());
            point[corner % DIMENSIONS] += 1.0 + (corner / DIMENSIONS) as f64;
            point
        };
        (0..count * each).map(|at| point(at % count)).collect()
    }

    /// The least cost of all ways to put few points into two clusters, one by one.
    fn least_of_all(points: &[Vector]) -> f64 {
        let cost = |split: u32| {
            let of: Vec<usize> = (0..points.len()).map(|at| (split >> at & 1) as usize).collect();
            let zero = [0.0; DIMENSIONS];
            let split = Clusters { centres: vec![zero, zero], of, cost: 0.0 };
            let centres = middles(points, &split);
            points.iter().zip(&split.of).map(|(point, of)| distance(point, &centres[*of])).sum()
        };
        (0..1 << points.len()).map(cost).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn clusters_that_are_well_apart_are_found() {
        for count in [1, 2, 5, 20] {
            let points = corners(count, 12, 3);
            let best =
                (0..5).map(|subject| Clusters::of(&points, count, &mut Random::new(1, subject)));
            let best = best.min_by(|a, b| a.cost.total_cmp(&b.cost)).unwrap();
            for (at, of) in best.of.iter().enumerate() {
                assert_eq!(*of, best.of[at % count], "{count}: together with its corner");
            }
            let mut used = best.of.clone();
            used.sort_unstable();
            used.dedup();
            assert_eq!(used.len(), count);
        }
    }

    #[test]
    fn there_are_no_more_clusters_than_different_points() {
        let points: Vec<Vector> = corners(3, 1, 1).into_iter().cycle().take(30).collect();
        let found = Clusters::of(&points, 8, &mut Random::new(1, 1));
        assert_eq!(found.centres.len(), 3);
        assert!(found.cost < 1e-20, "{}", found.cost);
        assert_eq!(found.nearest(&points[4]), found.of[4]);
        assert!(Clusters::of(&[], 3, &mut Random::new(1, 1)).of.is_empty());
    }

    fn points() -> impl Strategy<Value = Vec<Vector>> {
        prop::collection::vec(prop::array::uniform15(-1.0..1.0_f64), 2..9)
    }

    proptest! {
        #[test]
        fn cost_never_rises_from_round_to_round(points in points(), k in 1..5_usize, seed: u64) {
            let mut found = assigned(&points, &first(&points, k, &mut Random::new(seed, 0)));
            for _ in 0..10 {
                let next = assigned(&points, &middles(&points, &found));
                prop_assert!(next.cost <= found.cost + 1e-12);
                found = next;
            }
        }

        #[test]
        fn the_best_of_some_beginnings_is_near_the_best_there_is(points in points(), seed: u64) {
            let costs = (0..20).map(|n| Clusters::of(&points, 2, &mut Random::new(seed, n)).cost);
            let least = least_of_all(&points);
            let found = costs.fold(f64::INFINITY, f64::min);
            prop_assert!(found >= least - 1e-9);
            prop_assert!(found <= 1.2 * least + 1e-9, "{} {}", found, least);
        }
    }
}
