//! Real programs, recorded once and kept, for `--workload prepared:NAME`.

mod client;
mod cue;
mod prepare;
mod recipe;

pub use prepare::prepare;
pub use recipe::{Recipe, find};

use crate::failure::Failure;

/// What names a prepared workload where a generator could stand.
pub const PREFIX: &str = "prepared:";

/// Whether what `--workload` names is recorded, and not generated.
pub fn is_recorded(spec: &str) -> bool {
    let recipe = spec.strip_prefix(PREFIX).and_then(|name| find(name).ok());
    recipe.is_some_and(|recipe| recipe.generator.is_none())
}

/// Whether the prepared workload of this name has its recording.
pub fn is_there(name: &str) -> bool {
    find(name).and_then(|recipe| recipe.path()).is_ok_and(|path| path.is_file())
}

/// The recording of a prepared workload.
///
/// # Errors
/// When there is no such workload, or it is not prepared.
pub fn recording(recipe: &Recipe) -> Result<std::path::PathBuf, Failure> {
    let path = recipe.path()?;
    match path.is_file() {
        true => Ok(path),
        false => Err(Failure::failed(format!(
            "workload '{0}' is not prepared: run 'strata workloads prepare {0}' first",
            recipe.name
        ))),
    }
}
