//! Memory of an innermost program keeps what is written to it, whatever the layers below do to it; and
//! if it did not, that would be noticed.
//!
//! `STRATA_LAB_KERNEL` names the kernel that L0 runs, as a scenario does, `aligned` if not given, and
//! `STRATA_LAB_SECONDS` how long the program runs by the clock of its layer; 60 if not given.

use crate::common::scene::{Scene, Steps, step, steps, three_layers, two_layers};
use crate::common::{attempt, choices, machine};
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::Duration;
use strata_lab::{KernelVariant, LabError, LabReport, Make, Step, StepReport, StressReport};

/// Words on a console that say that a kernel found something wrong with itself, or with its devices.
const COMPLAINTS: [&str; 10] = [
    "WARNING:",
    "BUG:",
    "Oops",
    "KASAN:",
    "UBSAN:",
    "possible circular locking",
    "possible recursive locking",
    "suspicious RCU usage",
    "Bad page",
    // What a virtio device left in memory is no number of a buffer.
    "out of range",
];

/// What L1's stock kernel says when it boots, on a vanilla L0 as well: saved state has not the size of its
/// parts. Between KVM and the emulated processor; nothing to do with memory.
const OF_THE_EMULATOR: &str = "fpu__init_system_xstate";

/// The kernel that L0 runs.
fn kernel() -> String {
    env::var("STRATA_LAB_KERNEL").unwrap_or_else(|_| "aligned".into())
}

/// L0 with the kernel that the environment names.
fn chosen(scene: Scene) -> Scene {
    let kernel = toml::Value::String(kernel()).try_into().expect("STRATA_LAB_KERNEL is a kernel");
    scene.layer(0, |l0| l0.kernel = kernel)
}

/// Runs a scenario. Gives the report, and complaints of all consoles.
fn run(scene: Scene) -> (LabReport, Vec<String>) {
    let (report, complaints) = run_to_any_end(scene);
    (report.unwrap_or_else(|error| panic!("{error}")), complaints)
}

/// Runs a scenario that may end with a layer's death.
fn run_to_any_end(scene: Scene) -> (Result<LabReport, LabError>, Vec<String>) {
    run_under(scene, |_, _| ())
}

/// How long a machine goes on after a complaint: for what follows.
const AFTERMATH: Duration = Duration::from_secs(5);
/// Time between looks at the consoles.
const LOOK: Duration = Duration::from_millis(500);

/// Runs a scenario that is over when a kernel has complained: a machine that is spoilt may stand still, and
/// steps wait for it for as long as they may.
fn run_until_a_complaint(scene: Scene) -> (Result<LabReport, LabError>, Vec<String>) {
    run_under(scene, |logs, running| {
        while running.load(Relaxed) {
            sleep(LOOK);
            if !complaints(logs).is_empty() {
                sleep(AFTERMATH);
                running.store(false, Relaxed);
            }
        }
    })
}

/// Runs a scenario while `watch` has its logs; the run ends when it takes the flag away, which says that the
/// run goes on.
fn run_under(
    scene: Scene,
    watch: impl Fn(&Path, &AtomicBool) + Sync,
) -> (Result<LabReport, LabError>, Vec<String>) {
    let scenario = chosen(scene).checked();
    let (running, interrupt) = (AtomicBool::new(true), AtomicBool::new(false));
    let mut logs = PathBuf::new();
    let report = thread::scope(|scope| {
        let mut tell = |line: &str| {
            println!("{line}");
            if let Some(path) = line.strip_prefix("logs are in ") {
                logs = path.into();
                let path = logs.clone();
                let (watch, running, interrupt) = (&watch, &running, &interrupt);
                scope.spawn(move || {
                    watch(&path, running);
                    interrupt.store(!running.load(Relaxed), Relaxed);
                });
            }
        };
        let report = attempt(&choices("integrity", scenario), &interrupt, &mut tell);
        running.store(false, Relaxed);
        report
    });
    let complaints = complaints(&logs);
    (report, complaints)
}

/// What kernels say on the consoles in a directory of logs. A layer that never came up has said nothing.
fn complaints(logs: &Path) -> Vec<String> {
    let consoles = (0..3).map(|layer| logs.join(format!("l{layer}-console.log")));
    let texts = consoles.filter_map(|path| fs::read(path).ok());
    let lines = texts.flat_map(|text| {
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines
        .filter(|line| COMPLAINTS.iter().any(|word| line.contains(word)))
        .filter(|line| !line.contains(OF_THE_EMULATOR))
        .collect()
}

/// The last line of JSON that the program printed.
fn summary(lines: &[String]) -> Option<Value> {
    lines.iter().rev().find_map(|line| serde_json::from_str::<Value>(line).ok())
}

fn stress<'a>(report: &'a LabReport, name: &str) -> &'a StressReport {
    report.stress.iter().find(|stress| stress.name == name).expect("the scenario has it")
}

/// The step of the scenario under stress.
const UNDER_STRESS: &str = "under stress";

fn main_step(report: &LabReport) -> &StepReport {
    step(report, UNDER_STRESS)
}

/// How far a counter of `/proc/vmstat` of a layer went while everything was at work.
fn moved(report: &LabReport, layer: usize, name: &str) -> u64 {
    let layer = &report.layers[layer];
    // The innermost layer was reset: its counters begin again.
    let samples = layer.samples.iter().chain([&layer.after]).map(|counters| counters.vmstat(name));
    samples
        .fold((0, None), |(sum, last), now| match last {
            Some(last) if now > last => (sum + now - last, Some(now)),
            _ => (sum, Some(now)),
        })
        .0
}

/// How far a counter of KVM in L0 went since the step under stress began, or since all layers ran where the
/// layers' seconds are so much longer than this computer's that no sample is as old as that.
fn lately(report: &LabReport, name: &str) -> u64 {
    let layer = &report.layers[0];
    let step = report.steps.iter().position(|step| step.id.as_deref() == Some(UNDER_STRESS));
    let seconds: f64 = report.steps[step.unwrap()..].iter().map(|step| step.seconds).sum();
    let early = layer.samples.iter().rfind(|sample| sample.at <= layer.after.at - seconds);
    layer.after.kvm(name) - early.unwrap_or(&layer.before).kvm(name)
}

/// Says what every stressor did, for whoever reads the test's output.
fn show(report: &LabReport) {
    println!("{:?}", main_step(report));
    for stress in &report.stress {
        let StressReport { name, done, failed, failures, .. } = stress;
        println!("{name}: {done} done, {failed} failed; {:?}", failures.last());
    }
    for (name, count) in &report.layers[0].after.kvm {
        if name.starts_with("nested_align_") {
            println!("L0 {name}: {count}");
        }
    }
    for (layer, names) in [
        (
            0,
            ["pgmigrate_success", "compact_success", "pswpout", "ksm_swpin_copy", "thp_split_page"],
        ),
        (1, ["pgmigrate_success", "compact_success", "pswpout", "cow_ksm", "thp_collapse_alloc"]),
        (
            2,
            [
                "pgmigrate_success",
                "balloon_inflate",
                "balloon_deflate",
                "thp_fault_alloc",
                "thp_split_pmd",
            ],
        ),
    ] {
        for name in names {
            println!("L{layer} {name}: {}", moved(report, layer, name));
        }
    }
}

/// What a kernel that checks itself has less of, and of processors and of time more. It is some ten times as
/// slow: otherwise L1 and L2 would get next to nothing done in an hour, and its KSM would never see all of
/// L1's memory twice, which it has to before it merges a page.
fn less_of_it(scene: Scene) -> Scene {
    const MERGE: &str = "/sys/kernel/mm/ksm/run";
    let scene = scene.layer(0, |l0| {
        l0.cpus = 2;
        l0.write.insert(MERGE.into(), "1".into());
    });
    let mut scene =
        scene.option("before the reset", "--size", "8M").option(UNDER_STRESS, "--size", "48M");
    let in_l0 = scene.0.stress.iter_mut().find(|stress| stress.name == "KSM in L0");
    // It goes on merging, but for when all is to come apart.
    for step in &mut in_l0.expect("the scenario has it").steps {
        if let Step::Write { text, .. } = step
            && text == "0"
        {
            *text = "1".into();
        }
    }
    scene
}

/// The scenario with its program running for this long, by the clock of its layer.
fn stressed(seconds: &str) -> Scene {
    let scene = Scene::shipped("integrity").option(UNDER_STRESS, "--seconds", seconds);
    if kernel() == "debug" { less_of_it(scene) } else { scene }
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn memory_keeps_its_contents_under_stress() {
    let _machine = machine();
    let seconds = env::var("STRATA_LAB_SECONDS").unwrap_or_else(|_| "60".into());
    let (report, complaints) = run(stressed(&seconds));
    show(&report);
    let step = main_step(&report);
    assert_eq!(step.status, Some(0), "{step:?}");
    let summary = summary(&step.output).expect("the program tells what it did");
    assert_eq!(summary["mismatches"], 0, "{summary}");
    assert!(summary["rested_pages"].as_u64() > Some(0), "{summary}");
    let operations = summary["operations"].as_object().unwrap();
    let done = |count: &&Value| count.as_u64() > Some(0);
    if report.layers[0].variant == "debug" {
        // It gets some seventy done in a minute, so chance leaves some of the kinds out.
        assert!(operations.values().filter(done).count() >= 8, "{summary}");
    } else {
        for (name, count) in operations {
            assert!(done(&count), "{name} was never done: {summary}");
        }
    }
    assert_eq!(complaints, [] as [String; 0]);
    // A kernel with alignment made huge pages meanwhile, and had to give some up.
    if report.layers[0].variant != "vanilla" {
        let lately = |name: &str| lately(&report, name);
        let kvm = &report.layers[0].after.kvm;
        let names = kvm.keys().filter(|name| name.starts_with("nested_align_demoted_"));
        let demoted: u64 = names.map(|name| lately(name)).sum();
        let promoted = lately("nested_align_promoted");
        println!("promoted {promoted}, demoted {demoted} while the program ran");
        assert!(promoted > 0 && demoted > 0, "{kvm:?}");
    }
    // Every stressor was at work, and its work is seen.
    for stress in &report.stress {
        assert!(stress.done > 0, "{stress:?}");
    }
    for layer in [0, 1] {
        let merged = &stress(&report, &format!("pages merged in L{layer}")).output;
        let most = merged.iter().filter_map(|line| line.trim().parse::<u64>().ok()).max();
        // An emulated Intel processor is too slow for L0's KSM to see all of L1's memory twice.
        let sees_all = layer == 1 || report.machine.make == Make::Amd;
        assert!(most > Some(0) || !sees_all, "no page was merged in L{layer}: {merged:?}");
        assert!(moved(&report, layer, "pgmigrate_success") > 0, "no page moved in L{layer}");
    }
    assert!(moved(&report, 2, "balloon_inflate") > 0, "L2 gave nothing to its balloon");
    assert!(moved(&report, 2, "balloon_deflate") > 0, "L2's balloon gave nothing back");
    assert!(moved(&report, 0, "pswpout") > 0, "L0 put nothing into swap");
    let logged = &stress(&report, "dirty logging of L1").answers;
    let rate = |answer: &Value| answer["dirty-rate"].as_i64() > Some(0);
    assert!(logged.iter().any(rate), "no dirty page was logged: {logged:?}");
    let migrations = &stress(&report, "migration of L1").answers;
    let begun = |answer: &Value| answer["status"].is_string();
    assert!(migrations.iter().any(begun), "{migrations:?}");
    assert!(migrations.iter().all(|answer| answer["status"] != "completed"), "{migrations:?}");
    // The other guests' memory is as whole as the first one's.
    let guests = stress(&report, "guests of L1");
    assert_eq!(guests.failures, [] as [String; 0]);
    assert!(guests.output.iter().all(|line| !line.contains("mismatch at")), "{guests:?}");
}

/// What gave it away that L0 left something out; nothing did if nothing is given.
fn noticed(report: &Result<LabReport, LabError>, complaints: &[String]) -> Option<String> {
    let report = match report {
        Err(LabError::Layer { layer, what, .. }) if what.starts_with("its kernel ") => {
            return Some(format!("{layer}: {what}"));
        }
        // Ended for what a kernel said.
        Err(LabError::Interrupted) => return complaints.first().cloned(),
        // A machine that stood still or ended says nothing of memory; a kernel may have.
        Err(error) => {
            return complaints.first().map(|complaint| format!("{complaint}; then {error}"));
        }
        Ok(report) => report,
    };
    let step = main_step(report);
    let lines = step.output.iter().chain(&step.errors);
    let mismatch = lines.clone().find(|line| line.contains("mismatch at"));
    let ended = (step.status != Some(0)).then(|| format!("{:?}: {:?}", step.status, lines.last()));
    mismatch.or(complaints.first()).cloned().or(ended)
}

/// Runs of a machine that may come to an end of another reason than what was left out.
const ATTEMPTS: usize = 3;

/// Leaves out all demotions for this cause: the counter's name, and its bit of `nested_align_ignore`.
fn leave_out(name: &str, bit: u32, make: Option<Make>) {
    let _machine = machine();
    let mut scene = stressed("120").set(&format!("nested_align_ignore={}", 1 << bit));
    if let Some(make) = make {
        scene.0.set_make(make, name).unwrap();
    }
    for _ in 0..ATTEMPTS {
        let (report, complaints) = run_until_a_complaint(scene.clone());
        if let Ok(report) = &report {
            // A run in which the demotion never came up shows nothing. A layer that died counts no more.
            let due = lately(report, &format!("nested_align_demoted_{name}"));
            assert!(due > 0, "{name} was never due");
        }
        match (noticed(&report, &complaints), report) {
            (Some(how), _) => return println!("without {name}: {how}"),
            (None, Ok(_)) => panic!("nobody noticed that {name} was left out"),
            (None, Err(error)) => println!("once more: {error}"),
        }
    }
    panic!("{ATTEMPTS} machines came to an end that says nothing of memory");
}

macro_rules! left_out {
    ($($test:ident: $name:literal, $bit:literal;)*) => {$(
        #[test]
        #[ignore = "boots real kernels: make lab-test"]
        fn $test() {
            leave_out($name, $bit, None);
        }
    )*};
}

// Demotions that this processor's virtualisation comes to while a machine lives. What is missing comes when
// it dies (`drop`), needs Intel's (`dirty_log`, below), or was never seen (`l1_write`, `update`).
left_out! {
    a_demotion_left_out_is_noticed_unsync: "unsync", 1;
    a_demotion_left_out_is_noticed_host: "host", 2;
    a_demotion_left_out_is_noticed_protect: "protect", 4;
    a_demotion_left_out_is_noticed_fault: "fault", 7;
    a_demotion_left_out_is_noticed_unlink: "unlink", 8;
}

/// The processor logs what is written (PML), so that no write protection stops a pseudo huge page's.
#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_demotion_left_out_is_noticed_dirty_log() {
    leave_out("dirty_log", 5, Some(Make::Intel));
}

/// L1's machine dies while pseudo huge pages stand for its guest's memory.
fn dying() -> Steps {
    steps()
        .run("strata-agent touch --size=96M --stay")
        .stay()
        .run("/bin/busybox killall -9 qemu")
        .layer(0)
        .sleep(20.0)
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_demotion_left_out_is_noticed_drop() {
    let _machine = machine();
    let die = |ignored: u64| {
        let parameters = "nested_align=1 nested_align_cpu_percent=100";
        let scene = three_layers(KernelVariant::Vanilla, parameters, ["never", "always"])
            .set(&format!("nested_align_ignore={ignored}"))
            .then(dying());
        let (end, complaints) = run_to_any_end(scene);
        assert!(matches!(&end, Err(LabError::Layer { layer, .. }) if layer == "L1"), "{end:?}");
        complaints
    };
    // KVM takes the tables of a dying machine apart with the newest first: leaves before what leads to them.
    assert_eq!(die(0), [] as [String; 0]);
    let complaints = die(8);
    println!("without drop: {complaints:?}");
    assert!(complaints.iter().any(|line| line.contains("pseudo_huge")), "{complaints:?}");
}

/// A machine under one other, whose memory the lower one spoils.
fn spoilt() -> Scene {
    let program = "strata-agent integrity --size=64M --seconds=120";
    let corrupt = steps().run("strata-agent corrupt qemu").layer(0);
    two_layers()
        .then(steps().run(program).id(UNDER_STRESS).stressed())
        .stressed_by("spoil", 1000.0, 3.0, corrupt)
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn memory_spoilt_from_below_is_noticed_with_its_address() {
    let _machine = machine();
    let (report, _) = run(spoilt());
    let step = main_step(&report);
    assert_eq!(step.status, Some(1), "{step:?}");
    let spoilt = stress(&report, "spoil");
    let told = summary(&spoilt.output).unwrap_or_else(|| panic!("nothing was spoilt: {spoilt:?}"));
    let spoilt: Vec<&str> =
        told["spoilt"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let mut lines = step.output.iter().chain(&step.errors);
    let line = lines.find(|line| line.contains("mismatch at ")).expect("it is told");
    let (_, rest) = line.split_once("mismatch at ").unwrap();
    let address = rest.split([':', ' ', ',']).next().unwrap();
    assert!(spoilt.contains(&address), "{address} is none of {spoilt:?}: {line}");
    assert!(line.contains("(foreign: it belongs to 0x6") || line.contains("(stale: "), "{line}");
    println!("{line}");
}
