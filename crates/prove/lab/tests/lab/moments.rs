//! Bad moments: each ends with a line that says what and where, and with nothing left running.

use crate::common;
use crate::common::scene::{step, steps, two_layers};
use crate::common::{attempt, children, choices, failure, idle, machine, snapshots};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};
use strata_inspect::{Options, join};
use strata_lab::{LabError, Layer, Memory, Scenario};

/// The layer that an error names, and what it says; the log it points to is there.
fn layer_of(error: &LabError) -> (&str, String) {
    match error {
        LabError::Layer { layer, log, .. } => {
            assert!(log.exists(), "{error}");
            let line = error.to_string();
            assert!(!line.contains('\n'), "{line}");
            (layer, line)
        }
        other => panic!("a layer should be named: {other}"),
    }
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn an_interrupt_while_a_layer_boots_ends_everything() {
    let _machine = machine();
    let interrupt = AtomicBool::new(false);
    let scenario = Scenario::load("vm").unwrap();
    let mut booting = false;
    let mut tell = |line: &str| {
        if line == "L1 boots" {
            booting = true;
            interrupt.store(true, Relaxed);
        }
    };
    let begin = Instant::now();
    // A machine that is kept boots nothing.
    let mut choices = choices("vm", scenario);
    choices.afresh = true;
    // That no emulator is left is looked at in there.
    let error = attempt(&choices, &interrupt, &mut tell).unwrap_err();
    assert!(matches!(error, LabError::Interrupted), "{error}");
    assert!(booting && begin.elapsed() < Duration::from_secs(30));
}

/// Starts `strata lab run` as a user does, waits until its emulator runs, sends a signal to
/// `strata` and gives what it said, its status, and the emulator's process number.
fn signalled(signal: &str) -> (String, Option<i32>, u32) {
    // Under nohup, which these tests may run under, a program would have to go on at a SIGHUP.
    let strata = Command::new("env")
        .arg("--default-signal=HUP")
        .arg(common::binary("strata"))
        .args(["lab", "run", "--scenario", "vm", "--afresh"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let emulator = loop {
        assert!(begin.elapsed() < Duration::from_secs(60), "no emulator came up");
        if let Some(&pid) = children(strata.id(), "qemu-system-x86").first() {
            break pid;
        }
        sleep(Duration::from_millis(100));
    };
    // In the middle of L0's boot.
    sleep(Duration::from_secs(1));
    let sent = Command::new("kill").args([signal, &strata.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = strata.wait_with_output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code(), emulator)
}

/// Whether a process exists and is no emulator of another's by now.
fn is_emulator(pid: u32) -> bool {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    comm.starts_with("qemu-system") && !status.contains("State:\tZ")
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn ctrl_c_and_a_murdered_strata_leave_no_emulator() {
    let _machine = machine();
    for (signal, expected) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let (said, status, emulator) = signalled(signal);
        assert_eq!(status, Some(expected), "{said}");
        assert!(said.contains("interrupted; nothing is left running"), "{said}");
        assert!(!is_emulator(emulator));
    }
    let (_, status, emulator) = signalled("-KILL");
    assert_eq!(status, None);
    let begin = Instant::now();
    while is_emulator(emulator) {
        assert!(begin.elapsed() < Duration::from_secs(5), "{emulator} still runs");
        sleep(Duration::from_millis(50));
    }
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_panic_ends_the_run_with_the_layer_and_its_last_lines() {
    let _machine = machine();
    // The layer runs out of memory, and is told to panic then.
    let error = failure(
        two_layers()
            .layer(1, |l1| _ = l1.write.insert("/proc/sys/vm/panic_on_oom".into(), "2".into()))
            .then(steps().run("strata-agent touch --size=900M").layer(1)),
    );
    let (layer, line) = layer_of(&error);
    assert_eq!(layer, "L1");
    assert!(line.contains("Kernel panic - not syncing: Out of memory"), "{line}");
    assert!(line.contains("while L1 was to run"), "{line}");
    assert!(line.contains("its console ends with: ") && line.contains("l1-console.log"), "{line}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_first_process_that_ends_is_a_panic_of_its_layer() {
    let _machine = machine();
    // The kernel's parameter for the first process names something that ends at once.
    let ending = |layer: usize| {
        two_layers().layer(layer, |layer| layer.parameters = "rdinit=/bin/busybox".to_owned())
    };
    let error = failure(ending(1));
    let (layer, line) = layer_of(&error);
    assert_eq!(layer, "L1");
    assert!(line.contains("Attempted to kill init"), "{line}");
    let error = failure(ending(0));
    assert_eq!(layer_of(&error).0, "L0");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_program_that_takes_too_long_is_killed_and_what_it_printed_is_kept() {
    let _machine = machine();
    let program = steps().shell(1, "echo before; /bin/busybox sleep 1000").limit(2);
    let report = two_layers().then(program).run("limit");
    let step = &report.steps[0];
    assert!(step.timed_out, "{step:?}");
    assert_eq!((step.status, step.output.as_slice()), (Some(-9), &["before".to_owned()][..]));
    // One of the user's, too, and the layers are scanned all the same.
    let mut own = choices("vm", Scenario::load("vm").unwrap());
    own.program = ["sleep", "1000"].map(Into::into).into();
    own.limit = Duration::from_secs(2);
    let report = attempt(&own, &AtomicBool::new(false), &mut |_| ()).unwrap();
    assert!(report.steps[0].timed_out && report.alignment.is_some(), "{:?}", report.steps);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_boot_that_stands_still_is_begun_again_and_given_up_after_the_third() {
    let _machine = idle();
    // The VMM starts its machine stopped.
    let scenario = two_layers().layer(1, |l1| l1.vmm.arguments.push("-S".to_owned())).checked();
    let mut again = 0;
    let mut tell = |line: &str| again += u32::from(line.ends_with("the machine is started again"));
    let choices = choices("stopped", scenario);
    let error = attempt(&choices, &AtomicBool::new(false), &mut tell).unwrap_err();
    let (layer, line) = layer_of(&error);
    assert_eq!((layer, again), ("L1", 2));
    assert!(line.contains("stood still while it booted"), "{line}");
    assert!(line.contains("L1's processor runs, as ") || line.contains("waits"), "{line}");
    let log = line.split_whitespace().find(|word| word.ends_with("post-mortem.log")).unwrap();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("info status:") && log.contains("IP="), "{log}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_program_has_its_files_and_its_input() {
    let _machine = machine();
    let directory = tempfile::tempdir().unwrap();
    let inner = directory.path().join("data/inner");
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::write(inner.join("text"), "from a file\n").unwrap();
    let mut scenario = Scenario::load("vm").unwrap();
    scenario.layers[1].files.push(directory.path().join("data"));
    let mut own = choices("vm", scenario);
    own.program = vec!["cat".into(), "-".into(), inner.join("text").into()];
    own.input = Some(b"from the input\n".to_vec());
    let report = attempt(&own, &AtomicBool::new(false), &mut |_| ()).unwrap();
    let step = &report.steps[0];
    assert_eq!(step.output, ["from the input", "from a file"], "{step:?}");
    assert_eq!(step.status, Some(0));
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_machine_that_stands_still_ends_by_the_limit() {
    let _machine = idle();
    let stopped = steps().qmp(0, "stop").run("/bin/busybox").layer(1);
    let error = failure(two_layers().then(stopped));
    let (layer, line) = layer_of(&error);
    assert_eq!(layer, "L1");
    assert!(line.contains("did not start a program within 60 s"), "{line}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn programs_and_settings_that_are_not_there_are_named() {
    let _machine = machine();
    let error = failure(two_layers().then(steps().run("no-such-program").layer(1))).to_string();
    assert!(error.contains("is to run in L1, which has no such program"), "{error}");
    let mut own = choices("vm", Scenario::load("vm").unwrap());
    own.program = vec!["/no/such/program".into()];
    let error = attempt(&own, &AtomicBool::new(false), &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("there is no program /no/such/program"), "{error}");
    let write = |l0: &mut Layer| _ = l0.write.insert("/sys/no/such/setting".into(), "1".into());
    let error = failure(two_layers().layer(0, write)).to_string();
    assert!(error.contains("L0 cannot change a setting: /sys/no/such/setting"), "{error}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn an_argument_that_a_vmm_does_not_know_is_told_with_its_words() {
    let _machine = machine();
    let wrong = |layer: usize| {
        two_layers().layer(layer, |layer| layer.vmm.arguments.push("-no-such-option".to_owned()))
    };
    let error = failure(wrong(1));
    let (layer, line) = layer_of(&error);
    assert_eq!(layer, "L1");
    assert!(line.contains("its VMM ended with status 1"), "{line}");
    assert!(line.contains("-no-such-option"), "{line}");
    let error = failure(wrong(0)).to_string();
    assert!(error.contains("starting the machine failed"), "{error}");
    assert!(error.contains("-no-such-option"), "{error}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn snapshots_of_other_machines_and_moments_are_refused() {
    let _machine = machine();
    let scanned = two_layers().then(steps().scan());
    let one = snapshots(&scanned.clone().run("one"), 0);
    let larger = scanned.layer(1, |l1| l1.memory = Memory::mib(600));
    let other = snapshots(&larger.run("other"), 0);
    let refusal = |guest: &strata_inspect::Snapshot, host: &strata_inspect::Snapshot| {
        join(&[guest.clone(), host.clone()], &Options::default()).unwrap_err().to_string()
    };
    join(&one, &Options::default()).unwrap();
    join(&other, &Options::default()).unwrap();
    let error = refusal(&one[0], &other[1]);
    assert!(error.contains("no VM of") && error.contains("has the memory"), "{error}");
    let error = refusal(&other[0], &one[1]);
    assert!(error.contains("has the memory"), "{error}");
    let error = refusal(&one[1], &one[0]);
    assert!(error.contains("has no VM; give the snapshots from the guest down"), "{error}");
    let error = refusal(&one[0], &one[0]);
    assert!(error.contains("has no VM"), "{error}");
    // The same guest, ten minutes before its VM was there.
    let mut early = one[0].clone();
    early.head.machine.wall_ns -= 600_000_000_000;
    let error = refusal(&early, &one[1]);
    assert!(error.contains("after the guest's snapshot was taken"), "{error}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn scans_survive_ending_processes_missing_rights_and_a_full_disk() {
    let _machine = machine();
    // Processes with huge pages come and go while the layer is scanned.
    let coming_and_going = "echo on; while true; do strata-agent touch --size=8M > /dev/null; done";
    let without_rights = "/bin/busybox mkdir -p /etc && \
        echo user:x:1000:1000::/:/bin/sh > /etc/passwd && \
        /bin/busybox start-stop-daemon -S -c 1000:1000 -x /bin/strata -- scan 2>&1; echo status $?";
    let disk_full = "/bin/busybox mkdir /full && \
        /bin/busybox mount -t tmpfs -o size=4k none /full && \
        /bin/busybox dd if=/dev/zero of=/full/other bs=4096 count=1 2>/dev/null; \
        strata scan -o /full/snapshot; echo status $?; /bin/busybox ls -A /full";
    let steps = steps()
        .shell(1, coming_and_going)
        .stay()
        .then(steps().scan().times(3))
        .shell(1, without_rights)
        .id("without rights")
        .shell(1, disk_full)
        .id("disk full");
    let report = two_layers().then(steps).run("scans");
    for number in 0..3 {
        let snapshots = snapshots(&report, number);
        join(&snapshots, &Options::default()).unwrap();
        assert!(snapshots[0].tail.uncertain < 100, "{:?}", snapshots[0].tail);
    }
    let output = |id: &str| {
        let step = step(&report, id);
        step.output.iter().chain(&step.errors).cloned().collect::<Vec<_>>().join("\n")
    };
    let (plain, full) = (output("without rights"), output("disk full"));
    assert!(plain.contains("status 0") && plain.contains("run as root"), "{plain}");
    assert!(plain.contains("Permission denied"), "{plain}");
    assert!(full.contains("No space left on device"), "{full}");
    assert!(full.contains("nothing was left behind"), "{full}");
    // Nothing but what filled it, in the order of the streams.
    let left: Vec<_> = full.lines().filter(|line| !line.contains(' ')).collect();
    assert!(full.contains("status 1") && left == ["other"], "{full}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_layer_that_resets_itself_is_told_from_one_that_fails() {
    let _machine = machine();
    let reboot = |layer: u8| two_layers().then(steps().run("/bin/busybox reboot -f").layer(layer));
    let error = failure(reboot(1));
    let (layer, line) = layer_of(&error);
    assert_eq!(layer, "L1");
    assert!(
        line.contains("its VMM ended with status 0, as when its machine resets itself"),
        "{line}"
    );
    let error = failure(reboot(0));
    let (layer, line) = layer_of(&error);
    assert_eq!(layer, "the machine");
    assert!(line.contains("ended (exit status: 0, as when its machine resets itself"), "{line}");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn no_machine_runs_on_the_first_of_several_emulated_processors() {
    let _machine = machine();
    let look = steps().shell(0, "grep Cpus_allowed_list /proc/$(pidof qemu)/status");
    for (cpus, allowed) in [(1, "0"), (2, "1"), (3, "1-2")] {
        let scene = two_layers().layer(0, |l0| l0.cpus = cpus).layer(1, |l1| l1.cpus = 2);
        let report = scene.then(look.clone()).run("processors");
        assert_eq!(report.steps[0].output, [format!("Cpus_allowed_list:\t{allowed}")]);
    }
}
