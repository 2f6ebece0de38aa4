//! `strata workloads prepare`, and what it made.

use crate::common::{self, complaint, refused, strata};
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program with a cache of its own.
fn run(cache: &Path, line: &str) -> Output {
    strata(line).env("XDG_CACHE_HOME", cache).output().unwrap()
}

fn found(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

fn files(cache: &Path) -> Vec<String> {
    let files = std::fs::read_dir(cache.join("strata/workloads"));
    let names = files.into_iter().flatten().map(|file| file.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn a_program_is_recorded_once_and_run_by_its_name() {
    let cache = tempfile::tempdir().unwrap();
    let old = cache.path().join("strata/workloads/gcc-01234567.strata");
    std::fs::create_dir_all(old.parent().unwrap()).unwrap();
    std::fs::write(&old, "made in another way").unwrap();
    let output = run(cache.path(), "workloads prepare gcc");
    assert!(output.status.success(), "{}", complaint(&output));
    assert!(complaint(&output).contains("gcc: 20.0M accesses, "), "{}", complaint(&output));
    assert_eq!(files(cache.path()).len(), 1, "{:?}", files(cache.path()));
    let again = run(cache.path(), "workloads prepare gcc");
    assert!(complaint(&again).contains("gcc: prepared already"), "{}", complaint(&again));
    let list = run(cache.path(), "workloads prepare --list gcc xz");
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.lines().next().unwrap().contains(" on disk [gcc]"), "{list}");
    assert!(list.lines().nth(1).unwrap().contains("; not prepared [xz-utils"), "{list}");
    // Counted from where it was recorded in full.
    let line = "run --stack native --policy base --workload prepared:gcc --limit 100k --json -";
    let output = run(cache.path(), line);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["workload"]["name"], "prepared:gcc");
    assert_eq!(report["options"]["marked"], true);
    let words: Vec<_> = report["command"].as_array().unwrap().iter().collect();
    assert!(words.ends_with(&[&"--workload".into(), &"prepared:gcc".into()]), "{words:?}");
    let of = |line: &str| {
        let report: Value = serde_json::from_slice(&run(cache.path(), line).stdout).unwrap();
        [&report["runs"][0]["accesses"], &report["runs"][0]["faults"]["guest"]].map(Value::clone)
    };
    let [accesses, faults] = of(line);
    assert_eq!(accesses, 100_000);
    let [_, all] = of(&format!("{line} --marked=false"));
    assert!(faults.as_u64().unwrap() < all.as_u64().unwrap(), "{faults} {all}");
    // As a key of a VM, too.
    let line = "run --stack vm --policy base --limit 50k --vm a:workload=prepared:gcc --vm \
                b:workload=prepared:btree";
    let output = run(cache.path(), line);
    assert!(output.status.success(), "{}", complaint(&output));
}

#[test]
fn a_server_is_filled_and_asked_while_it_is_recorded() {
    let cache = tempfile::tempdir().unwrap();
    let output = run(cache.path(), "workloads prepare redis");
    if !found("redis-server") || !found("redis-benchmark") {
        return refused(&output, 1, "apt install redis-server redis-tools");
    }
    assert!(output.status.success(), "{}", complaint(&output));
    let line = "run --stack native --policy base --workload prepared:redis --json -";
    let report: Value = serde_json::from_slice(&run(cache.path(), line).stdout).unwrap();
    let run = &report["runs"][0];
    assert!(run["requests"]["served"].as_u64().unwrap() > 1000, "{run}");
    assert_eq!(run["requests"]["servers"], 1);
    // The keys are there: more memory than its code and buffers.
    assert!(run["memory"]["touched_bytes"].as_u64().unwrap() > 40 << 20, "{run}");
}

#[test]
fn what_is_not_there_is_told_with_its_remedy() {
    let cache = tempfile::tempdir().unwrap();
    let of = |line: &str| run(cache.path(), line);
    let none = of("run --workload prepared:redis");
    refused(&none, 1, "'redis' is not prepared: run 'strata workloads prepare redis' first");
    refused(&of("run --workload prepared:redsi"), 2, "did you mean 'redis'?");
    refused(&of("workloads prepare redsi"), 2, "did you mean 'redis'?");
    refused(&of("run --vm a:workload=prepared:xz"), 2, "VM 'a': workload 'xz' is not prepared");
    // Generators have nothing to prepare.
    let output = of("run --policy base --workload prepared:canneal --limit 10k");
    assert!(output.status.success(), "{}", complaint(&output));
    let output = of("workloads prepare canneal");
    assert!(output.status.success() && files(cache.path()).is_empty());
}

#[test]
fn missing_packages_are_named() {
    let (cache, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    symlink("/bin/sh", path.path().join("sh")).unwrap();
    let prepare = |names: &[&str]| {
        let mut command = Command::new(common::program());
        command.args(["workloads", "prepare"]).args(names);
        command.env("PATH", path.path()).env("XDG_CACHE_HOME", cache.path()).output().unwrap()
    };
    let one = prepare(&["redis"]);
    refused(
        &one,
        1,
        "needs redis-server, redis-benchmark, not found in PATH: apt install redis-server",
    );
    let two = prepare(&["redis", "xz"]);
    let complaint = complaint(&two);
    assert_eq!(two.status.code(), Some(1));
    assert!(complaint.contains("apt install xz-utils perl-base"), "{complaint}");
    assert!(complaint.contains("not prepared: redis, xz"), "{complaint}");
    assert!(files(cache.path()).is_empty());
}

#[test]
fn a_place_for_recordings_must_be_known() {
    let output =
        strata("workloads prepare --list").env_remove("XDG_CACHE_HOME").env_remove("HOME").output();
    refused(&output.unwrap(), 1, "set HOME or XDG_CACHE_HOME");
}
