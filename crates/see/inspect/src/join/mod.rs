//! The join: snapshots of a stack, the guest's first, become one account.

use crate::cause::{Balloon, Cause, Ground, Whole, behind, kvm_splits, nx_splits, of_region};
use crate::compose::{descend, is_aligned_block};
use crate::error::Error;
use crate::matching::{self, span};
use crate::model::HugePage;
use crate::pseudo;
use crate::region::{Class, Region};
use crate::report::{
    CauseCount, Composite, Join, Layer, Pair, ProcessCount, Totals, VERSION, VmReport,
};
use crate::snapshot::{BackedVm, Snapshot};
use std::collections::{BTreeMap, HashMap};

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

/// What became of one huge page of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// One huge mapping down to the lowest layer.
    WellAligned {
        /// First frame in the lowest layer.
        frame: u64,
        /// Some layer has it in base pages, and the one below maps it huge all the same.
        pseudo_huge: bool,
    },
    /// Some layer below has it otherwise.
    Misaligned {
        /// Which: 0 is the layer right below the guest.
        below: usize,
        /// Why.
        cause: Cause,
        /// What would forbid it still if that were mended.
        behind: Option<Cause>,
        /// Nothing is allocated there.
        type1: bool,
    },
    /// It changed while it was read.
    Uncertain,
    /// Something was hidden.
    Unknown,
}

/// A layer below the guest, ready to be asked.
struct Below<'a> {
    vm: &'a BackedVm,
    ground: Ground<'a>,
    whole: Whole,
}

impl<'a> Below<'a> {
    /// `guest` is the layer that runs in the VM, if its snapshot is there.
    fn new(snapshot: &'a Snapshot, vm: &'a BackedVm, guest: Option<&Snapshot>) -> Self {
        let huge = vm.regions.iter().filter(|region| region.class == Class::Huge).count() as u64;
        let whole = Whole {
            split: kvm_splits(&vm.vm, huge),
            balloon: Balloon::of(&vm.vm, guest.map(|guest| &guest.head.settings)),
        };
        Self { vm, ground: Ground::new(&snapshot.head.settings), whole }
    }

    fn cause(&self, region: &Region) -> Option<Cause> {
        of_region(&self.ground, &self.vm.vm, region, self.whole)
    }

    /// Whether KVM has split a huge mapping of code. It does not say which; that it did is all
    /// that is needed where the guest may run code, for it does so at the first instruction.
    fn splits_code(&self) -> bool {
        nx_splits(&self.vm.vm) > 0
    }
}

/// Frames of huge pages that some process of a guest may run code from, in order.
fn executable(guest: &Snapshot) -> Vec<u64> {
    let areas = guest.processes.iter().flat_map(|process| &process.areas);
    let pages = areas.filter(|area| area.executable).flat_map(|area| &area.huge);
    let mut frames: Vec<u64> = pages.map(|page| page.frame).collect();
    frames.sort_unstable();
    frames
}

/// Judges one huge page of the guest; `code` has the frames that code may run from.
fn judge(below: &[Below<'_>], page: HugePage, code: &[u64]) -> Verdict {
    if page.uncertain {
        return Verdict::Uncertain;
    }
    if page.frame == 0 {
        return Verdict::Unknown;
    }
    let mut frame = page.frame;
    let mut pseudo_huge = false;
    let mut number = 0;
    while let Some(layer) = below.get(number) {
        let misaligned =
            |cause, behind, type1| Verdict::Misaligned { below: number, cause, behind, type1 };
        let Some(region) = layer.vm.region(frame >> 9) else {
            return match layer.vm.vm.slots.is_empty() || layer.vm.vm.slot(frame << 12).is_some() {
                true => Verdict::Unknown,
                false => misaligned(Cause::OutsideMemory, None, true),
            };
        };
        if region.uncertain {
            return Verdict::Uncertain;
        }
        if let Some(cause) = layer.cause(region) {
            if let Some(lower) = mapped_huge_below(below, number, frame) {
                (frame, pseudo_huge, number) = (lower, true, number + 2);
                continue;
            }
            let behind = behind(&layer.ground, &layer.vm.vm, region);
            return misaligned(cause, behind.filter(|&own| own != cause), cause.is_type1(region));
        }
        if layer.splits_code() && code.binary_search(&page.frame).is_ok() {
            return misaligned(Cause::NxHugePages, None, false);
        }
        if !region.one_aligned_block() {
            return Verdict::Unknown;
        }
        frame = region.runs[0].frame();
        number += 1;
    }
    Verdict::WellAligned { frame, pseudo_huge }
}

/// Where the region that begins in `frame` is two layers below layer `number`'s guest, if the lower
/// of the two says that it maps it huge, whatever the upper one has. Frames in all snapshots have to
/// say the same: another nested guest has other memory at this address, and what has moved meanwhile
/// is no longer what was listed.
fn mapped_huge_below(below: &[Below<'_>], number: usize, frame: u64) -> Option<u64> {
    let lower = below.get(number + 1)?.vm;
    if lower.pseudo_huge.is_empty() {
        return None;
    }
    let runs = descend(&[below[number].vm, lower], frame);
    let block = runs.first().filter(|_| is_aligned_block(&runs))?.frame();
    pseudo::has(&lower.pseudo_huge, frame, block).then_some(block)
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

/// An account of one VM, whoever uses its memory: for `strata top` and the layers of a join.
pub fn vm_account(snapshot: &Snapshot, vm: &BackedVm) -> VmReport {
    vm_report(&Below::new(snapshot, vm, None), "by its process")
}

fn vm_report(below: &Below<'_>, how: &str) -> VmReport {
    let vm = &below.vm.vm;
    let mut report = VmReport {
        vm: vm.label(),
        matched: how.to_owned(),
        slots_from: vm.source,
        slots_evidence: vm.evidence.clone(),
        memory_bytes: vm.memory(),
        ..VmReport::default()
    };
    for region in &below.vm.regions {
        *report.backing.entry(region.class.name()).or_default() += 1;
        if let Some(cause) = below.cause(region) {
            *report.causes.entry(cause.name()).or_default() += 1;
        }
        let slot = vm.slot(region.start());
        report.regions_in_misaligned_slots += u64::from(slot.is_some_and(|slot| !slot.congruent()));
    }
    report.pseudo_huge = vm.lists_pseudo_huge.then_some(below.vm.pseudo_huge.len() as u64);
    for name in ["pages_4k", "pages_2m", "pages_1g", "nx_lpage_splits"] {
        if let Some(&value) = vm.stats.get(name) {
            report.kvm.insert(name.to_owned(), value);
        }
    }
    report
}

/// What the numbers of a VM mean beyond its regions.
fn notes_on(below: &Below<'_>, layer: &Layer, notes: &mut Vec<String>) {
    let vm = &below.vm.vm;
    let split = nx_splits(vm);
    if split > 0 && below.whole.split.is_none() {
        notes.push(format!(
            "{}: nx_huge_pages has split {split} huge mappings of {}, wherever code ran; huge pages \
             that the guest may run code from are taken for split",
            layer.name,
            vm.label()
        ));
    }
    if below.whole.split == Some(Cause::DirtyLogging) && vm.dirty_logging != Some(true) {
        notes.push(format!(
            "{}: KVM has mapped {} base pages and no huge page of {}: dirty logging is concluded \
             from that",
            layer.name,
            vm.stats.get("pages_4k").copied().unwrap_or(0),
            vm.label()
        ));
    }
}

/// Judges all huge pages of the guest.
fn count(report: &mut Join, guest: &Snapshot, below: &[Below<'_>]) {
    let vms: Vec<&BackedVm> = below.iter().map(|layer| layer.vm).collect();
    let code = executable(guest);
    // A page that several processes map counts once in the totals; frame 0 is a hidden one.
    let mut seen: HashMap<u64, Verdict> = HashMap::new();
    let mut causes: BTreeMap<(usize, Cause, Option<Cause>), Vec<u64>> = BTreeMap::new();
    for process in &guest.processes {
        let mut own = ProcessCount {
            pid: process.pid,
            name: process.name.clone(),
            ..ProcessCount::default()
        };
        let mut own_causes: BTreeMap<(usize, Cause), u64> = BTreeMap::new();
        for &page in process.areas.iter().flat_map(|area| &area.huge) {
            let first = page.frame == 0 || !seen.contains_key(&page.frame);
            let verdict = match seen.get(&page.frame) {
                Some(&verdict) if !first => verdict,
                _ => judge(below, page, &code),
            };
            if page.frame != 0 {
                seen.insert(page.frame, verdict);
            }
            own.huge += 1;
            match verdict {
                Verdict::WellAligned { .. } => own.well_aligned += 1,
                Verdict::Misaligned { below, cause, .. } => {
                    own.misaligned += 1;
                    *own_causes.entry((below, cause)).or_default() += 1;
                }
                Verdict::Uncertain | Verdict::Unknown => own.unjudged += 1,
            }
            if first {
                total(&mut report.totals, verdict, &vms, page.frame);
                if let Verdict::Misaligned { below, cause, behind, .. } = verdict {
                    causes.entry((below, cause, behind)).or_default().push(page.frame << 12);
                }
            }
        }
        let most = own_causes.into_iter().max_by_key(|&(_, pages)| pages);
        own.main_cause = most.map(|((below, cause), _)| {
            format!("{} {}", report.layers[below + 1].name, cause.name())
        });
        report.processes.push(own);
    }
    report.processes.sort_by(|a, b| b.huge.cmp(&a.huge).then(a.pid.cmp(&b.pid)));
    report.composite = Composite::of(&report.totals);
    report.causes = causes
        .into_iter()
        .map(|((below, cause, behind), pages)| CauseCount {
            layer: report.layers[below + 1].name.clone(),
            cause,
            pages: pages.len() as u64,
            remedy: cause.remedy(),
            behind,
            behind_remedy: behind.map(Cause::remedy),
            ranges: ranges(pages),
        })
        .collect();
    report.causes.sort_by_key(|cause| std::cmp::Reverse(cause.pages));
    if report.totals.huge == 0 {
        report.notes.push("the guest has no huge pages: nothing can be misaligned".to_owned());
    }
}

fn total(totals: &mut Totals, verdict: Verdict, vms: &[&BackedVm], frame: u64) {
    totals.huge += 1;
    match verdict {
        Verdict::WellAligned { pseudo_huge, .. } => {
            totals.well_aligned += 1;
            totals.pseudo_huge += u64::from(pseudo_huge);
        }
        Verdict::Misaligned { type1, .. } => {
            totals.misaligned += 1;
            *(if type1 { &mut totals.type1 } else { &mut totals.type2 }) += 1;
            totals.one_block += u64::from(is_aligned_block(&descend(vms, frame)));
        }
        Verdict::Uncertain => totals.uncertain += 1,
        Verdict::Unknown => totals.unknown += 1,
    }
}

/// Addresses of 2 MiB pages as ranges.
fn ranges(mut pages: Vec<u64>) -> Vec<[u64; 2]> {
    pages.sort_unstable();
    let mut ranges: Vec<[u64; 2]> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some(last) if last[1] == page => last[1] += 2 << 20,
            _ => ranges.push([page, page + (2 << 20)]),
        }
    }
    ranges
}

fn pair_of(guest: &Snapshot, below: &Below<'_>, (upper, lower): (&str, &str)) -> Pair {
    let areas = guest.processes.iter().flat_map(|process| &process.areas);
    let mut frames: Vec<u64> =
        areas.flat_map(|area| &area.huge).map(|page| page.frame).filter(|&f| f != 0).collect();
    frames.sort_unstable();
    frames.dedup();
    let usable = |region: &Region| !region.uncertain && below.cause(region).is_none();
    let backed = |frame: &&u64| below.vm.region(**frame >> 9).is_some_and(usable);
    let mut pair = Pair {
        upper: upper.to_owned(),
        lower: lower.to_owned(),
        upper_huge: frames.len() as u64,
        lower_huge: frames.iter().filter(backed).count() as u64,
        ..Pair::default()
    };
    for region in below.vm.regions.iter().filter(|region| usable(region)) {
        pair.lower_all += 1;
        if frames.binary_search(&(region.index << 9)).is_err() {
            pair.lower_unused += 1;
            let usage = guest.usage(region.index);
            pair.lower_unused_free += u64::from(usage.is_some_and(|usage| usage.used() == 0));
        }
    }
    pair
}

/// The VMs that [`join`] chooses, the one that the guest runs in first: what
/// [`descend`](crate::compose::descend()) goes through.
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

/// Every huge page of the guest with its verdict, in the order of the snapshot: process id, GVA,
/// GPA. For tools that compare region by region.
///
/// # Errors
/// As [`join`].
pub fn verdicts(
    snapshots: &[Snapshot],
    options: &Options,
) -> Result<Vec<(u32, u64, u64, Verdict)>, Error> {
    // The same checks and the same choice of VMs.
    join(snapshots, options)?;
    let vms = chosen(snapshots, options)?;
    let pairs = snapshots.windows(2).zip(vms);
    let below: Vec<_> = pairs.map(|(pair, vm)| Below::new(&pair[1], vm, Some(&pair[0]))).collect();
    let code = executable(&snapshots[0]);
    let mut all = Vec::new();
    for process in &snapshots[0].processes {
        for &page in process.areas.iter().flat_map(|area| &area.huge) {
            all.push((
                process.pid,
                page.region << 21,
                page.frame << 12,
                judge(&below, page, &code),
            ));
        }
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
