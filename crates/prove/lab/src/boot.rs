//! From nothing to the innermost layer's first instruction.

use crate::error::{LabError, on};
use crate::exits::EXIT_TRACES;
use crate::images::{FIRMWARE, MODULES, NEXT_INITRD, NEXT_KERNEL};
use crate::intel;
use crate::link::{Link, ORDER_LIMIT};
use crate::machine::port;
use crate::make::Make;
use crate::parts::Parts;
use crate::programs::with_path;
use crate::scenario::{Backend, Fragmentation, Kernel, Layer, Memory, Scenario};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::time::{Duration, Instant};
use strata_protocol::{Command, LAYER_PARAMETER, Layout, Reply, VM_SOCKET, alone_parameter};

/// Where a layer's VMM takes commands.
pub(crate) const QMP_SOCKET: &str = "/run/qmp.socket";
/// Characters that a kernel takes of its parameters (`COMMAND_LINE_SIZE` and the end of a string).
const COMMAND_LINE: usize = 2047;
/// Huge-page setting of a kernel.
const THP_SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// Time of the emulator's processors that a kernel may take to its first program: other work on this
/// computer does not count.
const BOOT_LIMIT: Duration = Duration::from_secs(240);
/// Time it may take at most, whatever the emulator gets of this computer's processors.
const PATIENCE: Duration = Duration::from_secs(1800);
/// How long the emulator must have had next to nothing to do before a layer that boots is given up:
/// a kernel that boots is busy, and one that waits for what will not come is not.
const IDLE: Duration = Duration::from_secs(20);
/// The share of that time below which it had next to nothing to do. L0's periodic timer alone takes
/// some 0.15.
const IDLE_SHARE: f64 = 0.35;
/// Time between looks at what the emulator does.
const LOOK: Duration = Duration::from_secs(2);
/// Time a VMM may take to tell of a machine that hangs.
const POST_MORTEM_LIMIT: Duration = Duration::from_secs(10);
/// Time a fragmenter may take.
const FRAGMENT_LIMIT: Duration = Duration::from_secs(600);
/// What the program is called that fragments a layer's memory.
const FRAGMENTER: &str = "fragmenter";
/// How a layer came up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Booted {
    /// The layer.
    pub layer: u8,
    /// Its kernel's release and version.
    pub kernel: String,
    /// Seconds from the start of the run to its first program.
    pub since_start: f64,
    /// Seconds by its own clock.
    pub own: f64,
}

/// Kernel parameters of layer `number`.
///
/// Emulated processors are slow and have no speculation to guard against: watchdogs and
/// mitigations would only cost time. A panic ends the layer at once, so that it is noticed.
pub(crate) fn parameters(number: usize, layers: &[Layer]) -> String {
    let (layer, make) = (&layers[number], layers[0].make());
    let mut parameters = format!(
        "console=ttyS0 {LAYER_PARAMETER}{number} panic=-1 loglevel=4 nowatchdog \
         rcupdate.rcu_cpu_stall_suppress=1 random.trust_cpu=on"
    );
    if layer.kernel == Kernel::Debian {
        // The lab's are built without.
        parameters += " mitigations=off";
    }
    if layer.kernel.is_checked() {
        // What it finds wrong are warnings.
        parameters += " loglevel=5";
    }
    if number == 0 {
        // The emulator now and then loses the interrupt of a one-shot timer while a guest runs: a
        // processor that has nothing else to do then sleeps for ever. A periodic timer comes again.
        parameters += " nohz=off highres=off";
        if layer.kernel.is_checked() {
            // ACPI gives a method 30 s, and one that looks for the routing of PCI's interrupts takes a
            // checked kernel longer under emulation: no device works then. It has another table.
            parameters += " pci=noacpi";
        }
        if make == Make::Intel {
            parameters += &format!(" {}", intel::parameters());
        }
    } else {
        // Deadlines by the time stamp counter, which KVM in the layer below turns into timers of
        // its own, come tens of seconds late under emulation: found by comparing the timers of L0
        // (/proc/timer_list, apic_timer_fn) with those of a stalled L1. A count down does not.
        parameters += " lapic=notscdeadline";
    }
    if layer.kernel != Kernel::Debian {
        let own = layer.modules.iter().filter(|(module, _)| *module != make.other_module());
        for (module, values) in own {
            for value in values.split_whitespace() {
                parameters += &format!(" {module}.{value}");
            }
        }
    }
    if !layer.parameters.is_empty() {
        parameters += &format!(" {}", layer.parameters);
    }
    parameters
}

/// Waits for L0 and boots every other layer from the one below, with the settings of the scenario.
pub(crate) fn boot(
    link: &mut Link,
    scenario: &Scenario,
    parts: &Parts,
    begin: Instant,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Booted>, LabError> {
    let mut booted = Vec::new();
    for (number, layer) in scenario.layers.iter().enumerate() {
        let at = number as u8;
        tell(&format!("L{number} boots"));
        let kernel = wait(link, at)?;
        let own = link.journal.layers[number].ready.as_ref().map_or(0.0, |(_, own)| *own);
        let since_start = begin.elapsed().as_secs_f64();
        booted.push(Booted { layer: at, kernel, since_start, own });
        let hosts = scenario.hosts(number);
        set_up(link, at, layer, parts, hosts)?;
        count_events(link, at, layer, tell)?;
        if layer.fragmentation.is_some() {
            tell(&format!("L{number}'s free memory is being fragmented"));
        }
        fragment(link, at, layer.fragmentation)?;
        if number + 1 < scenario.layers.len() {
            let argv = vmm(number + 1, &scenario.layers);
            link.order(at, "start its VM", Command::Boot { argv }, ORDER_LIMIT)?;
        }
    }
    Ok(booted)
}

/// Waits until a layer's agent runs. Returns its kernel.
fn wait(link: &mut Link, layer: u8) -> Result<String, LabError> {
    let begin = Instant::now();
    let (limit, longest) = (link.patient(BOOT_LIMIT), link.patient(PATIENCE));
    let start = link.machine.effort();
    // What the emulator had done at the looks of the last while.
    let mut looks = VecDeque::from([(begin, start)]);
    loop {
        if let Some(kernel) = link.ready_within(layer, LOOK)? {
            return Ok(kernel);
        }
        let (now, effort) = (Instant::now(), link.machine.effort());
        looks.push_back((now, effort));
        while looks.get(1).is_some_and(|(at, _)| now - *at >= IDLE) {
            looks.pop_front();
        }
        let (since, before) = looks[0];
        let (window, done) = (now - since, effort.wanted.saturating_sub(before.wanted));
        let used = effort.used.saturating_sub(start.used);
        let idle = window >= IDLE && done.as_secs_f64() < window.as_secs_f64() * IDLE_SHARE;
        let why = if idle {
            format!(
                "stood still while it booted: the emulator had next to nothing to do for {} s",
                IDLE.as_secs()
            )
        } else if used > limit {
            format!("did not boot within {} s of the emulator's time", limit.as_secs())
        } else if now - begin > longest {
            format!("did not boot within {} s", longest.as_secs())
        } else {
            continue;
        };
        let stood = post_mortem(link, layer)?;
        let error = link.journal.layers[usize::from(layer)]
            .error(format!("L{layer}"), format!("{why}; {stood}"));
        return Err(if idle { LabError::Stalled(Box::new(error)) } else { error });
    }
}

/// Writes down what the processors of a layer that does not come up are doing, and those of the layers
/// below it, as far as their VMMs still answer. Returns where each stands and where that is written.
fn post_mortem(link: &mut Link, layer: u8) -> Result<String, LabError> {
    let path = link.journal.directory.join("post-mortem.log");
    let mut log = on(&path, File::create(&path))?;
    let mut stood = String::new();
    for above in 1..=layer {
        let mut halted = None;
        for line in ["info status", "info registers -a", "info lapic"] {
            let command = Command::Qmp {
                socket: QMP_SOCKET.into(),
                execute: "human-monitor-command".into(),
                arguments: serde_json::json!({ "command-line": line }),
            };
            let answer = link.order(above - 1, "tell of its VM", command, POST_MORTEM_LIMIT);
            if let Ok(Reply::Qmp { answer }) = answer {
                let text = answer.as_str().unwrap_or_default();
                on(&path, writeln!(log, "L{above}, {line}:\n{text}"))?;
                if text.contains("HLT=") {
                    halted = Some(text.contains("HLT=1"));
                }
            }
        }
        let state = match halted {
            Some(true) => "waits for an interrupt",
            Some(false) => "runs",
            None => "cannot be asked",
        };
        let own = if above == layer { "" } else { " and its agent had come up" };
        let _ = write!(stood, "L{above}'s processor {state}{own}, ");
    }
    let _ = write!(stood, "as {} tells", path.display());
    Ok(stood)
}

/// Modules and settings of a layer that has just come up.
fn set_up(
    link: &mut Link,
    at: u8,
    layer: &Layer,
    parts: &Parts,
    hosts: bool,
) -> Result<(), LabError> {
    if layer.kernel == Kernel::Debian {
        let modules = parts
            .stock()?
            .modules
            .iter()
            .filter_map(|module| module.file_name()?.to_str())
            .filter(|file| hosts || !file.starts_with("kvm") && !file.starts_with("vhost"))
            .map(|file| (file, file.trim_end_matches(".ko").replace('-', "_")))
            .filter(|(_, name)| name != parts.make.other_module())
            .map(|(file, name)| {
                let values = layer.modules.get(&name).cloned().unwrap_or_default();
                (format!("{MODULES}/{file}"), values)
            })
            .collect();
        link.order(at, "load its modules", Command::Load { modules }, ORDER_LIMIT)?;
    }
    let mut files: Vec<(String, String)> = Vec::new();
    if let Some(thp) = &layer.thp {
        files.push((THP_SETTING.into(), thp.clone()));
    }
    if let Some(pages) = layer.ksm {
        files.push(("/sys/kernel/mm/ksm/pages_to_scan".into(), pages.to_string()));
        files.push(("/sys/kernel/mm/ksm/run".into(), "1".into()));
    }
    if hosts && !layer.untraced {
        for trace in EXIT_TRACES {
            let (trigger, keys) = (format!("{}/trigger", trace.directory), trace.reason);
            files.push((trigger, format!("hist:keys={keys}")));
        }
    }
    files.extend(layer.write.clone());
    for (path, text) in files {
        link.order(at, "change a setting", Command::Write { path, text }, ORDER_LIMIT)?;
    }
    Ok(())
}

/// Resets the machine of the innermost layer and waits until it is as it was after its first boot.
pub(crate) fn reset(link: &mut Link, scenario: &Scenario, parts: &Parts) -> Result<(), LabError> {
    let number = scenario.layers.len() - 1;
    let (at, layer) = (number as u8, &scenario.layers[number]);
    link.journal.layers[number].ready = None;
    link.journal.layers[number].programs.remove(FRAGMENTER);
    // It was started with -no-reboot.
    let reboot = serde_json::json!({ "reboot": "reset" });
    for (execute, arguments) in [("set-action", reboot), ("system_reset", serde_json::json!({}))] {
        let command =
            Command::Qmp { socket: QMP_SOCKET.into(), execute: execute.into(), arguments };
        link.order(at - 1, "reset its VM", command, ORDER_LIMIT)?;
    }
    wait(link, at)?;
    set_up(link, at, layer, parts, false)?;
    count_events(link, at, layer, &mut |_| ())?;
    fragment(link, at, layer.fragmentation)
}

/// Counts the events that the scenario asks for, those that the kernel has: the same scenario is to
/// run on others.
fn count_events(
    link: &mut Link,
    at: u8,
    layer: &Layer,
    tell: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    for event in &layer.trace_events {
        let path = format!("{}/trigger", event.directory());
        let there = Command::Read { paths: vec![path.clone()] };
        match link.order(at, "look for an event", there, ORDER_LIMIT)? {
            Reply::Texts { texts, .. } if texts.is_empty() => {
                tell(&format!("L{at}'s kernel has no event {event}"));
            }
            _ => {
                let command = Command::Write { path, text: event.trigger().to_owned() };
                link.order(at, &format!("count {event}"), command, ORDER_LIMIT)?;
            }
        }
    }
    Ok(())
}

fn fragment(link: &mut Link, at: u8, choice: Option<Fragmentation>) -> Result<(), LabError> {
    const NAME: &str = FRAGMENTER;
    let Some(choice) = choice else { return Ok(()) };
    let argv = [
        "/bin/strata-agent".into(),
        "fragment".into(),
        format!("--fmfi={}", choice.fmfi),
        format!("--movable={}", choice.movable),
    ];
    let command = Command::Start {
        name: NAME.into(),
        argv: argv.into(),
        layout: Layout::Usual,
        hold: false,
        count: false,
        watched: false,
    };
    link.order(at, "fragment its memory", command, ORDER_LIMIT)?;
    let fragmenter = link.wait_for_program(at, NAME, link.patient(FRAGMENT_LIMIT), |program| {
        !program.output.is_empty() || program.status.is_some()
    })?;
    if let Some(status) = fragmenter.status {
        let reason = match fragmenter.errors.join("; ") {
            empty if empty.is_empty() => format!("the fragmenter ended with status {status}"),
            reason => reason,
        };
        return Err(LabError::Refused { layer: at, what: "fragment its memory".into(), reason });
    }
    Ok(())
}

/// The command that runs layer `number` in the layer below.
fn vmm(number: usize, layers: &[Layer]) -> Vec<String> {
    let layer = &layers[number];
    let mut argv = with_path(&layer.launcher);
    argv.extend(plain_vmm(number, layers, layer.memory, layer.cpus, parameters(number, layers)));
    argv.extend(["-qmp".into(), format!("unix:{QMP_SOCKET},server=on,wait=off")]);
    argv.extend(["-device".into(), "virtio-balloon-pci,id=balloon".into()]);
    argv.extend(port(VM_SOCKET));
    argv.extend(layer.vmm.arguments.iter().cloned());
    argv
}

/// The command that runs one more machine with the kernel of layer `number` and its setting of huge
/// pages, in the layer below it: a program alone, whose output is its console.
pub(crate) fn guest(
    number: usize,
    layers: &[Layer],
    memory: Memory,
    cpus: u8,
    program: &[String],
) -> Result<Vec<String>, LabError> {
    let layer = &layers[number];
    let mut own = parameters(number, layers);
    if let Some(thp) = &layer.thp {
        let _ = write!(own, " transparent_hugepage={thp}");
    }
    let _ = write!(own, " {}", alone_parameter(program));
    if own.len() > COMMAND_LINE {
        return Err(LabError::LongParameters {
            layer: number - 1,
            needed: own.len(),
            taken: COMMAND_LINE,
        });
    }
    Ok(plain_vmm(number, layers, memory, cpus, own))
}

/// What starts a VMM on the processors of its layer that may run VMs: in L0 all but the first.
///
/// Whenever an emulated processor loads its floating-point state, QEMU changes flags of the first
/// one, unlocked (`cpu_clear_ignne` in `target/i386/tcg`, 7.2 and 10.0). Flags of the virtual machine
/// that runs there are among them, and get lost: nested paging is off then, or an interrupt comes
/// where none may, and L1 or L0 ends in a triple fault.
fn processors(layer: &Layer, number: usize) -> Vec<String> {
    match layer.cpus {
        cpus @ 2.. if number == 0 => {
            ["/bin/busybox", "taskset", "-c", &format!("1-{}", cpus - 1)].map(str::to_owned).into()
        }
        _ => Vec::new(),
    }
}

/// The machine of a layer and its memory, so many MiB, in QEMU's words.
fn memory_arguments(layer: &Layer, mib: u64) -> Vec<String> {
    let (backend, more) = match layer.backend {
        Backend::Ram => ("memory-backend-ram", ""),
        Backend::Memfd => ("memory-backend-memfd", ",share=on"),
        Backend::File => ("memory-backend-file", ",share=on,mem-path=/dev/shm"),
    };
    let nodes = u64::from(layer.nodes);
    if nodes == 1 {
        let object = format!("{backend},id=ram,size={mib}M{more}");
        let machine = format!("{},memory-backend=ram", layer.machine());
        return ["-object".into(), object, "-machine".into(), machine].into();
    }
    let mut arguments = vec!["-machine".to_owned(), layer.machine().to_owned()];
    for node in 0..nodes {
        let size = mib * (node + 1) / nodes - mib * node / nodes;
        arguments.push("-object".into());
        arguments.push(format!(
            "{backend},id=ram{node},size={size}M,host-nodes={node},policy=bind{more}"
        ));
        arguments.extend(["-numa".into(), format!("node,memdev=ram{node}")]);
    }
    arguments
}

/// QEMU with memory, a console, a kernel and its initial file system.
fn plain_vmm(
    number: usize,
    layers: &[Layer],
    memory: Memory,
    cpus: u8,
    parameters: String,
) -> Vec<String> {
    let memory = memory.in_mib();
    let mut argv = processors(&layers[number - 1], number - 1);
    argv.extend(["/bin/qemu", "-L", FIRMWARE, "-accel", "kvm", "-cpu", "host"].map(Into::into));
    argv.extend(
        ["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"].map(Into::into),
    );
    argv.extend(["-m".into(), format!("{memory}M"), "-smp".into(), cpus.to_string()]);
    argv.extend(memory_arguments(&layers[number], memory));
    argv.extend(["-kernel".into(), NEXT_KERNEL.into(), "-initrd".into(), NEXT_INITRD.into()]);
    argv.extend(["-append".into(), parameters]);
    argv
}
