//! `strata bill` and `strata top --exits` from outside: kept bills, refusals, synthetic systems.

use crate::common::{complaint, refused, run};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn example() -> String {
    format!("{}/../../docs/examples/exits.json", env!("CARGO_MANIFEST_DIR"))
}

fn text(line: &str) -> String {
    let output = run(line);
    assert!(output.status.success(), "{}", complaint(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_kept_bill_is_shown_in_every_form() {
    let table = text(&format!("bill --read {}", example()));
    assert!(
        table.contains("NPF of nested, handed on") && table.contains("What helps: "),
        "{table}"
    );
    assert!(table.lines().all(|line| line.len() <= 90), "{table}");
    // JSON of a kept bill is the bill.
    let json = text(&format!("bill --read {} --json -", example()));
    assert_eq!(json, fs::read_to_string(example()).unwrap());
    let metrics = text(&format!("bill --read {} --prometheus -", example()));
    assert!(metrics.contains("level=\"nested-handed-on\",reason=\"NPF\""), "{metrics}");
    let chosen = text(&format!("bill --read {} --vm 34", example()));
    assert_eq!(chosen, table, "it is the one there is");
}

#[test]
fn what_is_no_bill_is_refused_with_what_would_be_one() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("x.json");
    let read = |content: &str| {
        fs::write(&file, content).unwrap();
        run(&format!("bill --read {}", file.display()))
    };
    refused(&read("{"), 1, "give a file that 'strata bill --json' wrote");
    refused(&read("{}"), 1, "it is no bill");
    refused(&read("{\"strata_exits\": 99}"), 1, "its version is 99, and this program reads 1");
    refused(&run("bill --read /nowhere"), 1, "check its name");
    refused(&run(&format!("bill --read {} --vm nobody", example())), 1, "no VM is 'nobody'");
    refused(&run("bill --json - --prometheus -"), 2, "only one result");
    refused(&run("bill --read x --time 3"), 2, "cannot be used with");
    refused(&run(&format!("bill --read {0} --json {0}", example())), 2, "");
    refused(&run("bill --time 0"), 2, "give seconds from 0.1");
    refused(&run("top --log"), 2, "--exits");
    refused(&run("top --exits --log --csv"), 2, "cannot be used with");
}

#[test]
fn a_kernel_that_tells_nothing_is_said_to() {
    let root = TempDir::new().unwrap();
    let line = format!("bill --root {} --time 0.1", root.path().display());
    refused(&run(&line), 1, "tracefs is not mounted");
    let kvm = |count: &str, value: u64| {
        let directory = root.path().join("sys/kernel/debug/kvm/7-11");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(count), value.to_string()).unwrap();
    };
    kvm("exits", 5);
    fs::create_dir_all(root.path().join("proc/7")).unwrap();
    fs::write(root.path().join("proc/7/cmdline"), "qemu-system-x86_64\0-name\0web\0").unwrap();
    let counted = text(&line);
    assert!(counted.contains("web (process 7)"), "{counted}");
    assert!(counted.contains("by KVM's statistics, as nothing can be traced here"), "{counted}");
    let lines =
        text(&format!("top --exits --log -n 2 --interval 0.1 --root {}", root.path().display()));
    assert_eq!(lines.lines().count(), 2, "{lines}");
    let csv =
        text(&format!("top --exits --csv -1 --interval 0.1 --root {}", root.path().display()));
    assert_eq!(csv.lines().count(), 1, "nothing was counted in that time: {csv}");
}

/// The running kernel, where it can be traced: nothing is left behind in tracefs.
#[test]
fn the_running_kernel_is_watched_and_left_as_it_was() {
    let instances = Path::new("/sys/kernel/tracing/instances");
    let output = run("bill --time 0.2");
    if output.status.success() {
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Watched 2"), "{text}");
        let ours = |name: &str| name.starts_with("strata-");
        let left = fs::read_dir(instances).into_iter().flatten().flatten();
        let left = left.filter(|entry| entry.file_name().to_str().is_some_and(ours)).count();
        assert_eq!(left, 0);
    } else {
        let said = complaint(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
