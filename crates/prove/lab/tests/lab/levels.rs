//! What a level costs by the piece: the model against real kernels.

use crate::common::{asked_for, binary, machine};
use serde_json::Value;
use std::process::Command;

/// Exits of one page fault in a stack: whose, what for, how many were counted, and how many the model says.
fn of_a_page_fault(scenario: &str) -> Vec<(String, String, f64, Option<f64>)> {
    let _machine = machine();
    let mut command = Command::new(binary("strata"));
    command.args(["lab", "levels", "--json", "-", "--scenario", scenario]);
    if let Some(make) = asked_for() {
        command.args(["--machine", &make.to_string()]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    println!("{found:#}");
    let faults = &found["stacks"][0]["chores"][0];
    assert_eq!(faults["chore"], "faults");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let exits = faults["exits"].as_array().unwrap().iter();
    exits
        .map(|exit| {
            let measured = exit["measured"].as_f64().unwrap();
            (text(&exit["vm"]), text(&exit["what"]), measured, exit["predicted"].as_f64())
        })
        .collect()
}

/// All that the model predicts is counted, within 10 % or one in twenty; there are so many such rows at least.
fn alike(exits: &[(String, String, f64, Option<f64>)], rows: usize) {
    let told = exits.iter().filter_map(|(vm, what, measured, predicted)| {
        let predicted = (*predicted)?;
        let apart = (predicted - measured).abs();
        assert!(
            apart <= 0.05 || apart <= 0.1 * measured,
            "{vm} {what}: measured {measured}, predicted {predicted}"
        );
        Some(())
    });
    assert!(told.count() >= rows, "{exits:?}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_page_fault_of_a_vm_with_shadow_paging_exits_twice_as_predicted() {
    let exits = of_a_page_fault("levels/vm-shadow");
    let faults = exits.iter().find(|(_, what, ..)| what == "PF" || what == "EXCEPTION_NMI");
    assert!(faults.is_some_and(|(_, _, measured, _)| (2.0..2.1).contains(measured)), "{exits:?}");
    alike(&exits, 1);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_page_fault_of_a_nested_vm_with_shadow_paging_exits_as_predicted() {
    alike(&of_a_page_fault("levels/nested-shadow"), 5);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_page_fault_of_a_nested_vm_with_nested_paging_does_not_exit() {
    let exits = of_a_page_fault("levels/nested");
    assert!(exits.iter().all(|(_, _, measured, _)| *measured < 0.1), "{exits:?}");
}
