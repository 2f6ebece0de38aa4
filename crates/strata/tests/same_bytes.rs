//! What a machine computes stays the same: a line for each of many runs, with a few figures to see what
//! changed and a digest of everything in the JSON that is not nothing. `UPDATE_GOLDEN=1` writes the file
//! anew; whoever does says in the commit why results change.

mod common;

use common::{complaint, strata};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::Path;
use std::thread;

const POLICIES: &str = "base,thp,guest-huge,host-huge,gemini,xgemini,aligned,coplace,xplace";
const STACKS: [&str; 4] = ["native", "vm", "nested", "nested-4"];
/// One of each kind of behaviour: random, skewed, in order, given back and taken anew, growing.
const WORKLOADS: [&str; 5] = [
    "random:size=24MiB,accesses=60k",
    "zipf:size=16MiB,accesses=60k",
    "sequential:size=32MiB,accesses=60k",
    "churn:size=16MiB,accesses=60k",
    "heap:size=24MiB,accesses=60k",
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

fn lines(workload: &str, setting: &str) -> String {
    let mut lines = String::new();
    for stack in STACKS {
        let line = format!(
            "run --json - --memory 128MiB --stack {stack} --policy {POLICIES} {setting} --workload {workload}"
        );
        let output = strata(&line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", complaint(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        for run in report["runs"].as_array().unwrap() {
            let number = |of: &Value| of.as_u64().unwrap();
            let digest = digest(&told(run).unwrap());
            writeln!(
                lines,
                "{stack} {} {workload} {setting}: {} misses, {} huge, {} faults, {} cycles, {digest}",
                run["policy"].as_str().unwrap(),
                number(&run["tlb"]["l2_misses"]),
                number(&run["alignment"]["guest_huge"]),
                number(&run["faults"]["guest"]),
                number(&run["cycles"]),
            )
            .unwrap();
        }
    }
    lines
}

#[test]
fn runs_are_what_they_were() {
    let mut cases = SETTINGS.iter().flat_map(|setting| WORKLOADS.map(|load| (load, *setting)));
    let text: String = thread::scope(|scope| {
        let started: Vec<_> = cases
            .by_ref()
            .map(|(load, setting)| scope.spawn(move || lines(load, setting)))
            .collect();
        started.into_iter().map(|lines| lines.join().unwrap()).collect()
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/runs.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
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
