//! Every cause, provoked on real kernels and named by the join.

use crate::common::{machine, run, snapshots};
use strata_inspect::{Cause, Options, Verdict, verdicts};

/// Name of the lab's workload as a process.
const WORKLOAD: &str = "strata-agent";

/// Runs a scenario and expects that of the workload's huge pages at least `least` are blamed on
/// this layer and cause, and none on any other.
fn expect(scenario: &str, layer: &str, cause: Cause, least: usize) {
    let _machine = machine();
    let report = run(scenario);
    let snapshots = snapshots(&report, 0);
    let count = snapshots.len();
    let pages: Vec<Verdict> = verdicts(&snapshots, &Options::default())
        .unwrap()
        .into_iter()
        .filter(|page| {
            let named =
                |process: &&strata_inspect::snapshot::model::Process| process.pid == page.pid;
            snapshots[0].processes.iter().find(named).is_some_and(|one| one.name == WORKLOAD)
        })
        .map(|page| page.verdict)
        .collect();
    let mut blamed = 0;
    for verdict in &pages {
        match verdict {
            Verdict::Misaligned { below, cause: found, .. } => {
                let responsible = format!("L{}", count - 2 - below);
                assert_eq!((responsible.as_str(), *found), (layer, cause), "{scenario}");
                blamed += 1;
            }
            Verdict::WellAligned { .. } => {}
            Verdict::Uncertain | Verdict::Unknown => panic!("{scenario}: {verdict:?}"),
        }
    }
    assert!(blamed >= least, "{scenario}: {blamed} of {} pages blamed, not {least}", pages.len());
    // What a person is shown says the same.
    let join = report.alignment.expect("a run with snapshots joins them");
    let shown = join.causes.iter().find(|one| one.cause == cause && one.layer == layer);
    let shown = shown.unwrap_or_else(|| panic!("{scenario}: {:?}", join.causes));
    assert!(shown.pages >= blamed as u64 && shown.remedy == cause.remedy());
}

/// A test for each scenario: all huge pages of the workload are blamed, or at least so many.
macro_rules! named {
    ($($test:ident: $scenario:literal, $layer:literal, $cause:ident, $least:literal;)*) => {$(
        #[test]
        #[ignore = "boots real kernels: make lab-test"]
        fn $test() {
            expect($scenario, $layer, Cause::$cause, $least);
        }
    )*};
}

named! {
    slots_misaligned: "causes/slot-misaligned", "L0", SlotMisaligned, 32;
    memfd_is_not_aligned_either: "causes/memfd", "L0", SlotMisaligned, 32;
    shmem_without_thp: "causes/shmem-without-thp", "L0", ShmemWithoutThp, 32;
    thp_disabled: "causes/thp-disabled", "L0", ThpDisabled, 32;
    madvise_only: "causes/madvise-only", "L0", MadviseOnly, 32;
    advice_against: "causes/vm-nohugepage", "L0", NoHugepage, 32;
    disabled_by_prctl: "causes/prctl-thp-disable", "L0", ProcessDisabled, 32;
    // The first regions of the guest still get huge pages.
    fragmentation: "causes/fragmentation", "L0", Fragmentation, 32;
    dirty_logging: "causes/dirty-logging", "L0", DirtyLogging, 32;
    dirty_rate: "causes/dirty-rate", "L0", DirtyLogging, 32;
    nx_huge_pages: "causes/nx-huge-pages", "L0", NxHugePages, 32;
    // Not all memory that the guest has was in the balloon.
    balloon_hole: "causes/balloon-hole", "L0", BalloonHole, 48;
    ksm: "causes/ksm", "L0", Ksm, 32;
    // What the guest has used since is back.
    swap: "causes/swap", "L0", Swap, 24;
    userfaultfd: "causes/userfaultfd", "L0", Userfaultfd, 3;
    not_yet_collapsed: "causes/not-yet-collapsed", "L0", NotYetCollapsed, 32;
    l1_thp_disabled: "l1-base", "L1", ThpDisabled, 48;
    l1_memfd: "causes/l1-memfd", "L1", SlotMisaligned, 32;
    l0_below_an_innocent_l1: "causes/l0-below", "L0", ThpDisabled, 24;
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_memfd_needs_both_to_be_mended() {
    let _machine = machine();
    let report = run("causes/memfd");
    let join = report.alignment.unwrap();
    let cause = &join.causes[0];
    assert_eq!((cause.cause, cause.behind), (Cause::SlotMisaligned, Some(Cause::ShmemWithoutThp)));
    // Huge pages for shared memory do not change where QEMU maps it.
    let report = run("causes/memfd-with-thp");
    let join = report.alignment.unwrap();
    assert_eq!((join.causes[0].cause, join.causes[0].behind), (Cause::SlotMisaligned, None));
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_balloon_that_was_never_used_is_blamed_for_nothing() {
    let _machine = machine();
    let report = run("vm");
    let join = report.alignment.unwrap();
    assert_eq!(join.totals.well_aligned, join.totals.huge, "{:?}", join.causes);
    let vm = join.layers[1].vm.as_ref().unwrap();
    assert!(vm.causes.contains_key("not-backed") && !vm.causes.contains_key("balloon-hole"));
}
