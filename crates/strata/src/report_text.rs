//! The text report: what each policy costs, side by side.

use crate::lines::{BOLD, CELL, LABEL, Line, Lines, mark, print};
use crate::{again, last_level, requests, verdict, version};
use anstyle::Style;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, Table, Width};
use std::fmt::Write;
use strata_engine::options::Options;
use strata_engine::report::{PhaseShare, Sampled};
use strata_engine::{Report, RunResult, StackKind};
use strata_nested::ExitReason;
use strata_stream::command_line;
use strata_text::estimate::{SAMPLED, within};
use strata_text::number::{bytes, count, percent, ratio, share};

const WARNING: Style =
    Style::new().bold().fg_color(Some(anstyle::Color::Ansi(anstyle::AnsiColor::Yellow)));

/// What a report begins with that does not hold everything asked for.
const PARTIAL: &str = "PARTIAL RESULT";

/// The whole report in at most `width` columns, with ANSI styles.
pub fn render(report: &Report, width: usize) -> String {
    let mut out = String::new();
    let workload = &report.workload;
    let _ = write!(out, "{BOLD}");
    paragraph(&mut out, &format!("{} ({})", workload.name, workload.kind), width);
    let _ = write!(out, "{BOLD:#}");
    // One that ran out of memory saw less.
    if let Some(run) = report.runs.iter().max_by_key(|run| run.accesses) {
        let accesses = mark(run, count(run.accesses));
        let instructions = count(run.instructions);
        let touched = mark(run, bytes(run.memory.touched_bytes));
        let text = format!("{accesses} accesses, {instructions} instructions, {touched} touched");
        paragraph(&mut out, &text, width);
    }
    paragraph(&mut out, &made_by(report), width);
    partial(&mut out, report, width);
    for note in &workload.notes {
        paragraph(&mut out, &format!("Note: {note}."), width);
    }
    if report.runs.iter().any(|run| run.sampled.is_some()) {
        paragraph(&mut out, SAMPLED, width);
        paragraph(&mut out, &phases(report), width);
    }
    for sentence in crate::captured_tables::sentences(report) {
        paragraph(&mut out, &sentence, width);
    }
    let stacks = report.by_stack();
    sections(&mut out, &stacks, width);
    if stacks.len() > 1 {
        out.push('\n');
        across_stacks(&mut out, &stacks);
    }
    out
}

/// The phases of a stream that was sampled by them. They are the same for all machines.
fn phases(report: &Report) -> String {
    let sampled = report.runs.iter().filter_map(|run| run.sampled.as_ref());
    let Some(phases) = sampled.map(|sampled| &sampled.phases).find(|phases| !phases.is_empty())
    else {
        return String::new();
    };
    let list = |text: &dyn Fn(&PhaseShare) -> String| {
        phases.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    format!(
        "Phases, by their share of the instructions: {}. Of their {} intervals {} were run in detail.",
        list(&|phase| percent(phase.share)),
        list(&|phase| count(phase.intervals)),
        list(&|phase| count(phase.windows)),
    )
}

/// The table of each stack, what follows from it, and notes.
pub(crate) fn sections(out: &mut String, stacks: &[(StackKind, Vec<&RunResult>)], width: usize) {
    for (stack, runs) in stacks {
        let per_table = (width.saturating_sub(LABEL) / CELL).max(2);
        let (first, others) = (runs[0], &runs[1..]);
        let mut chunks: Vec<&[&RunResult]> = others.chunks(per_table - 1).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        for chunk in chunks {
            let mut shown = vec![first];
            shown.extend(chunk);
            let _ = writeln!(out, "\n{BOLD}{stack}{BOLD:#} on {}", first.cpu);
            section(out, *stack, &shown);
        }
        out.push('\n');
        paragraph(out, &verdict::sentences(runs).join(" "), width);
        paragraph(out, &requests::sentences(runs).join(" "), width);
        notes(out, runs, width);
    }
}

/// Why a report is partial, if it is.
pub(crate) fn partial(out: &mut String, report: &Report, width: usize) {
    if !report.partial {
        return;
    }
    let why = report.partial_reason.as_deref().unwrap_or("cut short");
    let mut text = String::new();
    paragraph(&mut text, &format!("{PARTIAL}: {why}"), width);
    *out += &text.replacen(PARTIAL, &format!("{WARNING}{PARTIAL}{WARNING:#}"), 1);
}

/// Which program wrote it with which options, in one line where it is wide enough.
pub(crate) fn made_by(report: &Report) -> String {
    // What the JSON has besides is nothing to a table.
    let options = Options { detail: None, ..report.options.clone() };
    let differing = again::differing(&options);
    let options = match &differing[..] {
        [] => "default options".to_owned(),
        words => command_line(words.iter().map(String::as_str)),
    };
    format!("strata {}, {options}", version::line(&report.version))
}

/// Text broken into lines of at most `width` columns.
pub fn paragraph(out: &mut String, text: &str, width: usize) {
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    if column > 0 {
        out.push('\n');
    }
}

/// A table of few columns with the looks of the report's.
pub struct Cells(Table);

impl Cells {
    /// A table with this header; the first column holds labels, the others numbers.
    pub fn new<const N: usize>(header: [&str; N]) -> Self {
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_header(header);
        Self(table)
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.add_row(cells);
    }
}

impl std::fmt::Display for Cells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = self.0.clone();
        for (index, column) in table.column_iter_mut().enumerate() {
            if index == 0 {
                column.set_padding((0, 0));
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(LABEL as u16)));
            } else {
                column.set_padding((2, 0));
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for (number, line) in table.lines().enumerate() {
            match number {
                0 => writeln!(f, "{BOLD}{}{BOLD:#}", line.trim_end())?,
                _ => writeln!(f, "{}", line.trim_end())?,
            }
        }
        Ok(())
    }
}

fn section(out: &mut String, stack: StackKind, runs: &[&RunResult]) {
    let mut lines = Lines { runs, lines: Vec::new() };
    lines.heading(&format!("relative to {}", runs[0].policy));
    lines.estimated("throughput, estimated", |run| ratio(run.relative_throughput));
    lines.relative_estimated("L1 TLB misses", |run| run.tlb.l1_misses as f64);
    lines.relative_estimated("L2 TLB misses", |run| run.tlb.l2_misses as f64);
    lines.relative_estimated("cycles in walks", |run| run.walk_cycles as f64);
    // With captured tables no kernel is modelled: there is nothing to say of what one does.
    let modelled = runs.iter().any(|run| !run.layers.is_empty());
    if modelled {
        lines.relative("memory used", |run| run.memory.used_bytes as f64);
    }
    requests::relative(&mut lines);
    translation(&mut lines);
    sampled(&mut lines);
    last_level::section(&mut lines);
    huge_pages(&mut lines);
    if modelled {
        events(&mut lines, stack);
    }
    requests::rows(&mut lines);
    let header = runs.iter().map(|run| run.policy.as_str());
    print(out, &lines.lines, header);
}

fn translation(lines: &mut Lines<'_>) {
    let per_thousand = |events: u64, run: &RunResult| {
        ratio((run.accesses > 0).then(|| events as f64 * 1000.0 / run.accesses as f64))
    };
    lines.heading("translation");
    lines.estimated("L1 TLB misses per 1000", |run| per_thousand(run.tlb.l1_misses, run));
    lines.estimated("L2 TLB misses per 1000", |run| per_thousand(run.tlb.l2_misses, run));
    lines.estimated("references per walk", |run| {
        ratio((run.walks > 0).then(|| run.walk_refs as f64 / run.walks as f64))
    });
    lines.estimated("share of cycles in walks", |run| percent(share(run.walk_cycles, run.cycles)));
}

/// How far what is estimated may be off, where the stream was sampled.
fn sampled(lines: &mut Lines<'_>) {
    if lines.runs.iter().all(|run| run.sampled.is_none()) {
        return;
    }
    lines.heading("sampled, within 95 of 100 times");
    let of = |run: &RunResult, figure: fn(&Sampled) -> u64| {
        run.sampled.as_ref().map_or("-".to_owned(), |sampled| count(figure(sampled)))
    };
    lines.row("windows", |run| of(run, |sampled| sampled.windows));
    let by_phases = |run: &&RunResult| run.sampled.as_ref().is_some_and(|s| !s.phases.is_empty());
    if lines.runs.iter().any(by_phases) {
        lines.row("phases", |run| of(run, |sampled| sampled.phases.len() as u64));
    }
    for (label, figure) in [
        ("throughput", "relative_throughput"),
        ("cycles", "cycles"),
        ("L1 TLB misses", "tlb.l1_misses"),
        ("L2 TLB misses", "tlb.l2_misses"),
        ("cycles in walks", "walk_cycles"),
    ] {
        lines.row(label, |run| {
            let bounds = run.sampled.as_ref().and_then(|sampled| sampled.bounds.get(figure));
            within(bounds.map(|bounds| bounds.relative(run.bounded(figure))))
        });
    }
}

fn huge_pages(lines: &mut Lines<'_>) {
    lines.heading("guest huge pages at peak");
    lines.row("all", |run| count(run.alignment.guest_huge));
    lines.row("well aligned", |run| count(run.alignment.well_aligned));
    if lines.runs.iter().any(|run| run.alignment.pseudo_huge > 0) {
        lines.row("  pseudo huge among them", |run| count(run.alignment.pseudo_huge));
    }
    lines.row("type-1 misaligned", |run| count(run.alignment.type1));
    lines.row("type-2 misaligned", |run| count(run.alignment.type2));
}

/// How often instructions exited by which L1, and what else is between it and the guest, runs VMs.
fn instructions_of_l1(run: &RunResult) -> u64 {
    let l1 = run.exits_by_layer.iter().filter(|layer| layer.layer != "guest");
    let instructions = ExitReason::ALL.into_iter().filter(|reason| reason.is_instruction());
    let names = instructions.map(ExitReason::name);
    l1.flat_map(|l1| names.clone().filter_map(|name| l1.exits.get(name))).sum()
}

/// So many exits, marked where some of them come by the clock of a sampled stream.
fn exits(run: &RunResult, exits: u64) -> String {
    let estimated = run.sampled.iter().flat_map(|sampled| &sampled.estimated);
    match estimated.into_iter().any(|field| field == "exits") {
        true => mark(run, count(exits)),
        false => count(exits),
    }
}

fn events(lines: &mut Lines<'_>, stack: StackKind) {
    lines.heading("faults");
    let runs = lines.runs;
    for (index, (layer, _)) in runs[0].faults.present().enumerate() {
        lines.row(layer, |run| {
            run.faults.present().nth(index).map_or_else(|| "-".to_owned(), |(_, n)| count(n))
        });
    }
    let mut reasons: Vec<&String> = runs.iter().flat_map(|run| run.exits.keys()).collect();
    reasons.sort();
    reasons.dedup();
    if stack != StackKind::Native {
        lines.heading("exits");
        for reason in &reasons {
            lines.row(reason, |run| exits(run, run.exits.get(*reason).copied().unwrap_or(0)));
        }
        if stack.is_nested() {
            lines.row("l1_instructions", |run| exits(run, instructions_of_l1(run)));
        }
        if reasons.len() != 1 {
            // Reflected exits are counted as violations already.
            lines.row("all", |run| {
                let own = run.exits.iter().filter(|(reason, _)| *reason != "reflected");
                exits(run, own.map(|(_, exits)| exits).sum::<u64>() + instructions_of_l1(run))
            });
        }
    }
    lines.heading("memory management");
    lines.row("promotions", |run| count(run.promotions));
    lines.row("demotions", |run| count(run.demotions));
    lines.row("migrated pages", |run| count(run.migrated_pages));
    for (index, (layer, _)) in runs[0].fmfi.present().enumerate() {
        lines.row(&format!("FMFI {layer}"), |run| {
            run.fmfi.present().nth(index).map_or_else(|| "-".to_owned(), |(_, x)| format!("{x:.2}"))
        });
    }
    lines.estimated("memory used / touched", |run| {
        let memory = run.memory;
        let touched = memory.touched_bytes;
        ratio((touched > 0).then(|| memory.used_bytes as f64 / touched as f64))
    });
}

/// What the stacks cost against each other: elapsed cycles over those of the very first run.
fn across_stacks(out: &mut String, stacks: &[(StackKind, Vec<&RunResult>)]) {
    let first = stacks[0].1[0];
    let mut policies: Vec<&str> = Vec::new();
    for run in stacks.iter().flat_map(|(_, runs)| runs) {
        if !policies.contains(&run.policy.as_str()) {
            policies.push(&run.policy);
        }
    }
    let heading = format!("time relative to {} {}", first.stack, first.policy);
    let _ = writeln!(out, "{BOLD}{heading}{BOLD:#}");
    let cell = |runs: &[&RunResult], policy: &str| {
        let run = runs.iter().find(|run| run.policy == policy);
        let base = first.throughput();
        let time = run.and_then(|run| run.throughput()).zip(base).map(|(own, base)| base / own);
        run.map_or_else(|| ratio(time), |run| mark(run, ratio(time)))
    };
    let lines: Vec<Line> = stacks
        .iter()
        .map(|(stack, runs)| Line {
            label: format!("  {stack}"),
            cells: policies.iter().map(|policy| cell(runs, policy)).collect(),
        })
        .collect();
    print(out, &lines, policies.iter().copied());
}

/// Notes of the runs, and where misalignment comes from.
fn notes(out: &mut String, runs: &[&RunResult], width: usize) {
    // What holds for all is said once.
    let shared = |note: &String| runs.len() > 1 && runs.iter().all(|run| run.notes.contains(note));
    if let Some(first) = runs.first() {
        for note in first.notes.iter().filter(|note| shared(note)) {
            paragraph(out, &format!("all: {note}."), width);
        }
    }
    for run in runs {
        for note in run.notes.iter().filter(|note| !shared(note)) {
            paragraph(out, &format!("{}: {note}.", run.policy), width);
        }
    }
    if let Some(below) = less_used_than_touched(runs) {
        paragraph(out, &below, width);
    }
    if let Some(nothing) = nothing_to_explain(runs) {
        out.push('\n');
        paragraph(out, &nothing, width);
    }
    for run in runs.iter().filter(|run| !run.explain.is_empty()) {
        let _ = writeln!(out, "\n{BOLD}why pages are misaligned under {}{BOLD:#}", run.policy);
        for cause in &run.explain {
            let pages = count(cause.huge_pages);
            let text = format!("{pages} huge pages, {}: {}", cause.layer, cause.cause);
            paragraph(out, &text, width);
            ranges(out, &cause.ranges);
        }
    }
}

/// Why the memory used is less than that touched, where it is, to the digits shown.
fn less_used_than_touched(runs: &[&RunResult]) -> Option<String> {
    let less = |run: &&&RunResult| {
        let memory = run.memory;
        let ran = !run.layers.is_empty() && !run.out_of_memory;
        ran && (memory.used_bytes as f64) < 0.995 * memory.touched_bytes as f64
    };
    let names: Vec<&str> = runs.iter().filter(less).map(|run| run.policy.as_str()).collect();
    (!names.is_empty()).then(|| {
        let whose = if names.len() == runs.len() { "all".to_owned() } else { names.join(", ") };
        format!(
            "{whose}: less memory used than touched: what was given back was used again, or \
             processes share pages that each of them touched."
        )
    })
}

/// What an explanation says of the runs that have no misaligned page.
fn nothing_to_explain(runs: &[&RunResult]) -> Option<String> {
    let names = |with_huge: bool| {
        let empty = runs.iter().filter(|run| run.explained && run.explain.is_empty());
        let of = empty.filter(|run| (run.alignment.guest_huge > 0) == with_huge);
        of.map(|run| run.policy.as_str()).collect::<Vec<_>>()
    };
    let (aligned, without) = (names(true), names(false));
    let mut sentences = Vec::new();
    if !aligned.is_empty() {
        let names = aligned.join(", ");
        sentences.push(format!("No huge page is misaligned under {names}."));
    }
    if !without.is_empty() {
        sentences.push(format!("The guest has no huge page under {}.", without.join(", ")));
    }
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Address ranges shown for each cause; the JSON has them all.
const RANGES: usize = 4;

fn ranges(out: &mut String, ranges: &[[u64; 2]]) {
    for [start, end] in ranges.iter().take(RANGES) {
        let size = bytes(end.saturating_sub(*start));
        let _ = writeln!(out, "  {start:#x}..{end:#x} ({size})");
    }
    if ranges.len() > RANGES {
        let _ = writeln!(out, "  and {} more, in the JSON", ranges.len() - RANGES);
    }
}
