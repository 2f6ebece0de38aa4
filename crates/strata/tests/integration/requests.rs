//! Latencies, from the command line to table and JSON.

use crate::common::{self, refused, run};
use serde_json::Value;

const SWEEP: &str = "run --stack vm --policy base,thp --memory 1GiB --workload \
                     btree:size=32MiB,accesses=600k,request=1,threads=2";

fn json(line: &str) -> Value {
    let output = run(&format!("{line} --json -"));
    assert!(output.status.success(), "{}", common::complaint(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn equal_inputs_give_equal_latencies_whatever_the_threads() {
    let bytes = |more: &str| run(&format!("{SWEEP} --json - {more}")).stdout;
    let expected = bytes("--threads 1");
    assert!(String::from_utf8_lossy(&expected).contains("wait_mean"));
    for options in ["--threads 2", "--jobs 1"] {
        assert!(bytes(options) == expected, "{options}");
    }
    assert!(bytes("--seed 2") != expected);
}

#[test]
fn all_policies_face_the_arrivals_that_the_option_says() {
    for (option, share, reference) in
        [("", 0.7, 0), ("--request-load 0.3", 0.3, 0), ("--request-load 0.5@thp", 0.5, 1)]
    {
        let report = json(&format!("{SWEEP} {option}"));
        let of = |run: usize| &report["runs"][run]["requests"];
        assert_eq!(of(0)["arrivals_per_second"], of(1)["arrivals_per_second"]);
        let load = of(reference)["load"].as_f64().unwrap();
        assert!((load - share).abs() < 1e-9, "{load}");
        assert_eq!(of(0)["reference"], report["runs"][reference]["policy"]);
        assert_eq!(of(0)["servers"], 2);
        // Whatever the load, nobody is served before they come.
        for run in [of(0), of(1)] {
            let [latency, service] = ["latency", "service"].map(|of| run[of]["mean"].as_f64());
            assert!(latency.unwrap() >= service.unwrap());
        }
        assert!(run(&format!("{SWEEP} {option}")).stdout.len() > 100);
    }
}

#[test]
fn rows_of_requests_are_there_where_the_stream_has_any() {
    // Wherever lines are broken.
    let text = |line: &str| {
        let text = String::from_utf8(run(line).stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let with = text(SWEEP);
    for row in ["mean latency", "p99 latency", "requests served", "latency p99", " load "] {
        assert!(with.contains(row), "{row} in {with}");
    }
    assert!(with.contains("Service times are of a run without pauses"), "{with}");
    // What the faster one nearly fills is too much for the slower.
    let overloaded = text(&format!("{SWEEP} --request-load 0.95@thp"));
    assert!(overloaded.contains("That is too much for base: latencies there grow"), "{overloaded}");
    assert!(!with.contains("too much for"), "{with}");
    let without = text(&SWEEP.replace("request=1", "request=0"));
    assert!(!without.contains("latency") && !without.contains("requests"), "{without}");
    let report = json(&SWEEP.replace("request=1", "request=0"));
    assert!(report["runs"][0].get("requests").is_none());
}

#[test]
fn vms_on_one_host_have_latencies_of_their_own() {
    let vm = "workload=btree:size=8MiB,accesses=200k,request=1";
    let line = format!(
        "run --stack vm --policy base,thp --alone --vm a:{vm} --vm b:workload=random:size=8MiB,accesses=200k"
    );
    let report = json(&line);
    let [a, b] = [&report["vms"][0], &report["vms"][1]];
    let rate = &a["runs"][0]["requests"]["arrivals_per_second"];
    assert!(rate.as_f64().unwrap() > 0.0);
    // The same arrivals without the neighbour.
    assert_eq!(&a["alone"][1]["requests"]["arrivals_per_second"], rate);
    assert!(b["runs"][0].get("requests").is_none());
}

#[test]
fn a_recording_has_the_requests_of_its_source() {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("a.strata");
    let workload = "zipf:size=4MiB,accesses=50k,request=100,threads=2";
    let line = format!("record -o {} --workload {workload}", file.display());
    assert!(run(&line).status.success());
    let of = |what: &str| json(&format!("run --policy base,thp {what}"))["runs"].take();
    assert_eq!(of(file.to_str().unwrap()), of(&format!("--workload {workload}")));
}

#[test]
fn a_reference_that_is_not_run_is_refused() {
    let output = run(&format!("{SWEEP} --request-load 0.5@gemini"));
    refused(&output, 2, "names policy gemini, which is not run on a vm stack; add it to --policy");
    let output = run(&format!("{SWEEP} --request-load 1.5"));
    refused(&output, 2, "give a share above 0 and below 1");
}
