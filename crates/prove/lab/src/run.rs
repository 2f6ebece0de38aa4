//! One run of the lab: images, machine, layers, steps, report.

use crate::boot::Booted;
use crate::cache::{Cache, checksum};
use crate::counters::Counters;
use crate::error::LabError;
use crate::images;
use crate::initramfs::find;
use crate::link::Link;
use crate::machine;
use crate::make::Make;
use crate::parts::Parts;
use crate::report::{Alignment, LabReport, LayerReport};
use crate::sampling;
use crate::scenario::{Kernel, Scenario};
use crate::session::{self, Console};
use crate::start::{Running, Start, start};
use crate::steps::{StepReport, Steps, command_line};
use crate::trace::Trace;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use strata_inspect::join::regions::regions;
use strata_inspect::{Options, Snapshot};

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
    /// The layers are booted, though a machine may be kept that has booted them, and it is not kept.
    pub afresh: bool,
    /// What all layers count is read right before the first program of the innermost layer starts and once it
    /// rests, and not meanwhile.
    pub counting: bool,
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
    let command = traced_command(choices);
    let what = Start {
        scenario,
        guests: &guests,
        input: choices.input.as_deref(),
        trace: choices.trace.as_ref().map(|trace| (trace, &command[..])),
        afresh: choices.afresh,
        parts,
    };
    let Running { mut link, booted, restarts, kept, directory, tracing, _lock } =
        start(what, cache, interrupt, tell)?;
    let count = scenario.layers.len() as u8;
    let before = sampling::read_all(&mut link, scenario)?;
    for layer in 0..if choices.counting { 0 } else { count } {
        sampling::sample(&mut link, scenario, layer)?;
    }
    let steps = Steps::new(&mut link, (scenario, parts), &directory, tracing.is_some());
    let mut steps = steps.counting(choices.counting);
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
    let (done, stress, counted) = (steps.done, steps.stress, steps.counted);
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
        Make::Amd => machine::report(&scenario.layers[0].vmm.arguments),
        Make::Intel => parts.bochs()?.report(),
    };
    let report = LabReport::new((&choices.name, &scenario.about), machine, layers, done);
    Ok(LabReport { kept, restarts, stress, counted, alignment, trace, ..report })
}

/// Boots the layers and runs a shell in one of them, for who sits at the console. Returns the shell's
/// status, or minus the signal that killed it.
///
/// # Errors
///
/// As [`run`], and a layer that the scenario does not have.
pub fn shell(
    (scenario, layer): (&Scenario, u8),
    afresh: bool,
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
    let what = Start { scenario, guests: &[], input: None, trace: None, afresh, parts };
    let mut running = start(what, cache, interrupt, tell)?;
    if console.size.is_some() {
        tell(&format!("a shell in L{layer}; leave it with exit or Ctrl-]"));
    }
    session::run(&mut running.link, layer, console)
}

/// The command that a recording says it is of.
fn traced_command(choices: &Choices) -> Vec<String> {
    if !choices.program.is_empty() {
        return choices.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    }
    choices.scenario.program().map(<[String]>::to_vec).unwrap_or_default()
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
