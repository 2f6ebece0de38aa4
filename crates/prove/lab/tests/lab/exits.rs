//! Exits of real VMs, L1 and L2 in it, as they are seen from L0 while they run.

use crate::common::{machine, run};
use strata_exits::{Bill, Level};

/// Every exit is seen: as many as KVM counts itself. Those of L2 are told from those of L1, and those that L1
/// is to handle from those that L0 handles.
#[test]
#[ignore = "boots real kernels: make lab-test"]
fn exits_are_as_many_as_kvm_counts_and_each_has_its_level() {
    let _machine = machine();
    let report = run("exits");
    let watched = report.stress.iter().find(|stress| stress.name == "exits").expect("it is there");
    assert_eq!(watched.failed, 0, "{:?}", watched.failures);
    let (mut seen, mut counted, mut bills) = (0, 0, Vec::new());
    for line in &watched.output {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        let bill: Bill = serde_json::from_value(line["bill"].clone()).expect("a bill");
        assert_eq!(bill.lost_events, 0);
        seen += bill.vms.iter().map(|vm| vm.exits).sum::<u64>();
        counted += line["kvm_exits"].as_u64().expect("a number");
        bills.push(bill);
    }
    println!("{} times: {seen} exits seen, {counted} counted by KVM", bills.len());
    assert!(counted > 1_000, "{counted}");
    // The edges of the two are some milliseconds apart.
    assert!(seen.abs_diff(counted) * 50 < counted, "{seen} seen, {counted} counted");
    let all = |level: Level, reason: &str| -> u64 {
        let rows = bills.iter().flat_map(|bill| &bill.vms).flat_map(|vm| &vm.rows);
        rows.filter(|row| row.level == level && row.reason == reason).map(|row| row.exits).sum()
    };
    // L2 touches memory that L1 has to back; L1 runs it again, by an instruction of its own.
    assert!(all(Level::NestedHandedOn, "NPF") > 100);
    let entries: u64 = bills.iter().flat_map(|bill| &bill.vms).map(|vm| vm.nested_entries).sum();
    let vmruns = all(Level::Guest, "VMRUN");
    // One may be under way at each edge.
    assert!(vmruns.abs_diff(entries) <= bills.len() as u64, "{vmruns} VMRUN, {entries} entries");
    assert_eq!(all(Level::NestedHere, "VMRUN") + all(Level::NestedHandedOn, "VMRUN"), 0);
    let waited = bills.iter().flat_map(|bill| &bill.vms).filter_map(|vm| vm.nested_wait_share);
    assert!(waited.fold(0.0, f64::max) > 0.01);
}
