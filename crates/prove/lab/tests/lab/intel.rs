//! The emulated Intel machine: what every change must pass on it, and what it does not do.

use crate::common::scene::{Scene, VANILLA};
use crate::common::{attempt, choices, failure, machine, run_on_intel, snapshots};
use std::sync::atomic::AtomicBool;
use strata_inspect::{Cause, Options, join};
use strata_lab::{Layer, Make, Memory, Scenario, Trace};
use strata_tables::Entries;

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_intel_two_layers() {
    let _machine = machine();
    let report = run_on_intel("vm");
    assert_eq!(report.machine.make, Make::Intel);
    assert!(report.machine.emulator.starts_with("bochs "), "{:?}", report.machine);
    // VMX and EPT, by their names.
    let exits = &report.layers[0].after.exits;
    assert!(exits["EPT_VIOLATION"] > 0 && !exits.contains_key("NPF"), "{exits:?}");
    let join = join(&snapshots(&report, 0), &Options::default()).unwrap();
    assert!(join.totals.huge >= 48, "{:?}", join.totals);
    assert_eq!(join.totals.well_aligned, join.totals.huge, "{:?}", join.causes);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_intel_three_layers() {
    let _machine = machine();
    let report = run_on_intel("l1-base");
    assert_eq!(report.layers.len(), 3);
    let stock = &report.layers[1];
    assert!(stock.booted.kernel.contains("Debian"), "{}", stock.booted.kernel);
    // What L1's KVM does for L2 is what L0 has to do for it.
    let (l0, l1) = (&report.layers[0].after, &stock.after);
    for reason in ["VMRESUME", "EPT_VIOLATION"] {
        assert!(l0.exits.get(reason).is_some_and(|count| *count > 0), "{reason}: {:?}", l0.exits);
    }
    assert!(l1.exits["EPT_VIOLATION"] > 0 && l0.kvm("nested_run") > 0, "{:?}", l1.exits);
    let join = join(&snapshots(&report, 0), &Options::default()).unwrap();
    let cause = &join.causes[0];
    assert_eq!((cause.layer.as_str(), cause.cause), ("L1", Cause::ThpDisabled));
    assert!(cause.pages >= 48, "{:?}", join.totals);
    assert_eq!(join.totals.well_aligned, 0);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_intel_true_accesses_of_three_layers() {
    let _machine = machine();
    let mut scenario = Scenario::load("l1-base").unwrap();
    scenario.set_make(Make::Intel, "l1-base").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut choices = choices("l1-base", scenario);
    choices.trace = Some(Trace {
        plugin: None,
        recording: directory.path().join("recording"),
        tables: directory.path().join("tables"),
        skip: 0,
        limit: 300_000,
    });
    let report = attempt(&choices, &AtomicBool::new(false), &mut |_| ()).unwrap();
    let trace = report.trace.unwrap();
    // The emulator's word for where each access was, against EPT and page tables found in memory.
    assert_eq!((trace.accesses, trace.mismatched), (300_000, 0), "{trace:?}");
    let shadow = trace.shadow.unwrap();
    assert!(shadow.equal > 24_576, "{shadow:?}");
    assert_eq!((shadow.different, shadow.only_shadow), (0, 0), "{shadow:?}");
    assert_eq!((trace.huge_pages, trace.well_aligned), (48, 0), "{trace:?}");
    let capture = strata_tables::file::read(&trace.tables).unwrap();
    let (l1, l0) = capture.lower.unwrap();
    let formats = [l1.entries, l0.entries, capture.second.unwrap().entries];
    assert_eq!(formats, [Entries::Ept; 3]);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_kernel_that_panics_is_noticed_on_the_console() {
    let _machine = machine();
    let mut scene = Scene::new("A kernel that panics", vec![Layer::new(VANILLA, Memory::mib(600))])
        .layer(0, |l0| l0.parameters = "rdinit=/none".to_owned());
    scene.0.set_make(Make::Intel, "panic").unwrap();
    let message = failure(scene).to_string();
    assert!(message.starts_with("L0: ") && message.contains("Kernel panic"), "{message}");
}

#[test]
fn every_shipped_scenario_of_one_processor_is_for_an_intel_machine_too_unless_it_names_amds() {
    for name in strata_lab::names() {
        let mut scenario = Scenario::load(name).unwrap();
        let is_of_amd = name.starts_with("levels/") && !scenario.runs_on(Make::Intel);
        if scenario.layers.iter().all(|layer| layer.cpus == 1) && !is_of_amd {
            scenario.set_make(Make::Intel, name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
