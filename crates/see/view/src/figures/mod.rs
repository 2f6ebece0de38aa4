//! The figures of the pages.

pub mod bars;
pub mod bill;
pub mod glance;
pub mod lanes;
pub mod memory;
pub mod published;
pub mod sampled;
pub mod series;
pub mod shares;
pub mod walk;

use crate::input::run::{Host, Report, Run};
use crate::number::{percent, share};
use crate::svg::key;
use std::collections::BTreeSet;

/// Runs that are compared with each other: those of one stack, or of one VM.
#[derive(Debug)]
pub struct Group<'a> {
    /// Of what.
    pub title: String,
    /// The runs.
    pub rows: Vec<Row<'a>>,
}

/// A run among others.
#[derive(Debug)]
pub struct Row<'a> {
    /// What tells it from the others.
    pub label: String,
    /// The run.
    pub run: &'a Run,
    /// Where its regions are in the JSON.
    pub path: String,
}

/// The runs of a report, in its order.
pub fn groups(report: &Report) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (index, run) in report.runs.iter().enumerate() {
        let title = stack(&run.stack);
        let path = format!("runs.{index}.regions");
        let row = Row { label: run.policy.clone(), run, path };
        match groups.iter_mut().find(|group| group.title == title) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { title, rows: vec![row] }),
        }
    }
    for (number, vm) in report.vms.iter().enumerate() {
        let stacks: BTreeSet<&str> = vm.runs.iter().map(|run| run.stack.as_str()).collect();
        let keys: BTreeSet<_> = vm.runs.iter().map(|run| (&run.stack, &run.policy)).collect();
        let mut rows = Vec::new();
        for (index, run) in vm.runs.iter().enumerate() {
            let label = match stacks.len() {
                1 => run.policy.clone(),
                _ => format!("{} {}", run.stack, run.policy),
            };
            // Where the VM's own policy does not tell its runs apart, that of the others does.
            let label = match report.hosts.get(index).filter(|_| keys.len() < vm.runs.len()) {
                Some(host) => format!("{label} beside {}", neighbours(host)),
                None => label,
            };
            let alone = vm.alone.get(index);
            let together =
                if alone.is_some() { format!("{label}, with others") } else { label.clone() };
            let path = |what: &str| format!("vms.{number}.{what}.{index}.regions");
            rows.push(Row { label: together, run, path: path("runs") });
            let alone = alone.map(|run| (format!("{label}, alone"), run, path("alone")));
            rows.extend(alone.map(|(label, run, path)| Row { label, run, path }));
        }
        groups.push(Group { title: format!("VM {}", vm.name), rows });
    }
    groups
}

/// The stack and the policy of VMs that have none of their own.
fn neighbours(host: &Host) -> String {
    let words = [&host.stack, &host.policy].map(|word| word.as_deref().unwrap_or_default());
    words.join(" ").trim().to_owned()
}

/// A stack in words.
pub fn stack(name: &str) -> String {
    match name {
        "native" => "Native".to_owned(),
        "vm" => "In a VM".to_owned(),
        "nested" => "In a nested VM".to_owned(),
        other => other.to_owned(),
    }
}

/// What becomes of a huge page: class, name, explanation.
pub const STATES: [(&str, &str, &str); 3] = [
    ("aligned", "well aligned", "one huge page in every layer: one entry of the TLB"),
    ("type1", "type 1", "misaligned: nothing is allocated below yet"),
    ("type2", "type 2", "misaligned: what is below would have to move"),
];

/// The legend of [`STATES`].
pub fn state_keys() -> String {
    let keys: String = STATES.iter().map(|(class, name, _)| key(class, name)).collect();
    format!("<div class=keys>{keys}{}</div>", key("base4k", "base pages (4 KiB)"))
}

/// `12 of 24 (50 %)`.
pub fn of(part: u64, whole: u64) -> String {
    format!("{part} of {whole} ({})", percent(share(part, whole)))
}
