//! Machines that are kept: a run that goes on from one is a run like any other.

use crate::common::{Turn, attempt_in, cache, choices, machine};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use strata_inspect::Cause;
use strata_lab::{Cache, LabError, LabReport, Make, Scenario};
use tempfile::TempDir;

/// A scenario that no other test has: of two layers, the inner one with this parameter.
fn scenario(parameter: &str) -> Scenario {
    with_parameter("vm", parameter)
}

/// The scenario of this name, its innermost layer with this parameter.
fn with_parameter(name: &str, parameter: &str) -> Scenario {
    let mut scenario = Scenario::load(name).unwrap();
    scenario.layers.last_mut().unwrap().parameters = parameter.to_owned();
    scenario
}

/// A cache in which nothing is kept: other runs of this computer keep machines, and remove some, in the user's.
struct Own {
    directory: TempDir,
    _machine: Turn,
}

impl Own {
    fn new() -> Self {
        let guard = machine();
        let root = cache().root().to_owned();
        let directory = tempfile::Builder::new().prefix("test-").tempdir_in(root).unwrap();
        Self { directory, _machine: guard }
    }

    /// Runs a scenario. Returns what was told, too.
    fn run(&self, scenario: &Scenario, afresh: bool) -> (Result<LabReport, LabError>, Vec<String>) {
        let mut told = Vec::new();
        let mut choices = choices("kept", scenario.clone());
        choices.afresh = afresh;
        let cache = Cache::at(self.directory.path().to_owned());
        let mut tell = |line: &str| told.push(line.to_owned());
        let report = attempt_in(&cache, &choices, &AtomicBool::new(false), &mut tell);
        (report, told)
    }

    /// The machines that are kept.
    fn kept(&self) -> Vec<PathBuf> {
        let machines = fs::read_dir(self.directory.path().join("machines"));
        machines.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }
}

/// Whether a line that begins so was told.
fn says(told: &[String], words: &str) -> bool {
    told.iter().any(|line| line.contains(words))
}

/// Runs a scenario that boots and is kept, and once more what was kept; what both say of the layers agrees.
fn again(scenario: &Scenario) -> [LabReport; 2] {
    let own = Own::new();
    let innermost = format!("L{} boots", scenario.layers.len() - 1);
    let (first, told) = own.run(scenario, false);
    let first = first.unwrap();
    assert!(first.kept && says(&told, &innermost), "{told:?}");
    let (second, told) = own.run(scenario, false);
    let second = second.unwrap();
    assert!(second.kept && !says(&told, "boots"), "{told:?}");
    for (first, second) in first.layers.iter().zip(&second.layers) {
        assert_eq!(first.booted.kernel, second.booted.kernel);
        assert!(second.after.at > second.before.at);
        // The clocks went on from the same moment.
        assert!((first.before.at - second.before.at).abs() < 5.0);
    }
    assert_eq!(own.kept().len(), 1);
    [first, second]
}

/// All memory of the program of `vm` is in huge pages down to the machine's.
fn is_aligned(report: &LabReport) {
    let totals = report.alignment.as_ref().unwrap().totals;
    assert!(totals.huge >= 48 && totals.well_aligned == totals.huge, "{totals:?}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_a_machine_that_is_kept_goes_on_again_and_again() {
    again(&scenario("strata.test=again")).iter().for_each(is_aligned);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_intel_a_machine_that_is_kept_goes_on_again_and_again() {
    let mut scenario = scenario("strata.test=again");
    scenario.set_make(Make::Intel, "kept").unwrap();
    again(&scenario).iter().for_each(is_aligned);
}

/// Three layers of which L1 has no huge pages go on, and still do the same.
fn three_layers_go_on(make: Make) {
    let mut scenario = with_parameter("l1-base", "strata.test=three");
    scenario.set_make(make, "kept").unwrap();
    for report in again(&scenario) {
        let alignment = report.alignment.unwrap();
        let cause = &alignment.causes[0];
        assert_eq!((cause.layer.as_str(), cause.cause), ("L1", Cause::ThpDisabled));
        assert!(cause.pages >= 48 && alignment.totals.well_aligned == 0, "{:?}", alignment.totals);
        assert!(
            report.layers[0].after.kvm("nested_run") > report.layers[0].before.kvm("nested_run")
        );
    }
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn three_layers_are_kept() {
    three_layers_go_on(Make::Amd);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn three_layers_of_an_intel_machine_are_kept() {
    three_layers_go_on(Make::Intel);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_run_afresh_boots_and_keeps_nothing() {
    let (own, scenario) = (Own::new(), scenario("strata.test=afresh"));
    let (report, told) = own.run(&scenario, true);
    assert!(!report.unwrap().kept && says(&told, "L1 boots"));
    assert!(own.kept().is_empty());
}

/// Damages the state of a machine's devices: a file, or on an Intel machine a directory with one for each.
fn damage(devices: &Path) {
    if devices.is_dir() {
        fs::remove_file(devices.join("cpu0")).unwrap();
    } else {
        let bytes = fs::read(devices).unwrap();
        fs::write(devices, &bytes[..bytes.len() / 2]).unwrap();
    }
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_machine_that_the_emulator_does_not_take_is_forgotten_and_booted() {
    let (own, scenario) = (Own::new(), scenario("strata.test=damaged"));
    own.run(&scenario, false).0.unwrap();
    let kept = own.kept();
    let [kept] = &kept[..] else { panic!("one is kept") };
    damage(&kept.join("devices"));
    let (report, told) = own.run(&scenario, false);
    assert!(says(&told, "does not go on"), "{told:?}");
    assert!(!report.unwrap().kept);
    assert!(!kept.exists());
    assert!(own.kept().is_empty());
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn what_the_layers_boot_decides_which_machine_it_is() {
    let own = Own::new();
    let one = scenario("strata.test=one");
    own.run(&one, false).0.unwrap();
    let mut other = one.clone();
    other.layers[1].thp = Some("never".into());
    let (report, told) = own.run(&other, false);
    assert!(report.unwrap().kept && says(&told, "L1 boots"), "{told:?}");
    // Steps are after the boot.
    let mut shorter = one;
    shorter.steps.truncate(1);
    let (report, told) = own.run(&shorter, false);
    assert!(report.unwrap().kept && !says(&told, "L1 boots"), "{told:?}");
    assert_eq!(own.kept().len(), 2);
}
