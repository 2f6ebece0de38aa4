//! `strata manual`: manual pages, made from the command's own help.

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::Target;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::fs;
use std::path::Path;

/// Writes a page for the program, and one for each of its commands.
///
/// # Errors
/// When a page cannot be written.
pub fn write(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory).map_err(|error| {
        Failure::failed(format!("cannot make {}: {error}", directory.display()))
    })?;
    let mut program = Cli::command();
    program.build();
    pages(&program, directory)
}

fn pages(command: &Command, directory: &Path) -> Result<(), Failure> {
    // It is called by its way here: strata-lab-run.
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page)
        .map_err(|error| Failure::failed(format!("cannot make a page: {error}")))?;
    Target::File(directory.join(man.get_filename())).plain(&page)?;
    let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
    inner.into_iter().try_for_each(|inner| pages(inner, directory))
}
