//! `strata sweep`.

use super::{Cache, Done, Grid, Outcomes, Work, table};
use crate::args::SweepArgs;
use crate::failure::{FAILED, Failure};
use crate::interrupt::Interrupt;
use crate::output::{self, Target};
use crate::tidy;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::num::NonZeroUsize;
use std::thread;
use strata_engine::Catalogue;

/// Runs every point and reports. Gives the exit status.
///
/// # Errors
/// When the file makes no sense, or a result cannot be written.
pub fn sweep(args: &SweepArgs, catalogue: &Catalogue) -> Result<u8, Failure> {
    let named = |path: &Option<_>| path.as_deref().map(Target::named);
    let (json, csv, text) = (named(&args.json), named(&args.csv), named(&args.output));
    let given = [("--json", &json), ("--csv", &csv), ("--output", &text)];
    let outputs: Vec<(&str, &Target)> =
        given.iter().filter_map(|(name, target)| Some((*name, target.as_ref()?))).collect();
    if outputs.iter().filter(|(_, target)| **target == Target::Stdout).count() > 1 {
        return Err(Failure::usage("only one result can go to the standard output; name a file"));
    }
    output::apart(&outputs, &[("the sweep", &args.file)])?;
    outputs.iter().try_for_each(|(_, target)| target.check())?;
    let grid = Grid::read(&args.file)?;
    let points = grid.points();
    let cache = match &args.cache {
        _ if args.fresh => None,
        Some(directory) => Some(Cache::at(directory.clone())),
        None => Cache::of_user(),
    };
    let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let interrupt = Interrupt::watch_all();
    let bar = bar(points.len());
    let work = Work {
        points: &points,
        catalogue,
        cache: cache.as_ref(),
        at_once: args.jobs.unwrap_or_else(cores),
        memory: None,
        stop: interrupt.flag.clone(),
        tell: &|done| tell(&bar, done),
    };
    let found = work.run();
    bar.finish_and_clear();
    let outcomes = Outcomes::of(&grid, &points, &found);
    if let Some(target) = &json {
        target.plain((outcomes.json()? + "\n").as_bytes())?;
    }
    if let Some(target) = &csv {
        target.plain(tidy::csv(&outcomes.columns()?).as_bytes())?;
    }
    if text.is_some() || !outputs.iter().any(|(_, target)| **target == Target::Stdout) {
        text.unwrap_or(Target::Stdout).styled(&table::text(&outcomes)?)?;
    }
    let (failed, missing) = outcomes.missing();
    if missing > 0 {
        crate::complain::complain(&format!(
            "{}: {missing} of {} points are missing; the same command goes on with them",
            interrupt.reason(),
            points.len()
        ));
    }
    Ok(match failed {
        0 if interrupt.happened() => interrupt.status(),
        0 => 0,
        failed => {
            crate::complain::complain(&format!(
                "{failed} of {} points failed; the table says why, and the same command tries them again",
                points.len()
            ));
            FAILED
        }
    })
}

fn bar(points: usize) -> ProgressBar {
    let visible = stderr().is_terminal();
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(points as u64), target);
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} points  {msg}");
    bar.set_style(style.expect("the template is right"));
    bar
}

fn tell(bar: &ProgressBar, done: Done) {
    bar.set_position(done.done as u64);
    if let Some(left) = done.left {
        bar.set_message(format!("{:#} left", HumanDuration(left)));
    }
}
