//! What is done to the layers again and again while a program runs.

use crate::error::LabError;
use crate::journal::Program;
use crate::link::{Link, ORDER_LIMIT};
use crate::orders::{guest_argv, guest_status, kill, qmp, write};
use crate::programs::with_path;
use crate::scenario::{Scenario, Step, Stress};
use serde::Serialize;
use serde_json::Value;
use std::time::{Duration, Instant};
use strata_protocol::{Command, Event, Layout, Reply};

/// Answers of VMMs, lines of output, and reasons of failures that a report keeps: the last ones.
const KEPT: usize = 200;

/// What a stressor did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StressReport {
    /// Its name.
    pub name: String,
    /// Steps that were done.
    pub done: u64,
    /// Steps that failed.
    pub failed: u64,
    /// Why.
    pub failures: Vec<String>,
    /// What VMMs answered, other than that it is done.
    pub answers: Vec<Value>,
    /// What programs and guests printed.
    pub output: Vec<String>,
}

/// What a stressor waits for.
#[derive(Debug)]
enum Waiting {
    /// The time of its next step.
    Nothing,
    /// The answer to an order.
    Answer(u64),
    /// The end of a program, which has a time to die if it is a guest's VMM that has one.
    End(End),
}

/// A program that is under way.
#[derive(Debug)]
struct End {
    layer: u8,
    name: String,
    /// It is a guest's VMM.
    guest: bool,
    /// It is to be killed then.
    die: Option<Instant>,
    /// It should have ended by then.
    limit: Instant,
}

#[derive(Debug)]
struct Stressor<'a> {
    choice: &'a Stress,
    /// Steps begun.
    begun: usize,
    /// The next begins then.
    due: Instant,
    waiting: Waiting,
    report: StressReport,
}

/// All that a scenario has.
#[derive(Debug)]
pub(crate) struct Stressors<'a> {
    scenario: &'a Scenario,
    all: Vec<Stressor<'a>>,
}

impl<'a> Stressors<'a> {
    pub(crate) fn new(link: &Link, scenario: &'a Scenario) -> Self {
        let now = Instant::now();
        let stressor = |choice: &'a Stress| Stressor {
            choice,
            begun: 0,
            due: now + pause(link, choice.after),
            waiting: Waiting::Nothing,
            report: StressReport { name: choice.name.clone(), ..StressReport::default() },
        };
        Self { scenario, all: scenario.stress.iter().map(stressor).collect() }
    }

    /// Waits until a program of a layer is as `done` wants it, all stressors at work.
    pub(crate) fn run(
        &mut self,
        link: &mut Link,
        layer: u8,
        name: &str,
        limit: Duration,
        done: impl Fn(&Program) -> bool,
    ) -> Result<Program, LabError> {
        let what = format!("run {name} under stress");
        let begin = Instant::now();
        loop {
            let program = link.journal.layers[usize::from(layer)].programs.get(name);
            if let Some(program) = program.filter(|program| done(program)) {
                return Ok(program.clone());
            }
            if begin.elapsed() > limit {
                return Err(link.late(layer, &what, limit));
            }
            let event = link.hear(layer, &what)?;
            for stressor in &mut self.all {
                stressor.settle(link, event.as_ref());
                if matches!(stressor.waiting, Waiting::Nothing) && Instant::now() >= stressor.due {
                    stressor.begin(link, self.scenario)?;
                }
            }
        }
    }

    /// Ends what is still under way, and tells what was done.
    pub(crate) fn finish(mut self, link: &mut Link) -> Result<Vec<StressReport>, LabError> {
        let end = Instant::now() + link.patient(ORDER_LIMIT);
        for stressor in &mut self.all {
            if let Waiting::End(End { guest: true, die, .. }) = &mut stressor.waiting {
                // It would go on for as long as its program does.
                *die = Some(Instant::now());
            }
        }
        while Instant::now() < end
            && self.all.iter().any(|all| !matches!(all.waiting, Waiting::Nothing))
        {
            let event = link.hear(0, "end the stress")?;
            for stressor in &mut self.all {
                stressor.settle(link, event.as_ref());
            }
        }
        for stressor in &mut self.all {
            if !matches!(stressor.waiting, Waiting::Nothing) {
                stressor.fail("it was still under way long after the program's end".into());
            }
        }
        Ok(self.all.into_iter().map(|stressor| stressor.report).collect())
    }
}

/// A pause of a scenario, on this machine: what stresses a fast one keeps a slow one from all else.
fn pause(link: &Link, seconds: f64) -> Duration {
    link.patient(Duration::from_secs_f64(seconds))
}

impl Stressor<'_> {
    /// Begins the next step.
    fn begin(&mut self, link: &mut Link, scenario: &Scenario) -> Result<(), LabError> {
        let now = Instant::now();
        let step = &self.choice.steps[self.begun % self.choice.steps.len()];
        self.due = now + pause(link, self.choice.every);
        self.begun += 1;
        self.waiting = match step {
            Step::Write { layer, path, text } => {
                Waiting::Answer(link.send(*layer, write(path, text)))
            }
            Step::Qmp { layer, execute, arguments } => {
                Waiting::Answer(link.send(*layer, qmp(execute, arguments)))
            }
            Step::Run { layer, program, limit, .. } => {
                let layer = layer.unwrap_or_default();
                self.start(link, layer, with_path(program), (false, None, *limit))
            }
            Step::Guest { layer, die, limit, .. } => {
                let die = die.map(|seconds| now + pause(link, seconds));
                self.start(link, *layer, guest_argv(scenario, step)?, (true, die, *limit))
            }
            Step::Reset | Step::Sleep { .. } | Step::Scan => {
                unreachable!("a scenario with such a stress is refused")
            }
        };
        Ok(())
    }

    fn start(
        &self,
        link: &mut Link,
        layer: u8,
        argv: Vec<String>,
        (guest, die, limit): (bool, Option<Instant>, u64),
    ) -> Waiting {
        let name = format!("{} {}", self.choice.name, self.begun);
        let layout = Layout::Usual;
        let command = Command::Start {
            name: name.clone(),
            argv,
            layout,
            hold: false,
            count: false,
            watched: false,
        };
        link.send(layer, command);
        let limit = Instant::now() + link.patient(Duration::from_secs(limit));
        Waiting::End(End { layer, name, guest, die, limit })
    }

    /// Looks whether what is waited for has come.
    fn settle(&mut self, link: &mut Link, event: Option<&Event>) {
        match &mut self.waiting {
            Waiting::Nothing => {}
            Waiting::Answer(id) => match event {
                Some(Event::Done { id: of, reply }) if of == id => {
                    if let Reply::Qmp { answer } = reply
                        && answer.as_object().is_none_or(|answer| !answer.is_empty())
                    {
                        keep(&mut self.report.answers, answer.clone());
                    }
                    self.succeed();
                }
                Some(Event::Failed { id: of, reason }) if of == id => self.fail(reason.clone()),
                _ => {}
            },
            Waiting::End(end) => {
                let now = Instant::now();
                let programs = &link.journal.layers[usize::from(end.layer)].programs;
                let ended = programs.get(&end.name).filter(|all| all.status.is_some()).cloned();
                match ended {
                    Some(program) => self.note(&program),
                    None if now >= end.limit => {
                        let reason = format!("L{}: {} took too long", end.layer, end.name);
                        link.send(end.layer, kill(&end.name));
                        self.fail(reason);
                    }
                    None if end.die.is_some_and(|die| now >= die) => {
                        link.send(end.layer, kill(&end.name));
                        // Once more is no harm, should it not have begun yet.
                        end.die = Some(now + Duration::from_secs(1));
                    }
                    None => {}
                }
            }
        }
    }

    /// Notes how the program ended that was waited for.
    fn note(&mut self, program: &Program) {
        let Waiting::End(end) = &self.waiting else { return };
        let status = match end.guest {
            true => guest_status(program, end.die.is_some()),
            false => program.status,
        };
        let said = program.output.iter().chain(&program.errors);
        for line in said.clone() {
            keep(&mut self.report.output, line.clone());
        }
        match status {
            None | Some(0) => self.succeed(),
            Some(status) => {
                let last = said.last().cloned().unwrap_or_default();
                self.fail(format!("status {status}: {last}"));
            }
        }
    }

    fn succeed(&mut self) {
        self.waiting = Waiting::Nothing;
        self.report.done += 1;
    }

    fn fail(&mut self, reason: String) {
        self.waiting = Waiting::Nothing;
        self.report.failed += 1;
        keep(&mut self.report.failures, reason);
    }
}

fn keep<T>(all: &mut Vec<T>, one: T) {
    if all.len() == KEPT {
        all.remove(0);
    }
    all.push(one);
}
