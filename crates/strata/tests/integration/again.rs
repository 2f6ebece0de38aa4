//! A report says what it takes to have it again: the options, the command, the program.

use crate::common::{complaint, program, strata};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use strata_engine::Report;
use tempfile::TempDir;

/// Runs in `directory`; the JSON goes to standard output.
fn json_of<'a>(directory: &TempDir, words: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let mut command = Command::new(program());
    command.args(words).args(["--json", "-"]).current_dir(directory);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    output.stdout
}

fn report(json: &[u8]) -> Report {
    serde_json::from_slice(json).unwrap()
}

fn in_it(directory: &TempDir, line: &str) -> Output {
    strata(line).current_dir(directory).output().unwrap()
}

/// A directory with a recording whose name has a blank, and a configuration beside a CPU model.
fn study() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let spec = "random:size=4MiB,accesses=100k";
    assert!(in_it(&directory, &format!("record -o x.strata --workload {spec}")).status.success());
    fs::rename(directory.path().join("x.strata"), directory.path().join("my x.strata")).unwrap();
    let presets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../predict/hardware/presets");
    fs::create_dir(directory.path().join("sub")).unwrap();
    fs::copy(presets.join("zen2.toml"), directory.path().join("sub/own.toml")).unwrap();
    let text = "policy = [\"thp\", \"base\"]\ncpu = \"own.toml\"\nseed = 9\nreused = true\n\
                trace = \"../my x.strata\"\nthreads = 2\noutput = \"table.txt\"\n\
                [set]\ncore.base_cpi = 1\nthp.scan_sleep = 5\n";
    fs::write(directory.path().join("sub/study.toml"), text).unwrap();
    directory
}

const LINES: [&str; 7] = [
    "run --workload random:size=4MiB,accesses=100k",
    "run --workload random:size=4MiB,accesses=100k --stack native,vm,nested --policy thp,base --levels 5 \
     --memory 1536MiB --fragmentation 0.9,0.5,0.25 --tlb-misaligned no-fill --walk-caches 2d --placement bin-hopping --llc cpu --llc-ways 0x7c0 --llc-misses --l4 64MiB/2 --colours-of l2 --vllc 4 --tick-hz 250 --io-hz 100 --skip 20k --warmup 10k --limit 40k --seed 7 \
     --explain --set thp.scan_sleep=5 --set core.base_cpi=1 --set core.base_cpi=2 --jobs 1 --threads 2",
    "run --workload random:size=4MiB,accesses=100k --stack native --fragmentation none -o table.txt",
    "run --workload random:size=4MiB,accesses=100k --stack vm --fragmentation 0.3,0.2,0.1 --policy base --paging shadow",
    "run --config sub/study.toml --seed 3",
    "run --workload random:size=4MiB,accesses=100k --sample interval=60k,window=5k,warm=5k --seed 5",
    "run --workload random:size=4MiB,accesses=100k --policy base --paging shadow-on-shadow",
];

#[test]
fn the_command_of_a_report_gives_its_bytes() {
    let directory = study();
    for line in LINES {
        let json = json_of(&directory, line.split_whitespace());
        let command = report(&json).command;
        assert_eq!(command[..2], ["strata", "run"], "{line}");
        for idle in ["--jobs", "--threads", "--output", "--json", "--config"] {
            assert!(!command.iter().any(|word| word == idle), "{command:?}");
        }
        let again = json_of(&directory, command[1..].iter().map(String::as_str));
        assert!(again == json, "{line}\n{command:?}");
    }
}

#[test]
fn the_options_in_force_are_said_defaults_included() {
    let directory = study();
    let of = |line: &str| {
        serde_json::to_value(report(&json_of(&directory, line.split_whitespace())).options).unwrap()
    };
    let expected = serde_json::json!({
        "stack": ["nested"],
        "policy": ["base", "thp", "gemini", "xgemini", "aligned"],
        "cpu": "broadwell-e5-2620v4",
        "tables": null, "format": null, "levels": 4, "memory": null,
        "memory_bytes": {"guest": 8u64 << 30, "l1": 9_447_669_760_u64, "host": 10_993_270_784_u64},
        "fragmentation": {"guest": 0.8, "l1": 0.8, "host": 0.8},
        "reused": false, "tlb_misaligned": "splinter", "walk_caches": null, "placement": null, "llc": null, "llc_ways": null, "llc_misses": false, "l4": null, "colours_of": null, "vllc": null, "request_load": null, "marked": false, "skip": 0,
        "warmup": 0, "limit": null, "seed": 1, "vm": [], "host_memory": null, "alone": false,
        "explain": false,
        "set": {},
    });
    assert_eq!(of(LINES[0]), expected);
    let all = of(LINES[1]);
    assert_eq!(all["set"], serde_json::json!({"core.base_cpi": "2.0", "thp.scan_sleep": "5"}));
    assert_eq!(all["memory"], "1536MiB");
    assert_eq!(all["memory_bytes"]["guest"], 1536 << 20);
    assert_eq!(all["fragmentation"], serde_json::json!({"guest": 0.9, "l1": 0.5, "host": 0.25}));
    let vm = of(LINES[3]);
    assert_eq!(vm["fragmentation"], serde_json::json!({"guest": 0.3, "l1": null, "host": 0.1}));
    let study = of(LINES[4]);
    assert_eq!((&study["cpu"], &study["seed"]), (&"sub/own.toml".into(), &3.into()));
}

#[test]
fn the_table_says_what_is_not_as_by_default() {
    let directory = study();
    let table = |line: &str| {
        let output = in_it(&directory, line);
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = table(LINES[0]);
    assert!(text.contains(&format!("strata {}", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(text.contains(", default options"), "{text}");
    let text = table(LINES[3]);
    assert!(text.contains("--stack vm --policy base --fragmentation 0.3,0.1,0.1"), "{text}");
}

#[test]
fn the_version_is_that_of_the_sources() {
    let directory = study();
    let version = report(&json_of(&directory, LINES[0].split_whitespace())).version;
    assert_eq!(version.package, env!("CARGO_PKG_VERSION"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&root).args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // Sources without a repository of their own are of no commit.
    let own = git(&["rev-parse", "--show-toplevel"]).is_some_and(|top| Path::new(&top) == root);
    assert_eq!(version.commit.is_some(), own);
    if let Some(commit) = version.commit {
        assert_eq!(git(&["rev-parse", "--verify", &format!("{commit}^{{commit}}")]), Some(commit));
    }
}

#[test]
fn words_of_a_command_line_stay_apart() {
    let directory = tempfile::tempdir().unwrap();
    let script = ["sh", "-c", "echo 'a  b' >&2; :"];
    let line = "record -o a.strata --";
    let recorded = strata(line).args(script).current_dir(&directory).output().unwrap();
    assert!(recorded.status.success(), "{}", complaint(&recorded));
    let recording = report(&json_of(&directory, "run --policy base a.strata".split(' '))).workload;
    assert_eq!(
        (&recording.name[..], &recording.argv[..]),
        ("a.strata", &script.map(str::to_owned)[..])
    );
    let live = "run --policy base -o /dev/null --json x.json --";
    let ran = strata(live).args(script).current_dir(&directory).output().unwrap();
    assert!(ran.status.success(), "{}", complaint(&ran));
    let live = report(&fs::read(directory.path().join("x.json")).unwrap());
    assert_eq!(live.workload.argv, script);
    assert_eq!(live.command[live.command.len() - 3..], script);
    // A shell that reads the name finds the same words.
    let words = format!("printf '%s\\n' {}", live.workload.name);
    let read = Command::new("sh").args(["-c", &words]).output().unwrap();
    assert_eq!(String::from_utf8(read.stdout).unwrap(), script.join("\n") + "\n");
}
