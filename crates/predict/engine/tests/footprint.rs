//! What machines take of this computer's memory is what was estimated.
#![cfg(target_os = "linux")]

use strata_engine::memory::Need;
use strata_engine::{LayerFmfi, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_stream::{Batch, Fill, Source};
use strata_workloads::Generator;

const GIB: u64 = 1 << 30;

/// Resident bytes of this process (proc(5), statm, second field, in pages of 4 KiB).
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

/// What a machine took in the end, and what was estimated.
fn measure(setup: &Setup, workload: &str) -> (u64, Need) {
    let mut source = Generator::parse(workload).unwrap();
    let info = source.info();
    let catalogue = catalogue();
    let need = (catalogue.need)(setup, &info).expect("it can be built");
    let before = resident();
    let mut run = (catalogue.build)(setup, &info, &Stop::default()).expect("it fits");
    let mut batch = Batch::new();
    while source.fill(&mut batch).unwrap() == Fill::More {
        run.consume(&batch);
    }
    run.consume(&batch);
    let taken = resident().saturating_sub(before);
    // What is given back would be taken by the next without growing.
    std::mem::forget(run);
    (taken, need)
}

#[test]
fn machines_take_what_was_estimated() {
    let plain = |policy: &str| Setup {
        memory: Some(2 * GIB),
        fragmentation: LayerFmfi::everywhere(0.8),
        ..Setup::new(StackKind::Nested, policy, CpuModel::preset("broadwell-e5-2620v4").unwrap())
    };
    let small = "random:size=16MiB,accesses=10k";
    let backed = |policy| Setup {
        overrides: vec![("fragmentation.backed".to_owned(), "true".to_owned())],
        ..plain(policy)
    };
    let large = |policy| Setup { memory: Some(12 << 40), ..plain(policy) };
    let touched = "random:size=1GiB,touch=yes,accesses=300k";
    for (setup, workload) in [
        (large("base"), small),
        (large("thp"), small),
        (Setup { reused: true, ..plain("base") }, small),
        (Setup { reused: true, ..plain("xgemini") }, small),
        (backed("base"), small),
        (backed("thp"), small),
        (plain("base"), touched),
        (Setup { memory: Some(64 * GIB), ..plain("base") }, touched),
    ] {
        let (taken, need) = measure(&setup, workload);
        let what = format!("{taken} bytes, {need:?}: {setup:?}");
        assert!(need.least <= taken, "{what}");
        assert!(taken <= need.likely + need.likely / 10, "{what}");
    }
}
