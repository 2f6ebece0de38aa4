//! `strata scan`: a snapshot of the layer it runs in.

use crate::failure::Failure;
use crate::inspect_args::ScanArgs;
use crate::number::{bytes, count};
use crate::output::{Target, to_stdout};
use crate::snapshot_text;
use std::fmt::Write;
use std::io::{self, BufWriter, IsTerminal};
use std::path::Path;
use strata_inspect::{Snapshot, Tree, scan as take, scan_to, scan_to_file};

/// Scans.
///
/// # Errors
/// When there is no `/proc`, or the snapshot cannot be written.
pub fn scan(args: &ScanArgs) -> Result<(), Failure> {
    let tree = Tree::new(&args.root);
    let failed = |error: strata_inspect::Error| Failure::failed(error.to_string());
    match args.output.as_deref() {
        None => {
            let snapshot = take(&tree).map_err(failed)?;
            to_stdout(summary(&snapshot, Target::Stdout.width()).as_bytes())
        }
        Some(path) if path == Path::new("-") => {
            if io::stdout().is_terminal() {
                return Err(Failure::usage(
                    "a snapshot is nothing for a terminal; name a file, or send it to another program",
                ));
            }
            // Nothing else may go to standard output.
            let tail = scan_to(&tree, BufWriter::new(io::stdout().lock())).map_err(failed)?;
            blind(&tail.blind);
            Ok(())
        }
        Some(path) => {
            let (size, tail) = scan_to_file(&tree, path).map_err(failed)?;
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
    for vm in &snapshot.vms {
        out += &snapshot_text::vm(&strata_inspect::vm_account(snapshot, vm), width);
    }
    if snapshot.vms.is_empty() {
        out += "no KVM VM runs here\n";
    }
    out += &snapshot_text::blind(&tail.blind, width);
    out + "nothing was written; -o FILE writes the snapshot for 'strata join'\n"
}
