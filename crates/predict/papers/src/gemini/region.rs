//! In which part of the grid the papers' conclusions hold.

use super::conditions::{Which, seeds};
use super::grid::{AXES, Point, points, setting};
use super::measure::Measure;
use super::sensitivity::{Claim, Verdict, claims};
use crate::cells::NOTHING;
use crate::{Found, Spread, Table};

/// What is found of a claim at a point: that which all seeds agree on, or that they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Holds,
    Level,
    Reversed,
    /// Seeds disagree.
    Chance,
}

fn outcome(found: &Found, which: Which, point: &Point, claim: &Claim) -> Option<Outcome> {
    let of = |seed| claim.judge(found, &setting(which, point, seed));
    let verdicts = seeds().map(of).collect::<Option<Vec<Verdict>>>()?;
    let all = |wanted| verdicts.iter().all(|verdict| *verdict == wanted);
    Some(match verdicts[0] {
        Verdict::Holds if all(Verdict::Holds) => Outcome::Holds,
        Verdict::Level if all(Verdict::Level) => Outcome::Level,
        Verdict::Reversed if all(Verdict::Reversed) => Outcome::Reversed,
        _ => Outcome::Chance,
    })
}

/// Counts of outcomes, for a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts([usize; 4]);

impl Counts {
    fn of(outcomes: impl Iterator<Item = Option<Outcome>>) -> Self {
        let mut counts = Self::default();
        outcomes.flatten().for_each(|outcome| counts.0[outcome as usize] += 1);
        counts
    }

    fn cell(self) -> String {
        let Self([holds, level, reversed, chance]) = self;
        match holds + level + reversed + chance {
            0 => NOTHING.to_owned(),
            _ => format!("{holds} / {level} / {reversed} / {chance}"),
        }
    }
}

/// The regions: a row for each value of each axis.
pub(super) fn regions(found: &Found, which: Which, times: usize) -> Table {
    let mut table = Table::new(
        "Where conclusions hold",
        &[
            "Points of the grid at which a conclusion holds with all seeds / both are within 1 % (of shares, a point) / it \
             is the other way round / seeds disagree, by the value of one axis; all other axes vary. A point where \
             memory ran out is left out.",
        ],
        &["axis", "value"],
    );
    let claims = claims(which);
    table.columns.extend(claims.iter().map(Claim::words));
    let points = points(times);
    let row = |name: &str, value: &str, part: &[&Point]| {
        let cells = claims.iter().map(|claim| {
            Counts::of(part.iter().map(|point| outcome(found, which, point, claim))).cell()
        });
        [name.to_owned(), value.to_owned()].into_iter().chain(cells).collect::<Vec<String>>()
    };
    let all: Vec<&Point> = points.iter().collect();
    table.row(row("all points", "", &all));
    for (at, axis) in AXES.iter().enumerate() {
        for (number, value) in axis.values.iter().enumerate() {
            let part: Vec<&Point> = points.iter().filter(|point| point[at] == number).collect();
            table.row(row(axis.name, value, &part));
        }
    }
    table
}

/// The least and the most that a measure has over the grid, by the means of its points.
pub(super) fn range(
    found: &Found,
    which: Which,
    times: usize,
    measure: Measure,
    policy: &str,
    to: Option<&str>,
) -> Option<Spread> {
    let of = |point: &Point| {
        measure
            .spread(found, |seed| setting(which, point, seed), policy, to)
            .map(|spread| spread.mean)
    };
    Spread::of_values(points(times).iter().filter_map(of))
}

/// The grid, point by point.
pub(super) fn every_point(found: &Found, which: Which, times: usize) -> Table {
    let (own, other) = (which.own(), which.other());
    let mut table = Table::new(
        "The grid, point by point",
        &[
            "Throughput and TLB misses relative to base pages, and the share of huge pages that are well aligned: means over \
             seeds.",
        ],
        &[],
    );
    table.columns = AXES.iter().map(|axis| axis.name.to_owned()).collect();
    let shown = [Measure::Throughput, Measure::Misses, Measure::Aligned];
    let columns = shown
        .iter()
        .flat_map(|measure| [other, own].map(|policy| format!("{}: {policy}", measure.name())));
    table.columns.extend(columns);
    for point in points(times) {
        let labels = AXES.iter().zip(point).map(|(axis, value)| axis.values[value].to_owned());
        let cells = shown.iter().flat_map(|measure| {
            let to = (*measure != Measure::Aligned).then_some("base");
            [other, own].map(|policy| {
                let of = |seed| setting(which, &point, seed);
                let spread = measure.spread(found, of, policy, to);
                spread.map_or_else(|| NOTHING.to_owned(), |spread| percent(spread.mean))
            })
        });
        table.row(labels.chain(cells));
    }
    table
}

fn percent(value: f64) -> String {
    format!("{:.0} %", 100.0 * value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_counted_in_the_order_of_the_heading() {
        let all = [Outcome::Holds, Outcome::Level, Outcome::Reversed, Outcome::Chance];
        let outcomes = all.into_iter().chain([Outcome::Holds]).map(Some).chain([None]);
        assert_eq!(Counts::of(outcomes).cell(), "2 / 1 / 1 / 1");
        assert_eq!(Counts::of(std::iter::empty()).cell(), NOTHING);
    }
}
