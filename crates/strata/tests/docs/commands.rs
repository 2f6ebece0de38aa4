//! Every command in the documentation is run, those of one page in order in one directory, and
//! prints what the page shows. `UPDATE_DOCS=1 cargo test -p strata --test docs` writes anew what
//! pages show, but for excerpts, which have a line `...`.

use crate::blocks::{Block, blocks};
use crate::{common, documents, page, root, shown, update};
use clap::CommandFactory;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// Written between the outputs of the commands of a block.
const BETWEEN: char = '\u{1e}';

/// Copies what the commands use of the tree, which is where a reader types them.
fn tree(directory: &Path) {
    for part in ["docs", "docs/examples", "demo"] {
        fs::create_dir(directory.join(part)).unwrap();
        for entry in fs::read_dir(root().join(part)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                let name = directory.join(part).join(entry.file_name());
                fs::copy(entry.path(), name).unwrap();
            }
        }
    }
}

#[test]
fn every_command_in_the_documentation_works() {
    let run = run_blocks(&common::program(), 2, |block| !block.lab);
    assert!(run > 10, "only {run} blocks found");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn every_command_of_the_lab_in_the_documentation_works() {
    // As the lab's own tests do.
    let programs = std::env::var_os("STRATA_LAB_PROGRAMS").map(PathBuf::from);
    let program = programs.map_or_else(common::program, |programs| programs.join("strata"));
    let run = run_blocks(&program, 2, |block| block.lab);
    assert!(run > 2, "only {run} blocks found");
}

/// Runs the blocks that are `wanted` with this `strata`, those of a document in one directory, and so many documents at
/// a time. Returns the blocks' number.
fn run_blocks(program: &Path, at_once: usize, wanted: impl Fn(&Block) -> bool + Sync) -> usize {
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(program, home.path().join("strata")).unwrap();
    let path = format!("{}:{}", home.path().display(), std::env::var("PATH").unwrap());
    let documents = Mutex::new(documents().into_iter());
    let next = || documents.lock().unwrap().next();
    let booted = Mutex::new(BTreeSet::new());
    // What boots takes long, and stands by itself: the same commands on another page show nothing new.
    let is_known = |block: &Block| {
        block.lab && !block.shows() && !booted.lock().unwrap().insert(block.script(""))
    };
    let work = || -> (usize, Vec<String>) {
        let (mut run, mut wrong) = (0, Vec::new());
        while let Some(document) = next() {
            let wanted = |block: &Block| wanted(block) && !is_known(block);
            run += run_document(&document, &path, wanted, &mut wrong);
        }
        (run, wrong)
    };
    let (run, wrong) = thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        let done =
            threads.into_iter().map(|thread| thread.join().expect("a command's place is above"));
        done.fold((0, Vec::new()), |(run, mut wrong), (more, others)| {
            wrong.extend(others);
            (run + more, wrong)
        })
    });
    assert!(
        wrong.is_empty(),
        "{}\n\nIf that is right, UPDATE_DOCS=1 writes what is shown anew; excerpts by hand",
        wrong.join("\n\n")
    );
    run
}

/// Runs those of a document, and says which printed something else than it shows. Returns their number.
fn run_document(
    document: &Path,
    path: &str,
    wanted: impl Fn(&Block) -> bool,
    wrong: &mut Vec<String>,
) -> usize {
    let directory = tempfile::tempdir().unwrap();
    tree(directory.path());
    let text = fs::read_to_string(document).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let (mut run, mut anew) = (0, Vec::new());
    for block in blocks(&text).iter().filter(|block| wanted(block)) {
        let place = format!("{}:{}", document.display(), block.line);
        let outputs = outputs(block, &place, directory.path(), path);
        run += 1;
        for (command, printed) in block.commands.iter().zip(&outputs) {
            let expected = &command.shown;
            let Some(why) = shown::differs(expected, printed, &block.tolerance) else {
                continue;
            };
            if update() && !expected.iter().any(|line| line == shown::LEFT_OUT) {
                anew.push((command.lines.clone(), printed.clone()));
            } else {
                wrong.push(format!("{place}: {}: {why}", command.script.trim_end()));
            }
        }
    }
    if !anew.is_empty() {
        // From the end, so that the places of those before stay right.
        for (range, printed) in anew.into_iter().rev() {
            lines.splice(range, printed.lines().map(|line| line.trim_end().to_owned()));
        }
        fs::write(document, lines.join("\n") + "\n").unwrap();
    }
    run
}

/// What each command of a block printed, on whichever output.
fn outputs(block: &Block, place: &str, directory: &Path, path: &str) -> Vec<String> {
    let mut script = block.script("");
    if block.shows() {
        script = format!("exec 2>&1\n{}", block.script("printf '\\036'\n"));
    }
    let mut command = Command::new("sh");
    command.args(["-eu", "-c", &script]).current_dir(directory).env("PATH", path);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{place}: {:?}\n{script}\n{}\n{printed}",
        output.status.code(),
        common::complaint(&output),
    );
    // Which commit it was built from is not for a page to say.
    let program = strata::args::Cli::command();
    let version = program.get_version().expect("it has one");
    let printed = printed.replace(version, env!("CARGO_PKG_VERSION"));
    printed.split(BETWEEN).map(str::to_owned).collect()
}

#[test]
fn every_option_is_in_the_documentation() {
    let docs = page("docs/cli.md");
    let mut commands: String = blocks(&docs).iter().map(|block| block.script("")).collect();
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
fn the_help_of_every_command_names_a_page() {
    let program = strata::args::Cli::command();
    for command in program.get_subcommands().chain([&program]) {
        let help = command.clone().render_long_help().to_string();
        assert!(help.contains("docs/"), "{}: {help}", command.get_name());
    }
    assert!(strata::terms::text().ends_with("docs/concepts.md explains them, with drawings\n"));
}
