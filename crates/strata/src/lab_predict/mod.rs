//! `strata lab predict`: the same program in real layers and through the model of the same machine, count for
//! count.

mod misses;
mod model;
mod order;
mod report;
mod rows;
mod state;
pub mod table;
mod text;

use crate::args::LabPredictArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::lab_parts::{AGENT, TIMED_OUT, companion, failure, load, parts, say};
use crate::lab_trace;
use crate::output::{self, Target};
use misses::misses;
use model::{Counted, Machine};
use report::{LayerKernel, Predicted};
use rows::rows;
use state::states;
use std::ffi::OsString;
use std::time::Duration;
use strata_engine::Paging;
use strata_lab::{Cache, Choices, Counters, Kernel, LabError, LabReport, Make, Scenario, Trace};

/// Runs both, and tells. Gives the exit status.
///
/// # Errors
/// What the lab or the model could not do.
pub fn predict(args: &LabPredictArgs, cache: &Cache) -> Result<u8, Failure> {
    let json = args.json.as_deref().map(Target::named);
    json.iter().try_for_each(Target::check)?;
    let mut files = lab_trace::files(&args.trace)?;
    files.extend(args.json.iter().map(|path| ("--json", path.clone())));
    lab_trace::distinct(&files)?;
    let mut scenario = load(&args.scenario, args.machine).map_err(|error| failure(&error))?;
    if let Some(innermost) = scenario.layers.last_mut() {
        innermost.files.extend(args.with.iter().cloned());
    }
    if let Some(kernel) = args.kernel {
        scenario.layers[0].kernel = Kernel::Lab(kernel.into());
    }
    let make = scenario.make();
    let aligned = model::aligned(&scenario.layers[0]);
    if aligned.is_some() {
        let modes = scenario
            .layers
            .iter()
            .map(|layer| state::mode(layer.thp.as_deref().unwrap_or("never")));
        model::l1_huge_pages(&modes.collect::<Vec<_>>())?;
    }
    let hypervisors = &scenario.layers[..scenario.layers.len() - 1];
    let shadows: Vec<bool> = hypervisors.iter().map(|layer| layer.shadows(make)).collect();
    let paging = model::paging(&shadows)?;
    if aligned.is_some() && paging != Paging::Nested {
        return Err(Failure::usage(
            "the kernel with alignment has nothing to align where a layer has nested paging off: choose another \
             scenario, or --kernel vanilla",
        ));
    }
    let program = program(args, &scenario)?;
    let interrupt = Interrupt::watch_all();
    let mut reports = Vec::new();
    for number in 1..=args.runs {
        if args.runs > 1 {
            say(&format!("run {number} of {}", args.runs));
        }
        reports.push(measure(args, &scenario, None, cache, &interrupt)?);
    }
    let recorded = match lab_trace::trace(&args.trace, make)? {
        Some(trace) => {
            say("once more, and its accesses are recorded");
            measure(args, &scenario, Some(trace), cache, &interrupt)?.trace
        }
        None => None,
    };
    let first = &reports[0];
    let found = states(first)?;
    say("the model runs it");
    let mut of = Machine { layers: &found, make, paging, aligned };
    let whole = Counted::default();
    // Interrupts come by the emulator's clock, too, which nothing else here tells.
    if let Some(told) = &mut of.aligned {
        model::interrupt(told, interrupted(&reports, make));
    }
    let mut run = model::run(&of, &program, whole, &interrupt)?;
    if let (Some(told), Some(took)) = (&mut of.aligned, seconds(&reports))
        && !interrupt.happened()
    {
        say("the model runs it once more, its scans at the emulator's pace");
        // The emulator's processors are slower than the model's, and work as much less in the background between two
        // scans: so they are as much less apart.
        model::pace(told, run.elapsed_seconds / took);
        run = model::run(&of, &program, whole, &interrupt)?;
    }
    let misses = match &recorded {
        Some(recorded) if !interrupt.happened() => {
            say("the model runs it as far as it was recorded");
            Some(misses(&of, &program, (recorded, args.trace.skip), &interrupt)?)
        }
        _ => None,
    };
    if interrupt.happened() {
        return Err(stopped(&interrupt));
    }
    let predicted = Predicted {
        scenario: args.scenario.clone(),
        program: program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        machine: first.machine.clone(),
        kernels: LayerKernel::all(first),
        runs: args.runs,
        rows: rows(&reports, &run, misses.as_ref(), &shadows),
        counted: reports.iter().filter_map(|report| report.counted.clone()).collect(),
        layers: found,
        run,
        recorded,
        on_true_tables: misses.map(|misses| misses.true_tables),
    };
    if let Some(target) = &json {
        let mut text = serde_json::to_vec_pretty(&predicted).expect("numbers and texts");
        text.push(b'\n');
        target.plain(&text)?;
        if *target == Target::Stdout {
            return Ok(0);
        }
    }
    output::to_stdout(text::render(&predicted).as_bytes())?;
    Ok(0)
}

/// How long the program took on average, by L0's clock.
fn seconds(reports: &[LabReport]) -> Option<f64> {
    let took = reports.iter().filter_map(|report| {
        let readings = &report.counted.as_ref()?.readings;
        Some(readings.after.first()?.at - readings.before.first()?.at)
    });
    let took: Vec<f64> = took.collect();
    let mean = took.iter().sum::<f64>() / took.len().max(1) as f64;
    (mean > 0.0).then_some(mean)
}

/// Interrupts that L0 handed on to L1 for each violation that it did.
fn interrupted(reports: &[LabReport], make: Make) -> f64 {
    let (violation, interrupt) = match make {
        Make::Amd => ("NPF", "INTR"),
        Make::Intel => ("EPT_VIOLATION", "EXTERNAL_INTERRUPT"),
    };
    let handed_on = |name: &str| -> u64 {
        let readings = reports.iter().filter_map(|report| Some(&report.counted.as_ref()?.readings));
        let of = |counters: &Counters| counters.reflected_exits.get(name).copied().unwrap_or(0);
        readings.map(|readings| readings.counted(0, of)).sum()
    };
    handed_on(interrupt) as f64 / handed_on(violation).max(1) as f64
}

/// The program as this computer runs it, which the model follows to its end.
fn program(args: &LabPredictArgs, scenario: &Scenario) -> Result<Vec<OsString>, Failure> {
    if !args.program.is_empty() {
        return Ok(args.program.clone());
    }
    let words = scenario.program().ok_or_else(|| {
        Failure::usage(format!(
            "the scenario {} runs no program in its innermost layer: give one after --",
            args.scenario
        ))
    })?;
    // One that stays when it is done would have no end.
    let mut words: Vec<OsString> =
        words.iter().filter(|word| *word != "--stay").map(OsString::from).collect();
    if words[0] == AGENT {
        words[0] = companion(AGENT).map_err(|error| failure(&error))?.into();
    }
    Ok(words)
}

/// Has the layers run it.
fn measure(
    args: &LabPredictArgs,
    scenario: &Scenario,
    trace: Option<Trace>,
    cache: &Cache,
    interrupt: &Interrupt,
) -> Result<LabReport, Failure> {
    let choices = Choices {
        name: args.scenario.clone(),
        scenario: scenario.clone(),
        program: args.program.clone(),
        input: None,
        limit: Duration::from_secs(args.limit),
        // What is recorded slowly is not counted.
        counting: trace.is_none(),
        trace,
        // Machines that go on from a kept one are all alike.
        afresh: args.runs > 1,
    };
    let run = || {
        let parts = parts(cache, choices.scenario.make())?;
        strata_lab::run(&choices, &parts, cache, &interrupt.flag, &mut |line| say(line))
    };
    let report = run().map_err(|error| match &error {
        LabError::Interrupted => stopped(interrupt),
        error => failure(error),
    })?;
    match report.steps.iter().find(|step| step.timed_out) {
        // The model would follow it to its end.
        Some(step) => Err(Failure {
            message: format!("{} was killed, its time over: give it more", step.what),
            status: TIMED_OUT,
        }),
        None => Ok(report),
    }
}

fn stopped(interrupt: &Interrupt) -> Failure {
    Failure { message: interrupt.reason(), status: interrupt.status() }
}
