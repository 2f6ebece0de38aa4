//! The command line.

mod calibrate;
mod check;
mod input;
mod lab;
mod paper;
mod run;
mod sweep;
mod workloads;

pub use calibrate::CalibrateArgs;
pub use check::CheckArgs;
pub use input::{Input, RecordArgs};
pub use lab::{
    KernelChoice, LabCommand, LabLevelsArgs, LabPredictArgs, LabRunArgs, MachineChoice, TraceArgs,
};
pub use paper::{PaperArgs, PaperChoice};
pub use run::{Fragmentation, RunArgs};
pub use sweep::SweepArgs;
pub use workloads::{PrepareArgs, WorkloadsCommand};

use crate::inspect_args::{BillArgs, JoinArgs, ScanArgs, TopArgs};
use crate::values::whole;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Predicts what memory virtualisation costs.
///
/// Runs an unmodified Linux program, a recording of one or a generated workload through a
/// modelled native machine, virtual machine or nested virtual machine under several huge-page
/// policies, and says what each costs and why.
#[derive(Debug, Parser)]
#[command(
    name = "strata",
    version = crate::version::LINE,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "The words of the output: 'strata help terms'. A first run, line by line: \
                  docs/first-run.md. Every command with examples: docs/cli.md."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a workload through modelled machines and compare what they cost.
    #[command(
        after_help = "docs/cli.md has examples of every option, docs/concepts.md explains the \
                      output, docs/model.md what is computed."
    )]
    Run(Box<RunArgs>),
    /// Record what a program does to its memory, or convert another trace.
    #[command(after_help = "docs/cli.md has examples, docs/trace-format.md the format.")]
    Record(RecordArgs),
    /// Draw a page walk in two dimensions, name every reference and count them.
    #[command(after_help = "docs/concepts.md explains walks and their references.")]
    Walk(WalkArgs),
    /// Take a snapshot of this layer: its huge pages, and how the memory of its VMs is backed.
    #[command(after_help = "docs/inspect.md says what is read, and what it costs.")]
    Scan(ScanArgs),
    /// Join the snapshots of a stack: which huge pages are well aligned, and why not.
    #[command(after_help = "docs/inspect.md has every cause and its remedy.")]
    Join(JoinArgs),
    /// Make a page to look at from the JSON of a result of before.
    #[command(after_help = "docs/report.md shows the page and says how to read it.")]
    View(ViewArgs),
    /// Show huge pages and the backing of VMs on this machine, refreshed.
    #[command(
        after_help = "docs/inspect.md says what is read, docs/concepts.md what the words mean."
    )]
    Top(TopArgs),
    /// Watch what exits cost the VMs on this machine: by level and reason, and what would help.
    #[command(after_help = "docs/exits.md says how it is counted, and what it costs.")]
    Bill(BillArgs),
    /// Measure the processor at hand and describe it as a CPU that --cpu reads.
    #[command(after_help = "docs/calibrate.md says what is measured, and what cannot be seen.")]
    Calibrate(CalibrateArgs),
    /// Compare what huge pages bring a program on this computer with what the model predicts.
    #[command(after_help = "docs/calibrate.md says how both are found.")]
    Check(CheckArgs),
    /// Run real kernels, one in another, on an emulated machine with nested virtualisation.
    #[command(
        disable_help_subcommand = true,
        after_help = "docs/lab.md is a tutorial, docs/lab-scenarios.md has every key of a scenario."
    )]
    Lab {
        /// What to do with it.
        #[command(subcommand)]
        command: LabCommand,
    },
    /// Show a paper's figures beside what the model finds, by running what they take.
    #[command(
        after_help = "Results are kept: a second run goes on where the first was interrupted. \
                      docs/papers.md says what is run and why."
    )]
    Paper(PaperArgs),
    /// Run every combination of a grid of options; what is known from before is not run again.
    #[command(
        after_help = "docs/cli.md has an example, docs/python.md runs sweeps on other computers."
    )]
    Sweep(SweepArgs),
    /// Prepare workloads: record real programs once, to run them by name.
    #[command(
        disable_help_subcommand = true,
        after_help = "docs/cli.md says what stands for what, and how to run what is prepared."
    )]
    Workloads {
        /// What to do with them.
        #[command(subcommand)]
        command: WorkloadsCommand,
    },
    /// List what can be chosen, one line each.
    #[command(
        after_help = "docs/cli.md says how to use what is listed, docs/adding-a-policy.md how to \
                      add a policy."
    )]
    List {
        /// What to list.
        #[arg(value_enum)]
        what: Listing,
    },
    /// Print a completion script for a shell.
    #[command(after_help = "docs/cli.md has an example.")]
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands into a directory.
    #[command(after_help = "docs/cli.md has an example.")]
    Manual {
        /// The directory, which is made if it is not there.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print help on the program, on a command, or ('strata help terms') on the words of its output.
    #[command(after_help = "docs/concepts.md explains the terms, with drawings.")]
    Help {
        /// The command, or terms.
        #[arg(value_name = "COMMAND|terms")]
        topic: Vec<String>,
    },
}

/// What `strata list` knows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Listing {
    /// Huge-page policies and the papers they come from.
    Policies,
    /// CPU presets.
    Cpus,
    /// Generators and trace formats.
    Workloads,
    /// Everything `--set` can set, with its default and its source.
    Parameters,
    /// Scenarios of the lab.
    Scenarios,
}

/// Options of `strata view`.
#[derive(Args, Clone, Debug)]
pub struct ViewArgs {
    /// What --json of strata run, join, lab or paper wrote; - is the standard input.
    #[arg(value_name = "FILE.json")]
    pub json: PathBuf,

    /// Write the page here; - is the standard output [default: the name of the JSON with .html].
    #[arg(short, long, value_name = "FILE.html")]
    pub output: Option<PathBuf>,
}

/// Options of `strata walk`.
#[derive(Args, Clone, Debug)]
pub struct WalkArgs {
    /// Levels of the guest's page table.
    #[arg(long, value_name = "N", default_value = "4", value_parser = whole::<u8>(4, 5))]
    pub guest_levels: u8,

    /// Levels of the second stage; 0 walks natively.
    #[arg(long, value_name = "N", default_value = "4", value_parser = ["0", "4", "5"])]
    pub host_levels: String,

    /// Page size of the guest: 4k, 2m or 1g.
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = ["4k", "2m", "1g"])]
    pub guest_page: String,

    /// Page size of the second stage: 4k (as by default), 2m or 1g.
    #[arg(long, value_name = "SIZE", value_parser = ["4k", "2m", "1g"])]
    pub host_page: Option<String>,

    /// Write the walk as JSON in place of the drawing; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_cannot_be_read_is_answered_in_plain_words() {
        fn check(path: &[&str], command: &clap::Command) {
            for option in command.get_arguments().filter(|option| option.get_long().is_some()) {
                let named = format!("--{}", option.get_long().unwrap());
                for value in ["x", "", "-1", "1e3", "99999999999999999999999"] {
                    let given = format!("{named}={value}");
                    let words = path.iter().copied().chain([&given[..]]);
                    let Err(error) = Cli::try_parse_from(words) else { continue };
                    let message = crate::failure::Failure::from_clap(&error).message;
                    for raw in
                        ["invalid digit", "number too", "cannot parse", "zero", "provided string"]
                    {
                        assert!(!message.contains(raw), "{path:?} {given}: {message}");
                    }
                }
            }
            for inner in command.get_subcommands() {
                check(&[path, &[inner.get_name()]].concat(), inner);
            }
        }
        check(&["strata"], &Cli::command());
    }
}
