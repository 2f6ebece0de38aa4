//! Frames that L0 books for pages of a region that L1 has not mapped yet: how many, what for, and how long.

use crate::common::scene::{Scene, Steps, step, steps, three_layers};
use crate::common::{machine, rise, tell_alignment};
use strata_lab::{KernelVariant, LabReport};

/// Programs of L2 that have a half of a region each, and a pause after each: what one leaves of a region,
/// the next one gets.
fn halves(number: usize) -> Steps {
    steps().run("strata-agent touch --size=1M --stay").stay().sleep(2.0).times(number)
}

/// A machine without huge pages in L1 and L2, which boots with these parameters besides.
fn booted(parameters: &str) -> Scene {
    let parameters = format!(
        "nested_align=1 nested_align_cpu_percent=100 nested_align_period_ms=200 \
         nested_align_min_present=256 {parameters}"
    );
    three_layers(KernelVariant::Aligned, &parameters, ["never", "never"])
}

/// Runs these steps in it.
fn run(scene: Scene, steps: Steps) -> LabReport {
    let report = scene.then(steps).run("booking");
    tell_alignment(&report);
    report
}

/// What L0 has of a counter of KVM at all times.
fn seen(report: &LabReport, name: &str) -> Vec<u64> {
    report.layers[0].samples.iter().map(|sample| sample.kvm(name)).collect()
}

/// Frees what the kernel's caches can do without, and tells what is booked then.
fn shortage() -> Steps {
    steps()
        .write(0, "/proc/sys/vm/drop_caches", "2")
        .run("/bin/busybox cat /sys/kernel/debug/kvm/nested_align_booked")
        .layer(0)
        .id("booked")
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn pages_that_come_late_get_the_frames_booked_for_them() {
    let _machine = machine();
    let limits = "nested_align_term_ms=60000 nested_align_booked_max=2";
    let report = run(booted("").set(limits), halves(12).then(shortage()));
    let placed = rise(&report, "nested_align_placed");
    println!("{placed} placed");
    assert!(placed > 0, "each page of a half came with its region");
    assert!(rise(&report, "nested_align_promoted") > 0);
    // Never more than two blocks, and some of one now and then.
    let booked = seen(&report, "nested_align_booked");
    assert!(booked.iter().all(|frames| *frames <= 2 * 512), "{booked:?}");
    assert!(booked.iter().any(|frames| *frames > 0), "{booked:?}");
    // Who is short of memory gets them at once.
    assert_eq!(step(&report, "booked").output, ["0"]);
    assert!(rise(&report, "nested_align_reclaimed") > 0);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn frames_are_not_booked_for_what_cannot_be_huge() {
    let _machine = machine();
    // All of L1's small pages are executable, which keeps them small then.
    let report = run(booted("nx_huge_pages=force"), halves(3));
    let after = &report.layers[0].after;
    assert!(after.kvm("nested_align_scans") > 0);
    assert_eq!(after.kvm("nested_align_promoted"), 0);
    assert_eq!(after.kvm("nested_align_bookings"), 0);
    assert_eq!(after.kvm("nested_align_steered"), 0);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn frames_that_nobody_asks_for_go_back_in_time() {
    let _machine = machine();
    // The least that a term can be, so that a pause is longer.
    let report = run(booted("").set("nested_align_term_ms=500"), halves(6));
    // No page that comes later than that finds its frame.
    assert!(rise(&report, "nested_align_placed") < 256);
    assert!(rise(&report, "nested_align_bookings") > 0);
    // Only what is booked has a term that can end.
    assert!(rise(&report, "nested_align_timeouts") > 0);
}
