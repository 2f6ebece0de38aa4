//! `strata calibrate`: the file it writes is a CPU, and bad input leaves none.

mod common;

use common::{complaint, refused, run};
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
