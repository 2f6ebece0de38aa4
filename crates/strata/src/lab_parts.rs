//! What every command of `strata lab` needs: a scenario, what is built, and words about what goes on.

use crate::args::MachineChoice;
use crate::failure::{Failure, INTERRUPTED};
use std::env;
use std::io::Write;
use std::path::PathBuf;
use strata_lab::{Cache, LabError, Make, Parts, Scenario};

/// Exit status when a program was killed because it took too long, as that of timeout(1).
pub const TIMED_OUT: u8 = 124;
/// Name of the agent's binary.
pub const AGENT: &str = "strata-agent";

/// A scenario, on the machine asked for or on its own.
pub fn load(name: &str, machine: Option<MachineChoice>) -> Result<Scenario, LabError> {
    let mut scenario = Scenario::load(name)?;
    if let Some(machine) = machine {
        scenario.set_make(machine.into(), name)?;
    }
    Ok(scenario)
}

/// What was built for a machine of this make.
pub fn parts(cache: &Cache, make: Make) -> Result<Parts, LabError> {
    let (agent, strata) = binaries()?;
    Ok(strata_lab::built(cache, make, agent, strata))
}

/// The binaries that run in the layers: the agent, and this program.
pub fn binaries() -> Result<(PathBuf, PathBuf), LabError> {
    Ok((companion(AGENT)?, executable()?))
}

fn executable() -> Result<PathBuf, LabError> {
    env::current_exe().map_err(|source| LabError::File { path: "the executable".into(), source })
}

/// A file that belongs to this program: beside it, or where it is installed.
pub fn companion(name: &str) -> Result<PathBuf, LabError> {
    let strata = executable()?;
    let directory = strata.parent().map(PathBuf::from).unwrap_or_default();
    ["", "..", "deps", "../deps", "../lib/strata"]
        .iter()
        .map(|place| directory.join(place).join(name))
        .find_map(|path| path.canonicalize().ok())
        .ok_or_else(|| LabError::NoCompanion { name: name.to_owned(), directory })
}

/// What a command ends with when the lab could not do something.
pub fn failure(error: &LabError) -> Failure {
    match error {
        LabError::Interrupted => {
            Failure { message: "interrupted; nothing is left running".into(), status: INTERRUPTED }
        }
        error if error.is_usage() => Failure::usage(error.to_string()),
        _ => Failure::failed(error.to_string()),
    }
}

/// A line about what is going on.
pub fn say(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}
