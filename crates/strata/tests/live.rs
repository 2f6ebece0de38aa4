//! Live programs: what is theirs stays theirs.

mod common;

use common::{complaint, refused, run, strata};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, sleep};
use std::time::Duration;
use strata_engine::Report;

/// Runs `sh -c script` live under one policy, JSON into a file.
fn live(script: &str, input: &str) -> (Output, Report) {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("x.json");
    let mut child = strata("run --policy base -o /dev/null --json")
        .arg(&json)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let report = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    (output, report)
}

#[test]
fn streams_and_exit_status_pass_through() {
    let (output, report) = live("cat; echo done; echo oops >&2; exit 7", "some input\n");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "some input\ndone\n");
    assert_eq!(complaint(&output), "oops\n");
    assert_eq!(report.workload.exit_status, Some(7));
    assert!(!report.partial);
    assert!(report.runs[0].accesses > 10_000);
}

#[test]
fn a_program_that_is_killed_or_crashes_has_a_whole_result() {
    for (signal, status) in [("KILL", 137), ("SEGV", 139)] {
        let (output, report) = live(&format!("kill -{signal} $$"), "");
        assert_eq!(output.status.code(), Some(status), "{}", complaint(&output));
        assert_eq!(report.workload.exit_status, Some(status));
        assert!(!report.partial && report.runs[0].accesses > 10_000);
    }
}

#[test]
fn the_table_goes_to_standard_error() {
    let output = run("run --policy base -- echo hello");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n");
    let table = complaint(&output);
    assert!(table.contains("echo hello (live)") && table.contains("nested on"), "{table}");
}

#[test]
fn what_cannot_run_is_told() {
    refused(&run("run -- /nonexistent/program"), 1, "check the name");
    refused(&run("run -- /etc/passwd"), 1, "chmod +x");
    refused(&run("record -o /dev/null -- /nonexistent/program"), 1, "check the name");
    refused(&run("record -o /nonexistent/x -- ls"), 1, "/nonexistent");
}

#[test]
fn a_recording_gives_the_same_result_every_time() {
    let directory = tempfile::tempdir().unwrap();
    let in_it = |line: &str| strata(line).current_dir(&directory).output().unwrap();
    let recorded = strata("record -o a.strata --")
        .args(["sh", "-c", "ls /; exit 3"])
        .current_dir(&directory)
        .output()
        .unwrap();
    assert_eq!(recorded.status.code(), Some(3), "{}", complaint(&recorded));
    assert!(complaint(&recorded).contains("a.strata"));
    let first = in_it("run --policy base,thp --json - a.strata");
    assert!(first.status.success(), "{}", complaint(&first));
    let again = in_it("run --policy base,thp --json - --jobs 1 --threads 2 a.strata");
    assert!(first.stdout == again.stdout);
    let report: Report = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(report.workload.kind, "recording");
    assert!(report.runs[0].accesses > 10_000);
}

#[test]
fn a_truncated_recording_is_used_up_to_the_damage() {
    let directory = tempfile::tempdir().unwrap();
    let in_it = |line: &str| strata(line).current_dir(&directory).output().unwrap();
    let recorded = in_it("record -o a.strata --workload random:size=1MiB,accesses=3M");
    assert!(recorded.status.success(), "{}", complaint(&recorded));
    let bytes = fs::read(directory.path().join("a.strata")).unwrap();
    fs::write(directory.path().join("b.strata"), &bytes[..bytes.len() / 2]).unwrap();
    let output = in_it("run --policy base,thp --json x.json b.strata");
    assert_eq!(output.status.code(), Some(1), "{}", complaint(&output));
    assert_eq!(complaint(&output).lines().count(), 1, "{}", complaint(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("PARTIAL RESULT: "));
    let json = fs::read(directory.path().join("x.json")).unwrap();
    let report: Report = serde_json::from_slice(&json).unwrap();
    assert!(report.partial && report.runs.iter().all(|run| run.partial));
    assert!((1..3_000_000).contains(&report.runs[0].accesses), "{}", report.runs[0].accesses);
    assert_eq!(report.runs[0].accesses, report.runs[1].accesses);
}

#[test]
fn a_copy_of_a_recording_is_the_recording() {
    let directory = tempfile::tempdir().unwrap();
    let in_it = |line: &str| strata(line).current_dir(&directory).output().unwrap();
    let bytes = |name: &str| fs::read(directory.path().join(name)).unwrap();
    let script = "echo 'a  b' > /dev/null; exit 3";
    let mut record = strata("record -o a.strata -- sh -c");
    let recorded = record.arg(script).current_dir(&directory).output().unwrap();
    assert_eq!(recorded.status.code(), Some(3), "{}", complaint(&recorded));
    let copied = in_it("record -o b.strata a.strata");
    assert_eq!(copied.status.code(), Some(0), "{}", complaint(&copied));
    assert!(bytes("a.strata") == bytes("b.strata"));
    // One of half of it is whole, and says what it is.
    let whole = bytes("a.strata");
    fs::write(directory.path().join("cut.strata"), &whole[..whole.len() / 2]).unwrap();
    let copied = in_it("record -o c.strata cut.strata");
    assert_eq!(copied.status.code(), Some(1), "{}", complaint(&copied));
    let copied = in_it("record -o d.strata c.strata");
    assert_eq!(copied.status.code(), Some(0), "{}", complaint(&copied));
    assert!(bytes("c.strata") == bytes("d.strata"));
    let table = in_it("run --policy base c.strata").stdout;
    let text = String::from_utf8(table).unwrap();
    let words: Vec<_> = text.split_whitespace().collect();
    assert!(words.join(" ").contains("recording is partial: recording 'cut.strata'"), "{text}");
}

#[test]
fn a_full_disk_while_recording_is_told() {
    let line = "record -o /dev/full --workload random:size=1MiB,accesses=3M";
    refused(&run(line), 1, "/dev/full");
}

/// What becomes of a program in a shell's words under `strata` and of its recording or JSON, `file`,
/// when a signal comes after a while: to both, as from a terminal, or to `strata` alone. What bears
/// it for a minute is killed.
fn signalled(line: &str, file: &Path, script: &str, signal: &str, both: bool) -> Output {
    // A process group of its own stands for the terminal's foreground group.
    let child = strata(line)
        .arg(file)
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    sleep(Duration::from_secs(1));
    let group = format!("-{}", child.id());
    let target = if both { &group } else { &group[1..] };
    assert!(Command::new("kill").args([signal, "--", target]).status().unwrap().success());
    let (ended, waits) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if waits.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            Command::new("kill").args(["-KILL", "--", &group]).status().unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    output
}

#[test]
fn what_ends_a_program_reaches_it_and_the_result_is_marked() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("x.json");
    for (signal, both, why) in
        [("-INT", true, "interrupted by Ctrl-C"), ("-TERM", false, "ended by SIGTERM")]
    {
        let script = "trap 'echo caught; exit 5' INT TERM; while :; do :; done";
        let output = signalled("run --policy base --json", &json, script, signal, both);
        assert_eq!(output.status.code(), Some(5), "{}", complaint(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "caught\n");
        assert!(complaint(&output).contains(&format!("PARTIAL RESULT: {why}")));
        let report: Report = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        assert!(report.partial && report.runs[0].partial);
        assert_eq!(report.workload.exit_status, Some(5));
    }
}

#[test]
fn a_program_that_bears_ctrl_c_ends_as_it_would_have() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.strata");
    let script = "trap caught=yes INT; until [ $caught ]; do :; done; echo on";
    let output = signalled("record -o", &path, script, "-INT", true);
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
    let output = run(&format!("run --policy base {}", path.display()));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("PARTIAL"));
}
