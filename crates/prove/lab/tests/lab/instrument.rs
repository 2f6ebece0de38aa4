//! What is compiled into Bochs, by itself: a machine that is no machine tells of its accesses, and what its
//! reader does decides whether it goes on.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use strata_wire::machine::{Frozen, GOODBYE, Told, VERSION, c_header};

const SOURCE: &str = include_str!("../../../../../emulator/instrument/instrument.cc");
const HEADER: &str = include_str!("../../../../../emulator/instrument/instrument.h");

/// What the source uses of Bochs.
const BOCHS: &str = r#"
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
typedef uint8_t Bit8u;
typedef uint32_t Bit32u;
typedef uint64_t Bit64u;
#define BX_CONST64(x) x##ull
#define BX_INSTRUMENTATION 1
enum { BX_READ, BX_WRITE, BX_EXECUTE, BX_RW };
struct Cpu { bool user_pl; };
extern Cpu the_cpu;
#define BX_CPU(number) (&the_cpu)
#include "instrument.h"
"#;

/// A machine whose program stores to the marker of the start, reads as often as it is told, and stores to
/// that of the end.
const MACHINE: &str = r#"
#include "bochs.h"
#include "protocol.h"
Cpu the_cpu = { true };
int main(int, char **words)
{
  strata_start();
  strata_access(0, STRATA_MARK_AT + 8 * STRATA_START, 0, 8, BX_WRITE);
  for (int access = 0; access < atoi(words[1]); access++) strata_access(0, 0x6000 + access % 64, 0x9000, 1, BX_READ);
  strata_access(0, STRATA_MARK_AT + 8 * STRATA_STOP, 0, 8, BX_WRITE);
  puts("goes on");
  strata_end();
}
"#;

/// Compiles that machine.
fn compile(directory: &Path) -> PathBuf {
    let machine = directory.join("machine");
    fs::create_dir(directory.join("cpu")).unwrap();
    let header = c_header();
    for (name, text) in [
        ("instrument.cc", SOURCE),
        ("instrument.h", HEADER),
        ("protocol.h", &header),
        ("bochs.h", BOCHS),
        ("cpu/cpu.h", ""),
        ("machine.cc", MACHINE),
    ] {
        fs::write(directory.join(name), text).unwrap();
    }
    let compiled = Command::new("g++")
        .args(["-Wall", "-Werror", "-I.", "instrument.cc", "machine.cc", "-o", "machine"])
        .current_dir(directory)
        .status();
    assert!(compiled.unwrap().success());
    machine
}

/// Runs it with so many accesses and this reader. Gives what it said, and how long it took.
fn run(accesses: u64, reader: impl FnOnce(UnixStream)) -> (Output, Duration) {
    let directory = tempfile::tempdir().unwrap();
    let machine = compile(directory.path());
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let begin = Instant::now();
    let machine = Command::new(machine)
        .arg(accesses.to_string())
        .env("BOCHS_TRACE_SOCKET", &socket)
        .env("BOCHS_TRACE_WINDOWS", "6000-7000")
        .env("BOCHS_TRACE_PATIENCE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    reader(listener.accept().unwrap().0);
    (machine.wait_with_output().unwrap(), begin.elapsed())
}

/// What it said, in which it says that it goes on.
fn went_on(output: &Output) -> String {
    assert!(output.status.success());
    assert_eq!(output.stdout, b"goes on\n");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "needs g++: make lab-test"]
fn a_machine_tells_of_its_accesses_and_waits_for_its_reader() {
    let mut accesses = 0;
    let (output, took) = run(10_000, |mut machine| {
        assert_eq!(Told::read(&mut machine).unwrap(), Some(Told::Hello(VERSION)));
        loop {
            match Told::read(&mut machine).unwrap() {
                Some(Told::Accesses { accesses: told, .. }) => accesses += told.len(),
                Some(Told::Frozen(why)) => {
                    assert_eq!(why, Frozen::Marker);
                    break;
                }
                Some(_) => {}
                None => panic!("it ended"),
            }
        }
        // Less than it is patient.
        std::thread::sleep(Duration::from_millis(500));
        machine.write_all(&[GOODBYE]).unwrap();
    });
    assert_eq!((went_on(&output).as_str(), accesses), ("", 10_000));
    assert!(took >= Duration::from_millis(500));
}

#[test]
#[ignore = "needs g++: make lab-test"]
fn a_reader_that_is_silent_or_gone_holds_no_machine() {
    // One that reads all and never answers.
    let (output, took) = run(100, |mut machine| {
        machine.read_to_end(&mut Vec::new()).unwrap();
    });
    let said = went_on(&output);
    assert!(said.contains("it is silent") && took >= Duration::from_secs(1), "{said}");
    // One that does not read, while more is told than a socket holds.
    let mut held = None;
    let (output, took) = run(1_000_000, |machine| held = Some(machine));
    let said = went_on(&output);
    assert!(said.contains("it is silent") && took >= Duration::from_secs(1), "{said}");
    // One that ended. What it has not read makes the difference between these.
    let (output, _) = run(100, drop);
    let said = went_on(&output);
    let gone = ["it is gone", "Broken pipe", "Connection reset"];
    assert!(gone.iter().any(|word| said.contains(word)), "{said}");
}
