//! Every command in the documentation is run.
//!
//! Blocks marked `console` hold commands after `$ ` (further lines belong to a here-document or
//! are output); blocks marked `sh` are scripts. Those of one file run in order in one directory.
//! A line `<!-- not run: reason -->` before a block leaves it out, and `<!-- lab -->` leaves it to
//! the test that has a lab.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Block {
    line: usize,
    script: String,
    /// Boots real kernels.
    lab: bool,
}

/// The blocks of a document that run `strata`.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, Block)> = None;
    let (mut skip, mut lab) = (false, false);
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                let block = Block { line: number + 1, script: String::new(), lab };
                open = Some((language.trim().to_owned(), block));
            }
            (Some(_), Some(_)) => {
                let (language, block) = open.take().unwrap();
                let runs = matches!(language.as_str(), "console" | "sh");
                if runs && !skip && block.script.contains("strata") {
                    blocks.push(block);
                }
                (skip, lab) = (false, false);
            }
            (Some((language, block)), None) => {
                block.script += &script_line(language, line, &block.script);
            }
            (None, None) if line.starts_with("<!-- not run: ") => skip = true,
            (None, None) if line == "<!-- lab -->" => lab = true,
            (None, None) if !line.trim().is_empty() => (skip, lab) = (false, false),
            (None, None) => {}
        }
    }
    blocks
}

/// What a line of a block adds to its script: after `console`'s commands comes output, except
/// inside a here-document.
fn script_line(language: &str, line: &str, before: &str) -> String {
    let in_document = before.rfind("<<'END'\n").is_some_and(|at| !before[at..].contains("\nEND\n"));
    match line.strip_prefix("$ ") {
        Some(command) if language == "console" => format!("{command}\n"),
        None if language == "console" && !in_document => String::new(),
        _ => format!("{line}\n"),
    }
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut documents: Vec<_> =
        docs.filter(|path| path.extension() == Some("md".as_ref())).collect();
    documents.extend([root.join("README.md")].into_iter().filter(|path| path.exists()));
    documents.sort();
    documents
}

/// Copies what the commands use of the tree, which is where a reader types them.
fn tree(directory: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for part in ["docs", "docs/examples", "demo"] {
        fs::create_dir(directory.join(part)).unwrap();
        for entry in fs::read_dir(root.join(part)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                let name = directory.join(part).join(entry.file_name());
                fs::copy(entry.path(), name).unwrap();
            }
        }
    }
}

#[test]
fn every_command_in_the_documentation_works() {
    let run = run_blocks(|block| !block.lab);
    assert!(run > 10, "only {run} blocks found");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn every_command_of_the_lab_in_the_documentation_works() {
    let run = run_blocks(|block| block.lab);
    assert!(run > 2, "only {run} blocks found");
}

/// Runs the blocks that are `wanted`, those of a document in one directory. Returns their number.
fn run_blocks(wanted: impl Fn(&Block) -> bool) -> usize {
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(common::program(), home.path().join("strata")).unwrap();
    let path = format!("{}:{}", home.path().display(), std::env::var("PATH").unwrap());
    let mut run = 0;
    for document in documents() {
        let directory = tempfile::tempdir().unwrap();
        tree(directory.path());
        for block in blocks(&fs::read_to_string(&document).unwrap()) {
            if !wanted(&block) {
                continue;
            }
            let mut command = Command::new("sh");
            command.args(["-eu", "-c", &block.script]).current_dir(&directory).env("PATH", &path);
            let output = command.output().unwrap();
            assert!(
                output.status.success(),
                "{}:{}: {:?}\n{}\n{}",
                document.display(),
                block.line,
                output.status.code(),
                block.script,
                common::complaint(&output),
            );
            run += 1;
        }
    }
    run
}

#[test]
fn every_option_is_in_the_documentation() {
    use clap::CommandFactory;
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let docs = fs::read_to_string(docs).unwrap();
    let mut commands: String = blocks(&docs).into_iter().map(|block| block.script).collect();
    // Examples that cannot be run here are examples all the same.
    commands.extend(docs.lines().filter(|line| line.starts_with("$ strata ")));
    for command in strata::args::Cli::command().get_subcommands() {
        assert!(commands.contains(&format!("strata {}", command.get_name())), "{command}");
        for option in command.get_arguments().filter_map(|argument| argument.get_long()) {
            let shown = commands.contains(&format!("--{option}"));
            let short = option == "output" && commands.contains("-o ");
            assert!(shown || short, "no example of --{option}");
        }
    }
}

#[test]
fn blocks_are_found_and_output_is_not_a_command() {
    let text = "\
```console
$ cat > a <<'END'
x $ y
END
$ strata list cpus
zen2  a CPU
```

<!-- not run: takes an hour -->
```console
$ strata run
```

```rust
strata();
```

```sh
strata walk | \\
  head
```
";
    let found: Vec<_> = blocks(text).into_iter().map(|b| (b.line, b.script)).collect();
    assert_eq!(
        found,
        [
            (1, "cat > a <<'END'\nx $ y\nEND\nstrata list cpus\n".to_owned()),
            (18, "strata walk | \\\n  head\n".to_owned()),
        ]
    );
}
