//! One run that a table takes.

use strata_stream::command_line;

/// A run: what it is called and what `strata run` is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name, unlike any other's.
    pub name: String,
    /// Words after `strata run`.
    pub words: Vec<String>,
}

impl Row {
    /// A run with these options and values.
    pub fn new(name: String, options: &[(&str, String)], switches: &[&str]) -> Self {
        let values =
            options.iter().flat_map(|(option, value)| [(*option).to_owned(), value.clone()]);
        let switches = switches.iter().map(|switch| (*switch).to_owned());
        Self { name, words: values.chain(switches).collect() }
    }

    /// The command that runs it by itself, quoted for a shell.
    pub fn command(&self) -> String {
        let words = ["strata", "run"].into_iter().chain(self.words.iter().map(String::as_str));
        command_line(words)
    }
}
