//! What the lab's tests share: parts, a machine for each core at a time, runs.

pub mod agree;
pub mod scene;
mod turns;

use scene::Scene;
use std::env;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use strata_inspect::Snapshot;
use strata_lab::{
    Cache, Choices, KernelVariant, LabError, LabReport, Make, PROGRAM_LIMIT, Parts, Scenario,
};
use turns::Turns;

static TURNS: Turns = Turns::new();

/// A test's leave to run a machine, or one after the other.
pub type Turn = turns::Turn<'static>;

/// Most machines at a time: each has some GiB of memory.
const MOST: usize = 4;

/// Waits for a turn. An emulated machine keeps a core busy, so that there are as many turns as cores.
pub fn machine() -> Turn {
    let cores = thread::available_parallelism().map_or(1, NonZero::get).min(MOST);
    TURNS.beside(cores)
}

/// Waits until no other test runs a machine, and has them wait in turn: for what a kernel is to do within seconds.
pub fn alone() -> Turn {
    TURNS.alone()
}

/// Waits for no turn: for a machine that stands still nearly all the time, beside any others.
pub fn idle() -> Turn {
    TURNS.idle()
}

/// The directory with the binaries that are tested: `STRATA_LAB_PROGRAMS`, or those built along with this test.
pub fn binaries() -> PathBuf {
    if let Some(programs) = env::var_os("STRATA_LAB_PROGRAMS") {
        return programs.into();
    }
    let test = env::current_exe().expect("a test has a path");
    test.parent().and_then(Path::parent).expect("tests are in target/PROFILE/deps").to_owned()
}

/// A binary of the workspace.
pub fn binary(name: &str) -> PathBuf {
    let path = binaries().join(name);
    let package = match name {
        "libstrata_machine_plugin.so" => "strata-machine-plugin",
        other => other,
    };
    assert!(
        path.exists(),
        "{} is missing; build it first: cargo build -p {package}",
        path.display()
    );
    path
}

pub fn cache() -> Cache {
    Cache::of_user().expect("there is a home")
}

pub fn parts(make: Make) -> Parts {
    let parts = strata_lab::built(&cache(), make, binary("strata-agent"), binary("strata"));
    assert!(
        parts.lab.contains_key(&KernelVariant::Vanilla) && parts.stock.is_some(),
        "the lab's kernels are missing; run 'strata lab build --machine {make}' first"
    );
    parts
}

/// What a run of this scenario is asked for.
pub fn choices(name: &str, scenario: Scenario) -> Choices {
    Choices {
        input: None,
        name: name.to_owned(),
        scenario,
        program: Vec::new(),
        limit: PROGRAM_LIMIT,
        trace: None,
        afresh: env::var_os("STRATA_LAB_AFRESH").is_some(),
        counting: false,
    }
}

/// The machine that scenarios are to run on, whatever they say.
pub fn asked_for() -> Option<Make> {
    let name = env::var("STRATA_LAB_MACHINE").ok()?;
    Some(Make::named(&name).expect("STRATA_LAB_MACHINE is amd or intel"))
}

/// Runs with an interrupt flag and a listener of the caller's.
pub fn attempt(
    choices: &Choices,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<LabReport, LabError> {
    attempt_in(&cache(), choices, interrupt, tell)
}

/// The same, with its logs and what is kept in this cache; the kernels are in the user's.
pub fn attempt_in(
    own: &Cache,
    choices: &Choices,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<LabReport, LabError> {
    let mut choices = choices.clone();
    if let Some(make) = asked_for() {
        choices.scenario.set_make(make, &choices.name)?;
    }
    let parts = parts(choices.scenario.make());
    let result = strata_lab::run(&choices, &parts, own, interrupt, tell);
    // Other tests may have one each.
    let others = TURNS.all().saturating_sub(1);
    let left = emulators();
    assert!(left.len() <= others, "the machine is gone when a run has ended: {left:?}");
    result
}

/// Runs a scenario, shipped or in a file.
pub fn run(name: &str) -> LabReport {
    run_scenario(name, Scenario::load(name).unwrap())
}

/// The same on an Intel machine.
pub fn run_on_intel(name: &str) -> LabReport {
    let mut scenario = Scenario::load(name).unwrap();
    scenario.set_make(Make::Intel, name).unwrap();
    run_scenario(name, scenario)
}

/// Runs a scenario to its end.
pub fn run_scenario(name: &str, scenario: Scenario) -> LabReport {
    run_chosen(&choices(name, scenario))
}

/// Runs what is asked for to its end.
pub fn run_chosen(choices: &Choices) -> LabReport {
    let mut told = Vec::new();
    let mut tell = |line: &str| told.push(line.to_owned());
    match attempt(choices, &AtomicBool::new(false), &mut tell) {
        Ok(report) => report,
        Err(error) => panic!("{}: {error}\n{}", choices.name, told.join("\n")),
    }
}

/// What a counter of KVM in L0 rose by since all layers ran.
pub fn rise(report: &LabReport, name: &str) -> u64 {
    report.layers[0].after.kvm(name) - report.layers[0].before.kvm(name)
}

/// Prints what alignment in L0 counted, for who looks at a test's output.
pub fn tell_alignment(report: &LabReport) {
    for (name, count) in &report.layers[0].after.kvm {
        if name.starts_with("nested_align_") && *count > 0 {
            println!("{name}: {count}");
        }
    }
}

/// The error of a run that cannot end well.
pub fn failure(scene: Scene) -> LabError {
    let choices = choices("failure", scene.checked());
    attempt(&choices, &AtomicBool::new(false), &mut |_| ()).unwrap_err()
}

/// The snapshots of a run's step, innermost layer first: the `number`th from the last.
pub fn snapshots(report: &LabReport, number: usize) -> Vec<Snapshot> {
    let step = report.steps.iter().rev().filter(|step| !step.snapshots.is_empty()).nth(number);
    let files = &step.expect("a step took snapshots").snapshots;
    files.iter().rev().map(|file| strata_inspect::read(file).unwrap()).collect()
}

/// Emulators that this process started and that still run, or wait to be buried.
pub fn emulators() -> Vec<u32> {
    ["qemu-system-x86", "bochs"].map(|name| children(std::process::id(), name)).concat()
}

/// Children of a process with this name, as `/proc/PID/stat` has them.
pub fn children(parent: u32, name: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let Some((before, after)) = stat.rsplit_once(')') else { return false };
            let comm = before.split_once('(').map_or("", |(_, comm)| comm);
            let of = after.split_whitespace().nth(1).and_then(|word| word.parse().ok());
            comm.starts_with(name) && of == Some(parent)
        })
        .collect()
}
