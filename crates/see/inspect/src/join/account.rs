//! What a join counts: verdicts by process and cause, each VM's memory, each pair of layers.

use super::cause::{Cause, nx_splits};
use super::colours::Spread;
use super::compose::{descend, is_aligned_block};
use super::report::{
    CauseCount, Composite, HotMemory, Join, JoinedLayer, Pair, ProcessCount, Totals, VmReport,
};
use super::verdict::{Below, Verdict, executable, judge};
use crate::snapshot::hot::HotRegion;
use crate::snapshot::region::Region;
use crate::snapshot::{BackedVm, Snapshot};
use std::collections::{BTreeMap, HashMap};

/// An account of every VM, whoever uses its memory: for `strata scan` and `strata top`.
pub fn vm_accounts(snapshot: &Snapshot) -> Vec<VmReport> {
    let spread = Spread::of(snapshot);
    let each = snapshot.vms.iter().enumerate().map(|(index, vm)| {
        let report = vm_report(&Below::new(snapshot, vm, None), "by its process");
        VmReport { colours: spread.uses(index), ..report }
    });
    each.collect()
}

pub(super) fn vm_report(below: &Below<'_>, how: &str) -> VmReport {
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
    report.hot = vm.watched.map(|how| {
        let sum = |pages: fn(&HotRegion) -> u64| below.vm.hot.iter().map(pages).sum();
        HotMemory {
            by: how.by,
            milliseconds: how.milliseconds,
            watched: sum(|region| region.watched.count()),
            pages: sum(|region| region.used.count()),
        }
    });
    report.pseudo_huge = vm.lists_pseudo_huge.then_some(below.vm.pseudo_huge.len() as u64);
    for name in ["pages_4k", "pages_2m", "pages_1g", "nx_lpage_splits"] {
        if let Some(&value) = vm.stats.get(name) {
            report.kvm.insert(name.to_owned(), value);
        }
    }
    report
}

/// What the numbers of a VM mean beyond its regions.
pub(super) fn notes_on(below: &Below<'_>, layer: &JoinedLayer, notes: &mut Vec<String>) {
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
pub(super) fn count(report: &mut Join, guest: &Snapshot, below: &[Below<'_>]) {
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

pub(super) fn pair_of(guest: &Snapshot, below: &Below<'_>, (upper, lower): (&str, &str)) -> Pair {
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
