//! What `--sample` costs, and how near it comes.
//!
//! ```text
//! cargo bench -p strata --bench sampling             wall time over that of plain emulation, in pairs
//! cargo bench -p strata --bench sampling -- errors   figures over those of the full trace
//! cargo bench -p strata --bench sampling -- coverage how many of 100 seeds hold the truth, over recordings; or of fewer
//! cargo bench -p strata --bench sampling -- whole    wall time of the full trace over that of recording it
//! ```
//!
//! `errors` compares `auto` and `phases`, `whole` samples nothing; the others look at `auto`, or at `phases` if that
//! is said. A number is of seeds. Another word chooses the programs whose names have it. Programs that are not installed are
//! left out.

mod programs;

use programs::{PROGRAMS, command};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Seeds for which intervals are looked at, if their number is not said.
const SEEDS: u64 = 100;

/// Pairs of runs; the median counts.
const PAIRS: usize = 3;

/// Policies under which figures are compared: runs 0 and 1 of a report.
const POLICIES: &str = "base,xgemini";

/// Figures that are compared, and where they are in a report.
const FIGURES: [(&str, &str); 9] = [
    ("L1 TLB misses", "/runs/0/tlb/l1_misses"),
    ("L2 TLB misses", "/runs/0/tlb/l2_misses"),
    ("walk cycles", "/runs/0/walk_cycles"),
    ("LLC misses", "/runs/0/counters/strata.data_memory"),
    ("cycles", "/runs/0/cycles"),
    ("guest faults", "/runs/0/faults/guest"),
    ("xgemini: throughput over base's", "/runs/1/relative_throughput"),
    ("its huge pages", "/runs/1/alignment/guest_huge"),
    ("well aligned", "/runs/1/alignment/well_aligned"),
];

/// Figures with bounds that are looked at with many seeds, and their names.
const BOUNDED: [(&str, &str); 5] = [
    ("L1 TLB misses", "tlb.l1_misses"),
    ("L2 TLB misses", "tlb.l2_misses"),
    ("walk cycles", "walk_cycles"),
    ("LLC misses", "counters.strata.data_memory"),
    ("cycles", "cycles"),
];

/// What its own benchmark asks of redis.
const REQUESTS: [&str; 8] = ["-t", "set,get,lpush,zadd", "-n", "60000", "-r", "100000", "-P", "16"];

fn main() {
    // As a test it has nothing to say.
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let errors = words.iter().any(|word| word == "errors");
    let coverage = words.iter().any(|word| word == "coverage");
    let whole = words.iter().any(|word| word == "whole");
    let choice = if words.iter().any(|word| word == "phases") { "phases" } else { "auto" };
    let others = ["errors", "coverage", "whole", "phases"];
    let seeds = words.iter().find_map(|word| word.parse().ok());
    let is_name = |word: &&String| !others.contains(&word.as_str()) && word.parse::<u64>().is_err();
    let chosen = words.iter().find(is_name);
    let room = tempfile::tempdir().expect("a directory for what is made");
    let programs =
        PROGRAMS.iter().filter(|(name, _)| chosen.is_none_or(|word| name.contains(word)));
    if coverage {
        let names = BOUNDED.map(|(name, _)| name).join(" | ");
        println!("| program | billion instructions | windows | {names} |");
        println!("| --- | ---: | ---: |{}", " ---: |".repeat(BOUNDED.len()));
    } else if errors {
        println!("| program | {} | bounds hold |", FIGURES.map(|(name, _)| name).join(" | "));
        println!("| --- |{} ---: |", " ---: |".repeat(FIGURES.len()));
    } else if whole {
        println!("| program | recording | full trace, one policy |");
        println!("| --- | ---: | ---: |");
    } else {
        println!("| program | plain emulation | one policy | five policies |");
        println!("| --- | ---: | ---: | ---: |");
    }
    for (name, words) in programs {
        match command(words, room.path()) {
            Some(command) if coverage => {
                cover(name, &command, choice, seeds.unwrap_or(SEEDS), room.path())
            }
            Some(command) if errors => compare(name, &command, room.path()),
            Some(command) if whole => full(name, &command, room.path()),
            Some(command) => time(name, &command, choice),
            None => println!("| {name} | not installed |"),
        }
    }
}

/// Seconds that a command takes. One that is asked at a socket is asked and told to end.
fn seconds(command: &mut Command) -> f64 {
    let words: Vec<_> = command.get_args().map(PathBuf::from).collect();
    let socket = words.iter().skip_while(|word| *word != Path::new("--unixsocket")).nth(1).cloned();
    let begun = Instant::now();
    // Python draws a seed for its hashes otherwise, and does something else each time.
    command.env("PYTHONHASHSEED", "0").stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    if let Some(socket) = socket {
        while !socket.exists() && child.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let ask = |client: &str, words: &[&str]| {
            let mut client = Command::new(client);
            client
                .arg("-s")
                .arg(&socket)
                .args(words)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
        };
        let asked = ask("redis-benchmark", &REQUESTS);
        assert!(asked.is_ok_and(|status| status.success()), "redis-benchmark of {command:?}");
        // It has no answer for who tells it to end.
        let _ = ask("redis-cli", &["shutdown", "nosave"]);
    }
    assert!(child.wait().is_ok_and(|status| status.success()), "{command:?}");
    begun.elapsed().as_secs_f64()
}

fn strata(options: &[&str], program: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command.arg("run").args(options).args(["-o", "/dev/null", "--"]).args(program);
    command
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn time(name: &str, program: &[String], choice: &str) {
    let (mut plain, mut one, mut five) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        // Each beside its own: the machine may be busier at one time than at another.
        let own = seconds(Command::new("qemu-x86_64").args(program));
        plain.push(own);
        one.push(seconds(&mut strata(&["--sample", choice, "--policy", "base"], program)) / own);
        five.push(seconds(&mut strata(&["--sample", choice], program)) / own);
    }
    let (plain, one, five) = (median(plain), median(one), median(five));
    println!("| {name} | {plain:.2} s | {one:.2} | {five:.2} |");
}

fn full(name: &str, program: &[String], room: &Path) {
    let recording = room.join(format!("{name}.strata"));
    let (mut record, mut run) = (Vec::new(), Vec::new());
    for _ in 0..PAIRS {
        let _ = std::fs::remove_file(&recording);
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_strata"));
        let own = seconds(recorder.args(["record", "-o"]).arg(&recording).arg("--").args(program));
        record.push(own);
        run.push(seconds(&mut strata(&["--policy", "base"], program)) / own);
    }
    println!("| {name} | {:.2} s | {:.2} |", median(record), median(run));
}

/// A report.
fn report(command: &mut Command, json: &Path) -> Value {
    seconds(command);
    let text = std::fs::read_to_string(json).expect("the report was written");
    serde_json::from_str(&text).expect("it is JSON")
}

/// The figure that bounds of this name are around.
fn figure(run: &Value, name: &str) -> Option<f64> {
    let at = match name.strip_prefix("counters.") {
        Some(counter) => format!("/counters/{counter}"),
        None => format!("/{}", name.replace('.', "/")),
    };
    run.pointer(&at).and_then(Value::as_f64)
}

/// A recording of the program is run whole, and sampled with many seeds: how far figures are off, as root mean squares, and
/// for how many seeds bounds hold the truth. Seeds choose windows alone: all run on the same machine.
fn cover(name: &str, program: &[String], choice: &str, seeds: u64, room: &Path) {
    let [recording, sampled, json] =
        ["whole.strata", "sampled.strata", "out.json"].map(|file| room.join(file));
    let record = |to: &Path, words: &[&str]| {
        let _ = std::fs::remove_file(to);
        let mut recorder = Command::new(env!("CARGO_BIN_EXE_strata"));
        seconds(recorder.args(["record", "-o"]).arg(to).args(words));
    };
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    record(&recording, &[&["--"], &program[..]].concat());
    let run = |stream: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
        command.args(["run", "--stack", "nested", "--policy", "base", "-o", "/dev/null", "--json"]);
        report(command.arg(&json).arg(stream), &json)["runs"][0].clone()
    };
    let full = run(&recording);
    let mut squares = [0.0; BOUNDED.len()];
    let (mut held, mut windows) = ([0; BOUNDED.len()], 0);
    for seed in 1..=seeds {
        let path = recording.display().to_string();
        record(&sampled, &["--sample", choice, "--seed", &seed.to_string(), &path]);
        let found = run(&sampled);
        windows += found["sampled"]["windows"].as_u64().unwrap_or(0);
        for (at, (_, key)) in BOUNDED.iter().enumerate() {
            let truth = figure(&full, key).unwrap_or(0.0);
            let off = figure(&found, key).unwrap_or(0.0) / truth.max(1.0) - 1.0;
            squares[at] += off * off / seeds as f64;
            let bound = |end: &str| found["sampled"]["bounds"][*key][end].as_f64();
            let holds = bound("low").zip(bound("high"));
            held[at] += u64::from(holds.is_some_and(|(low, high)| low <= truth && truth <= high));
        }
    }
    let cells = squares.iter().zip(held);
    let cells: Vec<String> =
        cells.map(|(square, held)| format!("{:.1} % ({held})", square.sqrt() * 100.0)).collect();
    let instructions = figure(&full, "instructions").unwrap_or(0.0) / 1e9;
    println!("| {name} | {instructions:.1} | {} | {} |", windows / seeds, cells.join(" | "));
}

fn compare(name: &str, program: &[String], room: &Path) {
    let json = room.join("out.json");
    let path = json.display().to_string();
    let run = |more: &[&str]| -> Value {
        let options: Vec<&str> = [&["--policy", POLICIES, "--json", &path], more].concat();
        report(&mut strata(&options, program), &json)
    };
    let full = run(&[]);
    for choice in ["auto", "phases"] {
        row(&format!("{name}, {choice}"), &full, &run(&["--sample", choice]));
    }
}

/// How near a sampled report comes to the full one.
fn row(name: &str, full: &Value, sampled: &Value) {
    let value =
        |report: &Value, at: &str| report.pointer(at).and_then(Value::as_f64).unwrap_or(0.0);
    let cells = FIGURES.map(|(_, at)| match (value(sampled, at), value(full, at)) {
        (_, 0.0) => "-".to_owned(),
        (found, truth) => format!("{:+.1} %", (found / truth - 1.0) * 100.0),
    });
    let [full, sampled] = [full, sampled].map(|report| &report["runs"][0]);
    let Some(bounds) = sampled["sampled"]["bounds"].as_object() else {
        return println!("| {name} | {} | too short to be sampled |", cells.join(" | "));
    };
    let judged = bounds.iter().filter(|(key, _)| *key != "relative_throughput");
    let held = judged.clone().filter(|(key, bounds)| {
        figure(full, key).is_some_and(|truth| {
            let bound = |end: &str| bounds[end].as_f64().unwrap_or(f64::NAN);
            bound("low") <= truth && truth <= bound("high")
        })
    });
    println!("| {name} | {} | {} of {} |", cells.join(" | "), held.count(), judged.count());
}
