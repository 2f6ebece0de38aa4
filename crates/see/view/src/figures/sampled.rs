//! What of a sampled stream is estimated, and how far each estimate may be off.

use super::Group;
use crate::html::{escaped, table};
use crate::input::run::Run;
use crate::number::{count, percent};
use strata_text::estimate::{SAMPLED, within};

/// A figure with bounds: what it is called, its name in the JSON, and its value.
type Bounded = (&'static str, &'static str, fn(&Run) -> f64);

const BOUNDED: [Bounded; 7] = [
    ("throughput", "relative_throughput", |run| run.relative_throughput.unwrap_or(0.0)),
    ("cycles", "cycles", |run| run.cycles as f64),
    ("L1 TLB misses", "tlb.l1_misses", |run| run.tlb.l1_misses as f64),
    ("L2 TLB misses", "tlb.l2_misses", |run| run.tlb.l2_misses as f64),
    ("references of walks", "walk_refs", |run| run.walk_refs as f64),
    ("cycles in walks", "walk_cycles", |run| run.walk_cycles as f64),
    ("misses of the last-level cache", "counters.strata.data_memory", |run| {
        run.counters.get("strata.data_memory").copied().unwrap_or(0) as f64
    }),
];

/// The sentence and the bounds; nothing where all was run.
pub fn figure(groups: &[Group<'_>]) -> String {
    let mut rows = Vec::new();
    let mut confidence = 0;
    for group in groups {
        for row in &group.rows {
            let Some(sampled) = &row.run.sampled else { continue };
            confidence = sampled.confidence;
            let mut cells = vec![group.title.clone(), row.label.clone(), count(sampled.windows)];
            cells.extend(BOUNDED.iter().map(|(_, name, value)| {
                let bounds = sampled.bounds.get(*name);
                within(bounds.map(|bounds| bounds.relative(value(row.run))))
            }));
            rows.push(cells);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut head = vec!["", "policy", "windows"];
    head.extend(BOUNDED.iter().map(|(label, ..)| *label));
    format!(
        "<p>{}</p><p class=reading>Figures of the whole stream are within these bounds {confidence} of 100 \
         times; there are none where windows say too little.</p>{}{}",
        escaped(SAMPLED),
        table(&head, &rows, 2),
        phases(groups)
    )
}

/// The phases of a stream that was sampled by them. They are the same for all machines.
fn phases(groups: &[Group<'_>]) -> String {
    let runs = groups.iter().flat_map(|group| &group.rows).map(|row| row.run);
    let mut phases = runs.filter_map(|run| Some(&run.sampled.as_ref()?.phases));
    let Some(phases) = phases.find(|phases| !phases.is_empty()) else {
        return String::new();
    };
    let rows = phases.iter().enumerate().map(|(number, phase)| {
        vec![
            format!("phase {}", number + 1),
            percent(phase.share),
            count(phase.intervals),
            count(phase.windows),
        ]
    });
    let head = ["", "share of the instructions", "intervals", "of them run in detail"];
    table(&head, &rows.collect::<Vec<_>>(), 1)
}
