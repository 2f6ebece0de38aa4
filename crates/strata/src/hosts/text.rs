//! The text report of VMs that shared a host.

use crate::lines::{BOLD, Line, print};
use crate::report_text::{made_by, paragraph, partial, sections};
use std::fmt::Write;
use strata_engine::Report;
use strata_engine::report::{HostRun, VmReport};
use strata_text::number::{count, ratio};

/// The whole report in at most `width` columns, with ANSI styles.
pub fn render(report: &Report, width: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{BOLD}{} ({}){BOLD:#}", report.workload.name, report.workload.kind);
    paragraph(&mut out, &made_by(report), width);
    partial(&mut out, report, width);
    host(&mut out, report);
    for vm in &report.vms {
        let (workload, kind) = (&vm.workload.name, &vm.workload.kind);
        let _ = writeln!(out, "\n{BOLD}VM {}{BOLD:#}", vm.name);
        paragraph(&mut out, &format!("{workload} ({kind})"), width);
        if let Some(status) = vm.workload.exit_status.filter(|status| *status != 0) {
            paragraph(&mut out, &format!("Its program ended with status {status}."), width);
        }
        for note in &vm.workload.notes {
            paragraph(&mut out, &format!("Note: {note}."), width);
        }
        let mut runs = Report { runs: vm.runs.clone(), ..Report::default() };
        for (run, name) in runs.runs.iter_mut().zip(report.names_of_runs(vm)) {
            run.policy = name;
        }
        sections(&mut out, &runs.by_stack(), width);
    }
    out
}

/// The host as a whole, and what its VMs do to each other.
fn host(out: &mut String, report: &Report) {
    let mut lines = Vec::new();
    let mut row = |label: &str, cells: Vec<String>| {
        lines.push(Line { label: format!("  {label}"), cells });
    };
    for VmReport { name, slowdown, slowdown_estimated, .. } in &report.vms {
        if !slowdown.is_empty() {
            let cells = slowdown.iter().zip(slowdown_estimated).map(|(slowdown, estimated)| {
                let mark = if *estimated && slowdown.is_some() { "~ " } else { "" };
                format!("{mark}{}", ratio(*slowdown))
            });
            let cells = cells.collect();
            row(&format!("{name}: time / alone"), cells);
        }
    }
    for VmReport { name, rounds, .. } in &report.vms {
        if rounds.iter().any(|rounds| *rounds != 1) {
            row(&format!("{name}: rounds"), rounds.iter().map(|rounds| count(*rounds)).collect());
        }
    }
    for VmReport { name, runs, .. } in &report.vms {
        let cells = runs.iter().map(|run| format!("{:.3}", run.elapsed_seconds)).collect();
        row(&format!("{name}: seconds"), cells);
    }
    let of_hosts = |cell: fn(&HostRun) -> String| report.hosts.iter().map(cell).collect();
    row("accesses of all VMs", of_hosts(|host| count(host.accesses)));
    row("faults of the host", of_hosts(|host| count(host.faults)));
    row(
        "exits of all VMs",
        of_hosts(|host| {
            // Those handed on are counted as violations already.
            let own = host.exits.iter().filter(|(reason, _)| *reason != "handed_on");
            count(own.map(|(_, exits)| exits).sum())
        }),
    );
    row("fewest free huge pages", of_hosts(|host| count(host.free_huge_least)));
    let _ = writeln!(out, "\n{BOLD}host{BOLD:#}");
    print(out, &lines, report.host_names().iter().map(String::as_str));
}
