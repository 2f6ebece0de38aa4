//! What is found, in the text format of Prometheus.

use crate::account::Level;
use crate::bill::Bill;
use std::fmt::Write;

/// Gauges of one interval: rates and shares, by VM, level and reason.
pub fn text(bill: &Bill) -> String {
    let mut out = String::new();
    let mut series = |name: &str, help: &str, values: Vec<(String, f64)>| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in values {
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        }
    };
    let vm = |vm: &crate::VmBill| {
        let name = vm.name.as_deref().unwrap_or("");
        format!("pid=\"{}\",vm=\"{}\"", vm.pid, escaped(name))
    };
    let rows = || {
        bill.vms.iter().flat_map(|of| {
            of.rows.iter().map(move |row| {
                let level = match row.level {
                    Level::Guest => "guest",
                    Level::NestedHere => "nested-here",
                    Level::NestedHandedOn => "nested-handed-on",
                };
                let reason = escaped(&row.reason);
                (format!("{},level=\"{level}\",reason=\"{reason}\"", vm(of)), row)
            })
        })
    };
    series(
        "strata_vm_exits_per_second",
        "Exits of a VM by level and reason.",
        rows().map(|(labels, row)| (labels, row.per_second)).collect(),
    );
    let timed = |value: fn(&crate::Row) -> Option<f64>| {
        rows().filter_map(|(labels, row)| Some((labels, value(row)?))).collect()
    };
    series(
        "strata_vm_exit_time_ratio",
        "Share of the time of a VM's vCPUs from exits to the next entry.",
        timed(|row| row.share),
    );
    series(
        "strata_vm_exits_lost_events",
        "Events lost while exits were watched: above 0 the others are too low.",
        vec![(String::new(), bill.lost_events as f64)],
    );
    out
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Row, Source, VmBill};

    #[test]
    fn names_are_escaped_and_times_may_be_missing() {
        let row = Row {
            level: Level::NestedHandedOn,
            reason: "NPF".to_owned(),
            kind: Kind::Memory,
            exits: 10,
            per_second: 5.0,
            seconds: None,
            share: None,
            until_nested_seconds: None,
        };
        let vm = VmBill::of_rows(7, Some("a\"b".to_owned()), 1, 0, vec![row]);
        let bill = Bill {
            strata_exits: Bill::VERSION,
            seconds: 2.0,
            source: Source::Statistics,
            lost_events: 0,
            event_bytes: 0,
            own_cpu_seconds: 0.0,
            vms: vec![vm],
        };
        let text = text(&bill);
        let line = "strata_vm_exits_per_second{pid=\"7\",vm=\"a\\\"b\",level=\"nested-handed-on\",reason=\"NPF\"} 5\n";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("strata_vm_exit_time_ratio{"), "{text}");
    }
}
