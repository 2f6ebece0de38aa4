//! The walk: its positions as a grid, shaded by how often a walk makes that reference, with a strip that
//! says where it hits.

use super::Group;
use crate::html::{numbers, table};
use crate::input::run::{Position, Run};
use crate::number::whole;
use crate::svg::{Anchor, Svg, WIDTH};
use std::collections::BTreeMap;

/// Size of a cell.
const CELL: [f64; 2] = [32.0, 24.0];
/// Grids beside each other.
const IN_A_ROW: usize = 5;

/// A place of the walk: the entry of the guest's table that it leads to (0: the data), and the level of
/// the second stage (0: the guest's entry itself).
type Place = (u8, u8);

/// The figure; nothing without a walk.
pub fn figure(groups: &[Group<'_>]) -> String {
    let mut svg = Svg::new(&label(groups));
    let mut y = 4.0;
    let pitch = WIDTH / IN_A_ROW as f64;
    for group in groups {
        if groups.len() > 1 {
            svg.text((0.0, y + 12.0), Anchor::Start, "head", &group.title);
            y += 24.0;
        }
        for line in group.rows.chunks(IN_A_ROW) {
            let mut height: f64 = 0.0;
            for (index, row) in line.iter().enumerate() {
                let x = index as f64 * pitch;
                let end = grid(&mut svg, (x, y), &row.label, row.run, two_dimensional(group));
                height = height.max(end);
            }
            y += height + 18.0;
        }
        y += 6.0;
    }
    let scale: String = [0.05, 0.25, 0.5, 0.75, 1.0]
        .iter()
        .map(|share| {
            format!(
                "<span class=key><svg aria-hidden=\"true\" viewBox=\"0 0 14 14\"><rect class=\"heat\" \
                 width=\"14\" height=\"14\" fill-opacity=\"{share}\"/></svg>{share}</span>"
            )
        })
        .collect();
    let strip: String = [("near", "L1 or L2"), ("c-faults", "LLC"), ("c-exits", "memory")]
        .iter()
        .map(|(class, name)| {
            format!(
                "<span class=key><svg aria-hidden=\"true\" viewBox=\"0 0 14 14\"><rect class=\"{class}\" \
                 y=\"5\" width=\"14\" height=\"4\"/></svg>{name}</span>"
            )
        })
        .collect();
    format!(
        "<div class=keys><span class=key>references of a walk at this position:</span>{scale}</div>\
         <div class=keys><span class=key>of all walks, served here by, from left to right:</span>{strip}</div>{}{}",
        svg.finish(y, true),
        raw(groups)
    )
}

fn two_dimensional(group: &Group<'_>) -> bool {
    group.rows.iter().any(|row| found(row.run).keys().any(|(_, second)| *second > 0))
}

/// What became of each place.
fn found(run: &Run) -> BTreeMap<Place, &Position> {
    let positions = run.walk_positions.iter();
    positions.filter_map(|at| Some((place(&at.position)?, at))).collect()
}

/// References in all.
fn references(run: &Run) -> u64 {
    found(run).values().map(|at| at.references).sum()
}

/// Who served a reference: a word, the class of its part of the strip, and how many of them.
type Served = (&'static str, &'static str, fn(&Position) -> u64);

/// In the order of the strip, the nearest first.
const SERVED: [Served; 4] = [
    ("L1", "near", |at| at.l1),
    ("L2", "near", |at| at.l2),
    ("LLC", "c-faults", |at| at.llc),
    ("memory", "c-exits", |at| at.memory),
];

/// What saved a reference: a word, and how many it saved.
type Saved = (&'static str, fn(&Position) -> u64);

/// In the order of a walk.
const SAVED: [Saved; 3] = [
    ("the walk caches", |at| at.pwc),
    ("the nested walk caches", |at| at.nested_pwc),
    ("the nested TLB", |at| at.ntlb),
];

/// `g4n3` is (4, 3), `g4` is (4, 0), `dn1` is (0, 1).
fn place(name: &str) -> Option<Place> {
    let level = |text: &str| text.parse::<u8>().ok().filter(|level| (1..=9).contains(level));
    let (guest, second) = match name.split_once('n') {
        Some((guest, second)) => (guest, level(second)?),
        None => (name, 0),
    };
    match guest {
        "d" => Some((0, second)),
        guest => Some((level(guest.strip_prefix('g')?)?, second)),
    }
}

/// All walks: those that ended in a fault made references, too.
fn walks(run: &Run) -> u64 {
    run.walks + run.counters.get("strata.faulted_walks").copied().unwrap_or(0)
}

/// Draws one grid and gives its height.
fn grid(svg: &mut Svg, (x, y): (f64, f64), title: &str, run: &Run, second_stage: bool) -> f64 {
    let found = found(run);
    let walks = walks(run);
    let levels =
        found.keys().flat_map(|(guest, second)| [*guest, *second]).max().unwrap_or(4).max(4);
    let columns: Vec<u8> = if second_stage { (0..=levels).rev().collect() } else { vec![0] };
    let rows: Vec<u8> = (0..=levels).rev().filter(|row| second_stage || *row > 0).collect();
    svg.text((x, y + 12.0), Anchor::Start, "name", title);
    let (left, top) = (x + 30.0, y + 36.0);
    for (index, column) in columns.iter().enumerate() {
        let name = if *column == 0 { "gPT".to_owned() } else { format!("n{column}") };
        let at = left + (index as f64 + 0.5) * CELL[0] - 1.0;
        svg.text((at, top - 5.0), Anchor::Middle, "tick", &name);
    }
    for (index, row) in rows.iter().enumerate() {
        let name = if *row == 0 { "data".to_owned() } else { format!("g{row}") };
        let at = top + index as f64 * CELL[1];
        svg.text((left - 6.0, at + 16.0), Anchor::End, "tick", &name);
        for (number, column) in columns.iter().enumerate() {
            if (*row, *column) == (0, 0) {
                continue;
            }
            let here = found.get(&(*row, *column)).map(|at| (*at).clone()).unwrap_or_default();
            let count = here.references;
            let each = if walks == 0 { 0.0 } else { count as f64 / walks as f64 };
            let place = [left + number as f64 * CELL[0], at, CELL[0] - 2.0, CELL[1] - 2.0];
            let words = format!(
                "{title}: {}: {} references, {} a walk{}",
                described(*row, *column),
                run.mark(whole(count)),
                run.mark(format!("{each:.3}")),
                shares(&here, walks, run)
            );
            svg.rect(place, "cell", "");
            svg.open(&format!("fill-opacity=\"{:.2}\"", each.min(1.0)));
            svg.rect(place, "heat", &words);
            svg.close();
            strip(svg, place, &here, walks);
            let (class, text) = match each {
                0.0 => ("faint", "0".to_owned()),
                each if each < 0.005 => ("small", "<.01".to_owned()),
                each if each > 0.55 => ("small on", format!("{each:.2}")),
                each => ("small", format!("{each:.2}")),
            };
            let text = if count > 0 { run.mark(text) } else { text };
            svg.text((place[0] + place[2] / 2.0, at + 15.0), Anchor::Middle, class, &text);
        }
    }
    let bottom = top + rows.len() as f64 * CELL[1];
    let positions = columns.len() * rows.len() - usize::from(second_stage);
    let all: u64 = found.values().map(|at| at.references).sum();
    let each = if walks == 0 { 0.0 } else { all as f64 / walks as f64 };
    let each = run.mark(format!("{each:.2}"));
    svg.text((left, bottom + 14.0), Anchor::Start, "note", &format!("{each} of {positions}"));
    bottom + 16.0 - y
}

/// Where the references of a cell were served, as parts of its width, which is all walks.
fn strip(svg: &mut Svg, [x, y, width, height]: [f64; 4], here: &Position, walks: u64) {
    let mut left = x;
    for (_, class, count) in SERVED {
        let part = width * count(here) as f64 / walks.max(1) as f64;
        if part >= 0.3 {
            svg.rect([left, y + height - 4.0, part.min(x + width - left), 4.0], class, "");
        }
        left += part;
    }
}

/// The same in words, with what was saved.
fn shares(here: &Position, walks: u64, run: &Run) -> String {
    let part =
        |count: u64| run.mark(format!("{:.1} %", 100.0 * count as f64 / walks.max(1) as f64));
    let say = |words: &str, parts: Vec<(&str, u64)>| {
        let parts: Vec<String> = parts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {}", part(*count)))
            .collect();
        if parts.is_empty() { String::new() } else { format!("; {words} {}", parts.join(", ")) }
    };
    let served = SERVED.iter().map(|(name, _, count)| (*name, count(here))).collect();
    let saved = SAVED.iter().map(|(name, count)| (*name, count(here))).collect();
    say("of all walks, served by", served) + &say("saved by", saved)
}

fn described(guest: u8, second: u8) -> String {
    match (guest, second) {
        (guest, 0) => format!("g{guest}, the guest's level-{guest} entry"),
        (0, second) => format!("dn{second}, the second stage's level-{second} entry for the data"),
        (guest, second) => format!(
            "g{guest}n{second}, the second stage's level-{second} entry that leads to g{guest}"
        ),
    }
}

fn label(groups: &[Group<'_>]) -> String {
    let rows = groups.iter().flat_map(|group| group.rows.iter().map(move |row| (group, row)));
    let said = rows.map(|(group, row)| {
        let each = references(row.run) as f64 / walks(row.run).max(1) as f64;
        format!("{} {}: {}", group.title, row.label, row.run.mark(format!("{each:.2}")))
    });
    format!(
        "References a walk makes, of walk caches' help. {}",
        said.collect::<Vec<_>>().join("; ")
    )
}

fn raw(groups: &[Group<'_>]) -> String {
    let mut tables = String::new();
    for group in groups {
        for row in &group.rows {
            let mut places: Vec<(Place, &Position)> = found(row.run).into_iter().collect();
            let order = |place: Place| (if place.0 == 0 { 9 } else { 9 - place.0 }, 9 - place.1);
            places.sort_by_key(|(place, _)| order(*place));
            let cells = |name: String, of: &dyn Fn(fn(&Position) -> u64) -> u64| {
                let figure = |count: fn(&Position) -> u64| row.run.mark(whole(of(count)));
                let mut cells = vec![name, figure(|at| at.references)];
                cells.extend(SERVED.iter().map(|(.., count)| figure(*count)));
                cells.extend(SAVED.iter().map(|(_, count)| figure(*count)));
                cells
            };
            let mut rows: Vec<Vec<String>> = places
                .iter()
                .map(|((guest, second), at)| cells(described(*guest, *second), &|count| count(at)))
                .collect();
            rows.push(cells("all".to_owned(), &|count| {
                places.iter().map(|(_, at)| count(at)).sum()
            }));
            let title = format!(
                "{} {}: {} walks, those that ended in a fault included",
                group.title,
                row.label,
                row.run.mark(whole(walks(row.run)))
            );
            let saved = SAVED.iter().map(|(name, _)| format!("saved by {name}"));
            let saved: Vec<String> = saved.collect();
            let mut head = vec![title.as_str(), "references"];
            head.extend(SERVED.iter().map(|(name, ..)| *name));
            head.extend(saved.iter().map(String::as_str));
            tables += &table(&head, &rows, 1);
        }
    }
    numbers("Numbers, in references", &tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_the_walk_names_them() {
        assert_eq!(place("g4n3"), Some((4, 3)));
        assert_eq!(place("g4"), Some((4, 0)));
        assert_eq!(place("dn1"), Some((0, 1)));
        for none in ["", "x", "g", "gn", "g0", "g4n", "n4", "d"] {
            assert!(matches!(place(none), None | Some((0, 0))), "{none}");
        }
    }
}
