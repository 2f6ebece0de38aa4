//! Programs that a scenario starts in its layers, and whether they are there: a machine is not booted
//! for a program that then cannot be started.

use crate::error::LabError;
use crate::initramfs::{Initramfs, PROGRAMS, find};
use crate::scenario::{Scenario, Step};
use std::ffi::OsStr;
use std::path::Path;

/// Where a layer may get files while it runs.
const MADE: [&str; 5] = ["/tmp", "/run", "/dev", "/proc", "/sys"];

/// Refuses a program that a layer's file system does not have. `steps`: the scenario's steps are
/// carried out.
pub(crate) fn check(
    scenario: &Scenario,
    number: usize,
    files: &Initramfs,
    steps: bool,
) -> Result<(), LabError> {
    let launcher = scenario.layers.get(number + 1).and_then(|above| above.launcher.first());
    let of_steps = all_steps(scenario).filter(|_| steps);
    let mut started =
        launcher.into_iter().chain(of_steps.filter_map(|step| starts(scenario, step, number)));
    let missing = started.find(|name| {
        let path = path_of(name);
        !files.runs(Path::new(&path)) && !MADE.iter().any(|made| Path::new(&path).starts_with(made))
    });
    let Some(name) = missing else { return Ok(()) };
    Err(LabError::NotInLayer {
        program: name.clone(),
        layer: number,
        installed: find(OsStr::new(name)).is_some(),
    })
}

/// A program and its arguments, the program with its path.
pub(crate) fn with_path(argv: &[String]) -> Vec<String> {
    let mut argv = argv.to_vec();
    if let Some(program) = argv.first_mut() {
        *program = path_of(program);
    }
    argv
}

/// Where a layer looks for a program.
fn path_of(program: &str) -> String {
    match program.contains('/') {
        true => program.to_owned(),
        false => format!("{PROGRAMS}/{program}"),
    }
}

fn all_steps(scenario: &Scenario) -> impl Iterator<Item = &Step> {
    scenario.steps.iter().chain(scenario.stress.iter().flat_map(|stress| &stress.steps))
}

/// The program that a step starts in this layer, or in a guest that has this layer's files.
fn starts<'a>(scenario: &Scenario, step: &'a Step, number: usize) -> Option<&'a String> {
    let (layer, program) = match step {
        Step::Run { layer, program, .. } => {
            (layer.map_or(scenario.layers.len() - 1, usize::from), program)
        }
        Step::Guest { layer, nested, program, .. } => {
            (usize::from(*layer) + 1 + usize::from(nested.is_some()), program)
        }
        _ => return None,
    };
    program.first().filter(|_| layer == number)
}
