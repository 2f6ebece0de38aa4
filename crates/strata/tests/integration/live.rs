//! Live programs: what is theirs stays theirs.

use crate::common::{complaint, refused, run, strata};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};
use strata_engine::Report;

/// Runs `sh -c script` live under one policy, JSON into a file.
fn live(script: &str, input: &str) -> (Output, Report) {
    reported("--policy base", &["sh", "-c", script], input)
}

/// Runs a program live with these options, JSON into a file.
fn reported(options: &str, program: &[&str], input: &str) -> (Output, Report) {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("x.json");
    let mut child = strata(&format!("run {options} -o /dev/null --json"))
        .arg(&json)
        .arg("--")
        .args(program)
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
    // Long enough for several blocks, so that half of it is something.
    let script = "echo 'a  b'; i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; exit 3";
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

#[test]
fn a_program_that_outgrows_the_guest_goes_on_and_the_status_says_so() {
    let program = ["perl", "-e", "$x = 'a' x (96 << 20); print length $x; exit 3"];
    let (output, report) = reported("--policy base,thp --memory 64MiB", &program, "");
    let complaint = complaint(&output);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), (96 << 20).to_string());
    assert_eq!(report.workload.exit_status, Some(3));
    assert!(report.partial && report.runs.iter().all(|run| run.out_of_memory));
    let last = complaint.lines().last().unwrap_or_default();
    assert_eq!(last, "strata: memory ran out on every machine: raise --memory");
    assert!(complaint.lines().count() <= 2, "{complaint}");
    let unobserved = "the rest of the program ran unobserved";
    assert!(report.workload.notes.iter().any(|note| note == unobserved), "{:?}", report.workload);
}

#[test]
fn at_its_limit_a_program_is_let_go() {
    // It starts others, threads and not, before and after.
    let script = "ls / > /dev/null; ls / | wc -l; exit 4";
    let (output, report) =
        reported("--policy base,thp --skip 5k --warmup 5k --limit 20k", &["sh", "-c", script], "");
    assert_eq!(output.status.code(), Some(4), "{}", complaint(&output));
    let entries = fs::read_dir("/").unwrap().count().to_string();
    assert!(String::from_utf8_lossy(&output.stdout).trim() <= entries.as_str());
    assert!(!report.partial);
    assert!(report.runs.iter().all(|run| run.accesses == 20_000));
}

#[test]
fn what_lies_between_a_programs_marks_is_counted_live_and_from_recordings() {
    let directory = tempfile::tempdir().unwrap();
    let mark = "sub mark { syscall(157, 0x53545241, $_[0], 0, 0, 0) }";
    let script = format!("{mark} mark(1); for (1..20000) {{ $x += $_ }} mark(2); print $x");
    let program = ["perl", "-e", &script];
    let accesses = |options: &str| {
        let (output, report) = reported(options, &program, "");
        assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "200010000");
        report.runs[0].accesses
    };
    let (whole, marked) = (accesses("--policy base"), accesses("--policy base --marked"));
    assert!(marked > 1_000_000 && marked + 300_000 < whole, "{marked} of {whole}");
    let at = |line: &str| strata(line).current_dir(&directory).output().unwrap();
    let mut recording = strata("record -o whole.strata --");
    let recorded = recording.args(program).current_dir(&directory).output().unwrap();
    assert!(recorded.status.success(), "{}", complaint(&recorded));
    let counted = |line: &str| {
        let output = at(line);
        assert!(output.status.success(), "{line}: {}", complaint(&output));
        let report: Report = serde_json::from_slice(&output.stdout).unwrap();
        report.runs[0].accesses
    };
    let run = "run --policy base --json - -o /dev/null";
    let replayed = counted(&format!("{run} --marked whole.strata"));
    assert!(replayed.abs_diff(marked) * 20 < marked, "{replayed} replayed, {marked} live");
    assert!(at("record -o part.strata --marked whole.strata").status.success());
    assert_eq!(counted(&format!("{run} part.strata")), replayed);
    assert_eq!(counted(&format!("{run} --marked part.strata")), replayed);
}

#[test]
fn a_program_without_marks_leaves_nothing_to_count() {
    let output = strata("run --marked --policy base -- true").output().unwrap();
    refused(&output, 1, "gave no mark to begin");
    let directory = tempfile::tempdir().unwrap();
    let line = "record --skip 1G -o x.strata -- true";
    refused(&strata(line).current_dir(&directory).output().unwrap(), 1, "lower them");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn a_program_has_its_own_name() {
    let (output, _) = reported("--policy base", &["cat", "/proc/self/comm"], "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "cat\n");
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    fs::write(&script, "#!/bin/sh\nread name < /proc/$$/comm; echo $name\ncat /proc/self/comm\n")
        .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (output, _) = reported("--policy base", &[script.to_str().unwrap()], "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "script\ncat\n");
}

#[test]
fn what_the_emulator_refuses_or_what_it_costs_is_told() {
    let calls = "syscall(101, 0, 0, 0, 0); syscall(157, 22, 1, 0, 0, 0); \
                 syscall(9, 0, 1 << 60, 0, 0x4022, -1, 0)";
    let (output, report) = reported("--policy base", &["perl", "-e", calls], "");
    for expected in ["ptrace", "seccomp"] {
        let notes = &report.workload.notes;
        assert!(notes.iter().any(|note| note.contains(expected)), "{expected}: {notes:?}");
    }
    assert!(complaint(&output).contains("reserves 1073741824 GiB"), "{}", complaint(&output));
}
