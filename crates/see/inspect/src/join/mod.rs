//! The join: snapshots of a stack, the guest's first, become one account.

mod account;
pub mod cause;
mod choice;
pub mod colours;
pub mod compose;
pub mod matching;
pub mod prometheus;
pub mod regions;
pub mod report;
mod verdict;

pub use account::vm_accounts;
pub use choice::{Options, chosen};
pub use verdict::{Judged, Verdict};

use crate::error::Error;
use crate::snapshot::{BackedVm, Snapshot};
use account::{count, notes_on, pair_of, vm_report};
use cause::Ground;
use matching::span;
use report::{Join, JoinedLayer, VERSION, VmReport};
use strata_addr::{Gpa, Gva};
use verdict::{Below, executable, judge};

/// Joins the snapshots of a stack, the guest's first, the host's last.
///
/// # Errors
/// When there are fewer than two, a VM cannot be told, or they do not belong together.
pub fn join(snapshots: &[Snapshot], options: &Options) -> Result<Join, Error> {
    if snapshots.len() < 2 {
        return Err(Error::Join(
            "a join takes two snapshots at least: the guest's first, the host's last".to_owned(),
        ));
    }
    if options.vms.len() >= snapshots.len() {
        return Err(Error::Join(format!(
            "{} VMs are chosen for {} layers below the guest; give one --vm for each",
            options.vms.len(),
            snapshots.len() - 1
        )));
    }
    let mut report = Join { strata_join: VERSION, ..Join::default() };
    let mut below: Vec<Below<'_>> = Vec::new();
    let mut unproven = Vec::new();
    report.layers.push(layer(&snapshots[0], snapshots.len() - 1));
    for (number, pair) in snapshots.windows(2).enumerate() {
        let (guest, host) = (&pair[0], &pair[1]);
        let wanted = options.vms.get(number).map(String::as_str);
        let found = matching::find(&guest.head.machine, host, wanted, options.force)?;
        let vm = &host.vms[found.index];
        let (refuse, notes) = match &options.taken_at {
            Some(_) => (Vec::new(), Vec::new()),
            None => matching::doubts(&guest.head.machine, &host.head.machine, &vm.vm),
        };
        if !found.certain && options.taken_at.is_none() {
            unproven.push(format!(
                "that '{}' runs in {} is concluded from the layout of its memory: scans of another \
                 machine of this size would not be noticed",
                guest.head.machine.host,
                vm.vm.label()
            ));
        }
        if let (Some(why), false) = (refuse.first(), options.force) {
            return Err(Error::Join(format!(
                "the snapshots do not belong together: {why}; scan both again, or --force"
            )));
        }
        report.notes.extend(refuse.into_iter().map(|why| format!("forced, although {why}")));
        report.notes.extend(notes);
        let own = Below::new(host, vm, Some(guest));
        let mut layer = layer(host, snapshots.len() - 2 - number);
        let taken = options.taken_at.as_deref().and_then(|at| at.get(number..number + 2));
        layer.after_upper_ms = match taken {
            Some(at) => Some(((at[1] - at[0]) * 1000.0).round() as i64),
            None => after(guest, host),
        };
        layer.by_own_clocks = taken.is_none();
        let uses = colours::Spread::of(host).uses(found.index);
        layer.vm = Some(VmReport { colours: uses, ..vm_report(&own, &found.how) });
        notes_on(&own, &layer, &mut report.notes);
        report.layers.push(layer);
        below.push(own);
    }
    let on_virtual =
        snapshots.last().is_some_and(|last| last.head.machine.virtual_machine == Some(true));
    let lists = below.last().is_some_and(|lowest| lowest.vm.vm.lists_pseudo_huge);
    report.mappings_visible = lists || (below.len() == 1 && !on_virtual);
    if on_virtual {
        report.notes.push(
            "the lowest layer is itself a virtual machine: what its own host does is not seen"
                .to_owned(),
        );
    }
    count(&mut report, &snapshots[0], &below);
    report.notes.extend(unproven);
    let vms: Vec<&BackedVm> = below.iter().map(|layer| layer.vm).collect();
    report.colouring = colours::colouring(&snapshots[0], &snapshots[snapshots.len() - 1], &vms);
    for (number, pair) in snapshots.windows(2).enumerate() {
        let names = (report.layers[number].name.as_str(), report.layers[number + 1].name.as_str());
        let pair = pair_of(&pair[0], &below[number], names);
        report.pairs.push(pair);
    }
    Ok(report)
}

fn layer(snapshot: &Snapshot, number: usize) -> JoinedLayer {
    let machine = &snapshot.head.machine;
    let ground = Ground::new(&snapshot.head.settings);
    JoinedLayer {
        name: format!("L{number}"),
        host: machine.host.clone(),
        kernel: machine.kernel.clone(),
        scanned_ms: machine.wall_ns / 1_000_000,
        took_ms: snapshot.tail.took_ms,
        fmfi: ground.fmfi,
        free_huge_pages: ground.free_huge,
        uncertain_regions: snapshot.tail.uncertain,
        blind: snapshot.tail.blind.clone(),
        ..JoinedLayer::default()
    }
}

/// Milliseconds from the guest's scan to the host's; `None` where a clock is not set.
fn after(guest: &Snapshot, host: &Snapshot) -> Option<i64> {
    let (upper, lower) = (guest.head.machine.wall_ns, host.head.machine.wall_ns);
    let apart = lower.abs_diff(upper) / 1_000_000;
    let apart = i64::try_from(apart).ok().filter(|&ms| ms < 86_400_000)?;
    Some(if lower < upper { -apart } else { apart })
}

/// Every huge page of the guest with its verdict, in the order of the snapshot. For tools that compare
/// region by region.
///
/// # Errors
/// As [`join`].
pub fn verdicts(snapshots: &[Snapshot], options: &Options) -> Result<Vec<Judged>, Error> {
    // The same checks and the same choice of VMs.
    join(snapshots, options)?;
    let vms = chosen(snapshots, options)?;
    let pairs = snapshots.windows(2).zip(vms);
    let below: Vec<_> = pairs.map(|(pair, vm)| Below::new(&pair[1], vm, Some(&pair[0]))).collect();
    let code = executable(&snapshots[0]);
    let mut all = Vec::new();
    for process in &snapshots[0].processes {
        let pages = process.areas.iter().flat_map(|area| &area.huge);
        all.extend(pages.map(|&page| Judged {
            pid: process.pid,
            gva: Gva::new(page.region << 21),
            gpa: Gpa::new(page.frame << 12),
            verdict: judge(&below, page, &code),
        }));
    }
    Ok(all)
}

/// `12 s after`, for people.
pub fn delay(ms: Option<i64>) -> String {
    match ms {
        None => "at an unknown time".to_owned(),
        Some(ms) => {
            let side = if ms < 0 { "before" } else { "after" };
            format!("{} {side}", span(ms.unsigned_abs() * 1_000_000))
        }
    }
}
