//! `strata sweep` as a user has it.

use crate::common::{complaint, strata};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;

const FILE: &str = "
    workload = 'random:size=16MiB,accesses=50k'
    stack = 'vm'
    [grid]
    policy = ['base', 'thp', 'nope']
    fragmentation = [0.0, 0.9]
    [grid.set]
    thp.scan_sleep = [5]
";

fn sweep(directory: &Path, words: &[&str]) -> Output {
    let mut command = strata("sweep");
    command.args(words).current_dir(directory);
    command.env("XDG_CACHE_HOME", directory.join("cache")).output().unwrap()
}

#[test]
fn every_point_has_the_result_of_a_run_alone() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.toml"), FILE).unwrap();
    let done = sweep(directory.path(), &["a.toml", "--json", "a.json", "--csv", "a.csv"]);
    assert_eq!(done.status.code(), Some(1), "two points fail");
    let (printed, said) = (String::from_utf8_lossy(&done.stdout).into_owned(), complaint(&done));
    assert!(said.contains("2 of 6 points failed"), "{said}");
    assert!(printed.contains("no policy is called 'nope'"), "{printed}");
    let json = fs::read(directory.path().join("a.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let points = json["sweep"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    let words = "run --workload random:size=16MiB,accesses=50k --stack vm --policy thp --fragmentation 0.9 \
                 --set thp.scan_sleep=5 --json alone.json";
    let alone = strata(words).current_dir(directory.path()).output().unwrap();
    assert!(alone.status.success());
    let alone = fs::read(directory.path().join("alone.json")).unwrap();
    assert_eq!(points[4]["place"]["policy"], "thp");
    assert_eq!(points[4]["result"], serde_json::from_slice::<Value>(&alone).unwrap());
    let csv = fs::read_to_string(directory.path().join("a.csv")).unwrap();
    assert_eq!(csv.lines().count(), 7, "{csv}");
    assert!(csv.starts_with("fragmentation,grid.policy,set.thp.scan_sleep,error,workload,"));
}

#[test]
fn a_sweep_goes_on_where_it_was_and_says_the_same() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.toml"), FILE).unwrap();
    let first = sweep(directory.path(), &["a.toml"]);
    let kept = directory.path().join("cache/strata/sweeps");
    let files: Vec<_> = fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 4);
    // One is damaged, one is lost: they are run again, the others are as they were.
    fs::write(&files[0], "{").unwrap();
    fs::remove_file(&files[1]).unwrap();
    let written = |index: usize| files[index].metadata().unwrap().modified().unwrap();
    let before = written(2);
    assert_eq!(sweep(directory.path(), &["a.toml", "--jobs", "2"]).stdout, first.stdout);
    assert_eq!(written(2), before);
    assert!(fs::metadata(&files[0]).unwrap().len() > 1000 && files[1].exists());
}

#[test]
fn estimates_of_sampled_points_are_marked_and_have_bounds() {
    let directory = tempfile::tempdir().unwrap();
    let file = "
        workload = 'random:size=16MiB,accesses=300k'
        stack = 'vm'
        sample = 'interval=60k,window=5k,warm=5k'
        [grid]
        policy = ['base', 'thp']
    ";
    fs::write(directory.path().join("a.toml"), file).unwrap();
    let printed = |words: &[&str]| {
        let done = sweep(directory.path(), words);
        assert!(done.status.success(), "{}", complaint(&done));
        String::from_utf8(done.stdout).unwrap()
    };
    let text = printed(&["a.toml"]);
    for policy in ["base", "thp"] {
        let line = text.lines().find(|line| line.trim_start().starts_with(policy)).expect("a row");
        // Cycles and walk cycles, of each access; what is aligned is of the whole stream.
        assert_eq!(line.matches('~').count(), 2, "{line}");
    }
    assert!(text.contains("Figures with ~ are estimated"), "{text}");
    let csv = printed(&["a.toml", "--csv", "-"]);
    // What is quoted may have commas, and no figure is.
    let bare: Vec<String> = csv.lines().map(|line| line.split('"').step_by(2).collect()).collect();
    let mut lines = bare.iter().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let at = |name: &str| header.iter().position(|column| *column == name).expect("it is there");
    for row in lines {
        assert_eq!(row[at("sampled")], "1");
        let [low, cycles, high] = ["cycles_low", "cycles", "cycles_high"]
            .map(|name| row[at(name)].parse::<f64>().expect("a number"));
        assert!(low < cycles && cycles < high, "{low} {cycles} {high}");
    }
    // And nothing of it where all was run.
    fs::write(directory.path().join("a.toml"), file.replace("sample =", "# sample =")).unwrap();
    assert!(!printed(&["a.toml"]).contains('~'));
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.toml");
    for (text, wrong) in [
        ("stack = 'vm'", "a.toml: there is no grid; write a table [grid]"),
        ("[grid]\nseed = 3", "a.toml: 'seed' in the grid has no list of values"),
        ("seed = = 3", "a.toml: line 1:"),
    ] {
        fs::write(&file, text).unwrap();
        let done = sweep(directory.path(), &["a.toml"]);
        assert_eq!(done.status.code(), Some(2));
        assert!(complaint(&done).contains(wrong), "{}", complaint(&done));
    }
    fs::write(&file, FILE).unwrap();
    let done = sweep(directory.path(), &["a.toml", "--csv", "a.toml"]);
    assert!(complaint(&done).contains("would replace the sweep"));
    let done = sweep(directory.path(), &["a.toml", "--csv", "-", "--json", "-"]);
    assert!(complaint(&done).contains("only one result"));
}
