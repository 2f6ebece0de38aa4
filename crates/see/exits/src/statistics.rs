//! KVM's own counts, for kernels that trace nothing (Linux, virt/kvm/kvm_main.c and arch/x86/kvm/x86.c): one
//! directory of debugfs for each VM. They know neither who exited nor how long it took, and leave out most
//! reasons.

use crate::account::Level;
use crate::bill::{Row, VmBill};
use crate::reason::Kind;
use std::collections::BTreeMap;
use strata_inspect::Tree;

const DIRECTORY: &str = "sys/kernel/debug/kvm";

/// Counts that tell a reason, as KVM calls them.
const REASONS: [(&str, Kind); 9] = [
    ("pf_taken", Kind::Memory),
    ("io_exits", Kind::Devices),
    ("mmio_exits", Kind::Devices),
    ("irq_exits", Kind::Interrupts),
    ("irq_window_exits", Kind::Interrupts),
    ("nmi_window_exits", Kind::Interrupts),
    ("halt_exits", Kind::Idle),
    ("signal_exits", Kind::Other),
    ("hypercalls", Kind::Other),
];

/// Counts since a VM began, by name, for each `(pid, fd)`; empty where there is no debugfs.
pub type Counts = BTreeMap<(u32, u32), BTreeMap<String, u64>>;

/// What KVM has counted of every VM.
pub fn read(tree: &Tree) -> Counts {
    let vms = tree.names(DIRECTORY).into_iter().filter_map(|name| {
        let (pid, fd) = name.split_once('-')?;
        let counts = tree.texts(&format!("{DIRECTORY}/{name}")).into_iter();
        let numbers = counts.filter_map(|(name, text)| Some((name, text.trim().parse().ok()?)));
        Some(((pid.parse().ok()?, fd.parse().ok()?), numbers.collect()))
    });
    vms.collect()
}

/// What was counted between two readings, `seconds` apart. VMs that began in between count from 0.
pub fn between(
    before: &Counts,
    after: &Counts,
    seconds: f64,
    name: impl Fn(u32) -> Option<String>,
) -> Vec<VmBill> {
    let bill = |(vm, now): (&(u32, u32), &BTreeMap<String, u64>)| {
        let more = |count: &str| {
            let then = before.get(vm).and_then(|then| then.get(count)).copied().unwrap_or(0);
            Some(now.get(count)?.saturating_sub(then))
        };
        let row = |reason: &str, kind: Kind, exits: u64| Row {
            level: Level::Guest,
            reason: reason.to_owned(),
            kind,
            exits,
            per_second: exits as f64 / seconds,
            seconds: None,
            share: None,
            until_nested_seconds: None,
        };
        let named =
            REASONS.iter().filter_map(|(count, kind)| Some(row(count, *kind, more(count)?)));
        let mut rows: Vec<Row> = named.filter(|row| row.exits > 0).collect();
        let known: u64 = rows.iter().map(|row| row.exits).sum();
        let others = more("exits").unwrap_or(0).saturating_sub(known);
        if others > 0 {
            rows.push(row("others", Kind::Other, others));
        }
        VmBill::of_rows(vm.0, name(vm.0), 0, more("nested_run").unwrap_or(0), rows)
    };
    after.iter().map(bill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(root: &std::path::Path, vm: &str, counts: &[(&str, u64)]) {
        let directory = root.join(DIRECTORY).join(vm);
        fs::create_dir_all(directory.join("vcpu0")).unwrap();
        for (name, count) in counts {
            fs::write(directory.join(name), format!("{count}\n")).unwrap();
        }
    }

    #[test]
    fn counts_are_differences() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(root.path());
        assert!(read(&tree).is_empty());
        write(root.path(), "7-11", &[("exits", 100), ("io_exits", 50), ("nested_run", 3)]);
        let before = read(&tree);
        write(root.path(), "7-11", &[("exits", 200), ("io_exits", 90), ("nested_run", 4)]);
        write(root.path(), "8-11", &[("exits", 5), ("halt_exits", 5)]);
        let bills = between(&before, &read(&tree), 2.0, |pid| Some(format!("vm{pid}")));
        let rows = |bill: &VmBill| -> Vec<_> {
            bill.rows.iter().map(|row| (row.reason.clone(), row.exits, row.per_second)).collect()
        };
        assert_eq!(rows(&bills[0]), [("others".into(), 60, 30.0), ("io_exits".into(), 40, 20.0)]);
        assert_eq!((bills[0].nested_entries, bills[0].name.as_deref()), (1, Some("vm7")));
        assert_eq!(rows(&bills[1]), [("halt_exits".into(), 5, 2.5)]);
        assert_eq!(bills[1].verdict, "It did not exit but to idle.");
    }
}
