//! What a page shows of a command's output, against what the command prints.

use crate::blocks::Tolerance;
use crate::{page, root, update};
use std::fmt::Debug;
use std::fs;

/// A line that stands for any number of lines, none among them.
pub const LEFT_OUT: &str = "...";

/// Why what was printed is not what is shown, if it is not. Without a `tolerance` lines have to be
/// equal. With one, words have to be, wherever lines are broken, and numbers nearly.
pub fn differs(shown: &[String], printed: &str, tolerance: &Tolerance) -> Option<String> {
    if shown.is_empty() {
        return None;
    }
    let parts: Vec<&[String]> = shown.split(|line| line == LEFT_OUT).collect();
    let why = if *tolerance == Tolerance::default() {
        let parts = parts.iter().map(|part| part.iter().map(|line| line.trim_end()).collect());
        let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
        mismatch(&parts.collect::<Vec<Vec<&str>>>(), &printed, |a, b| a == b)
    } else {
        let of_line = |line: &String| {
            let share = tolerance.of(line);
            tokens(line).into_iter().map(move |token| (token, share))
        };
        let parts = parts.iter().map(|part| part.iter().flat_map(of_line).collect());
        let printed: Vec<_> = tokens(printed).into_iter().map(|token| (token, 0.0)).collect();
        let same = |(a, share): &(Token, f64), (b, _): &(Token, f64)| a.is_nearly(b, *share);
        mismatch(&parts.collect::<Vec<Vec<_>>>(), &printed, same)
    };
    why.map(|why| format!("{why}\n--- printed:\n{printed}"))
}

/// Why these parts are not in `printed` one after another, the first at its beginning and the last
/// at its end.
fn mismatch<T: Debug>(
    parts: &[Vec<T>],
    printed: &[T],
    same: impl Fn(&T, &T) -> bool,
) -> Option<String> {
    let mut at = 0;
    for (index, part) in parts.iter().enumerate() {
        let latest = printed.len().saturating_sub(part.len()).max(at);
        let starts = match index {
            0 => 0..=0,
            _ if index + 1 == parts.len() && !part.is_empty() => latest..=latest,
            _ => at..=latest,
        };
        let begins = |start: usize| {
            let there = printed.get(start..start + part.len());
            there.is_some_and(|there| part.iter().zip(there).all(|(a, b)| same(a, b)))
        };
        let Some(start) = starts.clone().find(|&start| begins(start)) else {
            let there = printed.get(*starts.start()..).unwrap_or_default();
            let wrong = part.iter().zip(there).find(|(a, b)| !same(a, b));
            return Some(match wrong {
                Some((shown, printed)) if index == 0 => {
                    format!("shown {shown:?}, printed {printed:?}")
                }
                _ => format!("not printed, or not there: {part:?}"),
            });
        };
        at = start + part.len();
    }
    let whole = at == printed.len() || parts.last().is_some_and(Vec::is_empty);
    (!whole).then(|| format!("printed and not shown: {:?}", &printed[at..]))
}

/// A number, or what is between numbers.
#[derive(Debug, PartialEq)]
enum Token {
    Number { value: f64, last_place: f64 },
    Word(String),
}

impl Token {
    /// Equal words; numbers that differ by `share`, or by two in the last place.
    fn is_nearly(&self, other: &Self, share: f64) -> bool {
        match (self, other) {
            (
                Self::Number { value: a, last_place },
                Self::Number { value: b, last_place: other },
            ) => {
                let allowed = (share * a.abs().max(b.abs())).max(2.0 * last_place.max(*other));
                (a - b).abs() <= allowed * (1.0 + 1e-9)
            }
            _ => self == other,
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for mut rest in text.split_whitespace() {
        while !rest.is_empty() {
            let digits = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
            if digits == 0 {
                let word = rest.find(|it: char| it.is_ascii_digit()).unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..word].to_owned()));
                rest = &rest[word..];
                continue;
            }
            let fraction = rest[digits..]
                .strip_prefix('.')
                .map_or(0, |rest| rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len()));
            let end = if fraction == 0 { digits } else { digits + 1 + fraction };
            let value = rest[..end].parse().expect("digits are a number");
            tokens.push(Token::Number { value, last_place: 0.1f64.powi(fraction as i32) });
            rest = &rest[end..];
        }
    }
    tokens
}

/// A row of a table: the heading it is below, and its label.
fn row(heading: &mut String, line: &str) -> Option<(String, String)> {
    let label = line.split("   ").find(|part| !part.trim().is_empty())?.trim().to_owned();
    if !line.starts_with(' ') {
        heading.clone_from(&label);
    }
    Some((heading.clone(), label))
}

/// The README's table is of the guide's output: each of its lines is one there.
#[test]
fn the_readme_shows_lines_of_the_first_run() {
    let (mut readme, guide) = (page("README.md"), page("docs/first-run.md"));
    let (_, table) =
        readme.split_once("<!-- of docs/first-run.md -->\n```text\n").expect("a table");
    let table = table.split_once("```").expect("its end").0.to_owned();
    let mut heading = String::new();
    let rows: Vec<_> = guide.lines().map(|line| (row(&mut heading, line), line)).collect();
    let mut heading = String::new();
    let mut shown = Vec::new();
    for line in table.lines() {
        let key = row(&mut heading, line);
        let whole = rows.iter().find(|(other, _)| *other == key).map(|(_, line)| *line);
        shown.push(whole.unwrap_or_else(|| panic!("not in docs/first-run.md: {line:?}")));
    }
    assert!(shown.len() >= 5, "{shown:?}");
    let shown = shown.join("\n") + "\n";
    if update() && shown != table {
        readme = readme.replacen(&table, &shown, 1);
        fs::write(root().join("README.md"), readme).unwrap();
    } else {
        assert_eq!(table, shown, "UPDATE_DOCS=1 writes the README's table anew");
    }
}

#[test]
fn excerpts_and_tolerance_are_as_narrow_as_said() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let differs = |shown: &str, printed: &str, share| {
        let tolerance = Tolerance { share, lines: vec![("rare".to_owned(), 0.5)] };
        let exact = Tolerance::default();
        differs(&lines(shown), printed, if share == 0.0 { &exact } else { &tolerance })
    };
    assert_eq!(differs("a\nb", "a  \nb\n", 0.0), None);
    assert_eq!(differs("a\n...\nd", "a\nb\nc\nd\n", 0.0), None);
    assert_eq!(differs("...\nb\n...", "a\nb\nc\n", 0.0), None);
    assert_eq!(differs("", "anything", 0.0), None);
    for (shown, printed) in [
        ("a", "b"),
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("...\nc", "c\nd"),
        ("b\n...", "a\nb"),
        ("...\nb\na\n...", "a\nb"),
    ] {
        assert!(differs(shown, printed, 0.0).is_some(), "{shown:?} is {printed:?}");
        assert!(differs(shown, printed, 0.1).is_some(), "{shown:?} is {printed:?}");
    }
    assert_eq!(differs("x 13.4k of\n100 MiB", "x 13.9k\nof 104 MiB", 0.05), None);
    assert_eq!(differs("0.03", "0.05", 0.05), None);
    assert_eq!(differs("100\nrare 100\n100", "104\nrare 149\n100", 0.05), None);
    assert!(differs("100\nrare 100\n100", "149\nrare 149\n100", 0.05).is_some());
    for (shown, printed) in [("0.03", "0.06"), ("100 k", "106 k"), ("10 k", "10 M"), ("-", "0")] {
        assert!(differs(shown, printed, 0.05).is_some(), "{shown:?} is {printed:?}");
    }
}
