//! `--sample phases`: a stream is read twice, first for its phases.

use crate::common::{complaint, refused, run, strata};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Output, Stdio};
use strata_engine::Report;
use strata_engine::report::Choice;

/// Short intervals, so that what runs in a second is long.
const SAMPLE: &str = "--sample phases,interval=20k,warm=20k";

/// Some seconds of a shell: two kinds of loops.
const SCRIPT: &str = "echo written; echo told >&2; n=0; for i in 1 2 3 4; do \
                      i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; \
                      i=0; while [ $i -lt 600 ]; do x=$x.$i; i=$((i+1)); done; x=; done; exit 3";

fn live(more: &str, json: &Path, input: Stdio) -> Output {
    let mut command = strata(&format!("run --policy base,thp {more} -o /dev/null --json"));
    command.arg(json).args(["--", "sh", "-c", SCRIPT]).stdin(input).output().unwrap()
}

fn report(json: &Path) -> Report {
    serde_json::from_slice(&fs::read(json).unwrap()).unwrap()
}

#[test]
fn a_program_runs_twice_and_is_seen_once() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("x.json");
    let output = live(SAMPLE, &json, Stdio::null());
    assert_eq!(output.status.code(), Some(3), "{}", complaint(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "written\n", "once");
    assert_eq!(complaint(&output).matches("told\n").count(), 1, "{}", complaint(&output));
    assert!(complaint(&output).contains("the program runs twice"), "{}", complaint(&output));
    let found = report(&json);
    assert_eq!(found.options.sample.as_deref(), Some("phases,interval=20000,warm=20000"));
    let notes = &found.workload.notes;
    assert!(
        notes.iter().any(|note| note.contains("by the blocks of code that they run")),
        "{notes:?}"
    );
    let said = found.runs[0].sampled.as_ref().unwrap();
    assert_eq!(said.choice, Choice::Phases);
    assert!(said.phases.len() >= 2 && said.windows >= 4, "{said:?}");
    assert_eq!(found.runs[1].sampled.as_ref().unwrap().phases, said.phases);
    let of_phases = |note: &String| note.contains("when its phases were found");
    assert!(!found.runs[0].notes.iter().any(of_phases), "{:?}", found.runs[0].notes);
    // Against all of it.
    live("", &json, Stdio::null());
    let full = report(&json);
    let close = |a: u64, b: u64, share: f64| a.abs_diff(b) as f64 <= share * b as f64;
    let (own, whole) = (&found.runs[0], &full.runs[0]);
    assert!(close(own.instructions, whole.instructions, 0.01));
    assert!(close(own.accesses, whole.accesses, 0.1), "{} {}", own.accesses, whole.accesses);
    // Page tables show what the kernel maps along as well, some dozen pages of the shell's files.
    assert!(own.faults.guest.abs_diff(whole.faults.guest) < 100, "{}", own.faults.guest);
}

#[test]
fn a_program_that_does_the_same_again_gives_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let recordings: Vec<_> = (0..2)
        .map(|number| {
            let path = directory.path().join(format!("{number}.strata"));
            let mut command = strata(&format!("record {SAMPLE} -o"));
            let output = command.arg(&path).args(["--", "sh", "-c", SCRIPT]).output().unwrap();
            assert_eq!(output.status.code(), Some(3), "{}", complaint(&output));
            assert_eq!(String::from_utf8_lossy(&output.stdout), "written\n");
            path
        })
        .collect();
    let runs: Vec<Report> = recordings
        .iter()
        .map(|path| {
            let line = format!("run --policy base --json - {}", path.display());
            serde_json::from_slice(&run(&line).stdout).unwrap()
        })
        .collect();
    let said = |report: &Report| report.runs[0].sampled.clone().unwrap();
    assert_eq!(said(&runs[0]).phases, said(&runs[1]).phases);
    assert_eq!(said(&runs[0]).choice, Choice::Phases);
    // A sampled recording is no stream to sample.
    let line = format!("run --policy base --sample phases {}", recordings[0].display());
    refused(&run(&line), 1, "the recording is sampled");
    // Nor one for what cannot be estimated.
    for option in ["--warmup 1k", "--llc cpu", "--llc-misses", "--request-load 0.5"] {
        let line = format!("run --policy base {option} {}", recordings[0].display());
        refused(&run(&line), 1, "the recording is sampled: leave --");
    }
    let line = format!("run --vm a:trace={} --vm b:workload=gups", recordings[0].display());
    refused(&run(&line), 1, "the recording is sampled: give the VM one that is not");
}

#[test]
fn input_is_read_twice_if_it_can_be() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "line\n".repeat(20_000)).unwrap();
    let mut command = strata(&format!("run --policy base {SAMPLE} -o /dev/null -- wc -l"));
    let output = command.stdin(File::open(&text).unwrap()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "20000", "{}", complaint(&output));
    let output = live(SAMPLE, &directory.path().join("x.json"), Stdio::piped());
    // Standard input was closed at once, so nothing is lost; one that is held open may bring something.
    assert_eq!(output.status.code(), Some(3), "{}", complaint(&output));
    let mut command = strata(&format!("run --policy base {SAMPLE} -- cat"));
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let held = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(held);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint(&output).contains("strata record -o FILE"), "{}", complaint(&output));
    let mut command = strata(&format!("run --policy base {SAMPLE} -"));
    let child = command.stdin(File::open(&text).unwrap()).output().unwrap();
    refused(&child, 1, "keep it in a file first");
}

#[test]
fn recordings_and_generators_have_phases_by_memory() {
    let line =
        format!("run --policy base --seed 4 {SAMPLE} --workload btree:size=32MiB,accesses=2M");
    let once = run(&line);
    let table = String::from_utf8_lossy(&once.stdout).into_owned();
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("by the pages that they access"), "{table}");
    assert!(words.contains("Phases, by their share of the instructions: "), "{table}");
    let of_phases = table.lines().filter(|row| row.trim_start().starts_with("phases  "));
    assert_eq!(of_phases.count(), 1, "{table}");
    assert_eq!(run(&line).stdout, once.stdout, "the same bytes");
    let directory = tempfile::tempdir().unwrap();
    let [whole, sampled] = ["w", "s"].map(|name| directory.path().join(name).display().to_string());
    assert!(
        run(&format!("record -o {whole} --workload btree:size=32MiB,accesses=2M")).status.success()
    );
    assert!(run(&format!("record {SAMPLE} --seed 4 -o {sampled} {whole}")).status.success());
    let found = |line: &str| -> Report { serde_json::from_slice(&run(line).stdout).unwrap() };
    let offline = found(&format!("run --policy base --json - --seed 4 {SAMPLE} {whole}"));
    let replayed = found(&format!("run --policy base --json - --seed 4 {sampled}"));
    assert_eq!(offline.runs[0].sampled, replayed.runs[0].sampled);
    assert_eq!(offline.runs[0].cycles, replayed.runs[0].cycles);
}

#[test]
fn what_is_too_short_is_run_whole() {
    let output = run("run --policy base --sample phases --workload random:size=4MiB,accesses=100k");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("too short to be sampled"), "{table}");
    let plain = run("run --policy base --json - --workload random:size=4MiB,accesses=100k");
    let same =
        run("run --policy base --json - --sample phases --workload random:size=4MiB,accesses=100k");
    let of = |output: &Output| -> Report { serde_json::from_slice(&output.stdout).unwrap() };
    assert_eq!(of(&plain).runs, of(&same).runs);
}
