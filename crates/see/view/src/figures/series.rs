//! The runs over simulated time: small charts of one measure each.

use super::{Group, Row};
use crate::html::{numbers, table};
use crate::input::run::{Run, Series, each_once};
use crate::number::tick;
use crate::scale::Scale;
use crate::svg::{Anchor, Svg, line_key};
use std::collections::BTreeSet;
use strata_text::estimate::marked;

/// Places of charts: two beside each other.
const LEFT: [f64; 2] = [44.0, 534.0];
/// Width and height of a chart, and from one to the next below it.
const SIZE: [f64; 3] = [416.0, 110.0, 176.0];
/// Points of a line at most.
const POINTS: usize = 96;
/// Classes of lines, told apart by dashes too.
const LINES: usize = 6;

/// Values over time.
type Points = Vec<(f64, f64)>;

/// What is drawn of a run.
struct Measure {
    name: String,
    of: Box<dyn Fn(&Series) -> Points>,
    /// Of a sampled stream it is estimated: what is counted in windows, or by the clock.
    estimated: bool,
    /// The axis ends here, whatever is drawn.
    end: Option<f64>,
}

impl Measure {
    /// A figure of it, marked where it is estimated.
    fn mark(&self, figure: String, run: &Run) -> String {
        if self.estimated { run.mark(figure) } else { figure }
    }
}

/// The figure; nothing without series.
pub fn figure(groups: &[Group<'_>]) -> String {
    let mut out = String::new();
    let mut rows = Vec::new();
    for group in groups {
        let lines: Vec<(&Row<'_>, &Series)> = group
            .rows
            .iter()
            .filter_map(|row| Some((row, row.run.series.as_ref()?)))
            .filter(|(_, series)| series.seconds.len() > 1)
            .collect();
        if lines.is_empty() {
            continue;
        }
        let keys: String = lines
            .iter()
            .enumerate()
            .map(|(index, (row, _))| line_key(&line_class(index), &row.label))
            .collect();
        let title = if groups.len() > 1 {
            format!("<h3>{}</h3>", crate::html::escaped(&group.title))
        } else {
            String::new()
        };
        out += &format!("{title}<div class=keys>{keys}</div>{}", charts(&group.title, &lines));
        rows.extend(summary(&group.title, &lines));
    }
    if out.is_empty() {
        return out;
    }
    let head = ["", "policy", "measure", "least", "mean", "most", "at the end"];
    out + &numbers("Numbers", &table(&head, &rows, 3))
}

fn line_class(index: usize) -> String {
    format!("line s{}", index % LINES)
}

fn measures(lines: &[(&Row<'_>, &Series)]) -> Vec<Measure> {
    let layers: BTreeSet<&String> =
        lines.iter().flat_map(|(_, series)| series.fmfi.keys()).collect();
    // The guest first, the host last.
    let mut layers: Vec<String> = layers.into_iter().cloned().collect();
    layers.sort_by_key(|layer| match layer.as_str() {
        "guest" => (0, String::new()),
        "host" => (2, String::new()),
        other => (1, other.to_owned()),
    });
    let measure = |name: &str, of: Box<dyn Fn(&Series) -> Points>| Measure {
        name: name.to_owned(),
        of,
        estimated: false,
        end: None,
    };
    let rate = |name: &str, of: Box<dyn Fn(&Series) -> Points>| Measure {
        estimated: true,
        ..measure(name, of)
    };
    let mut all = vec![
        rate(
            "L2 TLB misses per 1000 accesses",
            Box::new(|series| {
                rates(series, &series.l2_misses, |series, from, to| {
                    // An estimate may turn out too high later.
                    series.accesses[to].saturating_sub(series.accesses[from]) as f64 / 1000.0
                })
            }),
        ),
        rate(
            "page faults of all layers, per simulated ms",
            Box::new(|series| rates(series, &summed(series.faults.values()), per_ms)),
        ),
        measure(
            "well-aligned huge pages",
            Box::new(|series| {
                states(series, series.well_aligned.iter().map(|pages| *pages as f64))
            }),
        ),
        rate(
            "VM exits, per simulated ms",
            Box::new(|series| {
                let counts = series.exits.values().flat_map(each_once);
                rates(series, &summed(counts), per_ms)
            }),
        ),
    ];
    for layer in layers {
        let name = format!("FMFI of {}, 0 to 1", if layer == "l1" { "L1" } else { &layer });
        let of = move |series: &Series| {
            let values = series.fmfi.get(&layer).cloned().unwrap_or_default();
            states(series, values.into_iter())
        };
        all.push(Measure { end: Some(1.0), ..measure(&name, Box::new(of)) });
    }
    all.push(measure(
        "memory used, MiB",
        Box::new(|series| {
            states(series, series.used_bytes.iter().map(|bytes| *bytes as f64 / f64::from(1 << 20)))
        }),
    ));
    all
}

fn summed<'a>(counts: impl Iterator<Item = &'a Vec<u64>>) -> Vec<u64> {
    let mut sums: Vec<u64> = Vec::new();
    for list in counts {
        sums.resize(sums.len().max(list.len()), 0);
        sums.iter_mut().zip(list).for_each(|(sum, count)| *sum += count);
    }
    sums
}

fn per_ms(series: &Series, from: usize, to: usize) -> f64 {
    (series.seconds[to] - series.seconds[from]) * 1000.0
}

/// How much was counted between two moments, over `each` between them; from the beginning on.
fn rates(series: &Series, counts: &[u64], each: impl Fn(&Series, usize, usize) -> f64) -> Points {
    let moments = thinned(series.seconds.len().min(counts.len()).min(series.accesses.len()));
    let pairs = moments.windows(2).filter_map(|pair| {
        let over = each(series, pair[0], pair[1]);
        let counted = counts[pair[1]].saturating_sub(counts[pair[0]]) as f64;
        (over > 0.0).then(|| (series.seconds[pair[1]], counted / over))
    });
    pairs.collect()
}

fn states(series: &Series, values: impl Iterator<Item = f64>) -> Points {
    let all: Points = series.seconds.iter().copied().zip(values).collect();
    thinned(all.len()).into_iter().map(|index| all[index]).collect()
}

/// Evenly chosen places of a list, the first and the last among them.
fn thinned(length: usize) -> Vec<usize> {
    match length {
        0 => Vec::new(),
        length if length <= POINTS => (0..length).collect(),
        length => (0..POINTS).map(|index| index * (length - 1) / (POINTS - 1)).collect(),
    }
}

fn charts(title: &str, lines: &[(&Row<'_>, &Series)]) -> String {
    let measures = measures(lines);
    let names: Vec<&str> = measures.iter().map(|measure| measure.name.as_str()).collect();
    let mut svg = Svg::new(&format!("{title}, over simulated time: {}", names.join("; ")));
    let ends = lines.iter().filter_map(|(_, series)| series.seconds.last());
    let last = ends.copied().fold(0.0, f64::max) * 1000.0;
    let mut drawn = 0;
    for measure in &measures {
        let all: Vec<Points> = lines.iter().map(|(_, series)| (measure.of)(series)).collect();
        let most = all.iter().flatten().map(|(_, value)| *value).fold(0.0, f64::max);
        // A chart of nothing says nothing.
        if most == 0.0 && measure.end.is_none() {
            continue;
        }
        let left = LEFT[drawn % 2];
        let top = 26.0 + (drawn / 2) as f64 * SIZE[2];
        drawn += 1;
        let bottom = top + SIZE[1];
        let across = Scale::exact(last, 4, left, left + SIZE[0]);
        let up = match measure.end {
            Some(end) => Scale::exact(end, 4, bottom, top),
            None => Scale::new(most, 4, bottom, top),
        };
        let is_sampled = lines.iter().any(|(row, _)| row.run.sampled.is_some());
        let name = &measure.name;
        let name = if is_sampled && measure.estimated { &marked(name.clone()) } else { name };
        svg.text((left, top - 12.0), Anchor::Start, "name", name);
        svg.left_axis(&up, left, left + SIZE[0]);
        for value in across.ticks() {
            svg.text((across.at(value), bottom + 15.0), Anchor::Middle, "tick", &tick(value));
        }
        let unit = if is_sampled { "simulated ms, estimated" } else { "simulated ms" };
        svg.text((left + SIZE[0], bottom + 29.0), Anchor::End, "unit", unit);
        for (index, (points, (row, _))) in all.iter().zip(lines).enumerate() {
            let places: Points =
                points.iter().map(|(at, value)| (across.at(at * 1000.0), up.at(*value))).collect();
            let figures = summed_up(points).map(tick_of);
            let [least, mean, most, end] = figures.map(|figure| measure.mark(figure, row.run));
            let words = format!(
                "{}: {}: {least} to {most}, {mean} on average, {end} at the end",
                row.label, measure.name
            );
            svg.path(&places, &line_class(index), &words);
        }
    }
    svg.finish((drawn as f64 / 2.0).ceil() * SIZE[2] + 4.0, true)
}

fn tick_of(value: f64) -> String {
    tick((value * 1000.0).round() / 1000.0)
}

/// Least, mean, most and last.
fn summed_up(points: &[(f64, f64)]) -> [f64; 4] {
    let values = || points.iter().map(|(_, value)| *value);
    let mean = values().sum::<f64>() / points.len().max(1) as f64;
    let least = values().fold(f64::INFINITY, f64::min);
    let least = if least.is_finite() { least } else { 0.0 };
    [least, mean, values().fold(0.0, f64::max), values().next_back().unwrap_or(0.0)]
}

fn summary(title: &str, lines: &[(&Row<'_>, &Series)]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for measure in measures(lines) {
        for (row, series) in lines {
            let mut cells = vec![title.to_owned(), row.label.clone(), measure.name.clone()];
            let figures = summed_up(&(measure.of)(series)).map(tick_of);
            cells.extend(figures.map(|figure| measure.mark(figure, row.run)));
            rows.push(cells);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_both_ends_and_the_order() {
        assert_eq!(thinned(3), [0, 1, 2]);
        let many = thinned(1000);
        assert_eq!((many[0], *many.last().unwrap(), many.len()), (0, 999, POINTS));
        assert!(many.is_sorted_by(|a, b| a < b));
    }
}
