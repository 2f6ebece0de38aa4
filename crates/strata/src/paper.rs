//! `strata paper`.

use crate::args::{PaperArgs, PaperChoice};
use crate::failure::{FAILED, Failure};
use crate::interrupt::Interrupt;
use crate::output::{self, Target};
use crate::version::version;
use crate::{drawn, prepared};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::env;
use std::io::{IsTerminal, stderr};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;
use strata_engine::options::Version;
use strata_papers::gemini::{Gemini, XGemini};
use strata_papers::nestcloud::NestCloud;
use strata_papers::npt::Npt;
use strata_papers::vee16::Vee16;
use strata_papers::xplace::XPlace;
use strata_papers::{Document, Done, Kept, Paper, Row, Work};

/// What `--json` writes.
#[derive(Serialize)]
struct Figures<'a> {
    version: Version,
    scale: f64,
    /// Not every run is in the tables.
    partial: bool,
    runs: Vec<Command<'a>>,
    #[serde(flatten)]
    document: &'a Document,
}

/// A run and how to make it alone.
#[derive(Serialize)]
struct Command<'a> {
    name: &'a str,
    command: String,
}

/// Runs what a paper's tables take, and prints them. Gives the exit status.
///
/// # Errors
/// When results can be neither kept nor written.
pub fn paper(args: &PaperArgs) -> Result<u8, Failure> {
    let (name, paper): (_, &dyn Paper) = match args.paper {
        PaperChoice::Gemini => ("gemini", &Gemini::with(args.scale, prepared::is_there)),
        PaperChoice::Xgemini => ("xgemini", &XGemini::with(args.scale, prepared::is_there)),
        PaperChoice::Nestcloud => ("nestcloud", &NestCloud { scale: args.scale }),
        PaperChoice::Xplace => ("xplace", &XPlace::with(prepared::is_there)),
        PaperChoice::Npt => ("npt", &Npt::with(prepared::is_there)),
        PaperChoice::Vee16 => ("vee16", &Vee16),
    };
    let rows = paper.rows(args.scale);
    for (given, option) in [(args.list, "--list"), (args.kept, "--kept"), (args.fresh, "--fresh")] {
        if given && rows.is_empty() {
            return Err(Failure::usage(format!(
                "{option} is about runs, and the tables of {name} take none: all of it is counted anew in the model \
                 of memory modes; leave {option} out"
            )));
        }
    }
    if args.list {
        let lines: String = rows.iter().map(|row| row.command() + "\n").collect();
        return output::to_stdout(lines.as_bytes()).map(|()| 0);
    }
    let json = args.json.as_deref().map(Target::named);
    let html = args.html.as_deref().map(Target::named);
    let text = args.output.as_deref().map(Target::named);
    for (one, other, names) in [
        (&json, &text, "--json and --output"),
        (&html, &text, "--html and --output"),
        (&json, &html, "--json and --html"),
    ] {
        if one.is_some() && one == other {
            return Err(Failure::usage(format!("{names} name the same file; give them two")));
        }
    }
    let text = text.unwrap_or(match [&json, &html].contains(&&Some(Target::Stdout)) {
        true => Target::Stderr,
        false => Target::Stdout,
    });
    text.check()?;
    [&json, &html].into_iter().flatten().try_for_each(Target::check)?;
    let program = env::current_exe()
        .map_err(|error| Failure::failed(format!("this program cannot find itself: {error}")))?;
    let kept = Kept::of_user(name, &program).map_err(|error| Failure::failed(error.to_string()))?;
    if args.fresh {
        rows.iter().for_each(|row| kept.forget(row));
    }
    let interrupt = Interrupt::watch_all();
    let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let at_once = args.jobs.unwrap_or_else(cores);
    let progress = Shown::new(&rows);
    let work = Work {
        rows: &rows,
        kept: &kept,
        at_once,
        stop: &interrupt.flag,
        tell: &|done| progress.tell(&done),
    };
    let (found, failed) = if args.kept { (work.kept(), Vec::new()) } else { work.run() };
    progress.end();
    if args.kept && found.is_empty() {
        return Err(Failure::failed(format!(
            "no result of 'strata paper {name}' at scale {} is kept: the same command without --kept makes them",
            args.scale
        )));
    }
    let missing = rows.len() - found.len();
    let mut document = paper.document(&found);
    if missing > 0 {
        let command =
            if args.kept { "the same command without --kept" } else { "the same command" };
        let left = format!(
            "PARTIAL: {missing} of {} runs are missing; {command} goes on with them.",
            rows.len()
        );
        document.head.insert(0, left);
    }
    if json.is_some() || html.is_some() {
        let figures = Figures {
            version: version(),
            scale: args.scale,
            partial: missing > 0,
            runs: rows
                .iter()
                .map(|row| Command { name: &row.name, command: row.command() })
                .collect(),
            document: &document,
        };
        let mut written = serde_json::to_string_pretty(&figures).expect("figures are plain data");
        written.push('\n');
        json.as_ref().map_or(Ok(()), |target| target.plain(written.as_bytes()))?;
        html.as_ref().map_or(Ok(()), |target| target.plain(drawn::of(&written)?.as_bytes()))?;
    }
    text.plain(document.to_string().as_bytes())?;
    failed.iter().for_each(|error| crate::complain::complain(&error.to_string()));
    Ok(match failed.is_empty() {
        false => FAILED,
        true if interrupt.happened() => interrupt.status(),
        true => 0,
    })
}

/// How far the runs are, on the terminal.
struct Shown {
    bar: ProgressBar,
    /// Since when, and how many runs were made since.
    measured: Mutex<(Instant, usize)>,
    rows: usize,
}

impl Shown {
    fn new(rows: &[Row]) -> Self {
        let target = if stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(rows.len() as u64), target);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} runs  {msg}");
        bar.set_style(style.expect("the template is right"));
        Self { bar, measured: Mutex::new((Instant::now(), 0)), rows: rows.len() }
    }

    fn tell(&self, done: &Done<'_>) {
        self.bar.set_position(done.done as u64);
        if done.was_kept {
            return;
        }
        let mut measured = self.measured.lock().expect("nobody panics with it");
        measured.1 += 1;
        let left = (self.rows - done.done) as f64 / measured.1 as f64;
        let left = HumanDuration(measured.0.elapsed().mul_f64(left));
        self.bar.set_message(format!("{left:#} left: {}", done.row.name));
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command as Told};
    use crate::{hosts, plan};
    use clap::Parser;
    use strata_engine::catalogue;

    #[test]
    fn every_run_of_every_paper_is_one_that_strata_run_takes() {
        let catalogue = catalogue();
        let papers: [&dyn Paper; 5] = [
            &XPlace::with(prepared::is_there),
            &Npt::with(prepared::is_there),
            &Vee16,
            &Gemini::with(0.5, |_| false),
            &XGemini::with(0.5, |_| false),
        ];
        for paper in papers {
            for row in paper.rows(0.5) {
                let command = row.command();
                let words = shlex::split(&command).unwrap();
                assert_eq!(words[2..], row.words[..]);
                let Told::Run(args) = Cli::try_parse_from(words).unwrap().command else {
                    panic!("{command}")
                };
                let refused = match args.vm.is_empty() {
                    true => plan::plan(*args, &catalogue).err(),
                    false => hosts::plan::plan(*args, &catalogue).err(),
                };
                assert_eq!(refused, None, "{command}");
            }
        }
    }
}
