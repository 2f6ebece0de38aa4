//! What went wrong, told in one line: the cause and the remedy.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::fmt;

/// Exit status when something asked for could not be done.
pub const FAILED: u8 = 1;
/// Exit status when what was asked for makes no sense.
pub const USAGE: u8 = 2;
/// Exit status of a result cut short by Ctrl-C: 128 + SIGINT, as a shell reports it.
pub const INTERRUPTED: u8 = 130;

/// Why the program ends early.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// One line.
    pub message: String,
    /// Exit status.
    pub status: u8,
}

impl Failure {
    /// The command line or configuration makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: USAGE }
    }

    /// Something did not work.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: FAILED }
    }

    /// A complaint of the argument parser, brought to one line.
    pub fn from_clap(error: &clap::Error) -> Self {
        if let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg)
            && error.kind() == ErrorKind::UnknownArgument
            && argument
                .strip_prefix('-')
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
        {
            let text = "no option has this name, and none takes a negative value";
            return Self::usage(format!("'{argument}': {text}; give a number from 0 up"));
        }
        let text = error.render().to_string();
        let mut parts: Vec<String> = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.starts_with("Usage:") || line.starts_with("For more information") {
                break;
            }
            let line = line.trim_start_matches("error: ").trim_start_matches("tip: ");
            match parts.last_mut() {
                _ if line.is_empty() => {}
                // Lists of arguments follow a colon, each on its own line.
                Some(last) if last.ends_with(':') => *last = format!("{last} {line}"),
                Some(last) if line.starts_with('<') => *last = format!("{last}, {line}"),
                _ => parts.push(line.to_owned()),
            }
        }
        let message = parts.join("; ");
        // What has a second part has a remedy.
        Self::usage(if message.contains(';') { message } else { message + "; see 'strata --help'" })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// `no policy is called 'x'; did you mean 'y'? 'strata list policies' shows all`.
pub fn unknown<'a>(
    what: &str,
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    all: &str,
) -> String {
    let guess = strata_text::nearest(name, candidates)
        .map(|nearest| format!("did you mean '{nearest}'? "))
        .unwrap_or_default();
    format!("no {what} is called '{name}'; {guess}{all}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_nearest_name_is_suggested() {
        let names = ["base", "thp", "gemini", "xgemini", "aligned"];
        assert_eq!(
            unknown("policy", "alinged", names, "see 'strata list policies'"),
            "no policy is called 'alinged'; did you mean 'aligned'? see 'strata list policies'"
        );
    }

    #[test]
    fn every_complaint_of_the_parser_is_one_line_with_a_remedy() {
        let lines = [
            vec!["strata", "run", "--polcy", "thp"],
            vec!["strata", "rn"],
            vec!["strata", "walk", "--guest-levels", "9"],
            vec!["strata", "record", "x"],
            vec!["strata", "run", "--seed", "many"],
            vec!["strata", "list", "policy"],
        ];
        for line in lines {
            let error = crate::args::Cli::try_parse_from(&line).unwrap_err();
            let failure = Failure::from_clap(&error);
            assert!(!failure.message.contains('\n'), "{failure}");
            assert!(failure.message.contains(';'), "{line:?}: {failure}");
            assert_eq!(failure.status, USAGE);
        }
    }
}
