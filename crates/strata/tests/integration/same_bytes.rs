//! What a machine computes stays the same: a line for each of many runs, with a few figures to see what
//! changed and a digest of everything in the JSON that is not nothing. `UPDATE_GOLDEN=1` writes the file
//! anew; whoever does says in the commit why results change.

use crate::common::{complaint, strata};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::Path;
use std::thread;

const POLICIES: &str = "base,thp,guest-huge,host-huge,gemini,xgemini,aligned,coplace,xplace";
const EVERY_POLICY: &str =
    "base,thp,guest-huge,host-huge,gemini,xgemini,strata,coplace,xplace,xgemini+xplace,aligned";
const STACKS: [&str; 4] = ["native", "vm", "nested", "nested-4"];
/// One of each kind of behaviour: random, skewed, in order, given back and taken anew, growing.
const WORKLOADS: [&str; 5] = [
    "random:size=24MiB,accesses=60k",
    "zipf:size=16MiB,accesses=60k",
    "sequential:size=32MiB,accesses=60k",
    "churn:size=16MiB,accesses=60k",
    "heap:size=24MiB,accesses=60k",
];
/// The other generators.
const KERNELS: [&str; 7] = [
    "strided:size=32MiB,stride=4160,accesses=40k",
    "chase:size=16MiB,accesses=40k",
    "gups:size=16MiB,accesses=40k",
    "btree:size=16MiB,accesses=40k",
    "canneal:size=16MiB,accesses=40k",
    "streamcluster:size=16MiB,accesses=40k",
    "dedup:size=16MiB,accesses=40k",
];
const RECORDINGS: [&str; 2] = ["churn.strata", "random.strata"];
/// VMs on one host: beside each other, on one core, in a guest hypervisor, with a balloon, one after the
/// other.
const HOSTS: [&str; 2] = [
    "--policy base,gemini,xgemini,strata,xplace --stack nested \
     --vm a:workload=zipf:size=16MiB,accesses=60k \
     --vm b:policy=thp,repeat=true,memory=128MiB,workload=churn:size=16MiB,accesses=20k",
    "--policy thp,xgemini --host-memory 1GiB --vm l1 \
     --vm a:in=l1,cores=0,memory=128MiB,workload=random:size=24MiB,accesses=60k \
     --vm b:in=l1,cores=0,memory=128MiB,balloon=16MiB,workload=heap:size=24MiB,accesses=60k \
     --vm c:stack=vm,start=0.0001,memory=128MiB,workload=sequential:size=8MiB,accesses=30k \
     --set balloon.period=0.001",
];
const SETTINGS: [&str; 2] = [
    "",
    "--reused --tlb-misaligned no-fill --levels 5 --fragmentation 0.95 --set fragmentation.backed=true",
];

/// Without what is nothing, so that a counter of what this run has not changes nothing, and without what
/// repeats the options.
fn told(value: &Value) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Number(number) if number.as_f64() == Some(0.0) => None,
        Value::Array(all) => {
            // Places matter.
            let all: Vec<Value> =
                all.iter().map(|item| told(item).unwrap_or(Value::Null)).collect();
            all.iter().any(|item| !item.is_null()).then_some(Value::Array(all))
        }
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| *name != "parameters");
            let kept: serde_json::Map<_, _> =
                kept.filter_map(|(name, value)| Some((name.clone(), told(value)?))).collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        other => Some(other.clone()),
    }
}

/// The same whatever the order of fields.
fn digest(value: &Value) -> String {
    fn write(value: &Value, into: &mut String) {
        match value {
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_by_key(|(name, _)| *name);
                for (name, value) in fields {
                    write!(into, "{name}:").expect("there is memory");
                    write(value, into);
                }
            }
            Value::Array(all) => all.iter().for_each(|item| write(item, into)),
            other => write!(into, "{other};").expect("there is memory"),
        }
    }
    let mut text = String::new();
    write(value, &mut text);
    let bytes = Sha256::digest(text);
    bytes.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// What `strata run` finds with these options.
fn report(options: &str) -> Value {
    let line = format!("run --json - {options}");
    let output = strata(&line).output().unwrap();
    assert!(output.status.success(), "{line}: {}", complaint(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A line for each of some runs.
fn lines<'a>(runs: impl IntoIterator<Item = &'a Value>, of: &str) -> String {
    let mut lines = String::new();
    for run in runs {
        let number = |of: &Value| of.as_u64().unwrap();
        let digest = digest(&told(run).unwrap());
        writeln!(
            lines,
            "{} {} {of}: {} misses, {} huge, {} faults, {} cycles, {digest}",
            run["stack"].as_str().unwrap(),
            run["policy"].as_str().unwrap(),
            number(&run["tlb"]["l2_misses"]),
            number(&run["alignment"]["guest_huge"]),
            number(&run["faults"]["guest"]),
            number(&run["cycles"]),
        )
        .unwrap();
    }
    lines
}

/// Runs of one machine.
fn machine(options: &str, of: &str) -> String {
    lines(report(options)["runs"].as_array().unwrap(), of)
}

fn generators() -> String {
    let cases = SETTINGS.iter().flat_map(|setting| WORKLOADS.map(|load| (load, *setting)));
    at_once(cases, |(workload, setting)| {
        let run = |stack| {
            let options = format!(
                "--memory 128MiB --stack {stack} --policy {POLICIES} {setting} --workload {workload}"
            );
            machine(&options, &format!("{workload} {setting}"))
        };
        STACKS.into_iter().map(run).collect()
    })
}

fn kernels() -> String {
    at_once(KERNELS, |workload| {
        let options = format!(
            "--memory 128MiB --stack vm,nested --policy {EVERY_POLICY} --workload {workload}"
        );
        machine(&options, workload)
    })
}

fn traces() -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../streams/workloads/tests/data");
    at_once(RECORDINGS, |name| {
        let path = data.join(name);
        let options = "--memory 128MiB --stack vm,nested --policy";
        machine(&format!("{options} {EVERY_POLICY} {}", path.display()), name)
    })
}

/// A trace of another program's making: loads, stores and both, on ever more pages.
fn foreign() -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let mut text = String::from("==1== Command: program\n");
    for step in 0..20_000_u64 {
        let (what, address) =
            (["L", "S", "M"][step as usize % 3], 0x4000_0000 + step * step % 0x80_0000);
        writeln!(text, "I  00401000,4\n {what} {address:08x},8").unwrap();
    }
    std::fs::write(&path, text).unwrap();
    let options = format!("--memory 128MiB --stack vm,nested --policy {EVERY_POLICY}");
    machine(&format!("{options} {}", path.display()), "lackey")
}

fn hosts() -> String {
    at_once(HOSTS, |options| {
        let report = report(options);
        let mut text = String::new();
        for vm in report["vms"].as_array().unwrap() {
            let name = vm["name"].as_str().unwrap();
            text += &lines(vm["runs"].as_array().unwrap(), &format!("VM {name} of {options}"));
        }
        for host in report["hosts"].as_array().unwrap() {
            let (seconds, digest) = (&host["elapsed_seconds"], digest(&told(host).unwrap()));
            writeln!(text, "host of {options}: {seconds} s, {digest}").unwrap();
        }
        text
    })
}

/// The texts of all cases, one after the other, made at the same time.
fn at_once<T: Send>(
    cases: impl IntoIterator<Item = T>,
    text: impl Fn(T) -> String + Sync,
) -> String {
    thread::scope(|scope| {
        let text = &text;
        let started: Vec<_> =
            cases.into_iter().map(|case| scope.spawn(move || text(case))).collect();
        started.into_iter().map(|text| text.join().unwrap()).collect()
    })
}

/// Compares with a file in `golden`.
fn compare(text: &str, file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let changed: Vec<String> = text
        .lines()
        .zip(expected.lines())
        .filter(|(now, before)| now != before)
        .map(|(now, before)| format!("- {before}\n+ {now}"))
        .collect();
    assert!(changed.is_empty(), "{} runs differ, such as\n{}", changed.len(), changed[0]);
    assert_eq!(text.lines().count(), expected.lines().count());
}

#[test]
fn generators_are_run_as_they_were() {
    compare(&generators(), "runs.txt");
}

#[test]
fn kernels_and_traces_are_run_as_they_were() {
    compare(&(kernels() + &traces() + &foreign()), "kernels-and-traces.txt");
}

#[test]
fn hosts_are_run_as_they_were() {
    compare(&hosts(), "hosts.txt");
}
