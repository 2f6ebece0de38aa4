//! The join: snapshots of a stack, the guest's first, become one account.

mod account;
pub mod cause;
pub mod compose;
pub mod matching;
pub mod prometheus;
pub mod report;
mod verdict;

pub use account::vm_account;
pub use verdict::{Judged, Verdict, verdicts};

use crate::error::Error;
use crate::snapshot::{BackedVm, Snapshot};
use account::{count, notes_on, pair_of, vm_report};
use cause::Ground;
use matching::span;
use report::{Join, Layer, VERSION};
use verdict::Below;

/// What a user may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The VM in each snapshot below the guest's, from the top: a process id, name or UUID. Fewer
    /// than layers leave the rest to be found.
    pub vms: Vec<String>,
    /// Join even where the snapshots do not seem to belong together.
    pub force: bool,
    /// Who took the snapshots knows that they are of one stack, and when each was begun: seconds by
    /// one clock, in the order of the snapshots. Otherwise the layers' own clocks have to do.
    pub taken_at: Option<Vec<f64>>,
}

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
        layer.vm = Some(vm_report(&own, &found.how));
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
    for (number, pair) in snapshots.windows(2).enumerate() {
        let names = (report.layers[number].name.as_str(), report.layers[number + 1].name.as_str());
        let pair = pair_of(&pair[0], &below[number], names);
        report.pairs.push(pair);
    }
    Ok(report)
}

fn layer(snapshot: &Snapshot, number: usize) -> Layer {
    let machine = &snapshot.head.machine;
    let ground = Ground::new(&snapshot.head.settings);
    Layer {
        name: format!("L{number}"),
        host: machine.host.clone(),
        kernel: machine.kernel.clone(),
        scanned_ms: machine.wall_ns / 1_000_000,
        took_ms: snapshot.tail.took_ms,
        fmfi: ground.fmfi,
        free_huge_pages: ground.free_huge,
        uncertain_regions: snapshot.tail.uncertain,
        blind: snapshot.tail.blind.clone(),
        ..Layer::default()
    }
}

/// Milliseconds from the guest's scan to the host's; `None` where a clock is not set.
fn after(guest: &Snapshot, host: &Snapshot) -> Option<i64> {
    let (upper, lower) = (guest.head.machine.wall_ns, host.head.machine.wall_ns);
    let apart = lower.abs_diff(upper) / 1_000_000;
    let apart = i64::try_from(apart).ok().filter(|&ms| ms < 86_400_000)?;
    Some(if lower < upper { -apart } else { apart })
}

/// The VMs that [`join`] chooses, the one that the guest runs in first: what
/// [`descend`](crate::join::compose::descend()) goes through.
///
/// # Errors
/// When a VM cannot be told. Whether the snapshots belong together is not checked.
pub fn chosen<'a>(
    snapshots: &'a [Snapshot],
    options: &Options,
) -> Result<Vec<&'a BackedVm>, Error> {
    let choose = |(number, pair): (usize, &'a [Snapshot])| {
        let wanted = options.vms.get(number).map(String::as_str);
        let found = matching::find(&pair[0].head.machine, &pair[1], wanted, options.force)?;
        Ok(&pair[1].vms[found.index])
    };
    snapshots.windows(2).enumerate().map(choose).collect()
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
