//! However a program or its consumer ends, nothing is lost and nothing stays behind.

use crate::support::{Linked, Program, shapes};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use strata_capture::{Capture, Options};
use strata_stream::{Batch, Event, Fill, Source};

/// Set for a copy of this test that plays the consumer in a process of its own: the program, then
/// what to do with the stream.
const ROLE: &str = "STRATA_TEST_CONSUMER";

#[test]
fn every_end_is_reported_with_all_that_preceded_it() {
    for (how, status) in [("0", 0), ("7", 7), ("segv", 139), ("kill", 137), ("term", 143)] {
        let program = Program::build("ends", Linked::Pie);
        let record = program.run(&[how]);
        assert_eq!(record.info.exit_status, Some(status), "{how}");
        assert_eq!(record.info.notes, [""; 0], "{how}");
        let accesses = record.within(program.page("buffer"));
        assert_eq!(shapes(&accesses), HashMap::from([((true, 8), 1000)]), "{how}");
        let last = record.events().last();
        assert!(matches!(last, Some(Event::ProcessExit { .. })), "{how}: {last:?}");
    }
}

#[test]
fn the_raw_status_tells_the_signal() {
    let program = Program::build("ends", Linked::Pie);
    let status = program.spawn(&["term"]).wait().unwrap().unwrap();
    assert_eq!((status.code(), status.signal()), (None, Some(15)));
}

#[test]
fn a_program_killed_in_mid_run_ends_its_stream() {
    let program = Program::build("ends", Linked::Static);
    let mut capture = program.spawn(&["busy"]);
    let mut batch = Batch::new();
    let mut accesses = 0;
    while accesses < 1_000_000 {
        assert_eq!(capture.fill(&mut batch).unwrap(), Fill::More);
        accesses += batch.len();
    }
    running(&program).into_iter().for_each(kill);
    let started = Instant::now();
    while capture.fill(&mut batch).unwrap() == Fill::More {}
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(capture.info().exit_status, Some(137));
}

#[test]
fn dropping_a_capture_ends_the_whole_family() {
    let program = Program::build("ends", Linked::Pie);
    let mut capture = program.spawn(&["family"]);
    let mut batch = Batch::new();
    while program.reported("ready").is_none() {
        capture.fill(&mut batch).unwrap();
    }
    assert_eq!(running(&program).len(), 3);
    drop(capture);
    wait_until_gone(&program);
}

#[test]
fn a_killed_consumer_leaves_no_program_running() {
    let program = Program::build("ends", Linked::Pie);
    let mut consumer = consumer(&program, "busy").spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while program.reported("buffer").is_none() {
        assert!(Instant::now() < deadline, "the program starts");
        std::thread::sleep(Duration::from_millis(5));
    }
    consumer.kill().unwrap();
    consumer.wait().unwrap();
    wait_until_gone(&program);
}

#[test]
fn what_a_program_leaves_running_is_told_of_and_left_alone_when_interrupted() {
    let program = Program::build("ends", Linked::Pie);
    let interrupted = Arc::new(AtomicBool::new(false));
    let options = Options { interrupted: Some(interrupted.clone()), ..Options::default() };
    let arguments = program.arguments(&["daemon"]);
    let mut capture = Capture::spawn(program.path.as_os_str(), &arguments, options).unwrap();
    let mut batch = Batch::new();
    let mut news = Vec::new();
    while news.is_empty() {
        assert_eq!(capture.fill(&mut batch).unwrap(), Fill::More, "it is waited for");
        news = capture.news();
    }
    let [daemon] = running(&program)[..] else { panic!("one goes on") };
    assert!(news[0].contains(&format!("process {daemon}")), "{news:?}");
    interrupted.store(true, Relaxed);
    assert_eq!(capture.wait().unwrap().unwrap().code(), Some(3));
    assert_eq!(capture.news(), [""; 0], "told once");
    drop(capture);
    assert_eq!(running(&program), [daemon]);
    kill(daemon);
    wait_until_gone(&program);
}

#[test]
fn what_the_emulator_frees_when_it_lets_go_is_not_used() {
    let emulator = Program::build("perturbed", Linked::Static);
    let program = Program::build("ends", Linked::Pie);
    for batches in [0, 5, 10, 20] {
        let options = Options { qemu: Some(emulator.path.clone()), ..Options::default() };
        let arguments = program.arguments(&["helpers"]);
        let mut capture = Capture::spawn(program.path.as_os_str(), &arguments, options).unwrap();
        let mut batch = Batch::new();
        for _ in 0..batches {
            capture.fill(&mut batch).unwrap();
        }
        capture.detach();
        assert_eq!(capture.wait().unwrap().unwrap().code(), Some(4), "after {batches}");
    }
}

#[test]
fn a_program_let_go_ends_as_it_would_have() {
    let family = ["fork", "threads", "vfork", "spawn"].map(|how| ("family", how));
    let programs = [("threads", ""), ("handover", ""), ("ends", "7"), ("hatch", "")];
    for (name, how) in programs.into_iter().chain(family) {
        let program = Program::build(name, Linked::Pie);
        let observed = program.run(&[how]);
        for batches in [0, 1, 5, 20] {
            let mut capture = program.spawn(&[how]);
            let mut batch = Batch::new();
            for _ in 0..batches {
                capture.fill(&mut batch).unwrap();
            }
            assert!(capture.detach());
            let mut after = 0;
            while capture.fill(&mut batch).unwrap() == Fill::More {
                after += batch.len();
            }
            assert_eq!(after, 0, "nothing more comes");
            let info = capture.info();
            assert_eq!(info.exit_status, observed.info.exit_status, "{name} after {batches}");
            assert_eq!(info.notes, ["the rest of the program ran unobserved"]);
        }
    }
}

#[test]
fn standard_streams_and_closed_files_do_not_matter() {
    let program = Program::build("ends", Linked::Pie);
    let mut consumer = consumer(&program, "echo")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    consumer.stdin.take().unwrap().write_all(b"through and through\n").unwrap();
    let output = consumer.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(42));
    // The test harness around the consumer speaks on standard output too.
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("through and through\n"), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "aside\n");
}

/// The consumer's part: run the program, end as it ended. A no-op without the variable.
#[test]
fn consumer_role() {
    let Some(program) = std::env::var_os(ROLE) else { return };
    let arguments: Vec<_> =
        std::env::split_paths(&std::env::var_os("STRATA_TEST_ARGUMENTS").unwrap())
            .map(std::path::PathBuf::into_os_string)
            .collect();
    let mut capture = Capture::spawn(&program, &arguments, Options::default()).unwrap();
    let mut batch = Batch::new();
    while capture.fill(&mut batch).unwrap() == Fill::More {}
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    std::process::exit(capture.info().exit_status.unwrap());
}

/// This executable, playing the consumer of `program`.
fn consumer(program: &Program, how: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "ends::consumer_role", "--nocapture"])
        .env(ROLE, &program.path)
        .env("STRATA_TEST_ARGUMENTS", std::env::join_paths(program.arguments(&[how])).unwrap());
    command
}

/// Processes that run this program.
fn running(program: &Program) -> Vec<i32> {
    let wanted = program.path.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let mut words = line.split(|&byte| byte == 0);
        let emulated = words.next().is_some_and(|word| word.ends_with(b"/qemu-x86_64"));
        if emulated && words.any(|word| word == wanted) {
            found.push(number);
        }
    }
    found
}

fn kill(number: i32) {
    let status = Command::new("kill").args(["-KILL", &number.to_string()]).status().unwrap();
    assert!(status.success());
}

fn wait_until_gone(program: &Program) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !running(program).is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:?}", running(program));
        std::thread::sleep(Duration::from_millis(10));
    }
}
