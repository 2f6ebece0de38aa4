//! The text report of the lab.

use crate::snapshot_text;
use anstyle::Style;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use signal_hook::low_level::signal_name;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use strata_lab::{Counters, LabReport, LayerReport, StepReport, TraceReport};
use strata_text::number::{bytes, count};

const BOLD: Style = Style::new().bold();
/// Reasons of exits that are shown; the rest is in the JSON.
const REASONS: usize = 8;

/// The whole report in at most `width` columns where it can be, with ANSI styles. What programs
/// printed is in it if `output` says so.
pub fn render(report: &LabReport, width: usize, output: bool) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{BOLD}{}{BOLD:#}: {}", report.scenario, report.about);
    let _ = writeln!(out, "Real: {}.\nEmulated: {}.\n", report.real, report.emulated);
    let machine = &report.machine;
    let _ = writeln!(
        out,
        "Machine: {}, processor {}, emulated by {}",
        machine.make, machine.processor, machine.emulator
    );
    for layer in &report.layers {
        let booted = &layer.booted;
        let _ = writeln!(
            out,
            "L{} runs Linux {} ({}, {}, SHA-256 {}) since second {:.1}, {:.1} s after it was started",
            booted.layer,
            booted.kernel.split(' ').next().unwrap_or_default(),
            layer.variant,
            layer.package,
            &layer.sha256[..layer.sha256.len().min(16)],
            booted.since_start,
            booted.own,
        );
    }
    if report.kept {
        out += "These seconds are of the boot; this run began with the machine that was kept after it.\n";
    }
    for restart in &report.restarts {
        let _ = writeln!(out, "Booted again: {restart}");
    }
    let _ = writeln!(
        out,
        "\nWhat is counted happened from the moment all layers ran to the end of the run, snapshots \
         included; memory, FMFI and entries are those of the end."
    );
    out += &counters(&report.layers);
    for layer in &report.layers {
        exits(&mut out, layer);
    }
    if let Some(join) = &report.alignment {
        let _ = writeln!(out, "\n{BOLD}Alignment{BOLD:#}, by the last snapshots of all layers");
        out += &snapshot_text::joined(join, width);
    }
    if let Some(trace) = &report.trace {
        traced(&mut out, trace);
    }
    let _ = writeln!(out, "\n{BOLD}What was done{BOLD:#}");
    for step in &report.steps {
        let _ = writeln!(out, "{:>8.1} s  {}", step.seconds, step.what);
        for line in step.output.iter().chain(&step.errors).filter(|_| output) {
            let _ = writeln!(out, "            {line}");
        }
        if let Some(how) = ending(step) {
            let _ = writeln!(out, "            {how}");
        }
    }
    out
}

/// How a program ended, if not well.
fn ending(step: &StepReport) -> Option<String> {
    match step.status? {
        _ if step.timed_out => Some("killed: its time was over".to_owned()),
        0 => None,
        status @ 1.. => Some(format!("ended with status {status}")),
        status => Some(match signal_name(-status) {
            Some(name) => format!("killed by {name}"),
            None => format!("killed by signal {}", -status),
        }),
    }
}

/// What a trace recorded and whether it can be trusted.
fn traced(out: &mut String, trace: &TraceReport) {
    let _ = writeln!(
        out,
        "\n{BOLD}Trace{BOLD:#}, true accesses and the page tables of their last moment"
    );
    let _ = writeln!(
        out,
        "{} accesses, each translated through the tables: {} elsewhere than the emulator says, {} on \
         pages that moved meanwhile",
        count(trace.accesses),
        count(trace.mismatched),
        count(trace.changed),
    );
    if let Some(shadow) = &trace.shadow {
        let _ = writeln!(
            out,
            "L0's shadow table against L1's table and L0's: {} base pages equal, {} different, {} only \
             in the shadow",
            count(shadow.equal),
            count(shadow.different),
            count(shadow.only_shadow),
        );
    }
    let _ = writeln!(
        out,
        "{} huge pages by the guest's table, {} of them well aligned by the table hardware walks; the \
         machine stood still for {:.1} s",
        count(trace.huge_pages),
        count(trace.well_aligned),
        trace.still_seconds,
    );
    let _ = writeln!(
        out,
        "Replay on modelled TLBs: strata run {} --tables {}",
        trace.recording.display(),
        trace.tables.display(),
    );
}

/// A line of the table of counters: its name and how it is read.
type Row = (&'static str, fn(&LayerReport) -> String);

const ROWS: [Row; 14] = [
    ("memory", |layer| bytes(layer.after.memory_bytes)),
    ("free", |layer| bytes(layer.after.free_bytes)),
    ("FMFI, order 9", |layer| format!("{:.2}", layer.after.fmfi)),
    ("huge page faults", |layer| vmstat(layer, "thp_fault_alloc")),
    ("  fell back to base pages", |layer| vmstat(layer, "thp_fault_fallback")),
    ("huge pages collapsed", |layer| vmstat(layer, "thp_collapse_alloc")),
    ("huge pages split", |layer| vmstat(layer, "thp_split_page")),
    ("pages migrated", |layer| vmstat(layer, "pgmigrate_success")),
    ("KVM: exits", |layer| kvm(layer, "exits")),
    ("  MMU faults", |layer| kvm(layer, "pf_taken")),
    ("  entries into nested guest", |layer| kvm(layer, "nested_run")),
    ("  writes to guest tables", |layer| kvm(layer, "mmu_pte_write")),
    ("  4 KiB entries at the end", |layer| gauge(layer, "pages_4k")),
    ("  2 MiB entries at the end", |layer| gauge(layer, "pages_2m")),
];

/// Counters of all layers side by side: what happened between boot and the end.
fn counters(layers: &[LayerReport]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    let heads = layers.iter().map(|layer| format!("L{}", layer.booted.layer));
    table.set_header([String::new()].into_iter().chain(heads));
    for (name, read) in ROWS {
        table.add_row([name.to_owned()].into_iter().chain(layers.iter().map(read)));
    }
    for (name, read) in more(layers) {
        table.add_row([name].into_iter().chain(layers.iter().map(read)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{}\n", table.trim_fmt())
}

/// Where KVM's counters of alignment begin, which only kernels of the lab's own have.
const ALIGNMENT: &str = "nested_align_";

/// Lines of what not every run has: counters of alignment and events asked for.
fn more(layers: &[LayerReport]) -> impl Iterator<Item = (String, impl Fn(&LayerReport) -> String)> {
    type Of = fn(&Counters) -> &BTreeMap<String, u64>;
    let names = |of: Of, start: &'static str| -> BTreeSet<String> {
        let all = layers.iter().flat_map(move |layer| of(&layer.after).keys());
        all.filter(|name| name.starts_with(start)).cloned().collect()
    };
    let kinds: [(Of, &str, &str); 2] =
        [(|counters| &counters.kvm, ALIGNMENT, "KVM: "), (|counters| &counters.events, "", "")];
    let lines = kinds.into_iter().flat_map(move |(of, start, before)| {
        names(of, start).into_iter().map(move |name| (of, format!("{before}{name}"), name))
    });
    let lines: Vec<_> = lines.collect();
    lines.into_iter().map(|(of, line, name)| {
        let read = move |layer: &LayerReport| match of(&layer.after).get(&name) {
            Some(&end) => {
                let before = of(&layer.before).get(&name).copied().unwrap_or(0);
                change(before, end)
            }
            None => "-".into(),
        };
        (line, read)
    })
}

/// What was added to a counter, and where it stands if that is more.
fn change(before: u64, end: u64) -> String {
    match end.checked_sub(before) {
        Some(added) if added == end => count(end),
        Some(added) => format!("{} ({})", count(added), count(end)),
        None => format!("-{} ({})", count(before - end), count(end)),
    }
}

fn vmstat(layer: &LayerReport, name: &str) -> String {
    count(layer.after.vmstat(name).saturating_sub(layer.before.vmstat(name)))
}

fn kvm(layer: &LayerReport, name: &str) -> String {
    if layer.after.kvm.is_empty() {
        return "-".into();
    }
    count(layer.after.kvm(name).saturating_sub(layer.before.kvm(name)))
}

fn gauge(layer: &LayerReport, name: &str) -> String {
    if layer.after.kvm.is_empty() { "-".into() } else { count(layer.after.kvm(name)) }
}

/// Exits by reason between boot and the end, most frequent first.
fn exits(out: &mut String, layer: &LayerReport) {
    let of = |read: fn(&Counters) -> &BTreeMap<String, u64>| {
        let before = read(&layer.before);
        let mut counts: Vec<(u64, &str)> = read(&layer.after)
            .iter()
            .map(|(name, after)| (after - before.get(name).unwrap_or(&0), name.as_str()))
            .filter(|(number, _)| *number > 0)
            .collect();
        counts.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let shown =
            counts.iter().take(REASONS).map(|(number, name)| format!("{name} {}", count(*number)));
        shown.collect::<Vec<_>>().join(", ")
    };
    let (all, nested) = (of(|counters| &counters.exits), of(|counters| &counters.nested_exits));
    if !all.is_empty() {
        let _ = writeln!(out, "L{}'s exits by reason: {all}", layer.booted.layer);
    }
    if !nested.is_empty() {
        let _ = writeln!(out, "  of its nested guest: {nested}");
    }
    let reflected = of(|counters| &counters.reflected_exits);
    if !reflected.is_empty() {
        let _ = writeln!(out, "  reflected to L{}: {reflected}", layer.booted.layer + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_program_ended_is_told_in_words() {
        let step = |status| StepReport { status, ..StepReport::default() };
        assert_eq!(ending(&step(None)), None);
        assert_eq!(ending(&step(Some(0))), None);
        assert_eq!(ending(&step(Some(3))).unwrap(), "ended with status 3");
        assert_eq!(ending(&step(Some(-11))).unwrap(), "killed by SIGSEGV");
        let late = StepReport { timed_out: true, ..step(Some(-9)) };
        assert_eq!(ending(&late).unwrap(), "killed: its time was over");
    }

    #[test]
    fn every_counter_has_a_term() {
        for (name, _) in ROWS {
            assert!(crate::terms::find(name).is_some(), "'{name}' is no term");
        }
    }

    #[test]
    fn a_change_says_where_the_counter_stands() {
        assert_eq!(change(0, 1_500), "1.50k");
        assert_eq!(change(500, 1_500), "1.00k (1.50k)");
        assert_eq!(change(7, 4), "-3 (4)");
        assert_eq!(change(0, 0), "0");
    }
}
