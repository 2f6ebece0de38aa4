//! `strata top`: the layers visible from here, again and again.

use crate::exits;
use crate::failure::{Failure, INTERRUPTED};
use crate::inspect_args::TopArgs;
use crate::interrupt::Interrupt;
use crate::output::{Target, to_stdout};
use crate::snapshot_text;
use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::{Duration, Instant};
use strata_inspect::join::prometheus;
use strata_inspect::{Snapshot, Tree, Watch, scan, vm_accounts};

/// Where the cursor goes before a picture, and what is cleared: from there to the end. No other
/// state of the terminal is touched, so that ending at any moment leaves it clean.
pub(crate) const HOME: &str = "\x1b[H\x1b[J";

/// A step of waiting, so that Ctrl-C is heard.
const STEP: Duration = Duration::from_millis(50);

/// Shows pictures. Gives the exit status.
///
/// # Errors
/// When there is no `/proc`, or nobody takes the pictures.
pub fn top(args: &TopArgs) -> Result<u8, Failure> {
    if args.exits {
        return exits::top(args);
    }
    let metrics = metrics(args)?;
    let tree = Tree::new(&args.root);
    let terminal = io::stdout().is_terminal();
    let pictures = pictures(args, false);
    let interrupt = Interrupt::watch();
    let watch = args
        .hot
        .map(|seconds| Watch { time: Duration::from_secs_f64(seconds), stop: &interrupt.flag });
    let mut shown = 0;
    loop {
        let begun = Instant::now();
        let snapshot = scan(&tree, watch).map_err(|error| Failure::failed(error.to_string()))?;
        if let Some(metrics) = &metrics {
            metrics.plain(prometheus::of_layer(&snapshot).as_bytes())?;
        }
        let mut text = picture(&snapshot);
        if terminal && pictures != Some(1) {
            text.insert_str(0, HOME);
        }
        to_stdout(text.as_bytes())?;
        shown += 1;
        // The watching may have been ended by it.
        if watch.is_some() && interrupt.happened() {
            return Ok(INTERRUPTED);
        }
        if pictures.is_some_and(|pictures| shown >= pictures) {
            return Ok(0);
        }
        while begun.elapsed().as_secs_f64() < args.interval {
            if interrupt.happened() {
                return Ok(INTERRUPTED);
            }
            sleep(STEP);
        }
        if interrupt.happened() {
            return Ok(INTERRUPTED);
        }
    }
}

/// Where Prometheus text goes, if anywhere.
pub(crate) fn metrics(args: &TopArgs) -> Result<Option<Target>, Failure> {
    let target = args.prometheus.as_deref().map(Target::named);
    match &target {
        Some(Target::Stdout) => {
            Err(Failure::usage("the pictures go to the standard output: give --prometheus a file"))
        }
        Some(target) => target.check().map(|()| Some(target.clone())),
        None => Ok(None),
    }
}

/// How many pictures there are to be; without end if `None`: on a terminal, and where `log` lines are
/// shown instead.
pub(crate) fn pictures(args: &TopArgs, log: bool) -> Option<u64> {
    match args.count {
        _ if args.once => Some(1),
        Some(count) => Some(count),
        None if log || io::stdout().is_terminal() => None,
        None => Some(1),
    }
}

fn picture(snapshot: &Snapshot) -> String {
    let width = Target::Stdout.width();
    let machine = &snapshot.head.machine;
    let (host, kernel) = (&machine.host, &machine.kernel);
    let mut out =
        snapshot_text::heading(&format!("{host}, Linux {kernel}, {} VMs", snapshot.vms.len()));
    out += &snapshot_text::processes(snapshot);
    for vm in vm_accounts(snapshot) {
        out += &snapshot_text::vm(&vm, width);
    }
    out + &snapshot_text::blind(&snapshot.tail.blind, width)
}
