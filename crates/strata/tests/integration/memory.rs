//! Memory that machines have and memory that they take: what does not fit, and what runs out.

use crate::common::{complaint, program, refused, run};
use std::fs;
use std::process::{Command, Output};
use strata_engine::Report;

/// Runs `strata` with so much address space.
fn limited(kibibytes: u32, line: &str) -> Output {
    let program = program().display().to_string();
    let script = format!("ulimit -v {kibibytes}; exec {program} {line}");
    Command::new("sh").args(["-c", &script]).output().unwrap()
}

#[test]
fn what_is_certain_not_to_fit_is_refused_before_anything_runs() {
    let small = "--policy base --workload random:size=64MiB,accesses=10k";
    let large = "--policy base --workload random:size=475GiB,touch=yes";
    // In the third case one machine fits whatever the program itself takes, and two do not.
    for (kibibytes, options, workload, why) in [
        (100_000_000, "--memory 12TiB --reused", small, "lower --memory, make the workload"),
        (8_000_000, "--memory 1TiB --set fragmentation.backed=true", small, "(--reused, fragmenta"),
        (780_000, "--stack nested,vm --memory 64GiB --reused --jobs 2", small, "lower --jobs"),
        (4_000_000, "", large, "lower --memory, make the workload"),
    ] {
        let output = limited(kibibytes, &format!("run {options} {workload}"));
        refused(&output, 1, why);
        assert!(complaint(&output).contains("would need at least"), "{}", complaint(&output));
    }
    // Fragmented memory of that size takes nothing until it is touched.
    let output = limited(100_000_000, &format!("run --memory 1TiB {small}"));
    assert!(output.status.success(), "{}", complaint(&output));
}

#[test]
fn memory_in_multiples_of_what_is_touched_makes_fragmentation_matter() {
    let misses = |options: &str| {
        let workload = "--workload random:size=64MiB,accesses=200k,touch=yes";
        let output = run(&format!("run {workload} --policy thp --json - {options}"));
        assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
        let report: Report = serde_json::from_slice(&output.stdout).unwrap();
        (report.runs[0].tlb.l2_misses, report.runs[0].notes.join(" "))
    };
    let (roomy, plenty) = misses("--fragmentation 0.8");
    let (roomier, _) = misses("--fragmentation 0.5");
    assert_eq!(roomy, roomier, "it did not matter");
    assert!(plenty.contains("free huge pages exceeded the demand"), "{plenty}");
    // With the memory that the note names they are short.
    let named = plenty.split_once("--memory ").unwrap().1.split_once(' ').unwrap().0;
    let (short, silent) = misses(&format!("--fragmentation 0.8 --memory {named}"));
    assert!(!silent.contains("exceeded"), "{named}: {silent}");
    let (scarce, silent) = misses("--fragmentation 0.8 --memory 3x");
    assert!(!silent.contains("exceeded"), "{silent}");
    assert!(scarce > 2 * roomy && scarce > short, "{scarce} {short} {roomy}");
    refused(&run("run --memory 3x -- true"), 2, "record it first");
}

#[test]
fn memory_that_runs_out_is_told() {
    let line = "run --workload random:size=2GiB,accesses=10k --policy base";
    let output = limited(60_000, line);
    assert_eq!(output.status.code(), Some(1), "{}", complaint(&output));
    let complaint = complaint(&output);
    // A note that it may not fit can come first.
    let last = complaint.lines().last().unwrap_or_default();
    assert!(last.contains("out of memory") && last.contains("--jobs 1"), "{complaint}");
    assert!(limited(4_000_000, line).status.success());
}

#[test]
fn what_ran_out_of_memory_is_compared_with_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.json");
    let line = "run --policy base,xgemini --memory 64MiB \
                --workload random:size=60MiB,accesses=100k --json";
    let output = run(&format!("{line} {}", path.display()));
    assert_eq!(output.status.code(), Some(1));
    let told = complaint(&output);
    let last = told.lines().last().unwrap_or_default();
    assert_eq!(last, "strata: memory ran out on every machine: raise --memory");
    assert!(told.lines().count() <= 2, "{told}");
    let text = String::from_utf8_lossy(&output.stdout);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "PARTIAL RESULT: memory ran out under base, xgemini (the guest killed process 0), so that \
                nothing compares with it: raise --memory";
    assert!(words.contains(told), "{text}");
    assert!(!words.contains("fastest"), "{text}");
    for once in ["ran out", "killed process", "raise --memory"] {
        assert_eq!(words.matches(once).count(), 1, "{once}: {text}");
    }
    let report: Report = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(report.partial);
    for run in &report.runs {
        assert!(run.partial && run.out_of_memory && run.relative_throughput.is_none());
        assert!(run.memory.used_bytes > 1 << 20, "{:?}", run.memory);
    }
}
