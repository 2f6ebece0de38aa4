//! The layers of a machine when a program begins, as the model is given them.

use super::order::{Free, PAGES, in_order};
use crate::failure::Failure;
use serde::Serialize;
use std::collections::BTreeMap;
use strata_engine::{FoundRegion, ThpMode};
use strata_inspect::Snapshot;
use strata_inspect::snapshot::model::Settings;
use strata_inspect::snapshot::region::{Class, Region};
use strata_inspect::text::buddy::Zone;
use strata_lab::LabReport;

/// What a layer was like.
#[derive(Debug, Default, Serialize)]
pub struct LayerState {
    /// Bytes of memory, in whole regions of 2 MiB.
    pub memory_bytes: u64,
    /// Of that, bytes that something used besides its VM.
    pub used_bytes: u64,
    /// Of that, bytes that the hypervisor below had backed.
    pub backed_bytes: u64,
    /// Its setting of transparent huge pages.
    pub thp: String,
    /// Whether its kernel was told not to compact for huge pages, neither at faults nor by khugepaged.
    pub without_compaction: bool,
    /// Free huge pages that it had.
    pub free_huge_pages: u64,
    /// Free blocks that it had, by order, of all zones.
    pub free_blocks: Vec<u64>,
    /// Bytes that programs which run VMs had advised to be huge (`MADV_HUGEPAGE`).
    pub advised_bytes: u64,
    /// Shadow pages that its KVM left writable, so that they may differ from what they shadow.
    pub unsync_tables: u64,
    /// Its memory, region by region, in the order in which its kernel gives it to programs.
    #[serde(skip)]
    pub regions: Vec<FoundRegion>,
}

impl LayerState {
    /// Its setting of transparent huge pages, as the model knows it.
    pub fn mode(&self) -> ThpMode {
        mode(&self.thp)
    }
}

/// A setting of transparent huge pages, as the model knows it.
pub fn mode(thp: &str) -> ThpMode {
    match thp {
        "always" => ThpMode::Always,
        "madvise" => ThpMode::Madvise,
        _ => ThpMode::Never,
    }
}

/// The layers when the program began, L0 first.
///
/// # Errors
/// When a snapshot cannot be read.
pub fn states(report: &LabReport) -> Result<Vec<LayerState>, Failure> {
    let paths = report.counted.iter().flat_map(|counted| &counted.snapshots);
    let snapshots: Vec<Snapshot> = paths
        .map(|path| strata_inspect::read(path))
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::failed(error.to_string()))?;
    let counters = report.counted.iter().flat_map(|counted| &counted.readings.before);
    let begun: Vec<Begun> = counters
        .map(|counters| Begun {
            free: counters.free_bytes >> 12,
            listed: counters.listed_bytes >> 12,
            unsync: counters.kvm("mmu_unsync"),
        })
        .collect();
    let layer = |(number, snapshot): (usize, &Snapshot)| {
        let below = number.checked_sub(1).map(|below| &snapshots[below]);
        state(snapshot, below, begun.get(number).copied().unwrap_or_default())
    };
    Ok(snapshots.iter().enumerate().map(layer).collect())
}

/// Base pages of a layer when the program began.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    /// Free, in blocks.
    free: u64,
    /// On lists of single processors.
    listed: u64,
    /// Shadow pages that may differ from what they shadow.
    unsync: u64,
}

/// One layer, in a VM of the one below.
fn state(snapshot: &Snapshot, below: Option<&Snapshot>, begun: Begun) -> LayerState {
    let of_vm = frames_of_vms(snapshot);
    let backing = |index: u64| -> Option<&Region> { below?.vms.first()?.region(index) };
    let regions: Vec<FoundRegion> = ram(snapshot)
        .map(|index| {
            let vm = of_vm.get(&index).copied().unwrap_or(0);
            let (backed, huge) = backing(index)
                .map_or((0, false), |region| (region.present, region.class == Class::Huge));
            let Some(usage) = snapshot.usage(index) else {
                // How the lowest layer uses its memory no snapshot says.
                return FoundRegion { of_vm: vm, backed, huge, ..FoundRegion::default() };
            };
            let movable = usage.anon + usage.huge;
            let pinned = PAGES - usage.free.min(PAGES) - movable.min(PAGES - usage.free.min(PAGES));
            let pinned = pinned.saturating_sub(vm.saturating_sub(movable));
            let movable = movable.saturating_sub(vm);
            // What a VM has never touched nothing is kept in, and looks like pages in use if it is on the list of
            // free pages that a processor has.
            let most = if below.is_some() { backed } else { PAGES };
            let pinned = pinned.min(most);
            let movable = movable.min(most - pinned);
            let of_vm = vm.min(PAGES - pinned - movable);
            FoundRegion { pinned, movable, of_vm, backed, huge }
        })
        .collect();
    // What took the snapshot used memory, too, and is gone; and processors have given up some of their lists.
    let seen: u64 = snapshot.usage.iter().map(|usage| u64::from(usage.free)).sum();
    let freed = if snapshot.usage.is_empty() { 0 } else { begun.free.saturating_sub(seen) };
    let lists = &snapshot.head.settings.free_lists;
    let free = Free { lists, freed, listed: begun.listed };
    let bytes = |pages: fn(&FoundRegion) -> u16| {
        regions.iter().map(|region| u64::from(pages(region)) << 12).sum::<u64>()
    };
    let zones = &snapshot.head.settings.zones;
    LayerState {
        memory_bytes: (regions.len() as u64) << 21,
        used_bytes: bytes(|region| region.pinned + region.movable)
            .saturating_sub((freed + begun.listed) << 12),
        backed_bytes: bytes(|region| region.backed),
        thp: snapshot.head.settings.thp.get("enabled").cloned().unwrap_or_default(),
        without_compaction: does_not_compact(&snapshot.head.settings),
        free_huge_pages: zones.iter().map(Zone::free_huge).sum(),
        free_blocks: free_blocks(zones),
        advised_bytes: advised(snapshot),
        unsync_tables: begun.unsync,
        regions: in_order(ram(snapshot).zip(regions).collect(), free),
    }
}

/// Free blocks by order, of all zones.
fn free_blocks(zones: &[Zone]) -> Vec<u64> {
    let orders = zones.iter().map(|zone| zone.free.len()).max().unwrap_or(0);
    let of = |order| zones.iter().filter_map(|zone| zone.free.get(order)).sum();
    (0..orders).map(of).collect()
}

/// Bytes that the programs which run VMs have advised to be huge.
fn advised(snapshot: &Snapshot) -> u64 {
    let areas = snapshot.vms.iter().flat_map(|vm| &vm.vm.areas);
    areas.filter(|area| area.has("hg")).map(|area| area.end - area.start).sum()
}

/// Whether a kernel neither compacts at faults nor lets khugepaged do so.
fn does_not_compact(settings: &Settings) -> bool {
    let is = |values: &BTreeMap<String, String>, value| {
        values.get("defrag").is_some_and(|given| given == value)
    };
    is(&settings.thp, "never") && is(&settings.khugepaged, "0")
}

/// The regions of a layer's memory that have any RAM, in order.
fn ram(snapshot: &Snapshot) -> impl Iterator<Item = u64> {
    let ranges = snapshot.head.machine.ram.iter();
    let mut all: Vec<u64> =
        ranges.flat_map(|(start, end)| start >> 21..=(end.max(&1) - 1) >> 21).collect();
    all.dedup();
    all.into_iter()
}

/// Frames of a layer that are memory of its VMs, by region of its own memory.
fn frames_of_vms(snapshot: &Snapshot) -> BTreeMap<u64, u16> {
    let mut found = BTreeMap::new();
    let runs = snapshot.vms.iter().flat_map(|vm| &vm.regions).flat_map(|region| &region.runs);
    for run in runs {
        for frame in run.frame()..run.frame() + u64::from(run.pages()) {
            *found.entry(frame >> 9).or_default() += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_inspect::snapshot::BackedVm;
    use strata_inspect::snapshot::model::{Head, Machine, Vm, VmmArea};
    use strata_inspect::snapshot::region::Run;
    use strata_inspect::snapshot::usage::Usage;

    fn snapshot(ram: &[(u64, u64)], usage: &[Usage], regions: Vec<Region>) -> Snapshot {
        let machine = Machine { ram: ram.to_vec(), ..Machine::default() };
        let thp = [("enabled".to_owned(), "madvise".to_owned())].into();
        let settings = Settings { thp, ..Settings::default() };
        let head = Head { machine, settings, ..Head::default() };
        let vms = if regions.is_empty() {
            vec![]
        } else {
            vec![BackedVm { regions, ..BackedVm::default() }]
        };
        Snapshot { head, usage: usage.to_vec(), vms, ..Snapshot::default() }
    }

    #[test]
    fn a_layers_memory_is_what_it_uses_besides_its_vm_and_what_is_backed_below() {
        let region = |index, class, runs: Vec<Run>| Region {
            index,
            class,
            present: runs.iter().map(|run| run.pages()).sum(),
            runs,
            ..Region::default()
        };
        // L0 backs L1's first region huge and 20 pages of the one behind a hole.
        let l0 = snapshot(
            &[(0, 0x80_0000)],
            &[],
            vec![
                region(0, Class::Huge, vec![Run::new(0, 512, 512)]),
                region(2, Class::Scattered, vec![Run::new(3, 20, 1030)]),
            ],
        );
        // L1 uses 112 pages of the first, 12 of them for its VM; of the other nothing but for its VM.
        let usage = [
            Usage { index: 0, free: 400, anon: 32, ..Usage::default() },
            Usage { index: 2, free: 482, anon: 30, ..Usage::default() },
        ];
        let of_vm = region(0, Class::Scattered, vec![Run::new(0, 12, 40), Run::new(100, 30, 1024)]);
        let l1 = snapshot(&[(0, 0x20_0000), (0x40_0000, 0x60_0000)], &usage, vec![of_vm]);
        // 10 pages were freed meanwhile, and 3 are on a list.
        let begun = Begun { free: 400 + 482 + 10, listed: 3, unsync: 7 };
        let state = state(&l1, Some(&l0), begun);
        assert_eq!(
            state.regions,
            [
                FoundRegion { pinned: 80, movable: 20, of_vm: 12, backed: 512, huge: true },
                FoundRegion { pinned: 0, movable: 0, of_vm: 30, backed: 20, huge: false },
            ]
        );
        assert_eq!(state.memory_bytes, 4 << 20);
        assert_eq!((state.used_bytes, state.backed_bytes), (87 << 12, 532 << 12));
        assert_eq!(state.unsync_tables, 7);
        assert_eq!(state.mode(), ThpMode::Madvise);
        assert!(!state.without_compaction);
    }

    #[test]
    fn free_blocks_of_all_zones_and_advised_memory_are_told() {
        let zone =
            |name: &str, free: &[u64]| Zone { node: 0, name: name.into(), free: free.into() };
        assert_eq!(free_blocks(&[zone("DMA", &[1, 2]), zone("Normal", &[3, 4, 5])]), [4, 6, 5]);
        let area = |start, end, flags: &[&str]| VmmArea {
            start,
            end,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            ..VmmArea::default()
        };
        let areas =
            vec![area(0, 100, &["rd", "hg"]), area(200, 400, &["rd"]), area(400, 401, &["hg"])];
        let vm = BackedVm { vm: Vm { areas, ..Vm::default() }, ..BackedVm::default() };
        let found = advised(&Snapshot { vms: vec![vm], ..Snapshot::default() });
        assert_eq!(found, 101);
    }

    #[test]
    fn a_kernel_compacts_unless_it_is_told_not_to_at_faults_and_in_the_background() {
        let given = |text: &str| BTreeMap::from([("defrag".to_owned(), text.to_owned())]);
        for (fault, background, expected) in
            [("never", "0", true), ("madvise", "0", false), ("never", "1", false)]
        {
            let (thp, khugepaged) = (given(fault), given(background));
            let settings = Settings { thp, khugepaged, ..Settings::default() };
            assert_eq!(does_not_compact(&settings), expected, "{fault} {background}");
        }
        assert!(!does_not_compact(&Settings::default()));
    }
}
