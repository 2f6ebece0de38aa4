//! From a scenario to a machine whose layers all run.

use crate::boot::{self, Booted};
use crate::cache::{Cache, checksum};
use crate::directory::new_run;
use crate::error::{LabError, on};
use crate::images;
use crate::intel;
use crate::journal::Journal;
use crate::kept::{Kept, Machines};
use crate::link::{Link, ORDER_LIMIT};
use crate::machine::{self, CODE_MIB, CONTROL, Devices, Hardware, Machine, Memory, Ram, SOCKET};
use crate::make::Make;
use crate::parts::Parts;
use crate::scenario::Scenario;
use crate::state;
use crate::trace::{Trace, Tracing};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use strata_protocol::Command;

/// Times that a machine whose boot came to a standstill is started again.
const RESTARTS: usize = 2;
/// How much longer everything may take when a kernel checks itself.
const PATIENCE: u32 = 6;
/// How much longer everything may take on an Intel machine, whose emulator translates no code.
const INTEL_PATIENCE: u32 = 4;
/// What the layers may still have to say before their machine is stopped to be kept.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// What to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) scenario: &'a Scenario,
    /// Programs of the user's for the innermost layer.
    pub(crate) guests: &'a [PathBuf],
    /// What they get on their standard input.
    pub(crate) input: Option<&'a [u8]>,
    /// What to record, and of which command.
    pub(crate) trace: Option<(&'a Trace, &'a [String])>,
    /// The layers are booted in any case, and nothing is kept.
    pub(crate) afresh: bool,
    pub(crate) parts: &'a Parts,
}

/// A machine whose layers all run.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    pub(crate) link: Link<'a>,
    pub(crate) booted: Vec<Booted>,
    /// Why it was started again, once for each time.
    pub(crate) restarts: Vec<String>,
    /// It began with its layers running, as a machine that was kept.
    pub(crate) kept: bool,
    /// Of its logs.
    pub(crate) directory: PathBuf,
    pub(crate) tracing: Option<Tracing>,
    /// Keeps the directory from other runs.
    pub(crate) _lock: File,
}

/// Starts a machine: as one that is kept, if there is one that would boot the same, and otherwise by
/// booting its layers.
pub(crate) fn start<'a>(
    what: Start<'_>,
    cache: &Cache,
    interrupt: &'a AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<Running<'a>, LabError> {
    let Start { scenario, parts, .. } = what;
    // Known before anything is written.
    if scenario.make() == Make::Intel {
        parts.bochs()?;
    }
    for layer in &scenario.layers {
        parts.kernel(&layer.kernel)?;
    }
    let (directory, lock) = new_run(cache)?;
    if let Some(bytes) = what.input {
        let path = directory.join(images::INPUT);
        on(&path, fs::write(&path, bytes))?;
    }
    let begin = Instant::now();
    let initrd = images::make(scenario, parts, what.guests, &directory)?;
    tell(&format!("logs are in {}", directory.display()));
    let mut attempt = Attempt {
        what,
        directory: &directory,
        initrd: &initrd,
        begin,
        interrupt,
        restarts: Vec::new(),
    };
    let begun = attempt.begin(cache, tell);
    let restarts = attempt.restarts;
    // The machine has it in memory by now, or never will.
    on(&initrd, fs::remove_file(&initrd))?;
    let Begun { link, booted, tracing, kept } = begun?;
    let how = if kept { ", as they were kept" } else { "" };
    tell(&format!("all layers run after {:.1} s{how}", begin.elapsed().as_secs_f64()));
    Ok(Running { link, booted, restarts, kept, directory, tracing, _lock: lock })
}

/// A machine that has begun.
struct Begun<'a> {
    link: Link<'a>,
    booted: Vec<Booted>,
    tracing: Option<Tracing>,
    kept: bool,
}

/// What every attempt to start the machine is made of.
struct Attempt<'a, 's> {
    what: Start<'s>,
    /// Of the run's logs.
    directory: &'s Path,
    initrd: &'s Path,
    /// When the run began.
    begin: Instant,
    interrupt: &'a AtomicBool,
    /// Why the machine was started again, once for each time.
    restarts: Vec<String>,
}

impl<'a> Attempt<'a, '_> {
    /// Starts the machine, as one that is kept if that can be.
    fn begin(&mut self, cache: &Cache, tell: &mut dyn FnMut(&str)) -> Result<Begun<'a>, LabError> {
        // Of six machines that went on and were recorded, two had accesses of the recording that no table of
        // the program has; of six that booted, none.
        if self.what.afresh || self.what.trace.is_some() {
            return self.boot(&Memory::default(), tell);
        }
        let machines = Machines::of(cache)?;
        let key = self.key()?;
        let kept = match machines.find(&key) {
            Some(kept) => Some(kept),
            None => self.keep(&machines, &key, tell)?,
        };
        if let Some(kept) = kept {
            match self.restore(&kept) {
                Ok(begun) => return Ok(begun),
                Err(LabError::Interrupted) => return Err(LabError::Interrupted),
                // Whatever it was: what is kept spares a boot, and no run depends on it.
                Err(error) => {
                    tell(&format!("the machine that was kept does not go on: {error}"));
                    kept.remove();
                    self.take_away_sockets()?;
                }
            }
        }
        self.boot(&Memory::default(), tell)
    }

    /// Everything that decides how the layers are when all of them run. The command lines of the layers
    /// above are made by this program, which the initial file system has.
    fn key(&self) -> Result<String, LabError> {
        let Start { scenario, parts, .. } = self.what;
        let report = match scenario.make() {
            Make::Amd => machine::report(&scenario.layers[0].vmm.arguments),
            Make::Intel => parts.bochs()?.report(),
        };
        let kernel = checksum(parts.kernel(&scenario.layers[0].kernel)?)?;
        let initrd = checksum(self.initrd)?;
        let layers = format!("{:?}", scenario.layers);
        let texts = [&report.emulator, &report.processor, &kernel, &initrd, &layers];
        Ok(Machines::key(texts.map(|text| text.as_bytes())))
    }

    /// Boots the layers and keeps the machine. Nothing if it cannot be kept.
    fn keep(
        &mut self,
        machines: &Machines,
        key: &str,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Option<Kept>, LabError> {
        let Some(new) = machines.begin(self.what.scenario.layers[0].memory.bytes())? else {
            tell("the disk has no room to keep this machine");
            return Ok(None);
        };
        let memory = Memory { ram: Ram::File(new.memory()), devices: Devices::To(new.devices()) };
        let Begun { mut link, booted, .. } = self.boot(&memory, tell)?;
        link.pause(LAST_WORDS)?;
        let saved = match self.what.scenario.make() {
            Make::Amd => state::save(&self.directory.join(CONTROL), &new.devices()),
            Make::Intel => intel::save(&mut link, &new.devices())?,
        };
        // Its emulator ends.
        drop(link);
        self.take_away_sockets()?;
        match saved {
            Ok(()) => machines.finish(new, key, booted, self.directory).map(Some),
            Err(reason) => {
                tell(&format!("this machine cannot be kept: {reason}; it boots once more"));
                Ok(None)
            }
        }
    }

    /// Has a machine that was kept go on.
    fn restore(&self, kept: &Kept) -> Result<Begun<'a>, LabError> {
        let memory =
            Memory { ram: Ram::CopyOf(kept.memory()), devices: Devices::From(kept.devices()) };
        let begun = self.attempt(&memory, |link| {
            kept.tell(&mut link.journal)?;
            if self.what.scenario.make() == Make::Amd {
                let control = self.directory.join(CONTROL);
                state::restore(&control).map_err(|reason| {
                    let status = link.machine.end(LAST_WORDS);
                    let ended = status.map(|status| format!("; the emulator ended with {status}"));
                    let said = link.machine.complaint().map(|(line, _)| format!(": {line}"));
                    let reason =
                        [reason, ended.unwrap_or_default(), said.unwrap_or_default()].concat();
                    LabError::Failed { what: "restoring its state".into(), reason }
                })?;
            }
            self.ask_all(link)?;
            Ok(kept.booted.clone())
        })?;
        Ok(Begun { kept: true, ..begun })
    }

    /// Has every layer answer.
    fn ask_all(&self, link: &mut Link<'_>) -> Result<(), LabError> {
        for layer in 0..self.what.scenario.layers.len() as u8 {
            let nothing = Command::Read { paths: Vec::new() };
            link.order(layer, "go on", nothing, ORDER_LIMIT)?;
        }
        Ok(())
    }

    /// Boots the layers, again if they come to a standstill.
    fn boot(&mut self, memory: &Memory, tell: &mut dyn FnMut(&str)) -> Result<Begun<'a>, LabError> {
        loop {
            let Start { scenario, parts, .. } = self.what;
            let begun =
                self.attempt(memory, |link| boot::boot(link, scenario, parts, self.begin, tell));
            match begun {
                Err(LabError::Stalled(why)) if self.restarts.len() < RESTARTS => {
                    let number = self.restarts.len() + 1;
                    self.take_away_sockets()?;
                    self.put_logs_aside(number)?;
                    if let Ram::File(file) = &memory.ram {
                        // The next machine begins with nothing in its memory, as this one did.
                        on(file, File::create(file))?;
                    }
                    // The logs that it names are put aside under these names.
                    let why = why.to_string().replace(".log", &format!(".log.{number}"));
                    tell(&format!("{why}; the machine is started again"));
                    self.restarts.push(why);
                }
                Err(LabError::Stalled(why)) => return Err(*why),
                begun => return begun,
            }
        }
    }

    /// Starts the machine once and has `up` bring up its layers.
    fn attempt(
        &self,
        memory: &Memory,
        up: impl FnOnce(&mut Link<'a>) -> Result<Vec<Booted>, LabError>,
    ) -> Result<Begun<'a>, LabError> {
        let (Start { scenario, parts, .. }, directory) = (self.what, self.directory);
        let l0 = &scenario.layers[0];
        let mut hardware = Hardware {
            bytes: l0.memory.bytes(),
            cpus: l0.cpus,
            kernel: parts.kernel(&l0.kernel)?.to_owned(),
            initrd: self.initrd.to_owned(),
            parameters: boot::parameters(0, &scenario.layers),
            more: l0.vmm.arguments.clone(),
            code_mib: CODE_MIB,
            memory: memory.clone(),
            environment: Vec::new(),
        };
        let traced = self.what.trace.map(|(trace, command)| {
            let program = (scenario.layers.len(), command.to_owned());
            Tracing::start(trace, scenario.make(), &mut hardware, program, directory)
        });
        let tracing = traced.transpose()?;
        let begin = || {
            let kernels = scenario.layers.iter().map(|layer| layer.kernel.clone());
            let journal = Journal::start(directory, kernels)?;
            let machine = match scenario.make() {
                Make::Amd => Machine::start(&hardware, directory, self.interrupt)?,
                Make::Intel => intel::start(parts.bochs()?, &hardware, directory, self.interrupt)?,
            };
            let slow = if scenario.make() == Make::Intel { INTEL_PATIENCE } else { 1 };
            let patience = slow * if scenario.is_slow() { PATIENCE } else { 1 };
            let mut link = Link::new(machine, journal, self.interrupt, patience);
            let booted = up(&mut link)?;
            if scenario.make() == Make::Intel {
                intel::settle(directory)?;
            }
            Ok((link, booted))
        };
        match begin() {
            Ok((link, booted)) => Ok(Begun { link, booted, tracing, kept: false }),
            Err(error) => {
                // Its socket has to be gone before the next attempt, and nothing can have been traced.
                if let Some(tracing) = tracing {
                    let _ = tracing.finish();
                }
                Err(error)
            }
        }
    }

    /// Takes away the sockets of a machine that is gone: the next one makes its own.
    fn take_away_sockets(&self) -> Result<(), LabError> {
        for name in [SOCKET, CONTROL] {
            let socket = self.directory.join(name);
            if socket.exists() {
                on(&socket, fs::remove_file(&socket))?;
            }
        }
        intel::put_aside(self.directory)
    }

    fn put_logs_aside(&self, attempt: usize) -> Result<(), LabError> {
        for entry in on(self.directory, fs::read_dir(self.directory))?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|kind| kind == "log") {
                let aside = path.with_extension(format!("log.{attempt}"));
                on(&path, fs::rename(&path, aside))?;
            }
        }
        Ok(())
    }
}
