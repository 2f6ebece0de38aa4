//! The four address spaces as lanes below each other: a column is a region of 2 MiB, in the order of its
//! guest-virtual address, and it is the same one in every lane.

use super::Group;
use crate::html::{escaped, numbers, table};
use crate::input::run::Regions;
use crate::number::{count, whole};
use crate::regions::{Map, REGION, Row, STATES};
use crate::svg::{Anchor, Svg, key};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Where lanes begin and end.
const PLOT: [f64; 2] = [150.0, 950.0];
/// Height of a lane, and from one to the next.
const LANE: [f64; 2] = [20.0, 27.0];
/// Columns drawn at most; of more regions each has several.
const MOST_COLUMNS: u64 = 400;
/// Columns up to which a gap is left between them.
const APART: u64 = 130;
/// Widest column.
const WIDEST: f64 = 14.0;
/// Rows of the list; the JSON has all.
const LISTED: usize = 400;

/// The figure; nothing without regions.
pub fn figure(groups: &[Group<'_>]) -> String {
    let mut out = String::new();
    for group in groups {
        for row in &group.rows {
            let Some(regions) = &row.run.regions else { continue };
            let name = match groups.len() {
                1 => row.label.clone(),
                _ => format!("{}, {}", group.title, row.label),
            };
            out += &one(&name, regions, &row.path);
        }
    }
    if out.is_empty() { out } else { keys() + &out }
}

/// The lanes of one guest. `path` is where the regions are in the JSON.
pub fn one(name: &str, regions: &Regions, path: &str) -> String {
    let Some(map) = Map::new(regions) else { return String::new() };
    let picture = picture(name, &map);
    format!(
        "<div class=lanes data-regions=\"{}\"><p class=name>{} <span class=tools hidden></span></p>\
         {picture}</div>{}",
        escaped(path),
        escaped(name),
        list(&map)
    )
}

/// What classes mean.
pub fn keys() -> String {
    let keys = [
        ("aligned", "well aligned"),
        ("solid1", "type 1"),
        ("solid2", "type 2"),
        ("plain", "huge below, for base pages of the guest"),
        ("base4k", "base pages of the guest"),
        ("type2", "hatched: that layer has base pages"),
    ];
    let keys: String = keys.iter().map(|(class, name)| key(class, name)).collect();
    format!("<div class=keys>{keys}</div>")
}

/// Names of the lanes: the address space that a region is in, and whose table is shown.
fn lanes(layers: &[String]) -> Vec<(String, String)> {
    let between = layers.len().saturating_sub(2);
    let mut lanes = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let space = match index {
            0 => "GVA".to_owned(),
            1 => "GPA".to_owned(),
            2 if between == 1 => "GHPA".to_owned(),
            index => format!("GHPA {}", index - 1),
        };
        let who = match layer.as_str() {
            "l1" => "L1".to_owned(),
            other => other.to_owned(),
        };
        lanes.push((space, format!("{who} maps")));
    }
    lanes.push(("HPA".to_owned(), "the TLB gets".to_owned()));
    lanes
}

/// What a column has in one lane: for each state the share in huge and in base pages.
type Cell = [[f64; 2]; STATES.len()];

/// A column: regions beside each other.
struct Column {
    cells: Vec<Cell>,
    /// The process and the address of the first region.
    first: (i64, u64),
    /// It does not follow the one before.
    begins: bool,
}

fn columns(map: &Map<'_>, per: u64) -> Vec<Column> {
    let lanes = map.layers.len() + 1;
    let mut all: Vec<Column> = Vec::new();
    let (mut taken, mut expected) = (0, None);
    for row in map.rows() {
        for index in 0..row.count() {
            let here = (row.process(), row.address() + index * REGION);
            if taken % per == 0 {
                let empty = vec![Cell::default(); lanes];
                let begins = expected != Some(here);
                all.push(Column { cells: empty, first: here, begins });
            }
            let column = all.last_mut().expect("one was begun");
            for (lane, cell) in column.cells.iter_mut().enumerate() {
                let [huge, base] = lane_shares(&row, lane, map.layers.len());
                cell[row.state()][0] += huge / per as f64;
                cell[row.state()][1] += base / per as f64;
            }
            taken += 1;
            expected = Some((here.0, here.1 + REGION));
        }
    }
    all
}

/// The last lane is what comes out of all: a huge page only where all layers have one.
fn lane_shares(row: &Row<'_>, lane: usize, layers: usize) -> [f64; 2] {
    if lane < layers {
        return row.shares(lane);
    }
    let [huge, base] = row.shares(layers - 1);
    match row.state() {
        1 => [1.0, 0.0],
        // Scattered above: by base pages, wherever these are.
        _ if !row.is_followed(layers - 1) => [0.0, 1.0],
        _ => [0.0, huge + base],
    }
}

fn picture(name: &str, map: &Map<'_>) -> String {
    let regions = map.count();
    let per = regions.div_ceil(MOST_COLUMNS);
    let columns = columns(map, per);
    let width = ((PLOT[1] - PLOT[0]) / columns.len() as f64).min(WIDEST);
    let gap = if columns.len() as u64 <= APART { 1.0 } else { 0.0 };
    let mut svg = Svg::new(&label(name, map));
    let top = 18.0;
    let names = lanes(&map.layers);
    let end = PLOT[0] + width * columns.len() as f64;
    svg.open("class=\"areas\"");
    let mut free_from = 0.0;
    for (index, column) in columns.iter().enumerate().filter(|(_, column)| column.begins) {
        let x = PLOT[0] + index as f64 * width;
        let bottom = top + names.len() as f64 * LANE[1];
        svg.line([x, top - 4.0, x, bottom - 4.0], "zero");
        let text = format!("{:#x}", column.first.1);
        let room = text.len() as f64 * 6.6;
        if x >= free_from && x + room < PLOT[1] + 10.0 {
            svg.text((x + 2.0, top - 7.0), Anchor::Start, "tick", &text);
            free_from = x + room + 8.0;
        }
    }
    svg.close();
    for (lane, (space, who)) in names.iter().enumerate() {
        let y = top + lane as f64 * LANE[1];
        svg.text((0.0, y + 14.0), Anchor::Start, "name", space);
        svg.text((PLOT[0] - 10.0, y + 14.0), Anchor::End, "tick", who);
        svg.rect([PLOT[0], y, end - PLOT[0] - gap, LANE[0]], "lane", "");
    }
    svg.open("class=\"cells\"");
    for (class, boxes) in boxes(&columns, names.len(), (top, width, gap)) {
        svg.boxes(&boxes, class);
    }
    svg.close();
    let bottom = top + names.len() as f64 * LANE[1];
    let each = match per {
        1 => String::new(),
        per => format!(", {per} to a column"),
    };
    let said =
        format!("{} regions of 2 MiB in the order of GVA, gaps left out{each}", count(regions));
    svg.text((PLOT[0], bottom + 10.0), Anchor::Start, "unit", &said);
    svg.finish(bottom + 16.0, false)
}

/// What is drawn, by class. A cell has from the bottom each state's huge pages, then its base pages.
fn boxes(
    columns: &[Column],
    lanes: usize,
    (top, width, gap): (f64, f64, f64),
) -> BTreeMap<&'static str, Vec<[f64; 4]>> {
    let mut boxes: BTreeMap<&'static str, Vec<[f64; 4]>> = BTreeMap::new();
    for lane in 0..lanes {
        let mut index = 0;
        while index < columns.len() {
            let cell = &columns[index].cells[lane];
            // Many regions alike are one mark.
            let alike =
                columns[index..].iter().take_while(|other| other.cells[lane] == *cell).count();
            let together = if gap > 0.0 { 1 } else { alike };
            let x = PLOT[0] + index as f64 * width;
            let mut bottom = top + lane as f64 * LANE[1] + LANE[0];
            // What is best is at the bottom.
            for state in [1, 2, 3, 4, 0] {
                let (huge, base, _) = STATES[state];
                for (class, share) in [huge, base].into_iter().zip(cell[state]) {
                    let height = share * LANE[0];
                    if height >= 0.2 {
                        bottom -= height;
                        let place = [x, bottom, width * together as f64 - gap, height];
                        boxes.entry(class).or_default().push(place);
                    }
                }
            }
            index += together;
        }
    }
    boxes
}

fn totals(map: &Map<'_>) -> [u64; STATES.len()] {
    let mut totals = [0; STATES.len()];
    map.rows().for_each(|row| totals[row.state()] += row.count());
    totals
}

fn label(name: &str, map: &Map<'_>) -> String {
    let totals = totals(map);
    let said: Vec<String> = STATES
        .iter()
        .zip(totals)
        .map(|((.., state), regions)| format!("{state}: {regions}"))
        .collect();
    format!("{name}: regions of 2 MiB through all layers. {}", said.join("; "))
}

fn list(map: &Map<'_>) -> String {
    let names = lanes(&map.layers);
    let mut head = vec!["GVA", "regions", "state", "cause"];
    head.extend(map.layers.iter().map(String::as_str));
    head.extend(names.iter().skip(1).map(|(space, _)| space.as_str()));
    let all: Vec<Row<'_>> = map.rows().collect();
    let rows: Vec<Vec<String>> = all
        .iter()
        .take(LISTED)
        .map(|row| {
            let cause =
                map.cause(*row).map_or_else(String::new, |[layer, why]| format!("{layer}: {why}"));
            let state = STATES[row.state()].2.to_owned();
            let mut cells = vec![format!("{:#x}", row.address()), whole(row.count()), state, cause];
            cells.extend((0..map.layers.len()).map(|layer| match row.shares(layer) {
                [huge, _] if huge >= 1.0 => "huge".to_owned(),
                [0.0, 0.0] if row.is_followed(layer) => "nothing".to_owned(),
                [0.0, 0.0] => "not followed".to_owned(),
                [0.0, _] => "base".to_owned(),
                [huge, _] => format!("{:.0} % huge", huge * 100.0),
            }));
            cells.extend((0..map.layers.len()).map(|layer| {
                row.place(layer).map_or_else(|| "scattered".to_owned(), |at| format!("{at:#x}"))
            }));
            cells
        })
        .collect();
    let mut out = table(&head, &rows, head.len());
    if all.len() > LISTED {
        let _ = write!(
            out,
            "<p class=reading>The first {LISTED} of {}; the JSON has all.</p>",
            all.len()
        );
    }
    numbers("List of regions", &out)
}
