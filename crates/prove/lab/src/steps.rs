//! What happens once all layers run.

use crate::boot;
use crate::error::{LabError, on};
use crate::journal::Program;
use crate::link::{Link, ORDER_LIMIT};
use crate::orders::{guest_argv, guest_status, kill, qmp, write};
use crate::parts::Parts;
use crate::programs::with_path;
use crate::readings::Readings;
use crate::sampling;
use crate::scenario::{Scenario, Step};
use crate::stress::{StressReport, Stressors};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::libc;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use strata_protocol::{Command, Layout, Reply, page_faults};

/// Time a snapshot of a layer may take.
const SCAN_LIMIT: Duration = Duration::from_secs(300);
/// Where a layer puts its snapshot.
const SNAPSHOT: &str = "/tmp/snapshot";

/// What a step did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StepReport {
    /// What the scenario calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What it was.
    pub what: String,
    /// Seconds of the host's time it took.
    pub seconds: f64,
    /// What a program printed, if one ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<String>,
    /// What it printed on standard error.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Exit status of the program, or minus the signal that killed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// The program was killed because it took longer than it may.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// Snapshots taken, L0 first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<PathBuf>,
    /// Seconds from the beginning of the step to that of each snapshot, by the clock of this
    /// computer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots_at: Vec<f64>,
    /// What all layers counted while it ran, if the scenario asks for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Readings>,
}

/// What all layers counted while a program ran, and what they were like before.
#[derive(Clone, Debug, Serialize)]
pub struct Counted {
    /// The layers when it began.
    pub snapshots: Vec<PathBuf>,
    /// Page faults of the program itself and of its processes that have ended, from its first instruction on.
    pub faults: Option<u64>,
    /// What they counted.
    #[serde(flatten)]
    pub readings: Readings,
}

impl StepReport {
    /// Notes how a program ended and what it printed.
    fn ended(&mut self, program: Program) {
        self.status = program.status;
        self.output = program.output;
        self.errors = program.errors;
    }
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
    /// What the first program of the innermost layer does is to be counted.
    counting: bool,
    /// The process of that program, and the page faults it had when it began.
    begun: Option<(u32, u64)>,
    /// What was counted.
    pub(crate) counted: Option<Counted>,
}

/// How a program is started; see [`Command::Start`].
#[derive(Clone, Copy, Debug, Default)]
struct Started {
    layout: Layout,
    hold: bool,
    count: bool,
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
            counting: false,
            begun: None,
            counted: None,
        }
    }

    /// The same, and what all layers count while the first program of the innermost layer runs is kept.
    pub(crate) fn counting(self, counting: bool) -> Self {
        Self { counting, ..self }
    }
}

impl Steps<'_, '_> {
    /// Carries out one step. A program that fails is told in the report; what the lab itself cannot
    /// do is an error.
    pub(crate) fn carry_out(&mut self, step: &Step) -> Result<(), LabError> {
        match step {
            Step::Run { id, layer, program, stay, stress, count, limit } => {
                let layer = layer.unwrap_or(self.layers - 1);
                let limit = Duration::from_secs(*limit);
                self.run(layer, program, (*stay, *stress, *count), limit)?;
                if let Some(report) = self.done.last_mut() {
                    report.id.clone_from(id);
                }
                Ok(())
            }
            Step::Guest { layer, die, limit, .. } => {
                let argv = guest_argv(self.scenario, step)?;
                self.guest(*layer, &argv, *die, Duration::from_secs(*limit))
            }
            Step::Reset => self.timed("reset the innermost machine".into(), |steps, _| {
                boot::reset(steps.link, steps.scenario, steps.parts)?;
                sampling::sample(steps.link, steps.scenario, steps.layers - 1)
            }),
            Step::Write { layer, path, text } => {
                let what = format!("write {} to {path}", text.trim_end());
                self.simple(what, *layer, write(path, text))
            }
            Step::Qmp { layer, execute, arguments } => {
                self.simple(format!("have its VMM {execute}"), *layer, qmp(execute, arguments))
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
        let counting = self.begin_counting(true)?;
        let how = Started { count: counting.is_some(), ..self.how(true) };
        let mut name = String::new();
        self.timed(format!("L{layer}: {}", command_line(argv)), |steps, report| {
            name = steps.start(layer, argv, how)?;
            let program = steps.link.program_within(layer, &name, limit, |program| {
                program.held || program.status.is_some()
            })?;
            report.timed_out = program.is_none();
            report.status = program.and_then(|program| program.status);
            steps.end_counting(counting)?;
            steps.stop_watching(layer)
        })?;
        let (running, timed_out) =
            self.done.last().map_or((false, false), |step| (step.status.is_none(), step.timed_out));
        if running {
            self.scan()?;
        }
        let program = match (running, timed_out) {
            (_, true) => self.kill(layer, &name)?,
            (true, _) => {
                let command = Command::Release { name: name.clone() };
                self.link.order(layer, "let the program end", command, ORDER_LIMIT)?;
                self.link.wait_for_program(layer, &name, limit, has_ended)?
            }
            _ => self.link.wait_for_program(layer, &name, limit, has_ended)?,
        };
        // The step before the snapshots is the program's.
        if let Some(report) = self.done.iter_mut().rfind(|step| step.snapshots.is_empty()) {
            report.ended(program);
        }
        Ok(())
    }

    /// Ends a program that took too long.
    fn kill(&mut self, layer: u8, name: &str) -> Result<Program, LabError> {
        let command = Command::Signal { name: name.to_owned(), signal: libc::SIGKILL };
        // It may have ended just now.
        self.link.send(layer, command);
        let over = |program: &Program| program.held || has_ended(program);
        let program = self.link.wait_for_program(layer, name, ORDER_LIMIT, over)?;
        if has_ended(&program) {
            return Ok(program);
        }
        // Death, too, is an end at which a program is held.
        self.link.send(layer, Command::Release { name: name.to_owned() });
        self.link.wait_for_program(layer, name, ORDER_LIMIT, has_ended)
    }

    fn run(
        &mut self,
        layer: u8,
        argv: &[String],
        (stay, stress, count): (bool, bool, bool),
        limit: Duration,
    ) -> Result<(), LabError> {
        let innermost = layer + 1 == self.layers;
        let counting = self.begin_counting(innermost)?;
        let how = if innermost { self.how(!stay) } else { Started::default() };
        let how = Started { count: counting.is_some(), ..how };
        let reading = count.then(|| self.begin_reading()).transpose()?;
        self.timed(format!("L{layer}: {}", command_line(argv)), |steps, report| {
            let name = steps.start(layer, argv, how)?;
            let ready = |program: &Program| {
                program.held || program.status.is_some() || (stay && !program.output.is_empty())
            };
            let program = if stress {
                let mut stressors = Stressors::new(steps.link, steps.scenario);
                let ended = stressors.run(steps.link, layer, &name, limit, ready);
                steps.stress.extend(stressors.finish(steps.link)?);
                Some(ended?)
            } else {
                steps.link.program_within(layer, &name, limit, ready)?
            };
            steps.end_counting(counting)?;
            report.counters = steps.end_reading(reading)?;
            if how.watched {
                steps.stop_watching(layer)?;
            }
            let Some(mut program) = program else {
                report.timed_out = true;
                report.ended(steps.kill(layer, &name)?);
                return Ok(());
            };
            if program.held && program.status.is_none() {
                let command = Command::Release { name: name.clone() };
                steps.link.order(layer, "let the program end", command, ORDER_LIMIT)?;
                program = steps.link.wait_for_program(layer, &name, limit, has_ended)?;
            }
            report.ended(program);
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

    /// Looks at all layers before a program starts, if it is the one whose doings are counted.
    fn begin_counting(&mut self, innermost: bool) -> Result<Option<Counted>, LabError> {
        if !(innermost && std::mem::take(&mut self.counting)) {
            return Ok(None);
        }
        self.scan()?;
        let snapshots = self.done.last().map(|step| step.snapshots.clone()).unwrap_or_default();
        Ok(Some(Counted { snapshots, faults: None, readings: self.begin_reading()? }))
    }

    fn end_counting(&mut self, begun: Option<Counted>) -> Result<(), LabError> {
        let Some(Counted { snapshots, readings, .. }) = begun else { return Ok(()) };
        let readings = self.end_reading(Some(readings))?;
        let faults = self.faults()?;
        self.counted = readings.map(|readings| Counted { snapshots, faults, readings });
        Ok(())
    }

    /// Page faults of the program that is counted, since it began.
    fn faults(&mut self) -> Result<Option<u64>, LabError> {
        let Some((pid, before)) = self.begun else { return Ok(None) };
        let path = format!("/proc/{pid}/stat");
        let command = Command::Read { paths: vec![path.clone()] };
        let reply = self.link.order(self.layers - 1, "tell page faults", command, ORDER_LIMIT)?;
        let Reply::Texts { texts, .. } = reply else { return Ok(None) };
        let now = texts.get(&path).and_then(|stat| page_faults(stat));
        Ok(now.map(|now| now.saturating_sub(before)))
    }

    /// Reads the counters of all layers before a program starts.
    fn begin_reading(&mut self) -> Result<Readings, LabError> {
        let idle = sampling::read_all(self.link, self.scenario)?;
        let before = sampling::read_all(self.link, self.scenario)?;
        Ok(Readings { idle, before, after: Vec::new() })
    }

    /// And when it is over.
    fn end_reading(&mut self, begun: Option<Readings>) -> Result<Option<Readings>, LabError> {
        let Some(readings) = begun else { return Ok(None) };
        let after = sampling::read_all(self.link, self.scenario)?;
        Ok(Some(Readings { after, ..readings }))
    }

    /// How a program of the innermost layer is started: the first one is traced, if any is.
    fn how(&mut self, hold: bool) -> Started {
        let watched = self.tracing && !std::mem::replace(&mut self.watched, true);
        let layout = if watched { Layout::Apart } else { Layout::Usual };
        Started { layout, hold, count: false, watched }
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
        let Started { layout, hold, count, watched } = how;
        let argv = with_path(argv);
        let command = Command::Start { name: name.clone(), argv, layout, hold, count, watched };
        let reply = self.link.order(layer, "start a program", command, ORDER_LIMIT)?;
        if let (true, Reply::Started { pid, faults }) = (count, reply) {
            self.begun = faults.map(|faults| (pid, faults));
        }
        Ok(name)
    }

    /// Takes a snapshot in each layer, innermost first: a layer below changes more slowly than the
    /// layers that cause its changes.
    fn scan(&mut self) -> Result<(), LabError> {
        let number = self.done.iter().filter(|step| !step.snapshots.is_empty()).count();
        self.timed("snapshots of all layers".into(), |steps, report| {
            let begin = Instant::now();
            for layer in (0..steps.layers).rev() {
                report.snapshots_at.insert(0, begin.elapsed().as_secs_f64());
                let argv = ["strata", "scan", "-o", SNAPSHOT].map(str::to_owned);
                let name = steps.start(layer, &argv, Started::default())?;
                let limit = steps.link.patient(SCAN_LIMIT);
                let program = steps.link.wait_for_program(layer, &name, limit, has_ended)?;
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
        self.timed(format!("L{layer}: {what}"), |steps, _| {
            steps.link.order(layer, &what, command, ORDER_LIMIT).map(drop)
        })
    }

    fn timed(
        &mut self,
        what: String,
        act: impl FnOnce(&mut Self, &mut StepReport) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        let begin = Instant::now();
        let mut report = StepReport { what, ..StepReport::default() };
        act(self, &mut report)?;
        report.seconds = begin.elapsed().as_secs_f64();
        self.done.push(report);
        Ok(())
    }
}

fn has_ended(program: &Program) -> bool {
    program.status.is_some()
}

/// A program and its arguments as one would type them.
pub(crate) fn command_line(argv: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    argv.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn wrong_reply(layer: u8) -> LabError {
    LabError::Refused {
        layer,
        what: "hand out a file".into(),
        reason: "its answer is not a part of one".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed() {
        let line = |argv: &[&str]| {
            command_line(&argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(line(&["ls", "-l", "/bin"]), "ls -l /bin");
        assert_eq!(line(&["sh", "-c", "echo it's; ls"]), "sh -c 'echo it'\\''s; ls'");
        assert_eq!(line(&["echo", "", "*"]), "echo '' '*'");
    }
}
