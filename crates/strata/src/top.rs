//! `strata top`: the layers visible from here, again and again.

use crate::exits;
use crate::failure::{Failure, INTERRUPTED};
use crate::inspect_args::TopArgs;
use crate::interrupt::Interrupt;
use crate::output::{Target, to_stdout};
use crate::pictures::{HOME, metrics, pictures};
use crate::snapshot_text;
use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::{Duration, Instant};
use strata_inspect::join::prometheus;
use strata_inspect::{Snapshot, Tree, Watch, scan, vm_accounts};

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
