//! The model of a machine, held against the machine: what must come out alike, count for count.

use crate::common::{asked_for, binary, machine};
use serde_json::Value;
use std::process::Command;

/// What both counted of a scenario, by layer and name: least and most measured, and predicted.
fn predicted(scenario: &str) -> impl Fn(&str, &str) -> [u64; 3] + use<> {
    predicted_with(scenario, &[])
}

/// The same, with other options besides.
fn predicted_with(scenario: &str, options: &[&str]) -> impl Fn(&str, &str) -> [u64; 3] + use<> {
    let _machine = machine();
    let mut command = Command::new(binary("strata"));
    command.args(["lab", "predict", "--json", "-", "--scenario", scenario]).args(options);
    if let Some(make) = asked_for() {
        command.args(["--machine", &make.to_string()]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = found["rows"].clone();
    println!("{rows:#}");
    move |layer, what| {
        let row = rows
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["layer"] == layer && row["what"] == what);
        let row = row.unwrap_or_else(|| panic!("no row of {layer} for {what}"));
        let number = |value: &Value| value.as_u64().unwrap();
        [number(&row["measured"][0]), number(&row["measured"][1]), number(&row["predicted"])]
    }
}

/// Both counted alike: within 10 % or a handful.
fn alike([least, most, predicted]: [u64; 3]) {
    let nearest = predicted.clamp(least, most);
    let apart = predicted.abs_diff(nearest);
    assert!(
        apart <= 8 || apart * 10 <= nearest,
        "measured {least} to {most}, predicted {predicted}"
    );
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn programs_of_a_lone_kernel_fault_as_predicted() {
    let of = predicted("native");
    alike(of("L0", "page faults"));
    alike(of("L0", "page faults answered with a huge page"));
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_vm_faults_exits_and_is_aligned_as_predicted() {
    let of = predicted("vm");
    for what in
        ["page faults", "page faults answered with a huge page", "huge pages", "well aligned"]
    {
        alike(of("L1", what));
    }
    alike(of("L0", "page faults answered with a huge page"));
    alike(of("L0", "exits of L1: second-stage violations"));
    alike(of("L0", "2 MiB entries added"));
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_nested_vm_whose_hypervisor_has_base_pages_exits_as_predicted() {
    let of = predicted("l1-base");
    for what in [
        "page faults answered with a huge page",
        "huge pages",
        // Where L1 has base pages, each of L2's huge pages has something below that is not aligned.
        "type-2 misaligned",
    ] {
        alike(of("L2", what));
    }
    for what in [
        "exits of L2: second-stage violations",
        "  of them handed on to L1",
        "exits of L1: second-stage violations",
    ] {
        alike(of("L0", what));
    }
    alike(of("L1", "4 KiB entries added"));
    alike(of("L0", "page faults answered with a huge page"));
}

/// While it reads at random: where in a program a recording begins is not the same to the access in layers and model.
#[test]
#[ignore = "boots real kernels: make lab-test"]
fn programs_miss_tlbs_as_predicted() {
    let directory = tempfile::tempdir().unwrap();
    let (recording, agent) = (directory.path().join("touch.strata"), binary("strata-agent"));
    let recorded =
        ["--trace-skip=2M", "--trace-limit=300k", "--trace", recording.to_str().unwrap()];
    let program = ["--", agent.to_str().unwrap(), "touch", "--size=96M", "--accesses=1000000"];
    let of = predicted_with("l1-base", &[&recorded[..], &program[..]].concat());
    for what in [
        "L1 TLB misses, recorded accesses",
        "L2 TLB misses, recorded accesses",
        "references of their walks",
    ] {
        alike(of("L2", what));
    }
}

/// Which of its free memory each kernel takes shows here, where what was used before costs no violation.
#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_nested_vm_without_huge_pages_exits_as_predicted() {
    let of = predicted("no-thp");
    alike(of("L2", "page faults"));
    for what in [
        "exits of L2: second-stage violations",
        "  of them handed on to L1",
        "exits of L1: second-stage violations",
        "exits of L1: VMSAVE for 100 VMRUN",
        "4 KiB entries added",
    ] {
        alike(of("L0", what));
    }
    alike(of("L1", "4 KiB entries added"));
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_nested_vm_of_shadows_alone_exits_as_predicted() {
    let of = predicted("shadow");
    alike(of("L2", "page faults"));
    for what in [
        "  of them handed on to L1",
        "exits of L1: VMRUN after them",
        "exits of L1: VMLOAD for 100 VMRUN",
        "exits of L1: VMSAVE for 100 VMRUN",
    ] {
        alike(of("L0", what));
    }
}
