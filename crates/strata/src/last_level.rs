//! What the table says of a last-level cache that is modelled in detail.

use crate::lines::Lines;
use strata_engine::RunResult;
use strata_engine::report::{LastLevel, MissCauses};
use strata_text::number::{bytes, count, percent, share};

/// Misses with one cause, on data and on page tables.
fn cause(of: impl Fn(&MissCauses) -> u64) -> impl Fn(&LastLevel) -> String {
    move |llc| match (&llc.data_misses, &llc.walk_misses) {
        (Some(data), Some(walks)) => count(of(data) + of(walks)),
        _ => "-".to_owned(),
    }
}

/// The rows of the last-level cache, none where it is plain, and of a cache at the memory.
pub(crate) fn section(lines: &mut Lines<'_>) {
    part(lines, "last-level cache", |run| run.llc.as_ref());
    part(lines, "cache at the memory", |run| run.l4.as_ref());
}

/// The rows of one shared cache; none where no run has it.
fn part(lines: &mut Lines<'_>, heading: &str, found: fn(&RunResult) -> Option<&LastLevel>) {
    let runs = lines.runs;
    let any = |has: fn(&LastLevel) -> bool| runs.iter().filter_map(|run| found(run)).any(has);
    if !any(|_| true) {
        return;
    }
    lines.heading(heading);
    let mut row = |label: &str, cell: &dyn Fn(&LastLevel) -> String| {
        let of = |run: &RunResult| found(run).map_or_else(|| "-".to_owned(), cell);
        lines.estimated(label, of);
    };
    row("references", &|llc| count(llc.reads));
    row("share of them missed", &|llc| percent(share(llc.misses, llc.reads)));
    if any(|llc| llc.data_misses.is_some()) {
        row("cold misses", &cause(|causes| causes.cold));
        row("capacity misses", &cause(|causes| causes.capacity));
        row("conflict misses", &cause(|causes| causes.conflict));
        row("lucky hits", &|llc| llc.lucky_hits.map_or_else(|| "-".to_owned(), count));
    }
    row("own lines evicted", &|llc| count(llc.evicted_own));
    if any(|llc| !llc.evicted_others.is_empty()) {
        row("lines of others evicted", &|llc| count(llc.evicted_others.values().sum()));
    }
    if any(|llc| llc.inclusion_victims > 0) {
        row("inclusion victims", &|llc| count(llc.inclusion_victims));
    }
    row("held at the end", &|llc| bytes(llc.held_bytes));
}
