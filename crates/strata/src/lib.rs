//! The command-line program: reads what is asked for, drives the engine, writes tables and JSON.
//!
//! It is a library so that tests can run it over machines of their own; `main.rs` hands it the
//! real ones.

mod again;
pub mod args;
mod assignments;
mod bill;
mod calibrate;
pub mod captured_tables;
mod check;
pub mod complain;
pub mod config;
mod cpu;
mod defaults;
mod digest;
mod drawn;
mod effect;
pub mod exits;
mod exits_text;
pub mod failure;
mod gain;
mod given;
pub mod guest_memory;
mod help;
mod hosts;
pub mod inside;
pub mod inspect_args;
mod interrupt;
mod join;
mod junit;
mod lab;
mod lab_levels;
mod lab_parts;
mod lab_predict;
mod lab_text;
mod lab_trace;
mod last_level;
mod lines;
mod list;
mod manual;
pub mod output;
mod pairs;
mod paper;
mod phases;
mod pictures;
mod plan;
mod prepared;
mod progress;
mod record;
mod remote;
pub mod report_text;
mod requests;
mod results;
mod room;
mod run;
mod run_results;
mod sample;
mod scan;
mod snapshot_text;
mod stdin;
pub mod sweep;
mod terminal;
pub mod terms;
mod text_file;
pub mod tidy;
mod top;
mod unsampled;
mod values;
pub mod verdict;
pub mod version;
mod view;
pub mod vm_args;
mod walk;
mod workload;

use args::{Cli, Command, WorkloadsCommand};
use clap::{CommandFactory, Parser};
use failure::{Failure, USAGE};
use std::ffi::OsString;
use std::process::ExitCode;
use strata_engine::Catalogue;

/// Does what the command line `words` asks for; the first word is the program's name.
pub fn main(catalogue: &Catalogue, words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let done = match Cli::try_parse_from(words) {
        Ok(cli) => dispatch(cli.command, catalogue),
        // Help and version are errors to the parser.
        Err(help) if !help.use_stderr() => {
            output::to_stdout(help.render().ansi().to_string().as_bytes()).map(|()| 0)
        }
        Err(help)
            if help.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            let _ = help.print();
            return ExitCode::from(USAGE);
        }
        Err(error) => Err(Failure::from_clap(&error)),
    };
    done.unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            complain::complain(&failure.message);
        }
        failure.status
    })
    .into()
}

fn dispatch(command: Command, catalogue: &Catalogue) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => run::run(*args, catalogue),
        Command::Record(args) => record::record(args),
        Command::Walk(args) => walk::walk(&args).map(|()| 0),
        Command::Scan(args) => scan::scan(&args),
        Command::Join(args) => join::join(args).map(|()| 0),
        Command::View(args) => view::view(&args).map(|()| 0),
        Command::Top(args) => top::top(&args),
        Command::Calibrate(args) => calibrate::calibrate(&args).map(|()| 0),
        Command::Check(args) => check::check(&args),
        Command::Bill(args) => exits::bill(&args),
        Command::Paper(args) => paper::paper(&args),
        Command::Sweep(args) => sweep::sweep(&args, catalogue),
        Command::Workloads { command: WorkloadsCommand::Prepare(args) } => prepared::prepare(&args),
        Command::Lab { command } => lab::lab(command),
        Command::Help { topic } => help::help(topic.iter().map(String::as_str)).map(|()| 0),
        Command::List { what } => list::list(what, catalogue).map(|()| 0),
        Command::Manual { directory } => manual::write(&directory).map(|()| 0),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "strata", &mut script);
            output::to_stdout(&script).map(|()| 0)
        }
    }
}
