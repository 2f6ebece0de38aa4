//! `strata run --vm`: what adds up, for the host and for each VM.

use crate::common::{complaint, strata};
use serde_json::Value;
use std::fs;
use strata_engine::Report;

const SMALL: &str = "workload=random:size=16MiB,accesses=200k";

fn report(line: &str) -> Report {
    let output = strata(&format!("{line} --json -")).output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a program touches does not depend on how far its last round came, nor on the policies beside it.
#[test]
fn a_program_that_repeats_touches_what_one_round_touches() {
    let line = |policies: &str| {
        format!(
            "run --stack vm --policy {policies} --alone --vm a:workload=zipf:size=32MiB,accesses=300k \
             --vm c:repeat=true,workload=sequential:size=64MiB,accesses=1M"
        )
    };
    let both = report(&line("base,thp"));
    let thp = report(&line("thp"));
    for vm in &both.vms {
        let touched = |run: &strata_engine::RunResult| run.memory.touched_bytes;
        assert!(vm.runs.iter().zip(&vm.alone).all(|(run, alone)| touched(run) == touched(alone)));
        assert_eq!(vm.workload.footprint_bytes, Some(touched(&vm.runs[0])), "{}", vm.name);
    }
    assert!(both.vms[1].rounds[0] > 1, "its last round under base is not whole");
    assert_eq!(both.vms[1].runs[1], {
        let mut run = thp.vms[1].runs[0].clone();
        run.relative_throughput = both.vms[1].runs[1].relative_throughput;
        run
    });
}

/// The host's counts are those of its VMs, what came before counting began left out.
#[test]
fn the_hosts_faults_are_those_of_its_vms() {
    for more in ["", "--warmup 100k", "--skip 50k --warmup 50k"] {
        let line = format!("run --stack vm --policy base,thp {more} --vm a:{SMALL} --vm b:{SMALL}");
        let found = report(&line);
        for (index, host) in found.hosts.iter().enumerate() {
            let of_vms = found.vms.iter().map(|vm| vm.runs[index].faults.host.unwrap());
            assert_eq!(host.faults, of_vms.sum::<u64>(), "{more}");
            assert_eq!(host.faults == 0, !more.is_empty(), "{more}");
        }
    }
}

/// As for one machine: a table of zeros would say what nobody measured.
#[test]
fn hosts_on_which_nothing_counts_are_a_failure() {
    for more in ["--skip 1M", "--warmup 1M", "--marked"] {
        let line = format!("run --stack vm --policy base {more} --vm a:{SMALL} --vm b:{SMALL}");
        let output = strata(&line).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{more}");
        assert!(complaint(&output).contains("nothing is left"), "{}", complaint(&output));
        assert!(output.stdout.is_empty(), "{more}");
    }
}

/// Memory of VMs is their own option, and the host's another; that of one machine is refused here.
#[test]
fn memory_that_runs_out_is_answered_with_an_option_that_is_taken() {
    let vm = "memory=256MiB,workload=random:size=240MiB,touch=yes,accesses=100k";
    // A guest's kernel has some of its memory for itself.
    for (host, remedy) in
        [("--host-memory 300MiB", "raise --host-memory"), ("", "give the VM more memory=")]
    {
        let line = format!("run --stack vm --policy thp {host} --vm a:{vm} --vm b:{vm}");
        let output = strata(&line).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stdout).unwrap();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(remedy) && !text.contains("raise --memory"), "{text}");
    }
}

/// A neighbour that does not come to its end is compared with as many accesses of its run alone: with
/// cores and memory of its own it is not slower, though it had first touches more than anything else.
#[test]
fn first_touches_of_an_unfinished_neighbour_are_no_slowdown() {
    let line = "run --stack vm --policy base --alone --vm a:workload=random:size=4MiB,accesses=900k \
                --vm b:repeat=true,workload=random:size=16MiB,accesses=2M";
    let found = report(line);
    let [_, b] = &found.vms[..] else { panic!("two VMs") };
    assert!(b.slowdown_estimated[0] && b.rounds[0] == 0);
    let slowdown = b.slowdown[0].expect("it came past the first sample");
    assert!((0.95..1.1).contains(&slowdown), "{slowdown}");
    // Before the first sample of its run alone nothing is known.
    let found = report(&line.replace("accesses=900k", "accesses=20k"));
    assert_eq!(found.vms[1].slowdown, [None]);
}

/// One VM's recording is cut; what the others have is whole, and it is said whose it was.
#[test]
fn a_recording_that_is_cut_makes_its_own_vm_partial_alone() {
    let directory = tempfile::tempdir().unwrap();
    let run = |line: &str| strata(line).current_dir(&directory).output().unwrap();
    let made = run("record --workload random:size=8MiB,accesses=400k -o whole.strata");
    assert!(made.status.success(), "{}", complaint(&made));
    let whole = fs::read(directory.path().join("whole.strata")).unwrap();
    fs::write(directory.path().join("cut.strata"), &whole[..whole.len() / 2]).unwrap();
    let output = run(&format!(
        "run --stack vm --policy thp --json - --vm w:{SMALL} --vm r:trace=cut.strata"
    ));
    let found: Report = serde_json::from_slice(&output.stdout).unwrap();
    let [w, r] = &found.vms[..] else { panic!("two VMs") };
    assert_eq!((w.runs[0].partial, r.runs[0].partial, found.partial), (false, true, true));
    let reason = found.partial_reason.unwrap();
    assert!(reason.starts_with("VM 'r': "), "{reason}");
}

/// The page and the table count an exit once, also one that is handed on.
#[test]
fn page_and_table_have_the_same_exits() {
    let directory = tempfile::tempdir().unwrap();
    let line = "run --stack nested --policy base,thp --workload random:size=16MiB,accesses=200k --html p.html \
                --json r.json";
    let output = strata(line).current_dir(&directory).output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let (table, page) = (String::from_utf8(output.stdout).unwrap(), read("p.html"));
    let row = table
        .lines()
        .skip_while(|line| line.trim() != "exits")
        .find(|line| line.trim().starts_with("all "));
    let cells: Vec<&str> = row.expect("a row of all exits").split_whitespace().skip(1).collect();
    let glance = page.rsplit("At a glance").next().expect("the table");
    for cell in &cells {
        assert!(glance.contains(&format!(">{cell}<")), "{cell}");
    }
    let json: Value = serde_json::from_str(&read("r.json")).unwrap();
    assert!(json["runs"][0]["exits_by_layer"].to_string().contains("handed_on"));
}

/// VMs with policies of their own are the same on every host; what tells their runs apart is said.
#[test]
fn runs_of_a_vm_with_a_policy_of_its_own_have_names() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!(
        "run --stack vm,nested --policy thp,gemini --bill --folded f.txt --html p.html \
         --vm w:stack=vm,policy=thp,{SMALL} --vm r:{SMALL}"
    );
    let output = strata(&line).current_dir(&directory).output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["thp beside vm thp", "w thp beside nested gemini", "r nested thp"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    let folded = fs::read_to_string(directory.path().join("f.txt")).unwrap();
    let stacks = folded.lines().map(|line| line.rsplit_once(' ').expect("a count").0);
    let mut seen = std::collections::BTreeSet::new();
    assert!(stacks.clone().all(|stack| seen.insert(stack)), "{folded}");
    let page = fs::read_to_string(directory.path().join("p.html")).unwrap();
    assert!(page.contains("thp beside nested gemini"));
}
