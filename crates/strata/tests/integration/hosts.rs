//! `strata run --vm`: several VMs on one host, from outside.

use crate::common::{self, complaint, refused, strata};
use std::fs;
use std::process::Output;
use strata_engine::Report;
use tempfile::TempDir;

const SMALL: &str = "workload=random:size=4MiB,accesses=100k";

fn in_it(directory: &TempDir, line: &str) -> Output {
    strata(line).current_dir(directory).output().unwrap()
}

fn json(line: &str) -> (Vec<u8>, Report) {
    let output = strata(&format!("{line} --json -")).output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    let report = serde_json::from_slice(&output.stdout).unwrap();
    (output.stdout, report)
}

#[test]
fn every_vm_runs_its_workload_under_every_policy() {
    let line = format!(
        "run --stack vm,nested --policy base,thp --alone --vm a:{SMALL} \
         --vm b:policy=gemini,repeat=true,workload=sequential:size=8MiB,accesses=50k"
    );
    let (_, report) = json(&line);
    let hosts: Vec<_> = report.hosts.iter().map(|host| (host.stack, host.policy.clone())).collect();
    assert_eq!(hosts.len(), 4);
    assert!(report.runs.is_empty() && !report.partial);
    let [a, b] = &report.vms[..] else { panic!("two VMs") };
    assert_eq!((a.name.as_str(), b.name.as_str()), ("a", "b"));
    for (index, (stack, policy)) in hosts.iter().enumerate() {
        let (of_a, of_b) = (&a.runs[index], &b.runs[index]);
        assert_eq!((of_a.stack, of_b.stack), (stack.unwrap(), stack.unwrap()));
        assert_eq!((Some(&of_a.policy), of_b.policy.as_str()), (policy.as_ref(), "gemini"));
        assert_eq!(of_a.accesses, 100_000);
        assert!(a.slowdown[index].unwrap() >= 0.99, "{:?}", a.slowdown);
        assert_eq!(report.hosts[index].accesses, of_a.accesses + of_b.accesses);
    }
    assert_eq!(b.alone.len(), 4);
}

#[test]
fn neither_order_nor_threads_change_a_result() {
    let vms = [format!("--vm a:cores=0,{SMALL}"), format!("--vm b:cores=0,stack=vm,{SMALL}")];
    let line = |first: usize, more: &str| {
        format!("run --policy thp,xgemini {} {} {more}", vms[first], vms[1 - first])
    };
    let (bytes, expected) = json(&line(0, ""));
    for more in ["--threads 1", "--threads 4", "--jobs 1"] {
        assert!(json(&line(0, more)).0 == bytes, "{more}");
    }
    let (_, swapped) = json(&line(1, ""));
    assert_eq!(swapped.hosts, expected.hosts);
    assert_eq!(swapped.vms[0], expected.vms[1]);
    assert_eq!(swapped.vms[1], expected.vms[0]);
}

#[test]
fn a_configuration_says_the_same_and_so_does_the_command_of_a_report() {
    let directory = tempfile::tempdir().unwrap();
    let text = "policy = [\"thp\"]\nhost-memory = \"3GiB\"\nalone = true\n\
                [[vm]]\nname = \"l1\"\n\
                [[vm]]\nname = \"a\"\nin = \"l1\"\nmemory = \"512MiB\"\n\
                workload = \"random:size=4MiB,accesses=100k\"\n\
                [[vm]]\nname = \"b\"\nstack = \"nested\"\nmemory = \"512MiB\"\ncores = [1, 2]\n\
                start = 0.0001\nworkload = \"random:size=4MiB,accesses=100k\"\n";
    fs::write(directory.path().join("host.toml"), text).unwrap();
    let by_file = in_it(&directory, "run --config host.toml --json -");
    assert!(by_file.status.success(), "{}", complaint(&by_file));
    let line = format!(
        "run --policy thp --host-memory 3GiB --alone --vm l1 --vm a:in=l1,memory=512MiB,{SMALL} \
         --vm b:stack=nested,memory=512MiB,cores=1-2,start=0.0001,{SMALL}"
    );
    let (bytes, report) = json(&line);
    assert!(by_file.stdout == bytes, "{}", String::from_utf8_lossy(&by_file.stdout));
    let mut again = std::process::Command::new(common::program());
    let again = again.args(&report.command[1..]).args(["--json", "-"]).output().unwrap();
    assert!(again.stdout == bytes, "{:?}", report.command);
    assert_eq!(report.hosts[0].memory_bytes, 3 << 30);
}

#[test]
fn the_table_of_the_host_has_only_words_that_help_explains() {
    let line = format!(
        "run --stack vm --policy base --alone --vm a:{SMALL} \
         --vm b:repeat=true,workload=sequential:size=1MiB,accesses=20k"
    );
    let output = strata(&line).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, table) = text.split_once("\nhost").expect("a section of the host");
    let rows = table.lines().skip(1).take_while(|line| !line.is_empty());
    let labels: Vec<_> = rows.map(|row| row.trim().split("  ").next().unwrap()).collect();
    assert!(labels.contains(&"a: time / alone") && labels.contains(&"b: rounds"), "{text}");
    for label in labels {
        assert!(strata::terms::find(label).is_some(), "'{label}' is no term: {text}");
    }
}

/// The usual neighbour: it repeats, and the others end before it has ended once.
#[test]
fn the_slowdown_of_a_neighbour_that_did_not_end_is_an_estimate_and_says_so() {
    let line = "run --stack vm --policy base --alone --vm a:workload=random:size=4MiB,accesses=3M \
                --vm b:repeat=true,workload=random:size=32MiB,accesses=5M";
    let (_, report) = json(line);
    let [a, b] = &report.vms[..] else { panic!("two VMs") };
    assert_eq!((a.rounds[0], &a.slowdown_estimated[..]), (1, &[false][..]));
    assert_eq!((b.rounds[0], &b.slowdown_estimated[..]), (0, &[true][..]));
    // Until then, against as many accesses alone: between two samples.
    let (run, alone) = (&b.runs[0], &b.alone[0].samples);
    let after = alone.iter().position(|sample| sample.accesses >= run.accesses).unwrap();
    let seconds = alone[after - 1].seconds..alone[after].seconds;
    assert!(seconds.contains(&(run.elapsed_seconds / b.slowdown[0].unwrap())), "{:?}", b.slowdown);
    let output = strata(line).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |vm: &str| {
        let label = format!("{vm}: time / alone");
        text.lines().find(|line| line.trim_start().starts_with(&label)).unwrap().to_owned()
    };
    assert!(row("b").contains("~ ") && !row("a").contains('~'), "{text}");
}

#[test]
fn live_programs_recordings_and_generators_mix() {
    let directory = tempfile::tempdir().unwrap();
    let recorded = in_it(&directory, "record -o ls.strata -- ls /");
    assert!(recorded.status.success(), "{}", complaint(&recorded));
    let text = format!(
        "stack = \"vm\"\npolicy = \"thp\"\njson = \"result.json\"\n\
         [[vm]]\nname = \"live\"\nprogram = [\"sh\", \"-c\", \"echo said; exit 3\"]\n\
         [[vm]]\nname = \"recording\"\ntrace = \"ls.strata\"\n\
         [[vm]]\nname = \"generator\"\n{}\n",
        "workload = \"random:size=4MiB,accesses=100k\""
    );
    fs::write(directory.path().join("host.toml"), text).unwrap();
    let output = in_it(&directory, "run --config host.toml");
    assert!(output.status.success(), "{}", complaint(&output));
    let bytes = fs::read(directory.path().join("result.json")).unwrap();
    let report: Report = serde_json::from_slice(&bytes).unwrap();
    let kinds: Vec<_> = report.vms.iter().map(|vm| vm.workload.kind.as_str()).collect();
    assert_eq!(kinds, ["live", "recording", "generator"]);
    assert!(report.vms.iter().all(|vm| vm.runs[0].accesses > 1000));
    assert_eq!(report.vms[0].workload.exit_status, Some(3));
}

#[test]
fn a_host_that_cannot_be_is_refused_with_the_remedy() {
    let two = |options: &str| format!("run --vm a:{SMALL} {options}");
    for (line, why) in [
        (two(&format!("--vm a:{SMALL}")), "two VMs are called 'a'"),
        (two("--vm b"), "'b' has nothing to run"),
        (two(&format!("--vm b:cores=1024,{SMALL}")), "bound to core 1024"),
        (two(&format!("--vm b:memory=9999TiB,{SMALL}")), "lower the memory of VM 'b'"),
        (two(&format!("--vm b:stack=nested-9,{SMALL}")), "nested-4 to nested-8"),
        (two(&format!("--vm l1:start=1 --vm b:in=l1,{SMALL}")), "which start is for"),
        (two(&format!("--vm l1:cores=0 --vm b:in=l1,{SMALL}")), "which cores is for"),
        (two(&format!("--vm l1:repeat=true --vm b:in=l1,{SMALL}")), "which repeat is for"),
        (two(&format!("--vm x:in=y --vm y:in=x --vm b:in=x,{SMALL}")), "is in itself"),
        (two(&format!("--vm x:in=c --vm b:in=x,{SMALL}")), "'c', which is no VM"),
        (two(&format!("--vm b:{SMALL} --set core.cores=1")), "has 1: bind several to one core"),
        (two(&format!("--vm b:cores=0,{SMALL} --set core.cores=1")), "with --set core.cores="),
        (two("--tables t.tables"), "leave out --vm"),
        (two(&format!("--vm b:stack=native,{SMALL}")), "native"),
        (two(&format!("--vm b:in=c,{SMALL}")), "'c', which is no VM"),
        (two(&format!("--vm b:sise=4,{SMALL}")), "'sise'"),
        (two(&format!("--vm b:policy=thq,{SMALL}")), "did you mean 'thp'"),
        (two(&format!("--vm b:start=1000,{SMALL}")), "let it start earlier"),
        (two("--vm b:trace=none.strata"), "or give program="),
        (two("--vm b:trace=/"), "'/' is a directory; name a file in it"),
        (two(&format!("--vm b:in=,{SMALL}")), "not what in takes"),
        (two(&format!("--vm b:memory=2x,{SMALL}")), "VM 'b': memory=2x is 8.00 MiB"),
        (two(&format!("--vm b:memory=1MiB,{SMALL}")), "VM 'b': memory=1.00 MiB is too small"),
        (two("--host-memory 9EiB"), "lower --host-memory"),
        (two("--host-memory 1MiB"), "--host-memory 1.00 MiB is too small"),
        (two(&format!("--vm b:memory=64MiB,balloon=64MiB,{SMALL}")), "VM 'b': a balloon of 64 MiB"),
        (two("--set balloon.size=1000000"), "lower balloon.size"),
        (two(&format!("--vm {}:{SMALL}", "n".repeat(65))), "has 65 characters"),
        (two(&format!("--vm b:repeat=true,{SMALL} --workload random")), "--workload"),
        (format!("run --vm a:repeat=true,{SMALL}"), "let one not"),
        (format!("run --host-memory 1GiB --vm a:memory=4GiB,{SMALL}"), "L0 has 1024 MiB"),
        ("run --alone --workload random:size=4MiB,accesses=1k".to_owned(), "--vm"),
    ] {
        // Whatever else is chosen, it is not blamed for what is wrong.
        let mut lines = vec![line.clone()];
        if !line.contains("--alone") {
            lines.extend([format!("{line} --policy base"), format!("{line} --stack nested")]);
        }
        for line in lines {
            let output = strata(&line).output().unwrap();
            assert!(output.stdout.is_empty(), "{line}");
            let status = output.status.code().unwrap();
            assert!(status == 1 || status == 2, "{line}: {status}");
            refused(&output, status, why);
        }
    }
}

#[test]
fn names_and_places_in_a_configuration_are_checked_as_on_the_command_line() {
    let directory = tempfile::tempdir().unwrap();
    for (text, why) in [
        ("[[vm]]\nname = 1\n", "is a text"),
        ("[[vm]]\nname = \"a\"\nin = \"\"\n", "not what in takes"),
        ("[[vm]]\nstack = \"vm\"\n", "has no name"),
    ] {
        fs::write(directory.path().join("host.toml"), text).unwrap();
        refused(&in_it(&directory, "run --config host.toml"), 2, why);
    }
}

#[test]
fn the_text_tells_how_a_live_program_ended() {
    let directory = tempfile::tempdir().unwrap();
    for (status, told) in [(3, true), (0, false)] {
        let text = format!(
            "stack = \"vm\"\npolicy = \"base\"\n\
             [[vm]]\nname = \"live\"\nprogram = [\"sh\", \"-c\", \"exit {status}\"]\n"
        );
        fs::write(directory.path().join("host.toml"), text).unwrap();
        let output = in_it(&directory, "run --config host.toml");
        // Standard output is the program's.
        let text = complaint(&output);
        assert_eq!(text.contains("Its program ended with status 3."), told, "{text}");
    }
}
