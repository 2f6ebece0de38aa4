//! L0's kernel with alignment makes huge pages of what L1 scatters, and leaves everything alone until it
//! is switched on.

mod common;

use common::{machine, run_scenario};
use strata_lab::{LabReport, Scenario};

/// L1 maps its guest with base pages only. L0's kernel and its parameters are filled in.
const SCATTERED: &str = r#"
about = "Huge pages in L2 and L0 but not in L1"
[[layer]]
kernel = "KERNEL"
memory = "3000M"
thp = "always"
modules = { kvm = "PARAMETERS" }
[[layer]]
kernel = "debian"
memory = "1600M"
thp = "never"
[[layer]]
kernel = "vanilla"
memory = "600M"
thp = "always"
[[step]]
do = "run"
program = ["strata-agent", "touch", "--size=96M", "--accesses=100000", "--stay"]
stay = true
[[step]]
do = "scan"
"#;

fn run(kernel: &str, parameters: &str) -> LabReport {
    let text = SCATTERED.replace("KERNEL", kernel).replace("PARAMETERS", parameters);
    run_scenario(kernel, Scenario::parse(&text, kernel).unwrap())
}

/// What a counter of KVM in L0 rose by while the program ran.
fn rise(report: &LabReport, name: &str) -> u64 {
    report.layers[0].after.kvm(name) - report.layers[0].before.kvm(name)
}

/// Share of L2's huge pages that lie on one aligned block of HPA.
fn in_a_row(report: &LabReport) -> f64 {
    let totals = report.alignment.as_ref().expect("all layers were scanned").totals;
    assert!(totals.huge >= 40, "{totals:?}");
    (totals.well_aligned + totals.pseudo_huge) as f64 / totals.huge as f64
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn scattered_memory_is_put_in_a_row_and_mapped_huge() {
    let _machine = machine();
    let vanilla = run("vanilla", "");
    assert!(in_a_row(&vanilla) < 0.05, "{}", in_a_row(&vanilla));
    let ours = run("aligned", "nested_align=1 nested_align_cpu_percent=100");
    assert!(in_a_row(&ours) >= 0.95, "{}", in_a_row(&ours));
    // 2 MiB entries stand for it, and one exit filled most of each.
    let regions = 96 / 2;
    assert!(rise(&ours, "nested_align_promoted") >= regions * 95 / 100);
    assert!(ours.layers[0].after.kvm("nested_align_pseudo_huge") >= regions * 95 / 100);
    assert!(rise(&ours, "nested_align_populated") > regions * 400);
}

/// What makes KVM in L0 drop all its tables, and how much it fills them while a program touches the
/// memory that another left. L0's kernel and its parameters, and L1's huge pages, are filled in.
const DROPPED: &str = r#"
about = "L0 fills its tables anew"
[[layer]]
kernel = "KERNEL"
memory = "3000M"
thp = "always"
modules = { kvm = "PARAMETERS" }
[[layer]]
kernel = "debian"
memory = "1600M"
thp = "L1THP"
[[layer]]
kernel = "vanilla"
memory = "600M"
thp = "always"
[[step]]
do = "run"
program = ["strata-agent", "touch", "--size=96M"]
[[step]]
do = "sleep"
seconds = 5
[[step]]
do = "run"
layer = 0
program = ["/bin/busybox", "sh", "-c", "cd /sys/module/kvm/parameters; echo force > nx_huge_pages; echo off > nx_huge_pages"]
[[step]]
do = "sleep"
seconds = 3
[[step]]
do = "run"
layer = 0
program = ["/bin/busybox", "cat", "/sys/kernel/debug/kvm/pf_fixed"]
[[step]]
do = "run"
program = ["strata-agent", "touch", "--size=96M", "--stay"]
stay = true
[[step]]
do = "run"
layer = 0
program = ["/bin/busybox", "cat", "/sys/kernel/debug/kvm/pf_fixed"]
[[step]]
do = "scan"
"#;

/// Faults while the second program touched its memory, and the report.
fn refill(kernel: &str, parameters: &str, l1_thp: &str) -> (u64, LabReport) {
    let text = DROPPED
        .replace("KERNEL", kernel)
        .replace("PARAMETERS", parameters)
        .replace("L1THP", l1_thp);
    let report = run_scenario(kernel, Scenario::parse(&text, kernel).unwrap());
    let counts: Vec<u64> = report
        .steps
        .iter()
        .filter(|step| step.what.ends_with("pf_fixed"))
        .map(|step| step.output[0].trim().parse().unwrap())
        .collect();
    let [before, after] = counts[..] else { panic!("{counts:?}") };
    (after - before, report)
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn memory_that_l1_has_backed_takes_no_more_faults_than_huge_pages_of_l1() {
    let _machine = machine();
    let (huge, _) = refill("vanilla", "", "always");
    let (base, _) = refill("vanilla", "", "never");
    let (ours, report) = refill("aligned", "nested_align=1 nested_align_cpu_percent=100", "never");
    println!("faults: {huge} with huge pages in L1, {base} without, {ours} without and aligned");
    assert!(ours * 10 <= huge * 12, "{ours} and {huge}");
    assert!(base > 3 * huge, "{base} and {huge}");
    // At once, and not when the worker comes by.
    assert!(in_a_row(&report) >= 0.9, "{}", in_a_row(&report));
}

/// Two guests of L1, then one after one of them died.
const GUESTS: &str = r#"
about = "Guests of L1 beside and after each other"
[[layer]]
kernel = "aligned"
memory = "3000M"
thp = "always"
modules = { kvm = "nested_align=1 nested_align_cpu_percent=100" }
[[layer]]
kernel = "debian"
memory = "1900M"
thp = "never"
[[layer]]
kernel = "vanilla"
memory = "600M"
thp = "always"
[[step]]
do = "run"
program = ["strata-agent", "touch", "--size=96M", "--stay"]
stay = true
[[step]]
do = "guest"
layer = 1
memory = "400M"
program = ["strata-agent", "touch", "--size=96M", "--stay"]
die = 45
[[step]]
do = "guest"
layer = 1
memory = "400M"
program = ["strata-agent", "touch", "--size=96M", "--stay"]
die = 45
[[step]]
do = "scan"
"#;

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn guests_beside_and_after_each_other_are_aligned() {
    let _machine = machine();
    let report = run_scenario("guests", Scenario::parse(GUESTS, "guests").unwrap());
    // The first guest, all the time.
    assert!(in_a_row(&report) >= 0.95, "{}", in_a_row(&report));
    // The second as well: 2 MiB entries for both programs, until it dies; and the same once more.
    let both = 2 * 96 / 2 * 95 / 100;
    let entries: Vec<u64> = report.layers[0]
        .samples
        .iter()
        .map(|sample| sample.kvm("nested_align_pseudo_huge"))
        .collect();
    let mut lives = 0;
    let mut alive = false;
    for &now in &entries {
        if now >= both && !alive {
            lives += 1;
            alive = true;
        }
        alive &= now >= both * 7 / 10;
    }
    assert_eq!(lives, 2, "{entries:?}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn switched_off_it_does_nothing() {
    let _machine = machine();
    let vanilla = run("vanilla", "");
    let off = run("aligned", "nested_align=0");
    for (name, count) in &off.layers[0].after.kvm {
        if name.starts_with("nested_align_") {
            assert_eq!(*count, 0, "{name}");
        }
    }
    // Ticks of L1 and L2 come by the clock, so that no two runs are equal in all.
    let (before, after) = (rise(&vanilla, "pf_fixed"), rise(&off, "pf_fixed"));
    assert!(after.abs_diff(before) * 100 <= before * 2, "{before} and {after}");
}
