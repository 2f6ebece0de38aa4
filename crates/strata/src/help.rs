//! `strata help`: on the commands, and on the words of the output.

use crate::args::Cli;
use crate::failure::{Failure, unknown};
use crate::{output, terms};
use clap::CommandFactory;

/// The topic that is no command.
const TERMS: &str = "terms";

/// Prints help on the command that these words name, or on the whole program.
///
/// # Errors
/// When there is no such command, and when standard output cannot be written.
pub fn help<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    let words: Vec<&str> = words.into_iter().collect();
    if words == [TERMS] {
        return output::to_stdout(terms::text().as_bytes());
    }
    let program = Cli::command();
    let mut command = &program;
    for (depth, word) in words.iter().enumerate() {
        let topic = (depth == 0).then_some(TERMS);
        let names = command.get_subcommands().map(clap::Command::get_name).chain(topic);
        let message = unknown("command", word, names, "'strata help' shows all");
        command = command.find_subcommand(word).ok_or_else(|| Failure::usage(message))?;
    }
    let line = ["strata"].into_iter().chain(words).chain(["--help"]);
    let help = program.clone().try_get_matches_from(line).expect_err("help is no match");
    output::to_stdout(help.render().ansi().to_string().as_bytes())
}
