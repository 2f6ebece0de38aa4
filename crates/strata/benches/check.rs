//! What huge pages bring real programs on this computer, beside what the model predicts for it.
//!
//! ```text
//! strata calibrate -o cpu.toml
//! cargo bench -p strata --bench check -- "$PWD/cpu.toml"          all programs, as a table
//! cargo bench -p strata --bench check -- "$PWD/cpu.toml" sqlite   those whose names have the word
//! ```
//!
//! Programs that are not installed are left out, and those that do not end by themselves.

mod programs;

use programs::{PROGRAMS, command};
use serde_json::Value;
use std::process::{Command, Stdio};

fn main() {
    // As a test it has nothing to say.
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let Some(cpu) = words.next() else {
        panic!("which CPU? 'strata calibrate -o cpu.toml' writes one; give its whole path");
    };
    let chosen = words.next();
    let room = tempfile::tempdir().expect("a directory for what is made");
    println!("| program | seconds | in huge pages | measured | from start to end | predicted |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for (name, words) in PROGRAMS {
        let is_server = words.contains(&"--unixsocket");
        if is_server || chosen.as_ref().is_some_and(|chosen| !name.contains(chosen.as_str())) {
            continue;
        }
        match command(words, room.path()) {
            Some(program) => row(name, &cpu, &program),
            None => println!("| {name} | not installed |"),
        }
    }
}

fn row(name: &str, cpu: &str, program: &[String]) {
    let mut check = Command::new(env!("CARGO_BIN_EXE_strata"));
    check.args(["check", "--cpu", cpu, "--json", "-", "--"]).args(program);
    // Python draws a seed for its hashes otherwise, and does something else each time.
    check.env("PYTHONHASHSEED", "0").stderr(Stdio::inherit());
    let said = check.output().expect("strata is built");
    assert!(said.status.success(), "{check:?}");
    let found: Value = serde_json::from_slice(&said.stdout).expect("it is JSON");
    let number = |at: &str| found.pointer(at).and_then(Value::as_f64).unwrap_or(f64::NAN);
    println!(
        "| {name} | {:.2} | {:.0} MiB | {:.3} ({:.3} to {:.3}) | {:.3} ({:.3} to {:.3}) | {:.3}{} |",
        number("/seconds/0"),
        number("/huge_bytes/1") / f64::from(1 << 20),
        number("/measured"),
        number("/interval/0"),
        number("/interval/1"),
        number("/measured_wall"),
        number("/interval_wall/0"),
        number("/interval_wall/1"),
        number("/predicted"),
        if found["within"] == true { "" } else { ", outside" },
    );
}
