//! One run of two layers and one of three: what every change must pass.

use crate::common::{machine, run, snapshots};
use strata_inspect::{Cause, Options, join};

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_two_layers() {
    let _machine = machine();
    let report = run("vm");
    assert_eq!(report.layers.len(), 2);
    let join = join(&snapshots(&report, 0), &Options::default()).unwrap();
    // All memory of the workload, in huge pages down to the machine's.
    assert!(join.totals.huge >= 48, "{:?}", join.totals);
    assert_eq!(join.totals.well_aligned, join.totals.huge, "{:?}", join.causes);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_three_layers() {
    let _machine = machine();
    let report = run("l1-base");
    assert_eq!(report.layers.len(), 3);
    let stock = &report.layers[1];
    assert!(stock.booted.kernel.contains("Debian"), "{}", stock.booted.kernel);
    let join = join(&snapshots(&report, 0), &Options::default()).unwrap();
    let cause = &join.causes[0];
    assert_eq!((cause.layer.as_str(), cause.cause), ("L1", Cause::ThpDisabled));
    assert!(cause.pages >= 48, "{:?}", join.totals);
    assert_eq!(join.totals.well_aligned, 0);
}
