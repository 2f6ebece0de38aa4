//! Fork, exec, scripts: each process its own address space in one stream.

use crate::sampling::MANY;
use crate::support::{Linked, Program, Record, shapes};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use strata_capture::{Capture, Options};
use strata_stream::{Event, Pid, Tid};

fn stores(count: usize) -> HashMap<(bool, u32), usize> {
    HashMap::from([((true, 8), count)])
}

fn owners(record: &Record) -> HashMap<Tid, Pid> {
    record
        .events()
        .filter_map(|event| match event {
            Event::ThreadStart { pid, tid } => Some((tid, pid)),
            _ => None,
        })
        .collect()
}

#[test]
fn a_forked_child_keeps_what_its_parent_unmaps() {
    let program = Program::build("family", Linked::Pie);
    let record = program.run(&["fork"]);
    assert_eq!(record.info.exit_status, Some(6));
    assert_eq!(record.info.notes, [""; 0]);
    let accesses = record.within(program.page("page"));
    assert_eq!(shapes(&accesses), stores(300));
    assert_eq!(owners(&record)[&accesses[0].0], Pid(1));
    let fork = Event::Fork { parent: Pid(0), child: Pid(1) };
    assert!(record.events().any(|event| event == fork));
}

#[test]
fn exec_is_followed_however_it_is_done() {
    for (how, processes) in [("exec", 1), ("self", 1), ("vfork", 2), ("spawn", 2)] {
        for linked in [Linked::Pie, Linked::Static] {
            let program = Program::build("family", linked);
            let record = program.run(&[how]);
            assert_eq!(record.info.exit_status, Some(5), "{how}");
            assert_eq!(record.info.notes, [""; 0], "{how}");
            let mut accesses = record.within(program.page("buffer"));
            if program.page("buffer") != program.page("image") {
                accesses.extend(record.within(program.page("image")));
            }
            assert_eq!(shapes(&accesses), stores(600), "{how}");
            let owners = owners(&record);
            let pids: HashSet<_> = accesses.iter().map(|(tid, _)| owners[tid]).collect();
            assert_eq!(pids.len(), processes, "{how}");
            let executing = Event::Exec { pid: Pid(processes as u32 - 1) };
            assert_eq!(record.events().filter(|&event| event == executing).count(), 1, "{how}");
        }
    }
}

#[test]
fn a_child_of_a_threaded_process_may_start_threads() {
    let program = Program::build("family", Linked::Pie);
    let record = program.run(&["threads"]);
    assert_eq!(record.info.exit_status, Some(6));
    assert_eq!(record.info.notes, [""; 0]);
    // In the parent one thread beside the first, in the child one beside its first.
    let mut starts: Vec<_> = owners(&record).into_iter().collect();
    starts.sort();
    let pids: Vec<_> = starts.into_iter().map(|(_, pid)| pid.0).collect();
    assert_eq!(pids, [0, 0, 1, 1]);
    assert_eq!(shapes(&record.within(program.page("buffer"))), stores(100 + 200));
}

/// While its parent's other threads start threads and end, so that the emulator's lock for that is hardly ever free.
#[test]
fn a_child_that_is_forked_while_threads_start_may_start_threads() {
    let program = Program::build("hatch", Linked::Pie);
    for record in [program.run(&[]), program.sample(&[], MANY)] {
        assert_eq!(record.info.exit_status, Some(0));
        let forks = record.events().filter(|event| matches!(event, Event::Fork { .. })).count();
        assert_eq!(forks, 100);
    }
}

#[test]
fn scripts_run_and_their_commands_are_followed() {
    let room = tempfile::tempdir().unwrap();
    let script = room.path().join("script");
    let out = room.path().join("out");
    std::fs::write(&script, "#!/bin/sh -e\necho \"$@\" | cat > \"$1\"\n(exit 3) || exit 4\n")
        .unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = [out.clone().into_os_string(), OsString::from("-x y")];
    let capture = Capture::spawn(script.as_os_str(), &arguments, Options::default()).unwrap();
    let record = Record::take(capture);
    assert_eq!(record.info.exit_status, Some(4));
    let expected = format!("{} -x y\n", out.display());
    assert_eq!(std::fs::read_to_string(&out).unwrap(), expected);
    let count = |wanted: fn(&Event) -> bool| record.events().filter(wanted).count();
    assert!(count(|event| matches!(event, Event::Fork { .. })) >= 2);
    assert_eq!(count(|event| matches!(event, Event::Exec { .. })), 1, "cat");
}

#[test]
fn a_program_outside_the_emulators_reach_runs_and_is_told_of() {
    let room = tempfile::tempdir().unwrap();
    let foreign = room.path().join("foreign");
    // The head of a 32-bit program: the kernel may or may not run it; neither is seen.
    let mut head = vec![0u8; 200];
    head[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    std::fs::write(&foreign, head).unwrap();
    std::fs::set_permissions(&foreign, std::fs::Permissions::from_mode(0o755)).unwrap();
    let line = format!("{} 2>/dev/null; exit 9", foreign.display());
    let arguments = [OsString::from("-c"), line.into()];
    let capture = Capture::spawn(OsStr::new("sh"), &arguments, Options::default()).unwrap();
    let record = Record::take(capture);
    assert_eq!(record.info.exit_status, Some(9));
    let note = format!("{}: ran unseen, as it is no x86-64 program", foreign.display());
    assert_eq!(record.info.notes, [note]);
}

#[test]
fn arguments_and_environment_arrive_unchanged() {
    let program = Program::build("environment", Linked::Pie);
    let environment: Vec<OsString> = [
        "Z=1",
        "LD_LIBRARY_PATH=/a,b:/c",
        "LD_PRELOAD=",
        "A=2,3=4",
        "QEMU_STRACE=1",
        "MALLOC_PERTURB_=0",
        "B=",
    ]
    .map(OsString::from)
    .to_vec();
    let options = Options { environment: Some(environment.clone()), ..Options::default() };
    let arguments = program.arguments(&["", "-plugin", "--", "two words"]);
    let capture = Capture::spawn(program.path.as_os_str(), &arguments, options).unwrap();
    assert_eq!(Record::take(capture).info.exit_status, Some(0));
    let mut expected = vec![program.path.clone().into_os_string()];
    expected.extend(arguments);
    expected.extend(environment);
    let report = program.report();
    let lines: Vec<_> = report.lines().map(OsString::from).collect();
    assert_eq!(lines, expected);
}
