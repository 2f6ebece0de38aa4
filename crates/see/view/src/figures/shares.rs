//! Which of the guest's memory is in huge pages, and which of these are well aligned.

use super::bars::{Bar, Bars, Part, Plot};
use super::{Group, STATES, of, state_keys};
use crate::html::{numbers, table};
use crate::input::run::Run;
use crate::number::{bytes, percent, share, whole};

/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;
/// The figure.
pub fn figure(groups: &[Group<'_>]) -> String {
    let mut bars = Bars::default();
    for group in groups {
        if groups.len() > 1 {
            bars.head(&group.title);
        }
        for row in &group.rows {
            bars.bar(bar(&row.label, row.run));
        }
    }
    let plot = Plot {
        left: 150.0,
        right: 790.0,
        pitch: 26.0,
        exact: Some(100.0),
        unit: "share of the memory the guest used, %",
    };
    state_keys() + &bars.draw(&label(groups), plot) + &raw(groups)
}

fn bar(label: &str, run: &Run) -> Bar {
    let (parts, all) = parts(run);
    let parts =
        parts.into_iter().filter(|(.., pages)| *pages > 0).map(|(class, name, what, pages)| {
            let part = share(pages, all);
            let words = format!(
                "{label}: {name}, {} of the guest's memory ({}). {what}",
                percent(part),
                bytes(pages * HUGE)
            );
            Part { class, words, value: part * 100.0 }
        });
    let alignment = &run.alignment;
    let note = match alignment.guest_huge {
        0 => "no huge pages".to_owned(),
        huge => format!("{} of {huge} well aligned", alignment.well_aligned),
    };
    Bar {
        label: label.to_owned(),
        parts: parts.collect(),
        note,
        note_apart: true,
        ..Bar::default()
    }
}

/// Units of huge pages by what they are: class, name, explanation, number. And the sum.
fn parts(run: &Run) -> ([(&'static str, &'static str, &'static str, u64); 4], u64) {
    let alignment = &run.alignment;
    let counts = [alignment.well_aligned, alignment.type1, alignment.type2];
    let [aligned, type1, type2] = STATES.map(|(class, name, what)| (class, name, what));
    let huge: u64 = counts.iter().sum();
    let used = run.memory.used_bytes.div_ceil(HUGE);
    let base = used.saturating_sub(huge);
    let with = |(class, name, what), pages| (class, name, what, pages);
    let parts = [
        with(aligned, counts[0]),
        with(type1, counts[1]),
        with(type2, counts[2]),
        ("base4k", "base pages", "the guest maps it by 4 KiB, tables of the guest included", base),
    ];
    (parts, huge + base)
}

fn label(groups: &[Group<'_>]) -> String {
    let rows = groups.iter().flat_map(|group| &group.rows);
    let said = rows.map(|row| {
        let alignment = &row.run.alignment;
        format!("{}: {}", row.label, of(alignment.well_aligned, alignment.guest_huge))
    });
    format!("Huge pages that are well aligned. {}", said.collect::<Vec<_>>().join("; "))
}

fn raw(groups: &[Group<'_>]) -> String {
    let mut rows = Vec::new();
    for group in groups {
        for row in &group.rows {
            let alignment = &row.run.alignment;
            let mut cells = vec![group.title.clone(), row.label.clone()];
            let counts = [
                alignment.guest_huge,
                alignment.well_aligned,
                alignment.type1,
                alignment.type2,
                alignment.pseudo_huge,
                row.run.memory.used_bytes,
                row.run.memory.touched_bytes,
            ];
            cells.extend(counts.map(whole));
            rows.push(cells);
        }
    }
    let head = [
        "",
        "policy",
        "huge pages",
        "well aligned",
        "type 1",
        "type 2",
        "pseudo huge",
        "bytes used",
        "bytes touched",
    ];
    numbers("Numbers", &table(&head, &rows, 2))
}
