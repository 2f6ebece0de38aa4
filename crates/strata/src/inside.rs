//! What `strata run` does, inside another program: options in, results out, nothing printed.
//!
//! Options are a table, as in a configuration file: what each is called and takes is what the command
//! line says. Whoever asks says when it is to end, by a flag.

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::Target;
use crate::{config, digest, hosts, plan, run, verdict, view};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use strata_engine::{Catalogue, Report};
use strata_text::estimate::SAMPLED;
use toml::{Table, Value};

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The result, as `--json` writes it but for the end of the line.
    pub json: String,
    /// SHA-256 of what was run, in hexadecimal; `None` for a live program, which is not the same twice.
    pub input_sha256: Option<String>,
    /// What failed on the way, if something did: the result is what there was until then.
    pub failed: Option<String>,
}

/// Options that make sense together, of something that can be opened.
pub struct Asked {
    args: RunArgs,
}

impl Asked {
    /// What a table asks for. Besides the keys of a configuration file it may have `config`, which names
    /// one. Files that the table names are looked for in `directory`, if there is one.
    ///
    /// # Errors
    /// When it asks for what there is not.
    pub fn of(mut options: Table, directory: Option<&Path>) -> Result<Self, Failure> {
        let file = match options.remove("config") {
            None => None,
            Some(Value::String(path)) => Some(PathBuf::from(path)),
            Some(_) => return Err(Failure::usage("'config' takes the name of a file")),
        };
        let mut args = RunArgs { config: file, ..config::options(options)? };
        if let Some(directory) = directory {
            args = config::placed(args, directory);
        }
        Ok(Self { args: run::complete(args)? })
    }

    /// SHA-256 of what is to be run, in hexadecimal; `None` for a live program or a pipe.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn input_sha256(&self) -> Result<Option<String>, Failure> {
        digest::of_input(&self.args)
    }

    /// SHA-256 of the other files that are read, in hexadecimal.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn files_sha256(&self) -> Result<String, Failure> {
        digest::of_files(&self.args)
    }

    /// Bytes of this computer's memory that it will probably take, if that can be told.
    pub fn need(&self, catalogue: &Catalogue) -> Option<u64> {
        if self.args.vm.is_empty() { run::need(&self.args, catalogue) } else { None }
    }

    /// Holds one machine at a time, on one thread, unless the options say otherwise: for many that run at
    /// once. Results do not depend on it.
    pub fn modest(&mut self) {
        let one = std::num::NonZeroUsize::MIN;
        self.args.threads.get_or_insert(one);
        if self.args.input.program.is_empty() {
            self.args.jobs.get_or_insert(one);
        }
    }

    /// Does it, until the flag is set: then the result is partial. Files that the options name are written.
    ///
    /// # Errors
    /// When nothing was found.
    pub fn run(self, catalogue: &Catalogue, stop: Arc<AtomicBool>) -> Result<Found, Failure> {
        let input_sha256 = self.input_sha256()?;
        let interrupt = Interrupt::told(stop);
        let (report, failed) = if self.args.vm.is_empty() {
            let plan = plan::plan(self.args, catalogue)?;
            plan.results.check()?;
            let (report, failed) = run::found(&plan, catalogue, &interrupt)?;
            plan.results.write(&report)?;
            printed(&plan.results.text, || run::table(&plan, &report))?;
            (report, failed)
        } else {
            let plan = hosts::plan::plan(self.args, catalogue)?;
            plan.results.check()?;
            let (report, failed) = hosts::measure(&plan, &interrupt)?;
            plan.results.write(&report)?;
            printed(&plan.results.text, || hosts::table(&plan, &report))?;
            (report, failed)
        };
        let json = serde_json::to_string(&report).expect("a report is plain data");
        Ok(Found { json, input_sha256, failed })
    }
}

/// The table goes where somebody wants it: nobody does who did not say so.
fn printed(target: &Target, table: impl FnOnce() -> String) -> Result<(), Failure> {
    if matches!(target, Target::File(_)) { target.styled(&table()) } else { Ok(()) }
}

/// The page of a result, whatever wrote it.
///
/// # Errors
/// When it is none.
pub fn page(json: &str) -> Result<String, Failure> {
    view::page(json).map_err(Failure::failed)
}

/// A result of a run in a few sentences, stack by stack; what is estimated in them is said first.
///
/// # Errors
/// When it is no result of a run.
pub fn sentences(json: &str) -> Result<Vec<String>, Failure> {
    let report = report(json)?;
    let is_sampled = report.runs.iter().any(|run| run.sampled.is_some());
    let of_stacks = report.by_stack();
    let of_stacks = of_stacks.iter().flat_map(|(_, runs)| verdict::sentences(runs));
    Ok(is_sampled.then(|| SAMPLED.to_owned()).into_iter().chain(of_stacks).collect())
}

/// A result of a run.
///
/// # Errors
/// When it is none.
pub fn report(json: &str) -> Result<Report, Failure> {
    serde_json::from_str(json)
        .map_err(|error| Failure::failed(format!("this is no result of strata run: {error}")))
}
