//! What the join says of each huge page, against the page tables of the same machine, captured from
//! its memory without a word from any kernel.

mod common;

use common::agree::{Agreement, compare};
use common::scene;
use common::{attempt, binary, choices, machine, snapshots};
use std::sync::atomic::AtomicBool;
use strata_lab::{Scenario, Trace};

/// Where the lab's workload has its memory.
const MEMORY: std::ops::Range<u64> = 0x6000_0000_0000..0x6100_0000_0000;

/// Runs a scenario with its accesses recorded and its tables captured when the workload has touched
/// its memory, and compares these with the snapshots taken right after.
fn agreement(name: &str, scenario: Scenario, skip: u64) -> Agreement {
    let _machine = machine();
    let directory = tempfile::tempdir().unwrap();
    let mut choices = choices(name, scenario);
    choices.trace = Some(Trace {
        plugin: binary("libstrata_machine_plugin.so"),
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
    let found = compare(&capture, &snapshots(&report, 0), "strata-agent", MEMORY);
    println!("{name}: {found:?}; {trace:?}");
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
    let other = &found.other_colour;
    assert!(other.is_empty(), "{name}: {} pages have another colour: {other:x?}", other.len());
    assert_eq!(found.same_colour, 512 * all, "{name}: {found:?}");
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
const TOUCH: &str = r#"
[[step]]
do = "run"
program = ["strata-agent", "touch", "--size=96M", "--accesses=1000000", "--stay"]
stay = true
[[step]]
do = "scan"
"#;

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn three_layers_with_base_pages_in_l1_that_l0_maps_huge() {
    let parameters = "nested_align=1 nested_align_cpu_percent=100";
    let scene = scene::three_layers("aligned", parameters, ["never", "always"]).then(TOUCH);
    expect_of("aligned", scene.0, 900_000, 46..=48, 48);
}
