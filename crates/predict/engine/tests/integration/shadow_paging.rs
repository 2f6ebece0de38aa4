//! Shadow paging on whole machines: short walks, and exits in place of them.

use crate::sampling::machine;
use strata_engine::{LayerFmfi, Paging, RunResult, Setup, StackKind};
use strata_hardware::CpuModel;
use strata_workloads::Generator;

fn run(stack: StackKind, policy: &str, paging: Paging, workload: &str) -> RunResult {
    run_with(stack, policy, paging, workload, &[])
}

fn run_with(
    stack: StackKind,
    policy: &str,
    paging: Paging,
    workload: &str,
    overrides: &[(&str, &str)],
) -> RunResult {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let setup = Setup {
        overrides: overrides.iter().map(own).collect(),
        memory: Some(256 << 20),
        fragmentation: LayerFmfi::everywhere(0.0),
        paging,
        ..Setup::new(stack, policy, CpuModel::preset("broadwell-e5-2620v4").unwrap())
    };
    machine::run(&setup, Generator::parse(workload).unwrap())
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
        assert_eq!(shadow.exits["page_fault"], faults, "{policy}: of all together, too");
        assert!(faults >= 2 * shadow.faults.guest, "{policy}: {faults}");
        assert!(faults <= 5 * shadow.faults.guest, "{policy}: {faults}");
        let bill: u64 = shadow.bill.iter().map(|item| item.cycles).sum();
        assert_eq!(bill, shadow.cycles);
        assert!(shadow.bill.iter().all(|item| item.name != "walks, second stage"));
        assert!(shadow.bill.iter().any(|item| item.name == "exits: page fault"));
        // Hardware walks the shadow, and the guest's table only where there is none.
        let walked = |run: &RunResult, table: &str| {
            let line = run.bill.iter().find(|item| item.name == format!("walks, {table}"));
            line.is_some_and(|line| line.cycles > 0)
        };
        let (of_shadow, of_guest) = ("shadow of the guest's table", "guest's table");
        assert!(walked(&shadow, of_shadow) && !walked(&shadow, of_guest), "{policy}");
        assert!(walked(&nested, of_guest) && !walked(&nested, of_shadow), "{policy}");
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
    assert_eq!(shadow.exits["reflected"], exits(&shadow, "guest", "handed_on"));
    // Nobody follows what L1 writes.
    assert_eq!(exits(&shadow, "l1", "second_stage_write"), 0);
    assert!(exits(&nested, "l1", "second_stage_write") > 0);
    // NestCloud's host EPT against virtual EPT: page faults take far longer.
    assert!(shadow.cycles_by_kind.exits > nested.cycles_by_kind.exits);
    assert_eq!(shadow.faults.guest, nested.faults.guest);
}

#[test]
fn on_a_shadow_of_l0_hardware_walks_one_table_and_l1_exits_for_what_it_writes() {
    let on_shadow = Paging::ShadowOnShadow;
    let native = run(StackKind::Native, "base", Paging::Nested, WORKLOAD);
    let on_ept = run(StackKind::Nested, "base", Paging::Shadow, WORKLOAD);
    for policy in ["base", "thp"] {
        let twice = run(StackKind::Nested, policy, on_shadow, WORKLOAD);
        let bill: u64 = twice.bill.iter().map(|item| item.cycles).sum();
        assert_eq!(bill, twice.cycles, "{policy}");
        assert!(twice.bill.iter().all(|item| item.name != "walks, second stage"));
        assert!(twice.bill.iter().all(|item| item.name != "walks, guest's table"));
        for layer in ["guest", "l1"] {
            assert_eq!(exits(&twice, layer, "second_stage_violation"), 0, "{policy}");
            assert_eq!(exits(&twice, layer, "second_stage_write"), 0, "{policy}");
        }
        let handed_on = exits(&twice, "guest", "handed_on");
        assert_eq!(exits(&twice, "l1", "vmresume"), handed_on, "{policy}");
        assert!(exits(&twice, "guest", "page_fault") > handed_on, "{policy}: L0's own");
        assert!(exits(&twice, "l1", "page_fault") > twice.faults.guest, "{policy}");
    }
    let twice = run(StackKind::Nested, "base", on_shadow, WORKLOAD);
    let references = |run: &RunResult| run.walk_refs as f64 / run.walks as f64;
    let (one, alone) = (references(&twice), references(&native));
    assert!((one / alone - 1.0).abs() < 0.3, "{one}, natively {alone}");
    assert!(one < 0.8 * references(&on_ept));
    assert_eq!(twice.faults.guest, on_ept.faults.guest, "the guest's own");
    assert_eq!(exits(&twice, "guest", "handed_on"), exits(&on_ept, "guest", "handed_on"));
    // NestCloud, table V: Basic is slower than Host EPT.
    assert!(twice.cycles_by_kind.exits > on_ept.cycles_by_kind.exits);
}

#[test]
fn bypass_spares_what_would_be_injected_where_writes_trap() {
    let trap = ("nested.second_stage_writes", "trap");
    let bypass = ("nested.page_fault_bypass", "true");
    for (stack, paging) in [
        (StackKind::Vm, Paging::Shadow),
        (StackKind::Nested, Paging::Shadow),
        (StackKind::Nested, Paging::ShadowOnShadow),
    ] {
        let run = |set: &[_]| run_with(stack, "base", paging, WORKLOAD, set);
        let (all, fewer) = (run(&[trap]), run(&[trap, bypass]));
        let faults = |run: &RunResult| exits(run, "guest", "page_fault");
        let spared = faults(&all) - faults(&fewer);
        // All but those for which a leaf table is missing.
        assert!(spared <= all.faults.guest && spared * 100 > all.faults.guest * 98, "{spared}");
        assert_eq!(all.faults, fewer.faults);
        let bill: u64 = fewer.bill.iter().map(|item| item.cycles).sum();
        assert_eq!(bill, fewer.cycles);
        // Of what is unsync nothing is known.
        let (all, fewer) = (run(&[]), run(&[bypass]));
        assert!((faults(&all) - faults(&fewer)) * 100 < all.faults.guest, "{paging:?}");
    }
}

#[test]
fn native_programs_have_nobody_who_keeps_shadows() {
    let shadow = run(StackKind::Native, "thp", Paging::Shadow, WORKLOAD);
    assert_eq!(shadow, run(StackKind::Native, "thp", Paging::Nested, WORKLOAD));
}
