//! Machines that are kept: a run that goes on from one is a run like any other.

mod common;

use common::{attempt, cache, choices, machine};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use strata_lab::{LabError, LabReport, Scenario};

/// A scenario that no other test has: of two layers, one of them with this parameter, with a program in both.
fn scenario(parameter: &str) -> Scenario {
    let mut scenario = Scenario::load("vm").unwrap();
    scenario.layers[1].parameters = parameter.to_owned();
    scenario
}

/// Runs it. Returns what was told, too.
fn run(scenario: &Scenario, afresh: bool) -> (Result<LabReport, LabError>, Vec<String>) {
    let mut told = Vec::new();
    let mut choices = choices("kept", scenario.clone());
    choices.afresh = afresh;
    let report = attempt(&choices, &AtomicBool::new(false), &mut |line| told.push(line.to_owned()));
    (report, told)
}

fn machines() -> PathBuf {
    cache().root().join("machines")
}

/// The machines that are kept.
fn all() -> Vec<PathBuf> {
    let entries = fs::read_dir(machines()).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Removes the machines that `before` does not have. Returns how many they were.
fn forget(before: &[PathBuf]) -> usize {
    let new: Vec<PathBuf> = all().into_iter().filter(|path| !before.contains(path)).collect();
    new.iter().for_each(|path| fs::remove_dir_all(path).unwrap());
    new.len()
}

/// Whether a line that begins so was told.
fn says(told: &[String], words: &str) -> bool {
    told.iter().any(|line| line.contains(words))
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_a_machine_that_is_kept_goes_on_again_and_again() {
    let _machine = machine();
    let (before, scenario) = (all(), scenario("strata.test=again"));
    let (first, told) = run(&scenario, false);
    let first = first.unwrap();
    assert!(first.kept && says(&told, "L1 boots"), "{told:?}");
    let (second, told) = run(&scenario, false);
    let second = second.unwrap();
    assert!(second.kept && !says(&told, "boots"), "{told:?}");
    for (first, second) in first.layers.iter().zip(&second.layers) {
        assert_eq!(first.booted.kernel, second.booted.kernel);
        assert!(second.after.at > second.before.at);
        // The clocks went on from the same moment.
        assert!((first.before.at - second.before.at).abs() < 5.0);
    }
    let totals = |report: &LabReport| report.alignment.as_ref().unwrap().totals.well_aligned;
    assert!(totals(&first) >= 48 && totals(&second) >= 48);
    // The console has the boot.
    assert_eq!(forget(&before), 1);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_run_afresh_boots_and_keeps_nothing() {
    let _machine = machine();
    let (before, scenario) = (all(), scenario("strata.test=afresh"));
    let (report, told) = run(&scenario, true);
    assert!(!report.unwrap().kept && says(&told, "L1 boots"));
    assert_eq!(forget(&before), 0);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_machine_that_the_emulator_does_not_take_is_forgotten_and_booted() {
    let _machine = machine();
    let (before, scenario) = (all(), scenario("strata.test=damaged"));
    run(&scenario, false).0.unwrap();
    let kept = all().into_iter().find(|path| !before.contains(path)).unwrap();
    let devices = kept.join("devices");
    let bytes = fs::read(&devices).unwrap();
    fs::write(&devices, &bytes[..bytes.len() / 2]).unwrap();
    let (report, told) = run(&scenario, false);
    assert!(says(&told, "does not go on"), "{told:?}");
    assert!(!report.unwrap().kept);
    assert!(!Path::new(&kept).exists());
    assert_eq!(forget(&before), 0);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn what_the_layers_boot_decides_which_machine_it_is() {
    let _machine = machine();
    let before = all();
    let one = scenario("strata.test=one");
    run(&one, false).0.unwrap();
    let mut other = one.clone();
    other.layers[1].thp = Some("never".into());
    let (report, told) = run(&other, false);
    report.unwrap();
    assert!(says(&told, "L1 boots"), "{told:?}");
    // Steps are after the boot.
    let mut shorter = one;
    shorter.steps.truncate(1);
    let (report, told) = run(&shorter, false);
    report.unwrap();
    assert!(!says(&told, "L1 boots"), "{told:?}");
    assert_eq!(forget(&before), 2);
}
