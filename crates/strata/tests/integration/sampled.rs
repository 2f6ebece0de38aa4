//! What `--sample` refuses, and what is said of a recording that was sampled.

use crate::common::{complaint, refused, run};
use std::path::Path;
use strata_engine::Report;

/// What was found while a recording was sampled is said where it is run.
#[test]
fn a_sampled_recording_says_what_it_was_warmed_up_for() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let [whole, sampled, json] = ["whole", "sampled", "json"].map(at);
    let made = |line: &str| {
        let output = run(line);
        assert!(output.status.success(), "{line}: {}", complaint(&output));
    };
    made(&format!("record -o {whole} --workload random:size=1MiB,accesses=20M"));
    made(&format!("record --sample auto -o {sampled} {whole}"));
    let notes = |stream: &str| {
        made(&format!("run --policy base -o /dev/null --json {json} {stream}"));
        let text = std::fs::read(Path::new(&json)).unwrap();
        serde_json::from_slice::<Report>(&text).unwrap().workload.notes
    };
    let of_recording = notes(&sampled);
    let is_warmth = |note: &&String| note.contains("to warm up");
    assert_eq!(of_recording.iter().filter(is_warmth).count(), 1, "{of_recording:?}");
    assert_eq!(of_recording.iter().filter(|note| note.starts_with("recording of")).count(), 1);
    // As it is where the recording is sampled and run at once.
    let at_once = notes(&format!("--sample auto {whole}"));
    let at_once = at_once.iter().find(is_warmth);
    assert_eq!(of_recording.iter().find(is_warmth), at_once);
}

#[test]
fn options_of_which_windows_tell_nothing_are_refused_by_name() {
    let random = "--workload random:size=4MiB,accesses=100k";
    for (options, named) in [
        ("--vm a:workload=random:size=4MiB,accesses=100k", "--vm"),
        (&format!("{random} --llc cpu"), "--llc cpu"),
        (&format!("{random} --llc-misses"), "--llc-misses"),
        (&format!("{random},request=10 --request-load 0.5@base"), "--request-load"),
        (&format!("{random} --warmup 5"), "--warmup"),
        (&format!("{random} --skip 5"), "--skip"),
        (&format!("{random} --limit 5"), "--limit"),
        (&format!("{random} --marked"), "--marked"),
        ("--workload prepared:gcc", "a prepared workload"),
    ] {
        let output = run(&format!("run --policy base --sample auto {options}"));
        refused(&output, 2, &format!("strata: --sample does not go with {named} ("));
    }
}
