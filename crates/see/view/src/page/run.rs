//! The page of `strata run`.

use super::{Page, list};
use crate::figures::{self, bill, glance, groups, lanes, memory, sampled, series, shares, walk};
use crate::html::escaped;
use crate::input::run::{Report, Run};
use crate::number::bytes;
use crate::verdict::Verdict;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The page.
pub fn page(report: &Report, json: &str, verdicts: &[Verdict]) -> String {
    let groups = groups(report);
    let mut page = Page { title: title(report), about: about(report), sections: Vec::new() };
    page.add("verdict", "Verdict", "", verdict(report, verdicts));
    page.add("sampled", "What is estimated", "", sampled::figure(&groups));
    page.add(
        "glance",
        "At a glance",
        "Relative to the first policy of each stack.",
        glance::table(&groups),
    );
    page.add(
        "shares",
        "Huge pages and their alignment",
        "What of the guest's memory was in huge pages when it used most of it. Only well-aligned ones \
         are one entry of the TLB.",
        shares::figure(&groups),
    );
    page.add(
        "regions",
        "Region by region",
        "Each column is a region of 2 MiB of the program's memory, the same one in every lane. Colour \
         says whether it is one entry of the TLB in the end, hatching which layer has base pages there; \
         of several regions in a column each has its share of the height.",
        lanes::figure(&groups),
    );
    page.add(
        "bill",
        "Where the cycles went",
        "Grey is the program itself. Colours are what reaching memory through the layers adds.",
        bill::figure(&groups),
    );
    page.add(
        "walk",
        "The walk",
        "Each cell is a memory reference that a page walk may make: a row leads to one entry of the \
         guest's table, its columns are the second stage's entries on the way and, last, the entry \
         itself. The darker, the more walks made it; walk caches saved the others. The strip below says where \
         the reference was served.",
        walk::figure(&groups),
    );
    page.add(
        "time",
        "Over time",
        "Taken at fixed intervals of simulated time; rates are those between two moments.",
        series::figure(&groups),
    );
    page.add(
        "memory",
        "Free memory of each layer",
        "At the end of the run. A layer can give out huge pages only from the darkest part.",
        memory::figure(&groups),
    );
    page.add("origin", "Where this comes from", "", origin(report));
    page.finish(json)
}

fn title(report: &Report) -> String {
    match report.vms.is_empty() {
        true => report.workload.name.clone(),
        false => {
            let names: Vec<&str> = report.vms.iter().map(|vm| vm.name.as_str()).collect();
            format!("{} on one host", names.join(", "))
        }
    }
}

fn all_runs(report: &Report) -> impl Iterator<Item = &Run> {
    report.runs.iter().chain(report.vms.iter().flat_map(|vm| vm.runs.iter().chain(&vm.alone)))
}

fn about(report: &Report) -> String {
    let cpus: BTreeSet<&str> = all_runs(report).map(|run| run.cpu.as_str()).collect();
    let mut parts =
        vec![format!("modelled on {}", cpus.into_iter().collect::<Vec<_>>().join(", "))];
    if report.vms.is_empty() {
        parts.insert(0, report.workload.kind.clone());
        parts
            .extend(report.workload.footprint_bytes.map(|size| format!("{} touched", bytes(size))));
    } else if let Some(host) = report.hosts.first() {
        parts.push(format!("host with {}", bytes(host.memory_bytes)));
    }
    parts.push(format!("seed {}", report.seed));
    let mut out = format!("<p class=about>{}</p>", escaped(&parts.join(" \u{b7} ")));
    for vm in &report.vms {
        let _ = write!(
            out,
            "<p class=about>{}: <code>{}</code></p>",
            escaped(&vm.name),
            escaped(&vm.workload.name)
        );
    }
    if report.partial {
        let why = report.partial_reason.as_deref().unwrap_or("it was ended early");
        let _ = write!(out, "<p class=warning>Partial: {}</p>", escaped(why));
    }
    out
}

fn verdict(report: &Report, verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    for verdict in verdicts.iter().filter(|verdict| !verdict.sentences.is_empty()) {
        if verdicts.len() > 1 {
            let _ = write!(out, "<h3>{}</h3>", escaped(&figures::stack(&verdict.of)));
        }
        let _ = writeln!(out, "<p class=verdict>{}</p>", escaped(&verdict.sentences.join(" ")));
    }
    for vm in &report.vms {
        let slowdowns = vm.slowdown.iter().flatten().map(|by| format!("{by:.2}"));
        let slowdowns: Vec<String> = slowdowns.collect();
        if !slowdowns.is_empty() {
            let _ = writeln!(
                out,
                "<p class=verdict>With the others {} takes {} times as long as alone.</p>",
                escaped(&vm.name),
                slowdowns.join(", ")
            );
        }
    }
    out
}

fn origin(report: &Report) -> String {
    let mut out = String::new();
    if !report.command.is_empty() {
        let words: Vec<String> = report.command.iter().map(|word| quoted(word)).collect();
        let _ = writeln!(
            out,
            "<p>The same bytes again:</p><pre tabindex=0>{}</pre>",
            escaped(&words.join(" "))
        );
    }
    let commit = match &report.version.commit {
        Some(commit) => format!(" of commit {commit}"),
        None => String::new(),
    };
    let _ = writeln!(
        out,
        "<p>Strata {}{}. Cycles and seconds are those of the modelled CPU, by documented constants: \
         compare policies with each other, and do not quote absolute times.</p>",
        escaped(&report.version.package),
        escaped(&commit)
    );
    let mut notes: Vec<String> = report.workload.notes.clone();
    // What is said of several runs is said once, with their names.
    let mut of: Vec<(&String, Vec<String>)> = Vec::new();
    let groups = figures::groups(report);
    for (group, row) in
        groups.iter().flat_map(|group| group.rows.iter().map(move |row| (group, row)))
    {
        for note in &row.run.notes {
            let name = match groups.len() {
                1 => row.label.clone(),
                _ => format!("{} under {}", group.title, row.label),
            };
            match of.iter_mut().find(|(other, _)| *other == note) {
                Some((_, names)) => names.push(name),
                None => of.push((note, vec![name])),
            }
        }
    }
    notes.extend(of.into_iter().map(|(note, names)| format!("{}: {note}", names.join(", "))));
    out + &list(&notes)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
