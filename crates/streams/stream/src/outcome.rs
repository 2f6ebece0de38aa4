//! What is known of a program when it is over.

use serde::Serialize;

/// What is known of a recorded program when it is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The command line word by word, or a description in one word. Empty when it is not known.
    pub command: Vec<String>,
    /// Exit status of the program: the code, or 128 + the signal's number.
    pub exit_status: Option<i32>,
    /// Why the recording ends before the program did, if it does; such as `interrupted by Ctrl-C`.
    pub partial: Option<String>,
    /// What a reader of results must know.
    pub notes: Vec<String>,
    /// The number that the tables file captured with the recording has, too; never 0.
    pub tables: Option<u64>,
}

/// A command line as a shell would need it typed: words with blanks or other characters that a
/// shell takes for its own are quoted.
pub fn command_line<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoter = shlex::Quoter::new().allow_nul(true);
    let quoted = |(index, word): (usize, &'a str)| {
        // Lists and assignments are easier to read as they are; only a first word could be taken
        // for an assignment of the shell's own.
        let plain = |byte: u8| {
            byte.is_ascii_alphanumeric() || b"-_./,:".contains(&byte) || index > 0 && byte == b'='
        };
        match !word.is_empty() && word.bytes().all(plain) {
            true => word.into(),
            false => quoter.quote(word).expect("a NUL is allowed"),
        }
    };
    words.into_iter().enumerate().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_would_read_the_same_words() {
        let words = ["a=b", "sh", "-c", "echo 'a  b'; exit $x", "x=1,2", "~", "", "plain"];
        let line = command_line(words);
        assert_eq!(shlex::split(&line).unwrap(), words);
        assert!(
            line.starts_with("'a=b' sh -c ") && line.ends_with(" x=1,2 '~' '' plain"),
            "{line}"
        );
    }
}
