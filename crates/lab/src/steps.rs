//! What happens once all layers run.

use crate::boot::{self, ORDER_LIMIT, QMP_SOCKET};
use crate::error::{LabError, on};
use crate::initramfs::PROGRAMS;
use crate::journal::Program;
use crate::link::Link;
use crate::parts::Parts;
use crate::run;
use crate::scenario::{Scenario, Step};
use crate::stress::{StressReport, Stressors};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use strata_agent::message::{ALONE_END, Command, Layout, Reply};

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
    scenario: &'a Scenario,
    parts: &'a Parts,
    /// Number of layers.
    pub(crate) layers: u8,
    /// Where snapshots go.
    pub(crate) directory: &'a Path,
    /// Steps done.
    pub(crate) done: Vec<StepReport>,
    /// What stressed them.
    pub(crate) stress: Vec<StressReport>,
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
        (scenario, parts): (&'a Scenario, &'a Parts),
        directory: &'a Path,
        tracing: bool,
    ) -> Self {
        Self {
            link,
            scenario,
            parts,
            layers: scenario.layers.len() as u8,
            directory,
            done: Vec::new(),
            stress: Vec::new(),
            programs: 0,
            tracing,
            watched: false,
        }
    }
}

impl Steps<'_, '_> {
    /// Carries out one step. A program that fails is told in the report; what the lab itself cannot
    /// do is an error.
    pub(crate) fn carry_out(&mut self, step: &Step) -> Result<(), LabError> {
        match step {
            Step::Run { layer, program, stay, stress, limit } => {
                let layer = layer.unwrap_or(self.layers - 1);
                self.run(layer, program, (*stay, *stress), Duration::from_secs(*limit))
            }
            Step::Guest { layer, die, limit, .. } => {
                let argv = guest_argv(self.scenario, step)?;
                self.guest(*layer, &argv, *die, Duration::from_secs(*limit))
            }
            Step::Reset => self.timed("reset the innermost machine".into(), |steps, _| {
                boot::reset(steps.link, steps.scenario, steps.parts)?;
                run::sample(steps.link, steps.scenario, steps.layers - 1)
            }),
            Step::Write { layer, path, text } => {
                let what = format!("L{layer}: write {text} to {path}");
                self.simple(what, *layer, write(path, text))
            }
            Step::Qmp { layer, execute, arguments } => {
                self.simple(format!("L{layer}'s VMM: {execute}"), *layer, qmp(execute, arguments))
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
        (stay, stress): (bool, bool),
        limit: Duration,
    ) -> Result<(), LabError> {
        let innermost = layer + 1 == self.layers;
        let how = if innermost { self.how(!stay) } else { Started::default() };
        self.timed(format!("L{layer}: {}", argv.join(" ")), |steps, report| {
            let name = steps.start(layer, argv, how)?;
            let ready = |program: &Program| {
                program.held || program.status.is_some() || (stay && !program.output.is_empty())
            };
            let mut program = if stress {
                let mut stressors = Stressors::new(steps.scenario)?;
                let ended = stressors.run(steps.link, layer, &name, limit, ready);
                steps.stress.extend(stressors.finish(steps.link)?);
                ended?
            } else {
                steps.link.wait_for_program(layer, &name, limit, ready)?
            };
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

    /// Runs one more machine to its end, or to its death.
    fn guest(
        &mut self,
        layer: u8,
        argv: &[String],
        die: Option<f64>,
        limit: Duration,
    ) -> Result<(), LabError> {
        self.timed(format!("one more guest of L{layer}"), |steps, report| {
            let name = steps.start(layer, argv, Started::default())?;
            if let Some(seconds) = die {
                steps.link.pause(Duration::from_secs_f64(seconds))?;
                steps.link.send(layer, kill(&name));
            }
            let ended = |program: &Program| program.status.is_some();
            let program = steps.link.wait_for_program(layer, &name, limit, ended)?;
            report.status = guest_status(&program, die.is_some());
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
        let Started { layout, hold, watched } = how;
        let argv = with_path(argv);
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

/// The command that writes a file.
pub(crate) fn write(path: &str, text: &str) -> Command {
    Command::Write { path: path.to_owned(), text: text.to_owned() }
}

/// The command for a VMM.
pub(crate) fn qmp(execute: &str, arguments: &BTreeMap<String, toml::Value>) -> Command {
    Command::Qmp {
        socket: QMP_SOCKET.into(),
        execute: execute.to_owned(),
        arguments: serde_json::to_value(arguments).expect("TOML is plain data"),
    }
}

/// The command that kills a program.
pub(crate) fn kill(name: &str) -> Command {
    Command::Signal { name: name.to_owned(), signal: libc::SIGKILL }
}

/// A program and its arguments, the program with its path.
pub(crate) fn with_path(argv: &[String]) -> Vec<String> {
    let mut argv = argv.to_vec();
    if let Some(program) = argv.first_mut()
        && !program.contains('/')
    {
        *program = format!("{PROGRAMS}/{program}");
    }
    argv
}

/// The command of a step that runs one more guest.
pub(crate) fn guest_argv(scenario: &Scenario, step: &Step) -> Result<Vec<String>, LabError> {
    let Step::Guest { layer, memory, cpus, program, .. } = step else {
        unreachable!("only a guest's step has a guest's command")
    };
    let number = usize::from(*layer) + 1;
    boot::guest(number, &scenario.layers[number], memory, *cpus, program)
}

/// Status of the program in one more guest, which its agent tells on the console. A guest that was
/// killed has none.
pub(crate) fn guest_status(vmm: &Program, killed: bool) -> Option<i32> {
    let told = vmm.output.iter().find_map(|line| line.strip_prefix(ALONE_END)?.parse().ok());
    told.or(if killed { None } else { Some(-1) })
}

fn wrong_reply(layer: u8) -> LabError {
    LabError::Refused {
        layer,
        what: "hand out a file".into(),
        reason: "its answer is not a part of one".into(),
    }
}
