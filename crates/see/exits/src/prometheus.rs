//! What is found, in the text format of Prometheus.

use crate::account::Level;
use crate::bill::{Bill, Row, VmBill};
use strata_text::prometheus::Metrics;

/// Gauges of one interval: rates and shares, by VM, level and reason.
pub fn text(bill: &Bill) -> String {
    let mut out = Metrics::default();
    let rows = || bill.vms.iter().flat_map(|vm| vm.rows.iter().map(move |row| (vm, row)));
    out.metric("strata_vm_exits_per_second", "Exits of a VM by level and reason");
    for (vm, row) in rows() {
        sample(&mut out, vm, row, row.per_second);
    }
    out.metric(
        "strata_vm_exit_time_ratio",
        "Share of the time of a VM's vCPUs from exits to the next entry",
    );
    for (vm, row) in rows() {
        if let Some(share) = row.share {
            sample(&mut out, vm, row, share);
        }
    }
    out.metric(
        "strata_vm_exits_lost_events",
        "Events lost while exits were watched: above 0 the others are too low",
    );
    out.sample(&[], bill.lost_events as f64);
    out.finish()
}

fn sample(out: &mut Metrics, vm: &VmBill, row: &Row, value: f64) {
    let level = match row.level {
        Level::Guest => "guest",
        Level::NestedHere => "nested-here",
        Level::NestedHandedOn => "nested-handed-on",
    };
    let (pid, name) = (vm.pid.to_string(), vm.name.as_deref().unwrap_or(""));
    let labels = [("pid", &*pid), ("vm", name), ("level", level), ("reason", &row.reason)];
    out.sample(&labels, value);
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
