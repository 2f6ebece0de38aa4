//! The documentation of the JSON is complete, and its example is what the program writes.

use crate::common::{self, partial_report};
use serde_json::Value;
use std::collections::BTreeSet;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");

/// Fields whose keys are data: reasons, page sizes, counter and parameter names.
const MAPS: [&str; 7] =
    ["evicted_others", "exits", "fills", "counters", "happened", "parameters", "set"];

/// Where the documentation of another command's JSON begins.
const WALK: &str = "# The JSON of `strata walk`";

/// Every field of `value` as a path: `runs[].tlb.l1_misses`.
fn paths(prefix: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{prefix}{name}");
                into.insert(path.clone());
                if !MAPS.contains(&name.as_str()) {
                    paths(&format!("{path}."), value, into);
                }
            }
        }
        Value::Array(values) => {
            for value in values {
                paths(&format!("{}[].", prefix.trim_end_matches('.')), value, into);
            }
        }
        _ => {}
    }
}

#[test]
fn every_field_is_documented_and_every_documented_field_exists() {
    let mut report = partial_report();
    report.tables = Some(strata_engine::report::CapturedTables {
        layers: 3,
        real: vec!["accesses".to_owned()],
        modelled: vec!["TLBs".to_owned()],
        check: Default::default(),
        composition: Some(Default::default()),
    });
    report.runs[0].llc = Some(common::last_level());
    report.runs[0].requests = Some(Default::default());
    report.options.detail = Some(true);
    report.runs[0].series = Some(Default::default());
    report.runs[0].regions = Some(Default::default());
    report.runs[0].layers[0].free_blocks = vec![1];
    report.runs[0].bill[0].estimated = true;
    let phases = vec![Default::default()];
    report.runs[0].sampled = Some(strata_engine::report::Sampled { phases, ..Default::default() });
    report.options.sample = Some("auto".to_owned());
    report.options.paging = Some("shadow".to_owned());
    report.options.tick_hz = Some(250);
    report.options.io_hz = Some("program".to_owned());
    report.runs[0].happened.insert("ticks".to_owned(), 1);
    report.vms.push(Default::default());
    report.hosts.push(Default::default());
    let mut report = serde_json::to_value(report).unwrap();
    // It has the fields of the last level.
    report["runs"][0]["l4"] = Value::Null;
    // Documented as that of one machine.
    report["vms"][0]["workload"] = Value::Null;
    let mut written = BTreeSet::new();
    paths("", &report, &mut written);
    let docs = std::fs::read_to_string(DOCS).unwrap();
    assert_documented(&written, docs.split_once(WALK).unwrap().0);
}

#[test]
fn every_field_of_a_walk_is_documented() {
    let docs = std::fs::read_to_string(DOCS).unwrap();
    for (line, host, count) in
        [("walk --json -", "4k".into(), 24), ("walk --host-levels 0 --json -", Value::Null, 4)]
    {
        let walk: Value = serde_json::from_slice(&common::run(line).stdout).unwrap();
        let mut written = BTreeSet::new();
        paths("", &walk, &mut written);
        assert_documented(&written, docs.split_once(WALK).unwrap().1);
        assert_eq!((&walk["host_page"], &walk["count"]), (&host, &count.into()), "{line}");
        assert_eq!(walk["references"].as_array().unwrap().len(), count);
    }
    let walk: Value = serde_json::from_slice(&common::run("walk --json -").stdout).unwrap();
    let first = &walk["references"][0];
    assert_eq!((&first["position"], &first["table"]), (&"g4n4".into(), &"host".into()));
}

/// Asserts that the tables of `docs` have the fields `written`, and no others.
fn assert_documented(written: &BTreeSet<String>, docs: &str) {
    let rows = docs.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<String> =
        rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect();
    let missing: Vec<_> = written.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(written).collect();
    assert!(missing.is_empty(), "not documented: {missing:#?}");
    assert!(invented.is_empty(), "documented but not written: {invented:#?}");
}

#[test]
fn absent_layers_are_null_everywhere() {
    let report = common::report(&strata_engine::StackKind::ALL);
    let report = serde_json::to_value(report).unwrap();
    for run in report["runs"].as_array().unwrap() {
        let stack = run["stack"].as_str().unwrap();
        for field in ["faults", "fmfi"] {
            assert!(run[field]["guest"].is_number());
            assert_eq!(run[field]["l1"].is_number(), stack == "nested", "{stack} {field}");
            assert_eq!(run[field]["host"].is_number(), stack != "native", "{stack} {field}");
        }
    }
}
