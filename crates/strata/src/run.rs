//! `strata run`.

use crate::args::RunArgs;
use crate::failure::{FAILED, Failure, USAGE};
use crate::interrupt::Interrupt;
use crate::plan::{Plan, plan};
use crate::room::Machines;
use crate::sample::{Choice, Parts};
use crate::workload::{nothing_left, part_taken, refuse_sampled_where, unopened};
use crate::{again, bill, captured_tables, config, hosts, phases, progress, report_text};
use std::io::{IsTerminal, stderr, stdout};
use std::num::NonZeroUsize;
use strata_engine::report::CapturedTables;
use strata_engine::requests;
use strata_engine::{
    Build, Catalogue, CutShort, OpenError, Progress, Report, Stop, Sweep, SweepError, replay, sweep,
};
use strata_stream::Source;
use strata_workloads::{Before, Part};

/// Runs everything asked for and reports. Gives the exit status.
///
/// # Errors
/// When the options make no sense, the workload cannot be opened or a result not written.
pub fn run(args: RunArgs, catalogue: &Catalogue) -> Result<u8, Failure> {
    let args = complete(args)?;
    if !args.vm.is_empty() {
        return hosts::run(args, catalogue);
    }
    let plan = plan(args, catalogue)?;
    plan.results.check()?;
    let interrupt = Interrupt::watch_all();
    if plan.input.is_live() {
        interrupt.pass_on();
    }
    let (report, failed) = found(&plan, catalogue, &interrupt)?;
    let live_status = report.workload.exit_status.filter(|_| plan.input.is_live());
    plan.results.write(&report)?;
    plan.results.text.styled(&table(&plan, &report))?;
    let out_of_memory = report.runs.iter().any(|run| run.out_of_memory);
    Ok(match (failed, live_status) {
        (Some(message), _) => {
            crate::complain::complain(&message);
            FAILED
        }
        // What it takes was said when it happened.
        _ if out_of_memory => FAILED,
        (None, Some(status)) => u8::try_from(status).unwrap_or(FAILED),
        (None, None) if interrupt.happened() => interrupt.status(),
        (None, None) => 0,
    })
}

/// The options with those of the file that they name, as far as they go together.
///
/// # Errors
/// When they do not.
pub fn complete(args: RunArgs) -> Result<RunArgs, Failure> {
    let args = config::complete(args)?;
    crate::unsampled::check(&args)?;
    if !args.vm.is_empty() {
        return Ok(args);
    }
    for (given, option) in
        [(args.host_memory.is_some(), "--host-memory"), (args.alone.is_some(), "--alone")]
    {
        if given {
            return Err(Failure::usage(format!(
                "{option} is for VMs that share a host; give --vm"
            )));
        }
    }
    Ok(args)
}

/// What is printed.
pub fn table(plan: &Plan, report: &Report) -> String {
    let mut text = report_text::render(report, plan.results.text.width());
    if plan.bill {
        let runs = report.runs.iter().map(|run| (format!("{} {}", run.stack, run.policy), run));
        text += &bill::render(&runs.collect::<Vec<_>>());
    }
    text
}

/// Runs what is planned. Gives the report, and what failed on the way to it, if the stream did.
///
/// # Errors
/// When nothing was found.
pub fn found(
    plan: &Plan,
    catalogue: &Catalogue,
    interrupt: &Interrupt,
) -> Result<(Report, Option<String>), Failure> {
    for remark in &plan.remarks {
        crate::complain::complain(&format!("note: {remark}"));
    }
    let (report, failed) = measure(plan, catalogue, interrupt)?;
    let counted = report.runs.iter().any(|run| run.accesses > 0);
    if !counted && !report.partial && failed.is_none() {
        return Err(Failure::failed(nothing_left(plan.part, report.warmup)));
    }
    Ok((report, failed))
}

/// The report, and what failed on the way to it, if the stream did.
fn measure(
    plan: &Plan,
    catalogue: &Catalogue,
    interrupt: &Interrupt,
) -> Result<(Report, Option<String>), Failure> {
    let live = plan.input.is_live();
    let choice = plan.sampling.as_ref();
    let parts = choice.map(|choice| phases::parts(choice, &plan.input, interrupt)).transpose();
    let parts = parts.map_err(|error| unopened(&error, interrupt))?.flatten();
    // A live program starts only when all machines are built; anything else is opened now, since
    // the machines depend on what is known of it.
    let mut opened: Option<Box<dyn Source>> = None;
    let workload = match plan.input.live_info() {
        Some(info) => info,
        None => {
            let source = open(plan, parts.as_ref(), interrupt);
            let source = source.map_err(|error| unopened(&error, interrupt))?;
            let info = source.info();
            opened = Some(source);
            info
        }
    };
    let repeatable = plan.input.is_repeatable();
    let setups = plan.machines(&workload)?;
    let needs = match plan.tables {
        Some(_) => Vec::new(),
        None => setups.iter().filter_map(|setup| (catalogue.need)(setup, &workload)).collect(),
    };
    let at_once = Machines {
        number: setups.len(),
        needs,
        footprint: workload.footprint_bytes,
        chosen: plan.jobs,
        repeatable,
    }
    .at_once()?;
    if !repeatable && plan.jobs.is_some() {
        crate::complain::complain("note: --jobs is for streams that can be read again: left out");
    }
    let (stop, progress) = (Stop::default(), Progress::default());
    // Ctrl-C reaches a live program itself, once there is one; what it does then belongs to the
    // stream.
    let before = Stop(interrupt.flag.clone());
    let stop = if live && !interrupt.is_told() { stop } else { before.clone() };
    let total = workload.accesses;
    let visible =
        !interrupt.is_told() && stderr().is_terminal() && !(live && stdout().is_terminal());
    if let Some(capture) = &plan.tables {
        captured_tables::check(capture, &workload)?;
    }
    let build = |setup, workload: &_| (catalogue.build)(setup, workload, &before);
    let builds = setups.iter().map(|setup| -> Build<'_> {
        match &plan.tables {
            Some(capture) => {
                let variant = captured_tables::variant(&setup.policy);
                Box::new(move |_| replay(capture, variant, setup))
            }
            None => Box::new(move |workload| build(setup, workload)),
        }
    });
    let options = Sweep {
        workload,
        open: Box::new(move || match opened.take() {
            // Whoever wanted the end meanwhile wants no beginning.
            None if live && interrupt.happened() => Err(OpenError(interrupt.reason())),
            None => open(plan, parts.as_ref(), interrupt),
            Some(source) => Ok(source),
        }),
        replayable: repeatable,
        builds: builds.collect(),
        at_once,
        threads: plan.threads,
        memory_limit: None,
        stop: &stop,
        progress: &progress,
    };
    let machines: Vec<_> =
        setups.iter().map(|setup| format!("{}/{}", setup.stack, setup.policy)).collect();
    let swept = progress::shown(&progress, total, &machines, visible, || sweep(options));
    let swept = swept.map_err(|error| match error {
        SweepError::Setup(error) => Failure { message: error.to_string(), status: USAGE },
        SweepError::Open(error) => unopened(&error, interrupt),
    })?;
    let mut report = Report::new(swept.workload, swept.runs);
    report.seed = plan.setups[0].seed;
    requests::relate(&mut report.runs, &mut [], &plan.request_load, report.seed);
    report.warmup = plan.setups[0].warmup;
    again::note(&mut report, plan.options.clone(), Some(&plan.input));
    report.tables = plan.tables.as_ref().map(CapturedTables::new);
    let part = Part { limit: plan.options.limit, ..plan.part };
    report.workload.notes.extend(part_taken(part));
    if plan.sampling.is_some() && report.runs.iter().all(|run| run.sampled.is_none()) {
        report.workload.notes.push(crate::sample::NOT_SAMPLED.to_owned());
    }
    let within = match choice {
        Some(Choice::Auto(_, aim)) => Some(aim.within),
        Some(_) => None,
        None => crate::sample::asked_of(&report.workload.notes),
    };
    let too_wide = within.and_then(|within| crate::sample::too_wide(&report.runs, within));
    report.workload.notes.extend(too_wide);
    let failed = match swept.cut_short {
        Some(CutShort::Failed(error)) => Some(error.to_string()),
        _ => None,
    };
    // A program that was not disturbed by it ended as it would have.
    let undisturbed = live && report.workload.exit_status == Some(0);
    let mut reasons: Vec<String> = failed.iter().cloned().collect();
    if failed.is_none() && interrupt.happened() && !undisturbed {
        reasons.push(interrupt.reason());
        report.runs.iter_mut().for_each(|run| run.partial |= live);
    }
    // That memory ran out is told besides.
    reasons.extend(report.partial_reason.take());
    report.partial_reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    report.partial = report.partial_reason.is_some();
    Ok((report, failed))
}

/// Bytes of this computer's memory that the machines held at once will probably take, if that can be told.
pub fn need(args: &RunArgs, catalogue: &Catalogue) -> Option<u64> {
    let plan = plan(args.clone(), catalogue).ok()?;
    let workload = match plan.input.live_info() {
        Some(info) => info,
        None => open(&plan, None, &Interrupt::told(Default::default())).ok()?.info(),
    };
    let needs = plan.machines(&workload).ok()?;
    let mut likely: Vec<u64> = needs
        .iter()
        .filter_map(|setup| (catalogue.need)(setup, &workload))
        .map(|n| n.likely)
        .collect();
    likely.sort_unstable_by(|a, b| b.cmp(a));
    let at_once = plan.jobs.map_or(likely.len(), NonZeroUsize::get);
    Some(likely.iter().take(at_once).sum())
}

/// Opens the part of the stream that is to be run, of which `parts` in detail.
fn open(
    plan: &Plan,
    parts: Option<&Parts>,
    interrupt: &Interrupt,
) -> Result<Box<dyn Source>, OpenError> {
    let source = plan.input.open_sampled(plan.part, Before::Touches, parts, &interrupt.flag)?;
    if let Some((option, why)) = plan.needs_all {
        refuse_sampled_where(&source.info(), &format!("leave {option} out ({why})"))?;
    }
    Ok(source)
}
