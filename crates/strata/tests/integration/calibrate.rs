//! `strata calibrate` and `strata check`: what is written is a CPU and a comparison, and bad input leaves none.

use crate::common::{complaint, refused, run};
use serde_json::Value;
use std::fs;

#[test]
fn what_is_measured_is_a_cpu_to_run_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cpu.toml");
    let output = run(&format!("calibrate --most 64M --rounds 1 --name mine -o {}", file.display()));
    if !output.status.success() {
        // Where the kernel gives no huge pages nothing can be measured, and that is said.
        let said = complaint(&output);
        assert!(said.contains("in huge pages") && said.contains("transparent_hugepage"), "{said}");
        assert!(!file.exists());
        return;
    }
    let curves = String::from_utf8(output.stderr).unwrap();
    for stride in ["64 B", "4 KiB + 64 B", "2 MiB + 64 B"] {
        assert!(curves.contains(&format!("lines {stride} apart")), "{curves}");
    }
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("measured: ") && text.contains("assumed: "), "{text}");
    let line = "--stack native --policy thp --workload sequential:size=4MiB,accesses=10k";
    let output = run(&format!("run --cpu {} {line}", file.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8(output.stdout).unwrap().contains("native on mine"));
}

#[test]
fn bad_input_is_answered_with_a_remedy() {
    refused(&run("calibrate --most 1M"), 1, "give --most of at least 64M");
    refused(&run("calibrate --most 900T"), 1, "give --most of at most");
    refused(&run("calibrate -o /nonexistent/cpu.toml"), 1, "create the directory first");
    refused(&run("calibrate --rounds 0"), 2, "--rounds");
}

#[test]
fn a_program_is_measured_and_predicted() {
    let output = run("check --cpu zen3 --pairs 2 --json - -- true");
    if !output.status.success() {
        let said = complaint(&output);
        assert!(said.contains("the kernel takes no huge pages"), "{said}");
        return;
    }
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&checked["program"][0], &checked["pairs"]), (&"true".into(), &2.into()));
    let number = |value: &Value| value.as_f64().unwrap();
    let [low, high] = [0, 1].map(|at| number(&checked["interval"][at]));
    assert!(low <= number(&checked["measured"]) && number(&checked["measured"]) <= high);
    let predicted = number(&checked["predicted"]);
    assert!(predicted > 0.0);
    assert_eq!(checked["within"], (low..=high).contains(&predicted));
}

#[test]
fn a_program_that_cannot_be_compared_is_refused() {
    refused(&run("check --cpu nosuch -- true"), 1, "no CPU preset is named nosuch");
    refused(&run("check --cpu zen3 -- /nonexistent/program"), 1, "/nonexistent/program");
    refused(&run("check --cpu zen3 -- false"), 1, "did not end with status 0");
    assert_eq!(run("check --cpu zen3 --pairs 1 -- true").status.code(), Some(2));
    assert_eq!(run("check --cpu zen3").status.code(), Some(2));
}
