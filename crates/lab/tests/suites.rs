//! Tests that the kernel's developers wrote, run in L0: its virtual machines, nested ones among them,
//! and its memory management must be as they expect, with our code as without.

mod common;

use common::{cache, machine, parts, run_scenario};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_lab::{Scenario, Variant};

/// Programs of `tools/testing/selftests/kvm`, with their arguments, and the status each ends with.
///
/// Two fail on any kernel, for the emulated processor: it does not save the next instruction's
/// address (nRIP), and reports another error code of an exception.
const KVM: [(&str, i32); 15] = [
    ("x86_64/state_test", 0),
    ("x86_64/smm_test", 0),
    ("x86_64/svm_vmcall_test", 0),
    ("x86_64/svm_int_ctl_test", 0),
    ("x86_64/svm_nested_shutdown_test", 0),
    ("x86_64/svm_nested_soft_inject_test", 254),
    ("x86_64/nested_exceptions_test", 254),
    ("x86_64/hyperv_svm_test", 0),
    ("x86_64/triple_fault_event_test", 0),
    ("x86_64/fix_hypercall_test", 0),
    ("x86_64/exit_on_emulation_failure_test", 0),
    ("memslot_modification_stress_test -c 20", 0),
    ("pre_fault_memory_test", 0),
    ("demand_paging_test", 0),
    ("kvm_page_table_test", 0),
];
/// The same of `tools/testing/selftests/mm`.
const MM: [(&str, i32); 4] =
    [("ksm_functional_tests", 0), ("cow", 0), ("mremap_test", 0), ("madv_populate", 0)];

/// Builds programs of a suite from the source of the lab's kernel, outside of it.
fn build(suite: &str, programs: &[(&str, i32)]) -> Vec<PathBuf> {
    let source = parts().lab[&Variant::Vanilla].source.clone();
    let version = source.split(' ').nth(1).expect("a package has a version");
    let built = cache().root().join("selftests").join(version);
    let (tree, headers) = (built.join("tree"), built.join("headers"));
    std::fs::create_dir_all(&headers).unwrap();
    if !tree.exists() {
        // The suites put files beside their sources: in a tree of links, not in the kernel's.
        let source = cache().root().join("source").join(version);
        let made = Command::new("cp").arg("-al").args([&source, &tree]).status().unwrap();
        assert!(made.success(), "cp -al {}", source.display());
    }
    if !headers.join("usr/include/linux/kvm.h").exists() {
        make(&tree, &[format!("O={}", headers.display()), "headers".into()]);
    }
    let output = built.join(suite);
    std::fs::create_dir_all(&output).unwrap();
    let files: Vec<PathBuf> =
        programs.iter().map(|(line, _)| output.join(line.split(' ').next().unwrap())).collect();
    let include = headers.join("usr/include");
    let mut arguments = vec![
        "ARCH=x86".to_owned(),
        format!("OUTPUT={}", output.display()),
        format!("INSTALL_HDR_PATH={}", headers.join("usr").display()),
        format!("KHDR_INCLUDES=-isystem {}", include.display()),
        "LDFLAGS=-static".to_owned(),
    ];
    arguments.extend(files.iter().map(|file| file.display().to_string()));
    make(&tree.join("tools/testing/selftests").join(suite), &arguments);
    files
}

fn make(directory: &Path, arguments: &[String]) {
    let output = Command::new("make")
        .current_dir(directory)
        .arg("-j2")
        .args(arguments)
        .output()
        .expect("make is there: apt-get install make");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs both suites in an L0 with this kernel.
fn suites(variant: Variant) {
    let _machine = machine();
    let files: Vec<PathBuf> = [build("kvm", &KVM), build("mm", &MM)].concat();
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let mut text = format!(
        "about = 'suites'\n[[layer]]\nkernel = '{variant}'\nmemory = '3000M'\ncpus = 2\n\
         modules = {{ kvm = 'nested_align=1' }}\nprograms = {files:?}\n\
         write = {{ '/proc/sys/vm/overcommit_memory' = '1' }}\n"
    );
    let all: BTreeMap<String, i32> = KVM
        .iter()
        .chain(&MM)
        .map(|(line, status)| (line.rsplit('/').next().unwrap().to_owned(), *status))
        .collect();
    for line in all.keys() {
        let words: Vec<&str> = line.split(' ').collect();
        text += &format!("[[step]]\ndo = 'run'\nprogram = {words:?}\n");
    }
    let report = run_scenario("suites", Scenario::parse(&text, "suites").unwrap());
    let mut wrong = Vec::new();
    for (step, (line, expected)) in report.steps.iter().zip(&all) {
        if step.status != Some(*expected) {
            wrong.push(format!("{line}: {:?}\n{}", step.status, step.output.join("\n")));
        }
    }
    assert_eq!(report.steps.len(), all.len());
    assert!(wrong.is_empty(), "{variant}:\n{}", wrong.join("\n"));
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn suites_on_the_vanilla_kernel() {
    suites(Variant::Vanilla);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn suites_on_the_aligned_kernel() {
    suites(Variant::Aligned);
}
