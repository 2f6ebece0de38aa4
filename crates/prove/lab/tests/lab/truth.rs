//! What the join says of each huge page, against the page tables of the same machine, captured from
//! its memory without a word from any kernel.

use crate::common::agree::{Agreement, compare, compare_base_pages};
use crate::common::scene::{self, Steps, steps};
use crate::common::{attempt, binary, choices, machine, snapshots};
use std::sync::atomic::AtomicBool;
use strata_inspect::Snapshot;
use strata_lab::{KernelVariant, Scenario, Trace};
use strata_tables::Capture;
use strata_wire::machine::PLUGIN_FILE;

/// Where the lab's workload has its memory.
const MEMORY: std::ops::Range<u64> = 0x6000_0000_0000..0x6100_0000_0000;

/// Runs a scenario with its accesses recorded and its tables captured when the workload has touched
/// its memory. Gives these and the snapshots taken right after.
fn captured(name: &str, scenario: Scenario, skip: u64) -> (Capture, Vec<Snapshot>) {
    let _machine = machine();
    let directory = tempfile::tempdir().unwrap();
    let mut choices = choices(name, scenario);
    choices.trace = Some(Trace {
        plugin: Some(binary(PLUGIN_FILE)),
        recording: directory.path().join("recording"),
        tables: directory.path().join("tables"),
        skip,
        limit: u64::MAX,
    });
    let report = match attempt(&choices, &AtomicBool::new(false), &mut |_| ()) {
        Ok(report) => report,
        Err(error) => panic!("{name}: {error}"),
    };
    let trace = report.trace.as_ref().unwrap();
    assert!(trace.accesses > 10_000 && trace.mismatched == 0, "{name}: {trace:?}");
    let capture = strata_tables::file::read(&trace.tables).unwrap();
    println!("{name}: {trace:?}");
    (capture, snapshots(&report, 0))
}

/// Compares what was captured with the snapshots.
fn agreement(name: &str, scenario: Scenario, skip: u64) -> Agreement {
    let (capture, snapshots) = captured(name, scenario, skip);
    let found = compare(&capture, &snapshots, "strata-agent", MEMORY);
    println!("{name}: {found:?}");
    found
}

/// Expects no difference in any huge page, of which so many are well aligned.
fn expect(name: &str, well_aligned: std::ops::RangeInclusive<usize>, all: usize) {
    expect_of(name, Scenario::load(name).unwrap(), 0, well_aligned, all);
}

/// The same of a scenario whose first accesses are not recorded.
fn expect_of(
    name: &str,
    scenario: Scenario,
    skip: u64,
    well_aligned: std::ops::RangeInclusive<usize>,
    all: usize,
) {
    let found = agreement(name, scenario, skip);
    assert!(found.elsewhere.is_empty(), "{name}: {found:?}");
    assert!(found.unjudged.is_empty(), "{name}: {found:?}");
    assert!(found.different.is_empty(), "{name}: {found:?}");
    assert_eq!(found.equal, all, "{name}: {found:?}");
    let other = &found.colours.other;
    assert!(other.is_empty(), "{name}: {} pages have another colour: {other:x?}", other.len());
    assert_eq!(found.colours.same, 512 * all, "{name}: {found:?}");
    assert!(well_aligned.contains(&found.well_aligned), "{name}: {found:?}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn one_layer() {
    expect("native", 48..=48, 48);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn two_layers() {
    expect("vm", 48..=48, 48);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn two_layers_with_a_misaligned_slot() {
    expect("causes/slot-misaligned", 0..=0, 32);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn two_layers_with_code_in_huge_pages() {
    expect("causes/nx-huge-pages", 0..=0, 32);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn three_layers() {
    expect("clean", 40..=48, 48);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn three_layers_with_base_pages_in_l1() {
    expect("l1-base", 0..=0, 48);
}

/// Pages are moved while they are touched first: what is recorded comes when all is quiet.
fn touch() -> Steps {
    steps().run("strata-agent touch --size=96M --accesses=1000000 --stay").stay().scan()
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn three_layers_with_base_pages_in_l1_that_l0_maps_huge() {
    let parameters = "nested_align=1 nested_align_cpu_percent=100";
    let scene =
        scene::three_layers(KernelVariant::Aligned, parameters, ["never", "always"]).then(touch());
    expect_of("aligned", scene.checked(), 900_000, 46..=48, 48);
}

/// Runs a scenario in which no layer has huge pages, so that neighbours in one layer are none in the next,
/// and expects the colour of every base page of the workload's 96 MiB to be the same by both.
fn expect_base_pages(name: &str) {
    let mut scenario = Scenario::load(name).unwrap();
    for layer in &mut scenario.layers {
        layer.thp = Some("never".to_owned());
    }
    let (capture, snapshots) = captured(name, scenario, 0);
    let found = compare_base_pages(&capture, &snapshots, MEMORY);
    let other = &found.other;
    assert!(other.is_empty(), "{name}: {} pages have another colour: {other:x?}", other.len());
    assert_eq!(found.same, 96 << 8, "{name}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn base_pages_of_two_layers() {
    expect_base_pages("vm");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn base_pages_of_three_layers() {
    expect_base_pages("clean");
}
