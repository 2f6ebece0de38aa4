//! The grid that is run beyond the stated conditions: enough of its points that every two values of different axes
//! meet.
//!
//! All points would be 4 x 4 x 4 x 4 x 3 x 2 x 2. A design in which every pair of values of two axes occurs (a covering
//! array of strength 2, as in pairwise testing) takes some twenty, and shows what an axis does, and what two do
//! together, but not three. Pairs that take too long are left out.

use super::conditions::{GRID_PROGRAMS, Program, Setting, Which, seeds};
use std::collections::{BTreeMap, BTreeSet};

/// An axis: what it is, and how tables name its values.
pub(super) struct Axis {
    pub(super) name: &'static str,
    pub(super) values: &'static [&'static str],
}

/// The axes. Footprints: 24 MiB are four times what 1536 base pages reach, 6 GiB twice what as many huge pages do.
pub(super) const AXES: [Axis; 7] = [
    Axis { name: "program", values: &["random", "zipf", "btree", "churn"] },
    Axis { name: "footprint", values: &["24 MiB", "192 MiB", "1 GiB", "6 GiB"] },
    Axis { name: "memory over footprint", values: &["1.2", "3", "10", "30"] },
    Axis { name: "FMFI", values: &["0", "0.5", "0.8", "0.95"] },
    Axis { name: "share unmovable", values: &["0", "0.5", "1"] },
    Axis { name: "VM's memory", values: &["backed", "fresh"] },
    Axis { name: "misaligned translations", values: &["splinter", "no-fill"] },
];

/// Mebibytes of the footprints.
const FOOTPRINTS: [u64; 4] = [24, 192, 1024, 6144];

/// Mebibytes of a guest of which all may be backed beforehand: that takes time and memory in proportion. So the largest
/// footprint is always fresh.
const MOST_BACKED: f64 = 6_000.0;

/// A point: the number of its value on each axis.
pub(super) type Point = [usize; AXES.len()];

/// Whether it can be run in reasonable time.
fn possible(point: &Point) -> bool {
    let [_, footprint, ratio, fmfi, _, memory, _] = *point;
    let ratio: f64 = AXES[2].values[ratio].parse().expect("it is a number");
    // Without fragmentation nothing is backed, whatever is said.
    memory == 1 || fmfi > 0 && FOOTPRINTS[footprint] as f64 * ratio <= MOST_BACKED
}

type Pair = ((usize, usize), (usize, usize));

/// The pairs of values that meet in a point.
fn pairs(point: &Point) -> impl Iterator<Item = Pair> {
    let point = *point;
    (0..point.len())
        .flat_map(move |one| (one + 1..point.len()).map(move |other| (one, other)))
        .map(move |(one, other)| ((one, point[one]), (other, point[other])))
}

/// Every point there is.
fn all() -> Vec<Point> {
    let mut points = vec![[0; AXES.len()]];
    for (at, axis) in AXES.iter().enumerate() {
        let with = |value| {
            move |mut point: Point| {
                point[at] = value;
                point
            }
        };
        points = (0..axis.values.len())
            .flat_map(|value| points.iter().copied().map(with(value)))
            .collect();
    }
    points.retain(possible);
    points
}

/// Points in which every possible pair of values meets `times` times: always the one that has most of the pairs
/// that are still missing, the last of several.
pub(super) fn points(times: usize) -> Vec<Point> {
    let all = all();
    let possible: BTreeSet<Pair> = all.iter().flat_map(pairs).collect();
    let mut left: Vec<(Point, Vec<usize>)> = Vec::new();
    let number = |pair: &Pair| possible.iter().position(|other| other == pair).expect("it is one");
    let numbers: BTreeMap<Pair, usize> =
        possible.iter().map(|pair| (*pair, number(pair))).collect();
    for point in all {
        left.push((point, pairs(&point).map(|pair| numbers[&pair]).collect()));
    }
    let mut chosen = Vec::new();
    for _ in 0..times.max(1) {
        let mut missing = vec![true; possible.len()];
        loop {
            let new = |(_, pairs): &&(Point, Vec<usize>)| {
                pairs.iter().filter(|pair| missing[**pair]).count()
            };
            let Some((best, met)) = left.iter().max_by_key(new).cloned() else { break };
            if met.iter().all(|pair| !missing[*pair]) {
                break;
            }
            met.iter().for_each(|pair| missing[*pair] = false);
            left.retain(|(point, _)| *point != best);
            chosen.push(best);
        }
    }
    chosen
}

/// A point's run with a seed.
pub(super) fn setting(which: Which, point: &Point, seed: u64) -> Setting {
    let [program, footprint, ratio, fmfi, unmovable, memory, misaligned] = *point;
    let program: Program = GRID_PROGRAMS[program].in_size(FOOTPRINTS[footprint]);
    let stated = Setting::stated(which, &program, super::conditions::Memory::Fragmented, seed);
    Setting {
        ratio: AXES[2].values[ratio].parse().expect("it is a number"),
        fmfi: AXES[3].values[fmfi],
        unmovable: AXES[4].values[unmovable],
        backed: memory == 0,
        no_fill: misaligned == 1,
        policies: which.few_policies(),
        ..stated
    }
}

/// All runs of the grid.
pub(super) fn settings(which: Which, times: usize) -> Vec<Setting> {
    let points = points(times);
    points.iter().flat_map(|point| seeds().map(move |seed| setting(which, point, seed))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_values_meet_as_often_as_asked_for() {
        let possible: BTreeSet<Pair> = all().iter().flat_map(pairs).collect();
        let axes: Vec<usize> = AXES.iter().map(|axis| axis.values.len()).collect();
        let mut expected = 0;
        for (at, one) in axes.iter().enumerate() {
            expected += axes[at + 1..].iter().map(|other| one * other).sum::<usize>();
        }
        // All but two: 6 GiB that are backed, and nothing that is fragmented but backed.
        assert_eq!(possible.len(), expected - 2);
        for times in [1, 2] {
            let chosen = points(times);
            for pair in &possible {
                let met = chosen.iter().filter(|point| pairs(point).any(|other| other == *pair));
                assert!(met.count() >= times, "{pair:?}");
            }
            let different: BTreeSet<_> = chosen.iter().collect();
            assert_eq!(different.len(), chosen.len());
            assert!(chosen.len() <= 24 * times, "{}", chosen.len());
        }
    }

    #[test]
    fn points_are_the_programs_and_sizes_that_the_axes_name() {
        assert!(
            GRID_PROGRAMS.iter().map(|program| program.name).eq(AXES[0].values.iter().copied())
        );
        for (text, mebibytes) in AXES[1].values.iter().zip(FOOTPRINTS) {
            let (number, unit) = text.split_once(' ').unwrap();
            let number: u64 = number.parse().unwrap();
            assert_eq!(mebibytes, if unit == "GiB" { number << 10 } else { number });
        }
    }
}
