//! What happens once all layers run.

use crate::boot::{ORDER_LIMIT, QMP_SOCKET};
use crate::error::{LabError, on};
use crate::initramfs::PROGRAMS;
use crate::journal::Program;
use crate::link::Link;
use crate::scenario::Step;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use strata_agent::message::{Command, Layout, Reply};

/// Time a snapshot of a layer may take.
const SCAN_LIMIT: Duration = Duration::from_secs(300);
/// Where a layer puts its snapshot.
const SNAPSHOT: &str = "/tmp/snapshot";

/// What a step did.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// What it was.
    pub what: String,
    /// Seconds of the host's time it took.
    pub seconds: f64,
    /// What a program printed, if one ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<String>,
    /// Exit status of the program, or minus the signal that killed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// Snapshots taken, L0 first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<PathBuf>,
}

/// Carries out steps on a machine.
#[derive(Debug)]
pub(crate) struct Steps<'a, 'b> {
    pub(crate) link: &'a mut Link<'b>,
    /// Number of layers.
    pub(crate) layers: u8,
    /// Where snapshots go.
    pub(crate) directory: &'a Path,
    /// Steps done.
    pub(crate) done: Vec<StepReport>,
    /// Programs started so far: their names.
    programs: usize,
    /// The first program of the innermost layer is recorded.
    tracing: bool,
    /// It was started.
    watched: bool,
}

/// How a program is started; see [`Command::Start`].
#[derive(Clone, Copy, Debug, Default)]
struct Started {
    layout: Layout,
    hold: bool,
    watched: bool,
}

impl<'a, 'b> Steps<'a, 'b> {
    pub(crate) fn new(
        link: &'a mut Link<'b>,
        layers: u8,
        directory: &'a Path,
        tracing: bool,
    ) -> Self {
        Self { link, layers, directory, done: Vec::new(), programs: 0, tracing, watched: false }
    }
}

impl Steps<'_, '_> {
    /// Carries out one step. A program that fails is told in the report; what the lab itself cannot
    /// do is an error.
    pub(crate) fn carry_out(&mut self, step: &Step) -> Result<(), LabError> {
        match step {
            Step::Run { layer, program, stay, limit } => {
                let layer = layer.unwrap_or(self.layers - 1);
                self.run(layer, program, *stay, Duration::from_secs(*limit))
            }
            Step::Write { layer, path, text } => {
                let command = Command::Write { path: path.clone(), text: text.clone() };
                self.simple(format!("L{layer}: write {text} to {path}"), *layer, command)
            }
            Step::Qmp { layer, execute, arguments } => {
                let command = Command::Qmp {
                    socket: QMP_SOCKET.into(),
                    execute: execute.clone(),
                    arguments: serde_json::to_value(arguments).expect("TOML is plain data"),
                };
                self.simple(format!("L{layer}'s VMM: {execute}"), *layer, command)
            }
            Step::Sleep { seconds } => {
                let time = Duration::from_secs_f64(*seconds);
                self.timed(format!("wait {seconds} s"), |steps, _| steps.link.pause(time))
            }
            Step::Scan => self.scan(),
        }
    }

    /// Runs a program in the innermost layer, held at its end for a snapshot of all layers.
    pub(crate) fn run_program(&mut self, argv: &[String], limit: Duration) -> Result<(), LabError> {
        let layer = self.layers - 1;
        let how = self.how(true);
        let mut name = String::new();
        self.timed(format!("L{layer}: {}", argv.join(" ")), |steps, report| {
            name = steps.start(layer, argv, how)?;
            let program = steps.link.wait_for_program(layer, &name, limit, |program| {
                program.held || program.status.is_some()
            })?;
            report.status = program.status;
            steps.stop_watching(layer)
        })?;
        if self.done.last().is_some_and(|step| step.status.is_none()) {
            self.scan()?;
            let command = Command::Release { name: name.clone() };
            self.link.order(layer, "let the program end", command, ORDER_LIMIT)?;
        }
        let ended = |program: &Program| program.status.is_some();
        let program = self.link.wait_for_program(layer, &name, limit, ended)?;
        // The step before the snapshots is the program's.
        let own = self.done.iter_mut().rfind(|step| step.snapshots.is_empty());
        if let Some(report) = own {
            report.status = program.status;
            report.output = program.output.into_iter().chain(program.errors).collect();
        }
        Ok(())
    }

    fn run(
        &mut self,
        layer: u8,
        argv: &[String],
        stay: bool,
        limit: Duration,
    ) -> Result<(), LabError> {
        let innermost = layer + 1 == self.layers;
        let how = if innermost { self.how(!stay) } else { Started::default() };
        self.timed(format!("L{layer}: {}", argv.join(" ")), |steps, report| {
            let name = steps.start(layer, argv, how)?;
            let ready = |program: &Program| {
                program.held || program.status.is_some() || (stay && !program.output.is_empty())
            };
            let mut program = steps.link.wait_for_program(layer, &name, limit, ready)?;
            if how.watched {
                steps.stop_watching(layer)?;
            }
            if program.held && program.status.is_none() {
                let command = Command::Release { name: name.clone() };
                steps.link.order(layer, "let the program end", command, ORDER_LIMIT)?;
                let ended = |program: &Program| program.status.is_some();
                program = steps.link.wait_for_program(layer, &name, limit, ended)?;
            }
            report.status = program.status;
            report.output = program.output.into_iter().chain(program.errors).collect();
            Ok(())
        })
    }

    /// How a program of the innermost layer is started: the first one is traced, if any is.
    fn how(&mut self, hold: bool) -> Started {
        let watched = self.tracing && !std::mem::replace(&mut self.watched, true);
        Started { layout: if watched { Layout::Apart } else { Layout::Usual }, hold, watched }
    }

    /// Ends the recording and waits until it is whole: the machine stands still meanwhile.
    fn stop_watching(&mut self, layer: u8) -> Result<(), LabError> {
        if !self.tracing {
            return Ok(());
        }
        let command = Command::StopWatching;
        self.link.order(layer, "end the recording", command, ORDER_LIMIT).map(drop)
    }

    fn start(&mut self, layer: u8, argv: &[String], how: Started) -> Result<String, LabError> {
        self.programs += 1;
        let name = format!("program {}", self.programs);
        let mut argv = argv.to_vec();
        if let Some(program) = argv.first_mut()
            && !program.contains('/')
        {
            *program = format!("{PROGRAMS}/{program}");
        }
        let Started { layout, hold, watched } = how;
        let command = Command::Start { name: name.clone(), argv, layout, hold, watched };
        self.link.order(layer, "start a program", command, ORDER_LIMIT)?;
        Ok(name)
    }

    /// Takes a snapshot in each layer, innermost first: a layer below changes more slowly than the
    /// layers that cause its changes.
    fn scan(&mut self) -> Result<(), LabError> {
        let number = self.done.iter().filter(|step| !step.snapshots.is_empty()).count();
        self.timed("snapshots of all layers".into(), |steps, report| {
            for layer in (0..steps.layers).rev() {
                let argv = ["strata", "scan", "-o", SNAPSHOT].map(str::to_owned);
                let name = steps.start(layer, &argv, Started::default())?;
                let ended = |program: &Program| program.status.is_some();
                let limit = steps.link.patient(SCAN_LIMIT);
                let program = steps.link.wait_for_program(layer, &name, limit, ended)?;
                if program.status != Some(0) {
                    return Err(LabError::Refused {
                        layer,
                        what: "take a snapshot".into(),
                        reason: program.errors.join("; "),
                    });
                }
                let file = steps.directory.join(format!("l{layer}-{number}.scan"));
                steps.fetch(layer, SNAPSHOT, &file)?;
                report.snapshots.insert(0, file);
            }
            Ok(())
        })
    }

    /// Copies a file out of a layer.
    fn fetch(&mut self, layer: u8, from: &str, to: &Path) -> Result<(), LabError> {
        let mut file = on(to, File::create(to))?;
        let mut offset = 0;
        loop {
            let command = Command::Fetch { path: from.into(), offset };
            let reply = self.link.order(layer, "hand out a file", command, ORDER_LIMIT)?;
            let Reply::Chunk { base64, last } = reply else {
                return Err(wrong_reply(layer));
            };
            let bytes = STANDARD.decode(base64).map_err(|_| wrong_reply(layer))?;
            on(to, file.write_all(&bytes))?;
            offset += bytes.len() as u64;
            if last {
                return Ok(());
            }
        }
    }

    fn simple(&mut self, what: String, layer: u8, command: Command) -> Result<(), LabError> {
        let order = what.clone();
        self.timed(what, |steps, _| steps.link.order(layer, &order, command, ORDER_LIMIT).map(drop))
    }

    fn timed(
        &mut self,
        what: String,
        act: impl FnOnce(&mut Self, &mut StepReport) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        let begin = Instant::now();
        let mut report =
            StepReport { what, seconds: 0.0, output: vec![], status: None, snapshots: vec![] };
        act(self, &mut report)?;
        report.seconds = begin.elapsed().as_secs_f64();
        self.done.push(report);
        Ok(())
    }
}

fn wrong_reply(layer: u8) -> LabError {
    LabError::Refused {
        layer,
        what: "hand out a file".into(),
        reason: "its answer is not a part of one".into(),
    }
}
