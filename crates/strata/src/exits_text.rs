//! What exits of live VMs are shown as: tables, a line a VM, and CSV.

use crate::report_text::{Cells, paragraph};
use crate::snapshot_text::heading;
use std::fmt::Write;
use strata_exits::{Bill, Level, Row, Source, VmBill};
use strata_text::number::{count, percent, seconds};

/// What the columns of [`csv`] are.
pub const CSV_HEADER: &str =
    "time,pid,vm,level,reason,kind,exits,exits_per_second,seconds,share_of_vcpu_time";

/// A table for each VM, with at most so many rows.
pub fn tables(bill: &Bill, rows: usize, width: usize) -> String {
    let mut out = String::new();
    if bill.vms.is_empty() {
        paragraph(&mut out, "No VM of this kernel did anything. Only VMs of KVM are seen.", width);
    }
    for vm in &bill.vms {
        out += &table(vm, rows, width);
    }
    paragraph(&mut out, &footer(bill), width);
    out
}

fn table(vm: &VmBill, shown: usize, width: usize) -> String {
    let mut title = called(vm);
    if vm.vcpus > 0 {
        let _ = write!(title, ", {} active {}", vm.vcpus, plural(vm.vcpus, "vCPU"));
    }
    let mut out = heading(&title);
    paragraph(&mut out, &vm.verdict, width);
    if let Some(remedy) = &vm.remedy {
        paragraph(&mut out, &format!("What helps: {remedy}."), width);
    }
    if vm.rows.is_empty() {
        return out;
    }
    let mut cells = Cells::new(["exits", "a second", "time", "each", "until nested"]);
    for row in vm.rows.iter().take(shown) {
        let each = |all: Option<f64>| match all {
            Some(all) if row.exits > 0 => seconds(all / row.exits as f64),
            _ => String::new(),
        };
        cells.row([
            label(row),
            count(row.per_second.round() as u64),
            row.share.map_or_else(String::new, percent),
            each(row.seconds),
            each(row.until_nested_seconds),
        ]);
    }
    out += &cells.to_string();
    if vm.rows.len() > shown {
        let _ = writeln!(out, "and {} more reasons", vm.rows.len() - shown);
    }
    if vm.nested_entries > 0 {
        let _ = writeln!(out, "entries into guests of its own: {}", count(vm.nested_entries));
    }
    out
}

/// A line for each VM.
pub fn lines(bill: &Bill, since: f64) -> String {
    let mut out = String::new();
    for vm in &bill.vms {
        let rate = count((vm.exits as f64 / bill.seconds).round() as u64);
        let share = vm
            .exit_share
            .map_or_else(String::new, |share| format!(", {} of its time", percent(share)));
        let costliest = vm.rows.first().map_or("none", |row| row.reason.as_str());
        let _ = writeln!(
            out,
            "{since:.1} s  {}: {rate} exits a second{share}, costliest {costliest}",
            called(vm)
        );
    }
    out + &lost(bill)
}

/// A line for each VM, level and reason, as [`CSV_HEADER`] says.
pub fn csv(bill: &Bill, since: f64) -> String {
    let mut out = String::new();
    for vm in &bill.vms {
        for Row { level, reason, kind, exits, per_second, seconds, share, .. } in &vm.rows {
            let (level, kind) = (word(level), word(kind));
            let number = |number: &Option<f64>| number.map_or_else(String::new, |n| n.to_string());
            let name = quoted(vm.name.as_deref().unwrap_or(""));
            let (seconds, share) = (number(seconds), number(share));
            let _ = writeln!(
                out,
                "{since:.3},{},{name},{level},{reason},{kind},{exits},{per_second},{seconds},{share}",
                vm.pid
            );
        }
    }
    out
}

/// How it is written in JSON.
fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn called(vm: &VmBill) -> String {
    match &vm.name {
        Some(name) => format!("{name} (process {})", vm.pid),
        None => format!("VM of process {}", vm.pid),
    }
}

/// The reason, and whose exit it is: the VM's own kernel's, unless something else is said.
fn label(row: &Row) -> String {
    match row.level {
        Level::Guest => row.reason.clone(),
        Level::NestedHere => format!("{} of nested", row.reason),
        Level::NestedHandedOn => format!("{} of nested, handed on", row.reason),
    }
}

fn footer(bill: &Bill) -> String {
    let watched = seconds(bill.seconds);
    match bill.source {
        Source::Tracepoints => {
            let share = percent(bill.own_cpu_seconds / bill.seconds);
            let lost = lost(bill);
            format!("Watched {watched} by tracepoints; reading them took {share} of a CPU. {lost}")
        }
        Source::Statistics => format!(
            "Watched {watched} by KVM's statistics, as nothing can be traced here: no levels, no times, \
             and few reasons."
        ),
    }
}

/// Said where figures are too low.
fn lost(bill: &Bill) -> String {
    match bill.lost_events {
        0 => String::new(),
        lost => format!(
            "At least {} {} came too fast and {} lost: all figures are too low.\n",
            count(lost),
            plural(lost as usize, "event"),
            if lost == 1 { "is" } else { "are" }
        ),
    }
}

fn plural(number: usize, thing: &str) -> String {
    format!("{thing}{}", if number == 1 { "" } else { "s" })
}
