//! Signals while something runs: what reaches a live program, and what becomes of the result.

use crate::common::{complaint, program, run, strata};
use std::fs;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use strata_engine::Report;
use tempfile::TempDir;

/// Who gets a signal.
#[derive(Clone, Copy)]
enum To {
    /// `strata` alone.
    Strata,
    /// `strata` and its program, as from a terminal.
    Both,
}

/// What becomes of a program in a shell's words under `strata` and of its result, `x` in `directory`,
/// when signals come after it has made a file `ready`. What bears it for a minute is killed.
fn signalled(directory: &TempDir, line: &str, script: &str, signals: &[(&str, To)]) -> Output {
    // A process group of its own stands for the terminal's foreground group.
    // Whoever runs the tests with nohup has its own reasons to ignore SIGHUP.
    let child = Command::new("env")
        .arg("--default-signal=HUP")
        .arg(program())
        .args(line.split_whitespace())
        .args(["x", "--", "sh", "-c", script])
        .current_dir(directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    await_file(&directory.path().join("ready"));
    let group = format!("-{}", child.id());
    for (number, (signal, to)) in signals.iter().enumerate() {
        if number > 0 {
            // Those that come together count as one.
            sleep(Duration::from_millis(500));
        }
        let target = match to {
            To::Strata => &group[1..],
            To::Both => &group,
        };
        assert!(Command::new("kill").args([signal, "--", target]).status().unwrap().success());
    }
    within_a_minute(child, &group)
}

fn await_file(path: &Path) {
    let patience = Instant::now();
    while !path.exists() {
        assert!(patience.elapsed() < Duration::from_secs(60), "{} comes", path.display());
        sleep(Duration::from_millis(10));
    }
    fs::remove_file(path).unwrap();
}

fn within_a_minute(child: Child, target: &str) -> Output {
    let (ended, waits) = mpsc::channel::<()>();
    let target = target.to_owned();
    let watchdog = thread::spawn(move || {
        if waits.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            Command::new("kill").args(["-KILL", "--", &target]).status().unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    output
}

fn report(directory: &TempDir) -> Report {
    serde_json::from_slice(&fs::read(directory.path().join("x")).unwrap()).unwrap()
}

const RUN: &str = "run --policy base --json";

#[test]
fn what_ends_a_program_reaches_it_and_the_result_is_marked() {
    let directory = tempfile::tempdir().unwrap();
    for (signal, to, why) in [
        ("-INT", To::Both, "interrupted by Ctrl-C"),
        ("-INT", To::Strata, "interrupted by Ctrl-C"),
        ("-TERM", To::Strata, "ended by SIGTERM"),
        ("-HUP", To::Strata, "ended by SIGHUP"),
    ] {
        // A second one, from the group and from strata, finds the trap gone.
        let script = "trap 'trap : INT TERM HUP; echo caught; exit 5' INT TERM HUP; : > ready; \
                      while :; do :; done";
        let output = signalled(&directory, RUN, script, &[(signal, to)]);
        assert_eq!(output.status.code(), Some(5), "{}", complaint(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "caught\n");
        assert!(complaint(&output).contains(&format!("PARTIAL RESULT: {why}")));
        let report = report(&directory);
        assert!(report.partial && report.runs[0].partial);
        assert_eq!(report.workload.exit_status, Some(5));
    }
}

#[test]
fn a_program_that_bears_ctrl_c_ends_as_it_would_have() {
    let directory = tempfile::tempdir().unwrap();
    let script = "trap caught=yes INT; : > ready; until [ $caught ]; do :; done; echo on";
    let output = signalled(&directory, "record -o", script, &[("-INT", To::Both)]);
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
    let output = run(&format!("run --policy base {}", directory.path().join("x").display()));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("PARTIAL"));
}

/// Ends well when asked twice.
const TWICE: &str = "n=0; trap 'n=$((n+1))' INT TERM; : > ready; until [ $n -eq 2 ]; do :; done; \
                     echo twice; exit 6";

#[test]
fn a_second_signal_of_any_kind_is_passed_on_and_keeps_the_result() {
    for second in ["-INT", "-TERM"] {
        let directory = tempfile::tempdir().unwrap();
        let signals = [("-INT", To::Strata), (second, To::Strata)];
        let output = signalled(&directory, RUN, TWICE, &signals);
        assert_eq!(output.status.code(), Some(6), "{}", complaint(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "twice\n");
        assert!(complaint(&output).contains("once more ends it at once"));
        assert!(report(&directory).partial);
    }
    let directory = tempfile::tempdir().unwrap();
    let signals = [("-TERM", To::Strata); 2];
    let output = signalled(&directory, "record -o", TWICE, &signals);
    assert_eq!(output.status.code(), Some(6), "{}", complaint(&output));
    let output = run(&format!("run --policy base {}", directory.path().join("x").display()));
    assert!(String::from_utf8_lossy(&output.stdout).contains("ended by SIGTERM"));
}

#[test]
fn a_third_signal_ends_everything_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let script = "trap '' INT TERM; echo $$ > pid; : > ready; while :; do :; done";
    let signals = [("-INT", To::Strata), ("-TERM", To::Strata), ("-INT", To::Strata)];
    let output = signalled(&directory, RUN, script, &signals);
    assert_eq!(output.status.code(), Some(130), "{:?}", output.status.signal());
    assert!(!directory.path().join("x").exists());
    let pid = fs::read_to_string(directory.path().join("pid")).unwrap();
    let patience = Instant::now();
    while Path::new("/proc").join(pid.trim()).exists() {
        assert!(patience.elapsed() < Duration::from_secs(20), "the program goes on");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_terminals_ctrl_c_reaches_a_program_once() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        directory.path().join("bears"),
        "n=0; trap 'n=$((n+1))' INT; : > ready; until [ $n -gt 0 ]; do :; done; i=0\n\
         while [ $i -lt 20000 ]; do i=$((i+1)); done; echo caught $n\n",
    )
    .unwrap();
    let line = format!("{} run --policy base -o /dev/null -- sh bears", program().display());
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .current_dir(&directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    await_file(&directory.path().join("ready"));
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    let id = child.id().to_string();
    let output = within_a_minute(child, &id);
    drop(keyboard);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("caught 1"), "{text}");
}

/// Once `child` would notice SIGTERM.
fn await_handler(child: &Child) {
    let patience = Instant::now();
    let caught = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (15 - 1) != 0
    };
    while !caught() {
        assert!(patience.elapsed() < Duration::from_secs(60), "a handler comes");
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_silent_pipe_is_left_when_asked() {
    let directory = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(directory.path().join("pipe")).status().unwrap().success());
    // Sixteen instructions that load what lies at 4 KiB, as ChampSim writes them.
    let mut trace = [0; 16 * 64];
    trace.iter_mut().skip(32 + 1).step_by(64).for_each(|byte| *byte = 0x10);
    let cases: [(&str, &[u8], &str); 7] = [
        ("run pipe", &[], "ended by SIGTERM before the stream began"),
        ("run --format recording pipe", &[], "ended by SIGTERM before the stream began"),
        ("run -", &[], "ended by SIGTERM before the stream began"),
        ("run --format recording -", b"STRATA", "ended by SIGTERM before the stream began"),
        ("run --format champsim --policy base -", &trace, "PARTIAL RESULT: ended by SIGTERM"),
        ("record -o x -", &[], "ended by SIGTERM before the stream began"),
        ("record --format champsim -o x -", &trace, "accesses in"),
    ];
    for (line, written, told) in cases {
        let mut child = strata(line)
            .current_dir(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(written).unwrap();
        await_handler(&child);
        // Most likely it waits for input then.
        sleep(Duration::from_millis(100));
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let asked = Instant::now();
        let output = within_a_minute(child, &id);
        assert!(asked.elapsed() < Duration::from_secs(20), "{line}");
        assert_eq!(output.status.code(), Some(143), "{line}: {}", complaint(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &complaint(&output);
        assert!(said.contains(told), "{line}: {said}");
        drop(input);
    }
}

/// A report without hosts would say nothing of any VM.
#[test]
fn who_asks_for_the_end_before_a_host_is_set_up_gets_no_result() {
    let directory = tempfile::tempdir().unwrap();
    let line = "run --policy base --fragmentation 0.9 --set fragmentation.backed=true --json x \
                --vm a:memory=32GiB,workload=random:size=4MiB,accesses=1k";
    let child =
        strata(line).current_dir(&directory).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let child = child.unwrap();
    await_handler(&child);
    // Setting up takes seconds.
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = within_a_minute(child, &id);
    assert_eq!(output.status.code(), Some(130));
    assert!(complaint(&output).contains("before a host was set up"), "{}", complaint(&output));
    assert!(output.stdout.is_empty() && !directory.path().join("x").exists());
}

/// No window comes: all but the beginning is one gap.
const GAP: &str = "--sample interval=1T,window=1k,whole=20k";

#[test]
fn ctrl_c_in_a_gap_of_a_sampled_stream_ends_it_with_all_that_was_done() {
    let directory = tempfile::tempdir().unwrap();
    // However soon the signal comes: this much was skipped before it.
    let loops = "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; : > ready; while :; do :; done";
    let run_line = format!("run --policy base {GAP} --json");
    for (trap, status) in [("trap 'exit 5' INT; ", 5), ("", 130)] {
        let script = &format!("{trap}{loops}");
        let output = signalled(&directory, &run_line, script, &[("-INT", To::Both)]);
        assert_eq!(output.status.code(), Some(status), "{}", complaint(&output));
        assert!(complaint(&output).contains("PARTIAL RESULT: interrupted by Ctrl-C"));
        let report = report(&directory);
        assert!(
            report.partial && report.workload.notes.iter().all(|note| !note.contains("killed"))
        );
        let run = &report.runs[0];
        // The loop was in the gap, and so were most pages of the shell touched first.
        let skipped = run.sampled.as_ref().unwrap().skipped_instructions;
        assert!(skipped > 1_000_000 && run.instructions > skipped, "{skipped}");
        assert!(run.faults.guest > 30, "{}", run.faults.guest);
    }
    let record_line = format!("record {GAP} -o");
    let output = signalled(&directory, &record_line, loops, &[("-INT", To::Both)]);
    assert_eq!(output.status.code(), Some(130), "{}", complaint(&output));
    let line = format!("run --policy base --json - {}", directory.path().join("x").display());
    let replayed: Vec<_> = (0..2).map(|_| run(&line).stdout).collect();
    assert_eq!(replayed[0], replayed[1]);
    let report: Report = serde_json::from_slice(&replayed[0]).unwrap();
    assert!(report.runs[0].sampled.as_ref().unwrap().skipped_instructions > 1_000_000);
}

#[test]
fn ctrl_c_while_phases_are_looked_for_ends_it_with_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let script = "trap 'echo caught; exit 5' INT; : > ready; while :; do :; done";
    for line in ["run --policy base --sample phases --json", "record --sample phases -o"] {
        let output = signalled(&directory, line, script, &[("-INT", To::Both)]);
        assert_eq!(output.status.code(), Some(130), "{}", complaint(&output));
        assert!(complaint(&output).contains("interrupted by Ctrl-C before the stream began"));
        assert!(output.stdout.is_empty(), "the second run did not begin");
        assert!(!directory.path().join("x").exists());
    }
}

#[test]
fn what_nobody_waits_for_in_a_gap_goes_on_unobserved() {
    let directory = tempfile::tempdir().unwrap();
    // The loop goes on after the result is there.
    let script =
        "trap '' INT; : > ready; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo on";
    let line = format!("run --policy base {GAP} --json");
    let output = signalled(&directory, &line, script, &[("-INT", To::Both), ("-INT", To::Both)]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "on\n", "{}", complaint(&output));
    assert_eq!(output.status.code(), Some(0), "{}", complaint(&output));
}

const ENDLESS: &str = "--workload random:size=4MiB,accesses=1000G";

/// A run that never ends by itself, already at work.
fn endless(options: &str) -> Child {
    let child = strata(&format!("run {ENDLESS} --policy base,thp {options}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(700));
    child
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn ctrl_c_prints_what_there_is_and_marks_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.json");
    let child = endless(&format!("--json {}", path.display()));
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", complaint(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("PARTIAL RESULT: interrupted by Ctrl-C"), "{text}");
    let report: Report = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(report.partial && report.runs.iter().all(|run| run.partial));
    assert!(report.runs[0].accesses > 0);
    assert_eq!(report.runs[0].accesses, report.runs[1].accesses, "cut at the same place");
}

#[test]
fn what_ends_a_program_from_outside_leaves_a_result_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.strata");
    let mut child = strata(&format!("record {ENDLESS} -o {}", path.display()))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    sleep(Duration::from_millis(700));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    let report = run(&format!("run --policy base {}", path.display()));
    assert_eq!(report.status.code(), Some(0), "{}", complaint(&report));
    assert!(String::from_utf8_lossy(&report.stdout).contains("ended by SIGTERM"));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no half file is left");
}

/// A run whose machine takes minutes to set up.
const LONG_SETUP: &str = "run --memory 200GiB --reused --policy base";

#[test]
fn ctrl_c_ends_the_setting_up_of_machines_too() {
    // A program is not even started then.
    for what in ["--workload random:size=64MiB,accesses=10k", "-- echo started"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        let child = strata(&format!("{LONG_SETUP} --json {} {what}", path.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        sleep(Duration::from_millis(700));
        interrupt(&child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", complaint(&output));
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("PARTIAL RESULT: interrupted by Ctrl-C"), "{text}");
        assert!(!text.lines().any(|line| line == "started"), "{text}");
        let report: Report = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert!(report.partial && report.runs.is_empty());
    }
}

#[test]
fn a_second_ctrl_c_ends_the_program() {
    // With so many machines, finishing after the first Ctrl-C takes a moment; whichever way
    // it ends, it must end soon and with the same status.
    let mut child = endless("");
    interrupt(&child);
    interrupt(&child);
    let patience = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(patience.elapsed() < Duration::from_secs(20), "it goes on");
        sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(130), "{:?}", status.signal());
}
