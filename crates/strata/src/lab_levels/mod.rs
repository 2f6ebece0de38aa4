//! `strata lab levels`: what a level costs, by the piece, in real layers and beside it by the model.

mod chore;
mod count;
mod measured;
mod model;
mod reasons;
mod report;
mod text;

use crate::args::{LabLevelsArgs, MachineChoice};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::lab_parts::{TIMED_OUT, failure, load, parts, say};
use crate::output::{self, Target};
use chore::CHORES;
use report::{Levels, Stack};
use std::time::Duration;
use strata_lab::{Cache, Choices, LabError, LabReport, Layer, Make, Scenario};

/// Where the shipped stacks are among the scenarios.
const SHIPPED: &str = "levels/";

/// Runs the chores in each stack, and tells. Gives the exit status. A stack that fails leaves the others alone; what
/// it failed at is told at the end.
///
/// # Errors
/// What the lab or the model could not do.
pub fn levels(args: &LabLevelsArgs, cache: &Cache) -> Result<u8, Failure> {
    let json = args.json.as_deref().map(Target::named);
    json.iter().try_for_each(Target::check)?;
    let scenarios = scenarios(args)?;
    let interrupt = Interrupt::watch_all();
    let to_stdout = json != Some(Target::Stdout);
    let (mut found, mut end) = (Levels::default(), None);
    for (number, (name, scenario)) in scenarios.iter().enumerate() {
        say(&format!("{name}, {} of {}: {}", number + 1, scenarios.len(), scenario.about));
        let failed = match measure(name, scenario, args, cache, &interrupt) {
            Err(LabError::Interrupted) => {
                let failure = Failure { message: interrupt.reason(), status: interrupt.status() };
                for (name, _) in &scenarios[number..] {
                    found.failed(name, &failure.message);
                }
                end = Some(failure);
                break;
            }
            // The others would fail at the same.
            Err(error @ (LabError::NotBuilt { .. } | LabError::NoEmulator { .. })) => {
                return Err(failure(&error));
            }
            Err(error) if error.is_usage() => return Err(failure(&error)),
            Err(error) => Some(failure(&error)),
            Ok(report) => {
                let stack = Stack::new(scenario, &report);
                if to_stdout && !stack.chores.is_empty() {
                    let gap = if found.stacks.is_empty() { "" } else { "\n" };
                    output::to_stdout(format!("{gap}{}", text::render(&stack)).as_bytes())?;
                }
                found.stacks.extend(Some(stack).filter(|stack| !stack.chores.is_empty()));
                succeeded(&report).err()
            }
        };
        if let Some(failure) = failed {
            say(&format!("{name}: {}", failure.message));
            found.failed(name, &failure.message);
            end.get_or_insert(failure);
        }
    }
    if let Some(target) = json.filter(|_| !found.stacks.is_empty()) {
        let mut text = serde_json::to_vec_pretty(&found).expect("numbers and texts");
        text.push(b'\n');
        target.plain(&text)?;
    }
    let names: Vec<&str> = found.failed.iter().map(|failed| failed.scenario.as_str()).collect();
    end.map_or(Ok(0), |Failure { message, status }| {
        let what = format!("not measured, or not whole: {}", names.join(", "));
        let message = if interrupt.happened() { format!("{message}; {what}") } else { what };
        Err(Failure { message, status })
    })
}

/// The stacks asked for by name, or all that come with Strata and are for the machine; with the chores as
/// their steps.
fn scenarios(args: &LabLevelsArgs) -> Result<Vec<(String, Scenario)>, Failure> {
    let machine = args.machine.unwrap_or(MachineChoice::Amd);
    let make: Make = machine.into();
    let of_name = |name: &str| match args.scenario.is_empty() {
        true => load(name, Some(machine)),
        false => load(name, args.machine),
    };
    let names: Vec<String> = match args.scenario.is_empty() {
        true => {
            let shipped = strata_lab::names().filter(|name| name.starts_with(SHIPPED));
            // What is emulated in L1 takes as long as all others together.
            let is_for = |name: &&str| {
                let is_it = |stack: Scenario| {
                    stack.runs_on(make) && !stack.layers.iter().any(Layer::is_emulated)
                };
                Scenario::load(name).is_ok_and(is_it)
            };
            shipped.filter(is_for).map(str::to_owned).collect()
        }
        false => args.scenario.clone(),
    };
    let with_chores = |name: String| {
        let mut scenario = of_name(&name).map_err(|error| failure(&error))?;
        let own = Scenario::load(&name).map_err(|error| failure(&error))?;
        if !own.runs_on(scenario.make()) {
            let message = format!(
                "{name} is for {} processors alone: leave --machine out, or name another stack",
                own.make()
            );
            return Err(Failure::usage(message));
        }
        scenario.steps = CHORES.iter().flat_map(|chore| chore.steps(args.limit)).collect();
        scenario.stress.clear();
        Ok((name, scenario))
    };
    names.into_iter().map(with_chores).collect()
}

fn measure(
    name: &str,
    scenario: &Scenario,
    args: &LabLevelsArgs,
    cache: &Cache,
    interrupt: &Interrupt,
) -> Result<LabReport, LabError> {
    let choices = Choices {
        name: name.to_owned(),
        scenario: scenario.clone(),
        program: Vec::new(),
        input: None,
        limit: Duration::from_secs(args.limit),
        trace: None,
        afresh: args.afresh,
        counting: false,
    };
    let parts = parts(cache, choices.scenario.make())?;
    strata_lab::run(&choices, &parts, cache, &interrupt.flag, &mut |line| say(line))
}

/// Whether every chore was done.
fn succeeded(report: &LabReport) -> Result<(), Failure> {
    for step in &report.steps {
        if step.timed_out {
            let message = format!("{} was killed, its time over: --limit gives it more", step.what);
            return Err(Failure { message, status: TIMED_OUT });
        }
        if step.status.is_some_and(|status| status != 0) {
            let why = step.errors.join("; ");
            return Err(Failure::failed(format!("{} failed: {why}", step.what)));
        }
    }
    Ok(())
}
