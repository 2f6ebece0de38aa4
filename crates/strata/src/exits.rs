//! `strata bill`, and `strata top --exits`: what exits cost live VMs.

use crate::exits_text::{CSV_HEADER, csv, lines, tables};
use crate::failure::{Failure, INTERRUPTED};
use crate::inspect_args::{BillArgs, TopArgs};
use crate::interrupt::Interrupt;
use crate::output::{Target, to_stdout};
use crate::pictures::{HOME, metrics, pictures};
use crate::results::{Places, json};
use crate::text_file;
use serde_json::Value;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};
use strata_exits::{Bill, VmBill, WatchError, Watching, prometheus};
use strata_inspect::Tree;

/// Reasons of a VM in a picture; the bill has them all.
const ROWS: usize = 10;

/// Watches once. Gives the exit status: whoever ends it by Ctrl-C gets what was seen until then.
///
/// # Errors
/// When nothing can be watched, no VM is the one asked for, or a file cannot be written.
pub fn bill(args: &BillArgs) -> Result<u8, Failure> {
    let kept = args.read.as_deref();
    let inputs: Vec<_> = kept.map(|path| ("the bill", path)).into_iter().collect();
    let places = Places::new(&args.results, None, &inputs)?;
    let interrupt = Interrupt::watch();
    let mut bill = match kept {
        Some(path) => read(path)?,
        None => {
            let time = Duration::from_secs_f64(args.time);
            start(&Tree::new(&args.root))?.interval(time, &interrupt.flag).map_err(failed)?
        }
    };
    choose(&mut bill, &args.vm)?;
    let table = |width| tables(&bill, usize::MAX, width);
    places.write(|| json(&bill), || prometheus::text(&bill), table)?;
    Ok(if interrupt.happened() { interrupt.status() } else { 0 })
}

/// A bill that was kept as JSON.
fn read(path: &Path) -> Result<Bill, Failure> {
    let name = path.display();
    let text = text_file::read(path, "bill")?;
    let wrong = |why: String| {
        Failure::failed(format!("{name}: {why}; give a file that 'strata bill --json' wrote"))
    };
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    match value.get("strata_exits").and_then(Value::as_u64) {
        None => return Err(wrong("it is no bill".to_owned())),
        Some(version) if version != u64::from(Bill::VERSION) => {
            return Err(wrong(format!(
                "its version is {version}, and this program reads {}",
                Bill::VERSION
            )));
        }
        Some(_) => {}
    }
    serde_json::from_value(value).map_err(|error| wrong(error.to_string()))
}

/// Leaves only the VMs that were asked for, if any were.
fn choose(bill: &mut Bill, asked: &[String]) -> Result<(), Failure> {
    for wanted in asked {
        if !bill.vms.iter().any(|vm| is_called(vm, wanted)) {
            let there: Vec<String> = bill.vms.iter().map(|vm| vm.pid.to_string()).collect();
            let there = match there[..] {
                [] => "no VM did anything meanwhile".to_owned(),
                _ => format!("the processes of those that did anything are {}", there.join(", ")),
            };
            return Err(Failure::failed(format!("no VM is '{wanted}': {there}")));
        }
    }
    bill.vms.retain(|vm| asked.is_empty() || asked.iter().any(|wanted| is_called(vm, wanted)));
    Ok(())
}

fn is_called(vm: &VmBill, wanted: &str) -> bool {
    vm.pid.to_string() == wanted || vm.name.as_deref() == Some(wanted)
}

/// Watches again and again, picture by picture or line by line. Gives the exit status.
///
/// # Errors
/// When nothing can be watched.
pub fn top(args: &TopArgs) -> Result<u8, Failure> {
    let metrics = metrics(args)?;
    let interrupt = Interrupt::watch();
    let mut watching = start(&Tree::new(&args.root))?;
    let terminal = io::stdout().is_terminal();
    let pictures = pictures(args, args.log || args.csv);
    let begun = Instant::now();
    if args.csv {
        to_stdout(format!("{CSV_HEADER}\n").as_bytes())?;
    }
    let mut shown = 0;
    loop {
        let time = Duration::from_secs_f64(args.interval);
        let bill = watching.interval(time, &interrupt.flag).map_err(failed)?;
        if let Some(metrics) = &metrics {
            metrics.plain(prometheus::text(&bill).as_bytes())?;
        }
        let since = begun.elapsed().as_secs_f64();
        let text = match (args.csv, args.log) {
            (true, _) => csv(&bill, since),
            (_, true) => lines(&bill, since),
            _ if terminal && pictures != Some(1) => {
                format!("{HOME}{}", tables(&bill, ROWS, Target::Stdout.width()))
            }
            _ => tables(&bill, ROWS, Target::Stdout.width()),
        };
        to_stdout(text.as_bytes())?;
        shown += 1;
        if interrupt.happened() {
            return Ok(INTERRUPTED);
        }
        if pictures.is_some_and(|pictures| shown >= pictures) {
            return Ok(0);
        }
    }
}

fn start(tree: &Tree) -> Result<Watching, Failure> {
    Watching::start(tree).map_err(failed)
}

fn failed(error: WatchError) -> Failure {
    Failure::failed(error.to_string())
}
