//! The blocks of a document that run `strata`.
//!
//! Blocks marked `console` hold commands after `$ `; what follows a command is what it prints,
//! except in a here-document. Blocks marked `sh` are scripts. A line before a block marks it:
//!
//! - `<!-- not run: reason -->` leaves it out;
//! - `<!-- lab -->` leaves it to the test that has a lab;
//! - `<!-- figures within 5 % -->` lets the numbers of what is printed differ by so much, where a
//!   program that is not the same twice makes them; `<!-- figures within 5 %, L1 TLB misses 50 % -->`
//!   allows more in the lines with these words.

use std::ops::Range;

/// A block of commands.
#[derive(Debug, PartialEq)]
pub struct Block {
    /// Line of the document it begins with, from 1.
    pub line: usize,
    /// Its commands, in order.
    pub commands: Vec<Command>,
    /// Boots real kernels.
    pub lab: bool,
    /// By how much numbers of its output may differ.
    pub tolerance: Tolerance,
}

/// By which share numbers may differ; by none if what is printed has to be the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tolerance {
    pub share: f64,
    /// What holds for lines with these words instead.
    pub lines: Vec<(String, f64)>,
}

impl Tolerance {
    /// The share for a line.
    pub fn of(&self, line: &str) -> f64 {
        let special = self.lines.iter().find(|(words, _)| line.contains(words));
        special.map_or(self.share, |(_, share)| *share)
    }
}

/// A command, and what the document says it prints.
#[derive(Debug, Default, PartialEq)]
pub struct Command {
    pub script: String,
    /// Lines of output shown; with none, nothing is said of the output.
    pub shown: Vec<String>,
    /// Where they are in the document, as indices of lines.
    pub lines: Range<usize>,
}

impl Block {
    /// All commands in one script. What is between them is written between their outputs.
    pub fn script(&self, between: &str) -> String {
        let scripts: Vec<&str> = self.commands.iter().map(|it| it.script.as_str()).collect();
        scripts.join(between)
    }

    /// The document shows what a command prints.
    pub fn shows(&self) -> bool {
        self.commands.iter().any(|command| !command.shown.is_empty())
    }

    fn push(&mut self, index: usize, line: &str, console: bool) {
        let in_document = self.commands.last().is_some_and(|last| {
            let begun = last.script.rfind("<<'END'\n");
            begun.is_some_and(|at| !last.script[at..].contains("\nEND\n"))
        });
        let command = line.strip_prefix("$ ").filter(|_| console && !in_document);
        if command.is_some() || self.commands.is_empty() {
            let empty = Command { lines: index + 1..index + 1, ..Command::default() };
            self.commands.push(empty);
        }
        let last = self.commands.last_mut().expect("there is one");
        if console && command.is_none() && !in_document {
            last.shown.push(line.to_owned());
            last.lines.end = index + 1;
        } else {
            last.script += &format!("{}\n", command.unwrap_or(line));
            last.lines = index + 1..index + 1;
        }
    }
}

/// What `<!-- figures within 5 %, L1 TLB misses 50 % -->` says.
fn tolerance(line: &str) -> Option<Tolerance> {
    let said = line.strip_prefix("<!-- figures within ")?.strip_suffix(" % -->")?;
    let share = |percent: &str| percent.parse::<f64>().expect("a number of per cent") / 100.0;
    let mut parts = said.split(" %, ");
    let all = share(parts.next()?);
    let lines = parts.map(|part| part.rsplit_once(' ').expect("words and a number"));
    let lines = lines.map(|(words, percent)| (words.to_owned(), share(percent))).collect();
    Some(Tolerance { share: all, lines })
}

/// The blocks of a document that run `strata`.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, Block)> = None;
    let fresh =
        || Block { line: 0, commands: Vec::new(), lab: false, tolerance: Tolerance::default() };
    let (mut marked, mut skip) = (fresh(), false);
    for (index, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                let block = Block { line: index + 1, ..std::mem::replace(&mut marked, fresh()) };
                open = Some((language.trim(), block));
            }
            (Some(_), Some(_)) => {
                let (language, block) = open.take().expect("it is open");
                let runs = matches!(language, "console" | "sh") && !skip;
                if runs && block.script("").contains("strata") {
                    blocks.push(block);
                }
                skip = false;
            }
            (Some((language, block)), None) => block.push(index, line, *language == "console"),
            (None, None) if line.starts_with("<!-- not run: ") => skip = true,
            (None, None) if line == "<!-- lab -->" => marked.lab = true,
            (None, None) if tolerance(line).is_some() => {
                marked.tolerance = tolerance(line).expect("just seen");
            }
            (None, None) if !line.trim().is_empty() => (marked, skip) = (fresh(), false),
            (None, None) => {}
        }
    }
    blocks
}

#[test]
fn blocks_are_found_and_output_is_not_a_command() {
    let text = "\
```console
$ cat > a <<'END'
x
$ y
END
$ strata list cpus
zen2  a CPU

more
$ true
```

<!-- not run: takes an hour -->
```console
$ strata run
```

```rust
strata();
```

<!-- lab -->
<!-- figures within 5 %, TLB misses 50 % -->

```sh
strata walk | \\
  head
```
";
    let found = blocks(text);
    let script = "cat > a <<'END'\nx\n$ y\nEND\n#strata list cpus\n#true\n";
    assert_eq!(found[0].script("#"), script);
    let shown: Vec<_> = found[0].commands.iter().map(|it| it.shown.join("\n")).collect();
    assert_eq!(shown, ["", "zen2  a CPU\n\nmore", ""]);
    assert_eq!(found[0].commands[1].lines, 6..9);
    assert_eq!((found[0].line, found[0].lab), (1, false));
    assert_eq!(found[0].tolerance, Tolerance::default());
    assert_eq!(found[1].script("#"), "strata walk | \\\n  head\n");
    assert_eq!((found[1].line, found[1].lab), (25, true));
    let shares = ["  faults 1", "  L2 TLB misses 1"].map(|line| found[1].tolerance.of(line));
    assert_eq!(shares, [0.05, 0.5]);
    assert!(found[0].shows() && !found[1].shows());
    assert_eq!(found.len(), 2);
}
