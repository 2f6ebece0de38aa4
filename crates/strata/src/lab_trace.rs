//! `--trace` of the lab's commands: what is recorded of a program in the layers, and where it goes.

use crate::args::TraceArgs;
use crate::failure::Failure;
use crate::lab_parts::{companion, failure};
use crate::output::Target;
use std::path::{Path, PathBuf};
use strata_lab::{Make, Trace};
use strata_wire::machine::PLUGIN_FILE;

/// The files that it writes, each with what asked for it.
///
/// # Errors
/// When they are not to be files.
pub fn files(args: &TraceArgs) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
    let Some(path) = &args.file else { return Ok(Vec::new()) };
    if path == Path::new("-") {
        return Err(Failure::usage(
            "a trace is two files, so it cannot go to the standard output; name a file",
        ));
    }
    Ok(vec![("--trace", path.clone()), ("the tables of --trace", tables_of(path))])
}

/// Sees to it that no two files are the same.
///
/// # Errors
/// When they are.
pub fn distinct(files: &[(&str, PathBuf)]) -> Result<(), Failure> {
    for (number, (option, path)) in files.iter().enumerate() {
        if let Some((other, _)) = files[..number].iter().find(|(_, before)| before == path) {
            return Err(Failure::usage(format!(
                "{other} and {option} cannot both be {}; name two files",
                path.display()
            )));
        }
    }
    Ok(())
}

/// What to record; that it can be written is found out now, not after the run.
///
/// # Errors
/// When it cannot.
pub fn trace(args: &TraceArgs, make: Make) -> Result<Option<Trace>, Failure> {
    let Some(recording) = args.file.clone() else { return Ok(None) };
    let tables = tables_of(&recording);
    for path in [&recording, &tables] {
        Target::File(path.clone()).check()?;
    }
    let plugin = match make {
        Make::Amd => Some(companion(PLUGIN_FILE).map_err(|error| failure(&error))?),
        Make::Intel => None,
    };
    Ok(Some(Trace { plugin, recording, tables, skip: args.skip, limit: args.limit }))
}

fn tables_of(recording: &Path) -> PathBuf {
    let mut tables = recording.as_os_str().to_owned();
    tables.push(".tables");
    tables.into()
}
