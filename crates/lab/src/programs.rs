//! Programs that a scenario starts in its layers, and whether they are there: a machine is not booted
//! for a program that then cannot be started.

use crate::error::LabError;
use crate::initramfs::{Initramfs, find};
use crate::scenario::{Scenario, Step};
use crate::steps::path_of;
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
    let install = match find(OsStr::new(name)) {
        Some(_) => "",
        None => ", and install it on this computer",
    };
    Err(LabError::Scenario(format!(
        "{name} is to run in L{number}, which has no such program: give that layer \
         programs = [\"{name}\"]{install}"
    )))
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
