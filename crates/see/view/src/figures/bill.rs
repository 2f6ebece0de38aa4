//! The bill: where every cycle went, as one stacked bar for each run, all on one axis.

use super::Group;
use super::bars::{Bar, Bars, Part, Plot};
use crate::html::{numbers, table};
use crate::input::run::Run;
use crate::number::{count, percent, share, whole};
use crate::svg::key;

/// Kinds of cycles, in the order of a bar: class, name.
const KINDS: [(&str, &str); 8] = [
    ("execution", "useful work"),
    ("data", "data stalls"),
    ("walks", "TLB and walks"),
    ("faults", "page faults"),
    ("exits", "exits"),
    ("shootdowns", "TLB shootdowns"),
    ("background", "background work"),
    ("other", "not told apart"),
];

/// A line of a bill.
struct Item {
    kind: &'static str,
    name: String,
    level: String,
    event: String,
    cycles: u64,
}

/// The figure.
pub fn figure(groups: &[Group<'_>]) -> String {
    let mut bars = Bars::default();
    let mut shown: Vec<&str> = Vec::new();
    for group in groups {
        if groups.len() > 1 {
            bars.head(&group.title);
        }
        for row in &group.rows {
            let items = items(row.run);
            shown.extend(items.iter().map(|item| item.kind));
            bars.bar(bar(&row.label, row.run, &items));
        }
    }
    let keys = KINDS.iter().filter(|(class, _)| shown.contains(class));
    let keys: String = keys.map(|(class, name)| key(class, name)).collect();
    let plot = Plot {
        left: 150.0,
        right: 890.0,
        pitch: 30.0,
        exact: None,
        unit: "cycles of all virtual CPUs together",
    };
    format!("<div class=keys>{keys}</div>{}{}", bars.draw(&label(groups), plot), raw(groups))
}

fn bar(label: &str, run: &Run, items: &[Item]) -> Bar {
    let note = run.mark(count(run.cycles));
    let mut bar = Bar { label: label.to_owned(), note, ..Bar::default() };
    let mut before = 0.0;
    // What stands in a bar is of all lines of a kind.
    for same in items.chunk_by(|a, b| a.kind == b.kind) {
        let cycles: u64 = same.iter().map(|item| item.cycles).sum();
        let length = cycles as f64;
        let share = run.mark(percent(share(cycles, run.cycles)));
        bar.inside.push((before + length / 2.0, length, share));
        before += length;
    }
    for item in items {
        let event = match item.event.as_str() {
            "" => String::new(),
            event => format!("; perf: {event}"),
        };
        let words = format!(
            "{label}: {}, {}: {} cycles, {}{event}",
            item.name,
            layer(&item.level),
            cycles(run, item.kind, count(item.cycles)),
            run.mark(percent(share(item.cycles, run.cycles)))
        );
        bar.parts.push(Part { class: item.kind, words, value: item.cycles as f64 });
    }
    bar
}

/// Cycles of a kind, marked where they are estimated: what kernels and hypervisors take is added up.
fn cycles(run: &Run, kind: &str, cycles: String) -> String {
    match kind {
        "faults" | "exits" | "shootdowns" | "background" => cycles,
        _ => run.mark(cycles),
    }
}

/// The lines of a bill, kind by kind.
fn items(run: &Run) -> Vec<Item> {
    let mut items: Vec<Item> = match run.bill.is_empty() {
        // Results of before have kinds only.
        true => run
            .cycles_by_kind
            .iter()
            .map(|(kind, cycles)| {
                let known = KINDS.iter().find(|(class, _)| class == kind);
                let (kind, name) = known.unwrap_or(&KINDS[7]);
                let (level, event) = ("all".to_owned(), String::new());
                Item { kind, name: (*name).to_owned(), level, event, cycles: *cycles }
            })
            .collect(),
        false => run
            .bill
            .iter()
            .map(|item| Item {
                kind: kind(&item.name),
                name: item.name.clone(),
                level: item.level.clone(),
                event: item.event.clone(),
                cycles: item.cycles,
            })
            .collect(),
    };
    items.retain(|item| item.cycles > 0);
    items.sort_by_key(|item| KINDS.iter().position(|(class, _)| *class == item.kind));
    items
}

fn kind(name: &str) -> &'static str {
    let begins = [
        ("useful work", "execution"),
        ("data", "data"),
        ("second-level TLB", "walks"),
        ("walks", "walks"),
        ("page faults", "faults"),
        ("exits", "exits"),
        ("TLB shootdowns", "shootdowns"),
        ("background", "background"),
    ];
    begins.into_iter().find(|(begin, _)| name.starts_with(begin)).map_or("other", |(_, kind)| kind)
}

/// A layer in words.
fn layer(level: &str) -> String {
    match level {
        "l1" => "L1".to_owned(),
        "all" => "all layers".to_owned(),
        other => format!("the {other}"),
    }
}

fn label(groups: &[Group<'_>]) -> String {
    let rows = groups.iter().flat_map(|group| group.rows.iter().map(move |row| (group, row)));
    let said = rows.map(|(group, row)| {
        let cycles = row.run.mark(count(row.run.cycles));
        format!("{} {}: {cycles} cycles", group.title, row.label)
    });
    format!("Cycles by what they went to. {}", said.collect::<Vec<_>>().join("; "))
}

fn raw(groups: &[Group<'_>]) -> String {
    let mut tables = String::new();
    for group in groups {
        let mut lines: Vec<(&'static str, String, String, String)> = Vec::new();
        let all: Vec<Vec<Item>> = group.rows.iter().map(|row| items(row.run)).collect();
        for part in all.iter().flatten() {
            let line = (part.kind, part.name.clone(), part.level.clone(), part.event.clone());
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.sort_by_key(|(kind, ..)| KINDS.iter().position(|(class, _)| class == kind));
        let rows: Vec<Vec<String>> = lines
            .iter()
            .map(|(kind, name, level, event)| {
                let mut cells = vec![name.clone(), level.clone(), event.clone()];
                cells.extend(all.iter().zip(&group.rows).map(|(parts, row)| {
                    let same =
                        |part: &&Item| (part.kind, &part.name, &part.level) == (*kind, name, level);
                    let sum: u64 = parts.iter().filter(same).map(|part| part.cycles).sum();
                    cycles(row.run, kind, whole(sum))
                }));
                cells
            })
            .collect();
        let mut head = vec![group.title.as_str(), "layer", "perf event"];
        head.extend(group.rows.iter().map(|row| row.label.as_str()));
        tables += &table(&head, &rows, 3);
    }
    numbers("Numbers, in cycles", &tables)
}
