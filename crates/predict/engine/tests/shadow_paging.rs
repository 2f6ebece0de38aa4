//! Shadow paging on whole machines: short walks, and exits in place of them.

use strata_engine::{LayerFmfi, Paging, RunResult, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_stream::{Batch, Fill, Source};
use strata_workloads::Generator;

fn run(stack: StackKind, policy: &str, paging: Paging, workload: &str) -> RunResult {
    let setup = Setup {
        memory: Some(256 << 20),
        fragmentation: LayerFmfi::everywhere(0.0),
        paging,
        ..Setup::new(stack, policy, CpuModel::preset("broadwell-e5-2620v4").unwrap())
    };
    let mut source = Generator::parse(workload).unwrap();
    let mut run = (catalogue().build)(&setup, &source.info(), &Stop::default()).unwrap();
    let mut batch = Batch::new();
    loop {
        let fill = source.fill(&mut batch).unwrap();
        run.consume(&batch);
        if fill == Fill::End {
            return run.finish();
        }
    }
}

fn exits(run: &RunResult, layer: &str, reason: &str) -> u64 {
    let of = run.exits_by_layer.iter().find(|layers| layers.layer == layer);
    of.and_then(|layer| layer.exits.get(reason)).copied().unwrap_or(0)
}

const WORKLOAD: &str = "random:size=32MiB,accesses=300k";

#[test]
fn a_vm_walks_as_native_programs_do_and_exits_for_its_page_faults() {
    for policy in ["base", "thp"] {
        let native = run(StackKind::Native, policy, Paging::Nested, WORKLOAD);
        let shadow = run(StackKind::Vm, policy, Paging::Shadow, WORKLOAD);
        let nested = run(StackKind::Vm, policy, Paging::Nested, WORKLOAD);
        let references = |run: &RunResult| run.walk_refs as f64 / run.walks as f64;
        let (one, two) = (references(&shadow), references(&nested));
        assert!(one < 0.8 * two, "{policy}: {one} of {two}");
        let alone = references(&native);
        // A page that is injected first is walked to once more.
        assert!((one / alone - 1.0).abs() < 0.3, "{policy}: {one}, natively {alone}");
        assert_eq!(shadow.faults.guest, nested.faults.guest, "{policy}: the guest's own");
        assert_eq!(exits(&shadow, "guest", "second_stage_violation"), 0);
        let faults = exits(&shadow, "guest", "page_fault");
        assert!(faults >= 2 * shadow.faults.guest, "{policy}: {faults}");
        assert!(faults <= 5 * shadow.faults.guest, "{policy}: {faults}");
        let bill: u64 = shadow.bill.iter().map(|item| item.cycles).sum();
        assert_eq!(bill, shadow.cycles);
        assert!(shadow.bill.iter().all(|item| item.name != "walks, second stage"));
        assert!(shadow.bill.iter().any(|item| item.name == "exits: page fault"));
    }
}

#[test]
fn in_a_nested_vm_l1_keeps_the_shadow_and_l0_a_second_stage() {
    let shadow = run(StackKind::Nested, "base", Paging::Shadow, WORKLOAD);
    let nested = run(StackKind::Nested, "base", Paging::Nested, WORKLOAD);
    // Page faults are L1's to handle, violations of its memory L0's.
    let faults = exits(&shadow, "guest", "page_fault");
    assert!(faults >= 2 * shadow.faults.guest);
    assert_eq!(
        exits(&shadow, "guest", "handed_on"),
        faults + exits(&shadow, "guest", "control_register")
    );
    assert_eq!(exits(&shadow, "l1", "vmresume"), exits(&shadow, "guest", "handed_on"));
    // Nobody follows what L1 writes.
    assert_eq!(exits(&shadow, "l1", "second_stage_write"), 0);
    assert!(exits(&nested, "l1", "second_stage_write") > 0);
    // NestCloud's host EPT against virtual EPT: page faults take far longer.
    assert!(shadow.cycles_by_kind.exits > nested.cycles_by_kind.exits);
    assert_eq!(shadow.faults.guest, nested.faults.guest);
}

#[test]
fn native_programs_have_nobody_who_keeps_shadows() {
    let shadow = run(StackKind::Native, "thp", Paging::Shadow, WORKLOAD);
    assert_eq!(shadow, run(StackKind::Native, "thp", Paging::Nested, WORKLOAD));
}
