//! `strata workloads prepare`.

use super::client::Client;
use super::cue::Cue;
use super::recipe::{Recipe, all, find};
use crate::args::PrepareArgs;
use crate::failure::{FAILED, Failure};
use crate::interrupt::Interrupt;
use crate::output::to_stdout;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::io::{IsTerminal, stderr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use strata_capture::{Capture, Options};
use strata_stream::{Batch, Event, Fill, Mark, Source, Step};
use strata_text::number::{bytes, count};
use strata_workloads::record::{Outcome, Reader, Summary, Writer};
use strata_workloads::{Before, Excerpt, Part};

/// How long recording one may take.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Does what the command asks for. Gives the exit status.
///
/// # Errors
/// When a name is unknown, a package missing, or a recording cannot be made.
pub fn prepare(args: &PrepareArgs) -> Result<u8, Failure> {
    let recipes = match args.names.is_empty() {
        true => all(),
        false => args.names.iter().map(|name| find(name)).collect::<Result<_, _>>()?,
    };
    if args.list {
        return to_stdout(list(&recipes)?.as_bytes()).map(|()| 0);
    }
    let interrupt = Interrupt::watch_all();
    let made: Vec<_> = recipes.iter().filter(|recipe| recipe.generator.is_none()).collect();
    let mut failures = Vec::new();
    for (number, recipe) in made.iter().enumerate() {
        if recipe.path()?.is_file() && !args.again {
            crate::complain::complain(&format!("{}: prepared already", recipe.name));
            continue;
        }
        let place = format!("{} of {}", number + 1, made.len());
        let done = install(recipe, args.install).and_then(|()| record(recipe, &place, &interrupt));
        if interrupt.happened() {
            let message = format!("{}: '{}' is not prepared", interrupt.reason(), recipe.name);
            return Err(Failure { message, status: interrupt.status() });
        }
        match done {
            Ok(()) => {}
            // The others can be made all the same.
            Err(failure) if made.len() > 1 => {
                crate::complain::complain(&failure.message);
                failures.push(recipe.name.as_str());
            }
            Err(failure) => return Err(failure),
        }
    }
    if !failures.is_empty() {
        return Err(Failure {
            message: format!("not prepared: {}; the reasons are above", failures.join(", ")),
            status: FAILED,
        });
    }
    Ok(0)
}

/// What stands for what, a line each, and how large those are that are there.
fn list(recipes: &[Recipe]) -> Result<String, Failure> {
    let width = recipes.iter().map(|recipe| recipe.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for recipe in recipes {
        let Recipe { name, about, stands_for, differs, packages, .. } = recipe;
        let state = match (&recipe.generator, summary(&recipe.path()?)) {
            (Some(spec), _) => format!("nothing to prepare, {spec}"),
            (None, None) => "not prepared".to_owned(),
            (None, Some((summary, size))) => format!(
                "{} accesses, {} touched, {} on disk",
                count(summary.accesses),
                bytes(summary.footprint_bytes),
                bytes(size)
            ),
        };
        let packages = match packages.is_empty() {
            true => String::new(),
            false => format!(" [{}]", packages.join(", ")),
        };
        let _ = writeln!(
            out,
            "{name:width$}  {about}; stands for {stands_for}; differs: {differs}; {state}{packages}"
        );
    }
    Ok(out)
}

/// The totals of a recording and its size in bytes.
fn summary(path: &Path) -> Option<(Summary, u64)> {
    let size = path.metadata().ok()?.len();
    Reader::open(path).ok()?.summary().cloned().map(|summary| (summary, size))
}

/// Sees to it that what a recipe needs is installed.
fn install(recipe: &Recipe, may_install: bool) -> Result<(), Failure> {
    let missing = recipe.missing();
    if missing.is_empty() {
        return Ok(());
    }
    let (programs, packages) = (missing.join(", "), recipe.packages.join(" "));
    let lacks = format!("workload '{}' needs {programs}, not found in PATH", recipe.name);
    if !may_install {
        return Err(Failure::failed(format!(
            "{lacks}: apt install {packages}, or give --install as root"
        )));
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::failed(format!("{lacks}: --install is for root; run it with sudo")));
    }
    let mut apt = Command::new("apt-get");
    apt.args(["install", "--yes", "--no-install-recommends"]).args(&recipe.packages);
    let done = apt.stdin(Stdio::null()).stdout(Stdio::null()).status();
    match done {
        Ok(status) if status.success() && recipe.missing().is_empty() => Ok(()),
        Ok(status) => Err(Failure::failed(format!(
            "{lacks}, and apt-get install {packages} did not help ({status}): run apt-get update, or \
             install them by hand"
        ))),
        Err(error) => Err(Failure::failed(format!("{lacks}, and apt-get does not run: {error}"))),
    }
}

/// Records a workload; its recording is there when it is whole.
fn record(recipe: &Recipe, place: &str, interrupt: &Interrupt) -> Result<(), Failure> {
    let Recipe { name, .. } = recipe;
    let cannot = |why: String| Failure::failed(format!("cannot prepare '{name}': {why}"));
    let path = recipe.path()?;
    let kept = path.parent().expect("it is in a directory");
    fs::create_dir_all(kept)
        .map_err(|error| cannot(format!("cannot make {}: {error}", kept.display())))?;
    // Short, as names of sockets have to be.
    let room = tempfile::Builder::new().prefix("strata-").tempdir();
    let room = room.map_err(|error| cannot(format!("no directory for its files: {error}")))?;
    if let Some(setup) = &recipe.setup {
        let setup = Recipe::within(setup, room.path());
        let output = Command::new("sh").args(["-euc", &setup]).stdin(Stdio::null()).output();
        let output = output.map_err(|error| cannot(format!("cannot run sh: {error}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("nothing said").to_owned();
            return Err(cannot(format!("its files cannot be made: {last}")));
        }
    }
    let program = Recipe::within(&recipe.program, room.path());
    let words = ["-c", &program].map(Into::into);
    let capture = Capture::spawn(OsStr::new("sh"), &words, Options::default());
    let capture = capture.map_err(|error| cannot(error.to_string()))?;
    let client = recipe.ready.is_some().then(|| Client::start(recipe, room.path()));
    let cue = client.as_ref().map_or_else(|| Arc::new(AtomicBool::new(false)), Client::cue);
    let part = Part { marked: client.is_some(), skip: recipe.skip, limit: None };
    let mut source = Excerpt::new(Cue::new(capture, cue), part, Before::Touches);
    let mut writer = Writer::create(&path).map_err(|error| cannot(error.to_string()))?;
    let bar = bar(name, place, recipe.limit);
    let (mut batch, mut counted, since) = (Batch::new(), None, Instant::now());
    loop {
        let filled = source.fill(&mut batch).map_err(|error| cannot(error.to_string()))?;
        counted = counted_in(&batch, counted);
        writer.push(&batch).map_err(|error| cannot(error.to_string()))?;
        bar.set_position(counted.unwrap_or(0));
        if interrupt.happened() {
            return Err(cannot(interrupt.reason()));
        }
        if let Some(why) = client.as_ref().and_then(Client::failure) {
            return Err(cannot(why));
        }
        if counted.is_some_and(|counted| counted >= recipe.limit) || filled == Fill::End {
            break;
        }
        if since.elapsed() > PATIENCE {
            return Err(cannot(format!("it takes longer than {} s", PATIENCE.as_secs())));
        }
    }
    bar.finish_and_clear();
    let Some(counted) = counted.filter(|counted| *counted > 0) else {
        let status = source.info().exit_status;
        let status = status.map_or_else(String::new, |status| format!(", with status {status}"));
        return Err(cannot(format!("it ended before anything was to be recorded{status}")));
    };
    let mut notes = source.info().notes;
    notes.push(format!("prepared workload {name}: {}", recipe.about));
    notes.push(format!("it stands for {}; different: {}", recipe.stands_for, recipe.differs));
    let command = vec!["sh".to_owned(), "-c".to_owned(), recipe.program.clone()];
    let outcome = Outcome { command, notes, ..Outcome::default() };
    // Whoever asks ends before the server does, or would say that it failed.
    drop(client);
    drop(source);
    let summary = writer.finish(outcome).map_err(|error| cannot(error.to_string()))?;
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    crate::complain::complain(&format!(
        "{name}: {} accesses, {} touched, in {}",
        count(counted),
        bytes(summary.footprint_bytes),
        bytes(size)
    ));
    remove_older(&path, name);
    Ok(())
}

/// Accesses behind the mark to begin: those of this batch added to those before, of which there are none as
/// long as the mark has not come.
fn counted_in(batch: &Batch, before: Option<u64>) -> Option<u64> {
    batch.steps().fold(before, |counted, step| match step {
        Step::Event(Event::Mark(Mark::Begin)) => counted.or(Some(0)),
        Step::Event(_) => counted,
        Step::Run { accesses, .. } => counted.map(|counted| counted + accesses.len() as u64),
    })
}

/// Removes recordings of the same name that were made in another way.
fn remove_older(path: &Path, name: &str) {
    let files = path.parent().and_then(|directory| fs::read_dir(directory).ok());
    for file in files.into_iter().flatten().flatten() {
        let file = file.path();
        let other = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let number = other.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
        let number = number.and_then(|rest| rest.strip_suffix(".strata"));
        let is_ours = number.is_some_and(|number| {
            number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        if is_ours && file != path {
            let _ = fs::remove_file(file);
        }
    }
}

/// What shows how far a recording is.
fn bar(name: &str, place: &str, limit: u64) -> ProgressBar {
    let visible = stderr().is_terminal();
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(limit), target);
    let style = ProgressStyle::with_template("{spinner} {msg} {wide_bar} {percent:>3} %");
    bar.set_style(style.expect("the template is right"));
    bar.set_message(format!("{name} ({place})"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
