//! `strata scan`: a snapshot of the layer it runs in.

use crate::failure::Failure;
use crate::inspect_args::ScanArgs;
use crate::interrupt::Interrupt;
use crate::output::{Target, to_stdout};
use crate::{remote, snapshot_text};
use std::fmt::Write;
use std::io::{self, BufWriter, IsTerminal};
use std::path::Path;
use std::time::Duration;
use strata_inspect::{Snapshot, Tree, Watch, scan as take, scan_to, scan_to_file};
use strata_text::number::{bytes, count};

/// Scans. Gives the exit status: whoever ends the watching by Ctrl-C gets what was seen until then.
///
/// # Errors
/// When there is no `/proc`, or the snapshot cannot be written.
pub fn scan(args: &ScanArgs) -> Result<u8, Failure> {
    if let (Some(place), Some(key)) = (&args.serve, &args.key) {
        return remote::serve(place, key, args);
    }
    let interrupt = args.hot.is_some().then(Interrupt::watch);
    let stop = interrupt.as_ref().map(|interrupt| &*interrupt.flag);
    let watch = args.hot.zip(stop);
    let watch = watch.map(|(seconds, stop)| Watch { time: Duration::from_secs_f64(seconds), stop });
    run(args, watch)?;
    Ok(interrupt.filter(Interrupt::happened).map_or(0, |interrupt| interrupt.status()))
}

fn run(args: &ScanArgs, watch: Option<Watch<'_>>) -> Result<(), Failure> {
    let tree = Tree::new(&args.root);
    let failed = |error: strata_inspect::Error| Failure::failed(error.to_string());
    match args.output.as_deref() {
        None => {
            let snapshot = take(&tree, watch).map_err(failed)?;
            to_stdout(summary(&snapshot, Target::Stdout.width()).as_bytes())
        }
        Some(path) if path == Path::new("-") => {
            if io::stdout().is_terminal() {
                return Err(Failure::usage(
                    "a snapshot is nothing for a terminal; name a file, or send it to another program",
                ));
            }
            // Nothing else may go to standard output.
            let tail =
                scan_to(&tree, watch, BufWriter::new(io::stdout().lock())).map_err(failed)?;
            blind(&tail.blind);
            Ok(())
        }
        Some(path) => {
            let (size, tail) = scan_to_file(&tree, watch, path).map_err(failed)?;
            blind(&tail.blind);
            let size = if size > 0 { bytes(size) } else { "written".to_owned() };
            crate::complain::complain(&format!(
                "{size} in {} ms: {}",
                tail.took_ms,
                path.display()
            ));
            Ok(())
        }
    }
}

fn blind(blind: &[strata_inspect::snapshot::model::Blind]) {
    for blind in blind {
        crate::complain::complain(&format!("note: not seen: {}; so: {}", blind.what, blind.cost));
    }
}

/// What a snapshot holds, in some lines.
fn summary(snapshot: &Snapshot, width: usize) -> String {
    let machine = &snapshot.head.machine;
    let mut out = snapshot_text::heading(&format!("{}, Linux {}", machine.host, machine.kernel));
    let tail = &snapshot.tail;
    let _ = writeln!(
        out,
        "scanned in {} ms; {} regions changed meanwhile, {} remained uncertain",
        tail.took_ms,
        count(tail.reread),
        count(tail.uncertain)
    );
    out += &snapshot_text::processes(snapshot);
    for vm in strata_inspect::vm_accounts(snapshot) {
        out += &snapshot_text::vm(&vm, width);
    }
    if snapshot.vms.is_empty() {
        out += "no KVM VM runs here\n";
    }
    out += &snapshot_text::blind(&tail.blind, width);
    out + "nothing was written; -o FILE writes the snapshot for 'strata join'\n"
}
