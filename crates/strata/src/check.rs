//! `strata check`: what huge pages bring a program on this computer, beside what the model predicts.

use crate::args::CheckArgs;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::{self, Target};
use crate::progress;
use serde::Serialize;
use serde_json::Value;
use std::env;
use std::fs;
use std::process::{Command, Stdio};
use strata_silicon::{Pairs, Ratio, Timed, run_pairs};
use strata_text::number::{bytes, count};
use tempfile::NamedTempFile;

/// What was measured and predicted.
#[derive(Debug, Serialize)]
struct Checked {
    /// The program and its arguments.
    program: Vec<String>,
    /// The CPU of the prediction.
    cpu: String,
    /// Pairs of native runs.
    pairs: usize,
    /// How many times as fast with huge pages, by seconds of processors.
    measured: f64,
    /// Its interval of 95 %.
    interval: [f64; 2],
    /// The same by seconds from start to end.
    measured_wall: f64,
    /// Its interval of 95 %.
    interval_wall: [f64; 2],
    /// Median seconds of processors without huge pages and with them.
    seconds: [f64; 2],
    /// Most bytes seen in huge pages, without and with them.
    huge_bytes: [u64; 2],
    /// Whether the kernel takes huge pages on advice only.
    on_advice: bool,
    /// How many times the throughput of `base` that of `thp` is, natively, in the model.
    predicted: f64,
    /// Whether the prediction lies in the interval.
    within: bool,
    /// What hardware counted and what the model did, without huge pages and with them; `null` where hardware's
    /// counters cannot be read.
    counters: Option<Counters>,
    /// Why they cannot.
    uncounted: Option<String>,
}

/// Counts without huge pages and with them.
#[derive(Debug, Serialize)]
struct Counters {
    /// Loads and stores that missed every TLB, medians of the runs.
    tlb_misses: [f64; 2],
    /// The same in the model.
    tlb_misses_predicted: [f64; 2],
    /// Cycles in walks; `null` where it is not known how the processor counts them.
    walk_cycles: Option<[f64; 2]>,
    /// The same in the model.
    walk_cycles_predicted: [f64; 2],
}

/// What the model makes of the program, without huge pages and with them.
#[derive(Clone, Copy, Debug, Default)]
struct Predicted {
    /// How many times the throughput of one that of the other is.
    faster: f64,
    tlb_misses: [f64; 2],
    walk_cycles: [f64; 2],
}

/// Runs the program natively in turns, predicts, and tells both. Gives the exit status.
///
/// # Errors
/// When the program cannot be run or compared, or the result not be written.
pub fn check(args: &CheckArgs) -> Result<u8, Failure> {
    // Ctrl-C ends the program that runs, and leaves no file behind.
    let interrupt = Interrupt::watch_all();
    let done = tell(args, &interrupt);
    if interrupt.happened() { Ok(interrupt.status()) } else { done.map(|()| 0) }
}

fn tell(args: &CheckArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let target = args.json.as_deref().map(Target::named);
    target.iter().try_for_each(Target::check)?;
    // The model's run first: it is refused at once where the CPU is none.
    let predicted = progress::while_waiting("predicting", || predict(args))?;
    if interrupt.happened() {
        return Ok(());
    }
    let pairs =
        progress::while_waiting("running natively", || run_pairs(&args.program, args.pairs.into()))
            .map_err(|error| Failure::failed(error.to_string()))?;
    let checked = compare(args, &pairs, predicted);
    let json = || {
        let mut text = serde_json::to_vec_pretty(&checked).expect("numbers and texts");
        text.push(b'\n');
        text
    };
    match target {
        Some(target @ Target::Stdout) => target.plain(&json()),
        Some(target) => {
            target.plain(&json())?;
            output::to_stdout(text(&checked).as_bytes())
        }
        None => output::to_stdout(text(&checked).as_bytes()),
    }
}

fn compare(args: &CheckArgs, pairs: &Pairs, predicted: Predicted) -> Checked {
    let Ratio { mean, interval } = pairs.ratio(|timed| timed.cpu);
    let wall = pairs.ratio(|timed| timed.wall);
    let of_both = |of: &dyn Fn(&Timed) -> Option<f64>| -> Option<[f64; 2]> {
        let middle = |which: usize| median(pairs.all.iter().filter_map(|pair| of(&pair[which])));
        Some([middle(0)?, middle(1)?])
    };
    let tlb_misses = of_both(&|timed| Some(timed.counts?.tlb_misses));
    let counters = tlb_misses.map(|tlb_misses| Counters {
        tlb_misses,
        tlb_misses_predicted: predicted.tlb_misses,
        walk_cycles: of_both(&|timed| timed.counts?.walk_cycles),
        walk_cycles_predicted: predicted.walk_cycles,
    });
    let most = |which: usize| {
        let all = pairs.all.iter().map(|pair: &[Timed; 2]| pair[which].huge_bytes);
        all.max().unwrap_or_default()
    };
    Checked {
        program: args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        cpu: args.cpu.clone(),
        pairs: pairs.all.len(),
        measured: mean,
        interval,
        measured_wall: wall.mean,
        interval_wall: wall.interval,
        seconds: of_both(&|timed| Some(timed.cpu)).unwrap_or_default(),
        huge_bytes: [most(0), most(1)],
        on_advice: pairs.on_advice,
        predicted: predicted.faster,
        within: (interval[0]..=interval[1]).contains(&predicted.faster),
        counters,
        uncounted: pairs.uncounted.clone(),
    }
}

/// The one in the middle; none of none.
fn median(all: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = all.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// What the model says of the same program on a machine with free memory, by this very program.
fn predict(args: &CheckArgs) -> Result<Predicted, Failure> {
    let own = env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    // Standard output is the program's.
    let file = NamedTempFile::new()
        .map_err(|error| Failure::failed(format!("cannot make a temporary file: {error}")))?;
    let mut command = Command::new(own);
    command
        .args(["run", "--stack", "native", "--policy", "base,thp", "--fragmentation", "none"])
        .args(["--cpu", &args.cpu, "--json"])
        .arg(file.path())
        .arg("--")
        .args(&args.program)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let output = command
        .output()
        .map_err(|error| Failure::failed(format!("cannot run the model: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = said.lines().rev().find_map(|line| line.strip_prefix("strata: "));
        let why = why.unwrap_or("the program did not end with status 0 under the model");
        return Err(Failure::failed(format!("cannot predict: {why}")));
    }
    let report = fs::read(file.path()).map_err(|error| error.to_string());
    let report =
        report.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
    let report: Value =
        report.map_err(|error| Failure::failed(format!("cannot predict: {error}")))?;
    let of = |policy: &str| {
        report["runs"].as_array().into_iter().flatten().find(|run| run["policy"] == policy)
    };
    let both = || {
        let runs = [of("base")?, of("thp")?];
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        Some(Predicted {
            faster: runs[1]["relative_throughput"].as_f64()?,
            tlb_misses: runs.map(|run| number(&run["tlb"]["l2_misses"])),
            walk_cycles: runs.map(|run| number(&run["walk_cycles"])),
        })
    };
    both().ok_or_else(|| {
        Failure::failed("cannot predict: the model has no run of base and of thp".to_owned())
    })
}

fn text(checked: &Checked) -> String {
    let Checked { interval, interval_wall, seconds, huge_bytes, .. } = checked;
    let ratio = |mean: f64, interval: &[f64; 2]| {
        format!("{mean:.3}  ({:.3} to {:.3})", interval[0], interval[1])
    };
    let mut text = format!(
        "{}\n\
         times as fast with huge pages as without\n\
         \x20 measured, seconds of processors  {}\n\
         \x20 measured, start to end           {}\n\
         \x20 predicted, thp over base         {:.3}, {} the interval\n\
         {} pairs; intervals of 95 %; {:.2} s without, {:.2} s with, medians of processors\n\
         huge pages seen: {} without, {} with\n",
        checked.program.join(" "),
        ratio(checked.measured, interval),
        ratio(checked.measured_wall, interval_wall),
        checked.predicted,
        if checked.within { "in" } else { "outside" },
        checked.pairs,
        seconds[0],
        seconds[1],
        bytes(huge_bytes[0]),
        bytes(huge_bytes[1]),
    );
    let counted = |what: &str, measured: &[f64; 2], predicted: &[f64; 2]| {
        let numbers = |of: &[f64; 2]| of.map(|number| count(number as u64)).join(" without, ");
        format!(
            "{what}: measured {} with; predicted {} with\n",
            numbers(measured),
            numbers(predicted)
        )
    };
    if let Some(counters) = &checked.counters {
        text += &counted("TLB misses", &counters.tlb_misses, &counters.tlb_misses_predicted);
        if let Some(measured) = &counters.walk_cycles {
            text += &counted("cycles in walks", measured, &counters.walk_cycles_predicted);
        }
    }
    if let Some(why) = &checked.uncounted {
        text += &format!(
            "TLB misses were not measured: the kernel refuses hardware's counters, {why}.\n"
        );
    }
    if checked.on_advice {
        text += "The kernel takes huge pages on advice only: glibc's allocator asked for its memory, and \
                 nothing else did; the model has them everywhere.\n";
    }
    if (interval[0]..=interval[1]).contains(&1.0) {
        text += "1 lies in the interval as well: whether huge pages help was not shown; give more --pairs, or an idle \
                 computer.\n";
    }
    if huge_bytes[1] == 0 {
        text += "No huge page was seen, so that nothing was compared: the program asks for none, or ends at once.\n";
    }
    text
}
