//! One run of the lab: images, machine, layers, steps, report.

use crate::boot::{self, Booted};
use crate::cache::{Cache, checksum};
use crate::counters::Counters;
use crate::error::{LabError, on};
use crate::images;
use crate::initramfs::find;
use crate::intel;
use crate::journal::Journal;
use crate::link::Link;
use crate::machine::{self, CODE_MIB, Hardware, Machine, SOCKET};
use crate::make::Make;
use crate::parts::Parts;
use crate::report::{Alignment, LabReport, LayerReport};
use crate::sampling;
use crate::scenario::{Kernel, Scenario, Step};
use crate::session::{self, Console};
use crate::steps::{StepReport, Steps, command_line};
use crate::trace::{Trace, Tracing};
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use strata_inspect::join::regions::regions;
use strata_inspect::{Options, Snapshot};

/// Directories of runs that are kept.
const KEPT_RUNS: usize = 20;
/// Times that a machine whose boot came to a standstill is started again.
const RESTARTS: usize = 2;
/// File in such a directory that is locked as long as the run goes on.
const LOCK: &str = "lock";
/// How much longer everything may take when a kernel checks itself.
const PATIENCE: u32 = 6;
/// How much longer everything may take on an Intel machine, whose emulator translates no code.
const INTEL_PATIENCE: u32 = 4;
/// Time that finding and writing the page tables of a trace may take.
const TABLES_LIMIT: Duration = Duration::from_secs(120);
/// Time a user's program may take when nothing else is said.
pub const PROGRAM_LIMIT: Duration = Duration::from_secs(3600);

/// What to run.
#[derive(Clone, Debug)]
pub struct Choices {
    /// Its name, for the report.
    pub name: String,
    /// The layers and what happens in them.
    pub scenario: Scenario,
    /// A program of the user's, and its arguments, to run in the innermost layer instead of the
    /// scenario's steps.
    pub program: Vec<OsString>,
    /// What that program gets on its standard input.
    pub input: Option<Vec<u8>>,
    /// Time that program may take.
    pub limit: Duration,
    /// What to record of the first program in the innermost layer.
    pub trace: Option<Trace>,
}

/// Boots the layers, carries out the steps and collects what all layers counted. Consoles and
/// snapshots stay in a directory of the run, which `tell` names.
///
/// # Errors
///
/// Parts that are not built, a program that is not there, a layer that panics, hangs or ends, with
/// its last lines and its log. The machine is gone when this returns, whatever happened.
pub fn run(
    choices: &Choices,
    parts: &Parts,
    cache: &Cache,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<LabReport, LabError> {
    let scenario = &choices.scenario;
    let program = choices
        .program
        .first()
        .map(|name| find(name).ok_or_else(|| images::no_program(name.as_ref())))
        .transpose()?;
    let guests: Vec<PathBuf> = program.iter().cloned().collect();
    let tracing = choices.trace.as_ref().map(|trace| (trace, traced_command(choices)));
    let input = choices.input.as_deref();
    let Running { mut link, booted, restarts, directory, tracing, _lock } =
        start(scenario, (&guests, input), tracing, parts, cache, interrupt, tell)?;
    let count = scenario.layers.len() as u8;
    let before = sampling::read_all(&mut link, scenario)?;
    for layer in 0..count {
        sampling::sample(&mut link, scenario, layer)?;
    }
    let mut steps = Steps::new(&mut link, (scenario, parts), &directory, tracing.is_some());
    if let Some(path) = program {
        let mut argv = vec![path.file_name().unwrap_or_default().to_string_lossy().into_owned()];
        argv.extend(choices.program[1..].iter().map(|word| word.to_string_lossy().into_owned()));
        tell(&format!("L{} runs {}", count - 1, command_line(&argv)));
        steps.run_program(&argv, choices.limit)?;
    } else {
        for step in &scenario.steps {
            steps.carry_out(step)?;
            if let Some(done) = steps.done.last() {
                tell(&format!("{} ({:.1} s)", done.what, done.seconds));
            }
        }
    }
    let (done, stress) = (steps.done, steps.stress);
    let trace = match tracing {
        Some(tracing) => {
            let begin = Instant::now();
            while !tracing.is_finished() && begin.elapsed() < TABLES_LIMIT {
                link.hear(count - 1, "be traced")?;
            }
            Some(tracing.finish()?)
        }
        None => None,
    };
    let after = sampling::read_all(&mut link, scenario)?;
    sampling::look_for_warnings(&link.journal, scenario, &after)?;
    let layers: Vec<LayerReport> = booted
        .into_iter()
        .zip(before)
        .zip(after)
        .map(|((booted, before), after)| {
            layer_report(booted, before, after, scenario, parts, &link)
        })
        .collect();
    let alignment = joined(&done)?;
    let machine = match scenario.make() {
        Make::Amd => machine::report(),
        Make::Intel => parts.bochs()?.report(),
    };
    let report = LabReport::new((&choices.name, &scenario.about), machine, layers, done);
    Ok(LabReport { restarts, stress, alignment, trace, ..report })
}

/// Boots the layers and runs a shell in one of them, for who sits at the console. Returns the shell's
/// status, or minus the signal that killed it.
///
/// # Errors
///
/// As [`run`], and a layer that the scenario does not have.
pub fn shell(
    scenario: &Scenario,
    layer: u8,
    parts: &Parts,
    cache: &Cache,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
    console: Console<'_>,
) -> Result<i32, LabError> {
    if usize::from(layer) >= scenario.layers.len() {
        let last = scenario.layers.len() - 1;
        return Err(LabError::NoLayer { layer, last });
    }
    let mut running = start(scenario, (&[], None), None, parts, cache, interrupt, tell)?;
    if console.size.is_some() {
        tell(&format!("a shell in L{layer}; leave it with exit or Ctrl-]"));
    }
    session::run(&mut running.link, layer, console)
}

/// A machine whose layers all run.
struct Running<'a> {
    link: Link<'a>,
    booted: Vec<Booted>,
    /// Why it was started again, once for each time.
    restarts: Vec<String>,
    /// Of its logs.
    directory: PathBuf,
    tracing: Option<Tracing>,
    /// Keeps the directory from other runs.
    _lock: File,
}

fn start<'a>(
    scenario: &Scenario,
    (guests, input): (&[PathBuf], Option<&[u8]>),
    trace: Option<(&Trace, Vec<String>)>,
    parts: &Parts,
    cache: &Cache,
    interrupt: &'a AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<Running<'a>, LabError> {
    // Known before anything is written.
    if scenario.make() == Make::Intel {
        parts.bochs()?;
    }
    for layer in &scenario.layers {
        parts.kernel(&layer.kernel)?;
    }
    let (directory, lock) = new_run(cache)?;
    if let Some(bytes) = input {
        let path = directory.join(images::INPUT);
        on(&path, fs::write(&path, bytes))?;
    }
    let begin = Instant::now();
    let initrd = images::make(scenario, parts, guests, &directory)?;
    tell(&format!("logs are in {}", directory.display()));
    let attempt = Attempt {
        scenario,
        trace,
        parts,
        directory: &directory,
        initrd: &initrd,
        begin,
        interrupt,
    };
    let mut restarts = Vec::new();
    let begun = loop {
        match attempt.boot(tell) {
            Err(LabError::Stalled(why)) if restarts.len() < RESTARTS => {
                let number = restarts.len() + 1;
                put_aside(&directory, number)?;
                // The logs that it names are put aside under these names.
                let why = why.to_string().replace(".log", &format!(".log.{number}"));
                tell(&format!("{why}; the machine is started again"));
                restarts.push(why);
            }
            Err(LabError::Stalled(why)) => break Err(*why),
            begun => break begun,
        }
    };
    // The machine has it in memory by now, or never will.
    on(&initrd, fs::remove_file(&initrd))?;
    let (link, booted, tracing) = begun?;
    tell(&format!("all layers run after {:.1} s", begin.elapsed().as_secs_f64()));
    Ok(Running { link, booted, restarts, directory, tracing, _lock: lock })
}

/// What every attempt to boot the layers is made of.
struct Attempt<'a, 's> {
    scenario: &'s Scenario,
    /// What to record, and of which command.
    trace: Option<(&'s Trace, Vec<String>)>,
    parts: &'s Parts,
    /// Of the run's logs.
    directory: &'s Path,
    initrd: &'s Path,
    /// When the run began.
    begin: Instant,
    interrupt: &'a AtomicBool,
}

impl<'a> Attempt<'a, '_> {
    /// Starts the machine and boots all layers once.
    fn boot(
        &self,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(Link<'a>, Vec<Booted>, Option<Tracing>), LabError> {
        let Self { scenario, parts, directory, .. } = *self;
        let l0 = &scenario.layers[0];
        let mut hardware = Hardware {
            memory: l0.memory.bytes(),
            cpus: l0.cpus,
            kernel: parts.kernel(&l0.kernel)?.to_owned(),
            initrd: self.initrd.to_owned(),
            parameters: boot::parameters(0, &scenario.layers),
            more: l0.vmm.arguments.clone(),
            code_mib: CODE_MIB,
            memory_file: None,
            environment: Vec::new(),
        };
        let layers = scenario.layers.len();
        let tracing = self
            .trace
            .as_ref()
            .map(|(trace, command)| {
                let program = (layers, command.clone());
                Tracing::start(trace, scenario.make(), &mut hardware, program, directory)
            })
            .transpose()?;
        let kernels = scenario.layers.iter().map(|layer| layer.kernel.clone());
        let booted = Journal::start(directory, kernels).and_then(|journal| {
            let machine = match scenario.make() {
                Make::Amd => Machine::start(&hardware, directory)?,
                Make::Intel => intel::start(parts.bochs()?, &hardware, directory)?,
            };
            let slow = if scenario.make() == Make::Intel { INTEL_PATIENCE } else { 1 };
            let patience = slow * if scenario.is_checked() { PATIENCE } else { 1 };
            let mut link = Link::new(machine, journal, self.interrupt, patience);
            let booted = boot::boot(&mut link, scenario, parts, self.begin, tell)?;
            Ok((link, booted))
        });
        match booted {
            Ok((link, booted)) => Ok((link, booted, tracing)),
            Err(error) => {
                // Its socket has to be gone before the next attempt, and nothing can have been traced.
                if let Some(tracing) = tracing {
                    let _ = tracing.finish();
                }
                Err(error)
            }
        }
    }
}

/// Puts the logs of an attempt aside, and takes away its socket.
fn put_aside(directory: &Path, attempt: usize) -> Result<(), LabError> {
    let socket = directory.join(SOCKET);
    on(&socket, fs::remove_file(&socket))?;
    intel::put_aside(directory)?;
    for entry in on(directory, fs::read_dir(directory))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|kind| kind == "log") {
            let aside = path.with_extension(format!("log.{attempt}"));
            on(&path, fs::rename(&path, aside))?;
        }
    }
    Ok(())
}

/// The command that a recording says it is of.
fn traced_command(choices: &Choices) -> Vec<String> {
    if !choices.program.is_empty() {
        return choices.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    }
    let innermost = choices.scenario.layers.len() as u8 - 1;
    let program = choices.scenario.steps.iter().find_map(|step| match step {
        Step::Run { layer, program, .. } if layer.unwrap_or(innermost) == innermost => {
            Some(program.clone())
        }
        _ => None,
    });
    program.unwrap_or_default()
}

/// The alignment that the last snapshots of all layers show, if there are any to join.
fn joined(steps: &[StepReport]) -> Result<Option<Alignment>, LabError> {
    let Some(step) = steps.iter().rev().find(|step| step.snapshots.len() > 1) else {
        return Ok(None);
    };
    let snapshots: Vec<Snapshot> = step
        .snapshots
        .iter()
        .rev()
        .map(|path| strata_inspect::read(path))
        .collect::<Result<_, _>>()?;
    // That they are of one stack is known, and when they were taken: each layer has its own clock.
    let at: Vec<f64> = step.snapshots_at.iter().rev().copied().collect();
    let options = Options { taken_at: Some(at), ..Options::default() };
    let join = strata_inspect::join(&snapshots, &options)?;
    Ok(Some(Alignment { join, regions: regions(&snapshots, &options)? }))
}

fn layer_report(
    booted: Booted,
    before: Counters,
    after: Counters,
    scenario: &Scenario,
    parts: &Parts,
    link: &Link,
) -> LayerReport {
    let number = usize::from(booted.layer);
    let kernel = &scenario.layers[number].kernel;
    let there = "a layer has booted from it";
    let (package, sha256) = match kernel {
        Kernel::Lab(variant) => {
            let lab = parts.lab(*variant).expect(there);
            (lab.source.clone(), lab.sha256.clone())
        }
        Kernel::Debian => {
            let stock = parts.stock().expect(there);
            (stock.package.clone(), stock.sha256.clone())
        }
        // It may be gone by now.
        Kernel::File(path) => ("a file".to_owned(), checksum(path).unwrap_or_default()),
    };
    let samples = &link.journal.layers[number].samples;
    let make = scenario.make();
    let samples =
        samples.iter().map(|sample| Counters::parse(make, sample.at, &sample.texts)).collect();
    LayerReport { booted, variant: kernel.to_string(), package, sha256, before, after, samples }
}

/// A directory for this run's logs, and the lock that says that it is in use; old ones go.
fn new_run(cache: &Cache) -> Result<(PathBuf, File), LabError> {
    let parent = cache.directory("runs")?;
    let mut old: Vec<PathBuf> =
        on(&parent, fs::read_dir(&parent))?.flatten().map(|entry| entry.path()).collect();
    old.sort();
    for path in old.iter().rev().skip(KEPT_RUNS - 1).filter(|path| !in_use(path)) {
        // Another run may be removing it too.
        let _ = fs::remove_dir_all(path);
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // One that ended at once may have been begun within the same second.
    let path = (0..)
        .map(|number| parent.join(format!("{seconds}-{}-{number}", std::process::id())))
        .find_map(|path| match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            made => Some(on(&path, made).map(|()| path)),
        })
        .expect("numbers do not end")?;
    let file = path.join(LOCK);
    let lock = on(&file, File::create(&file))?;
    on(&file, lock.lock())?;
    Ok((path, lock))
}

/// Whether the run of this directory still goes on. The system takes the lock from one that ended,
/// however it did.
fn in_use(path: &Path) -> bool {
    File::open(path.join(LOCK))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn old_runs_go_and_those_that_go_on_stay() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().to_owned());
        let runs = cache.directory("runs").unwrap();
        for number in 0..KEPT_RUNS + 3 {
            fs::create_dir(runs.join(format!("{number:03}-1"))).unwrap();
        }
        let busy = File::create(runs.join("000-1").join(LOCK)).unwrap();
        busy.lock().unwrap();
        File::create(runs.join("001-1").join(LOCK)).unwrap();
        let (own, _lock) = new_run(&cache).unwrap();
        assert!(in_use(&own));
        assert!(runs.join("000-1").exists());
        assert!(!runs.join("001-1").exists());
        assert_eq!(fs::read_dir(&runs).unwrap().count(), KEPT_RUNS + 1);
    }

    #[test]
    fn runs_of_one_second_have_their_own_directories() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().to_owned());
        // Each ends at once, as far as its lock says.
        let paths: BTreeSet<PathBuf> = (0..5).map(|_| new_run(&cache).unwrap().0).collect();
        assert_eq!(paths.len(), 5);
    }
}
