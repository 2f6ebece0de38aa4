//! Whether what live kernels say of themselves is what their page tables say.

use std::collections::BTreeMap;
use strata_addr::space::HostPhysical;
use strata_addr::{Frame, Gva, PageSize};
use strata_colours::{CacheIndex, Colours, SliceHash};
use strata_inspect::{BackedVm, Options, Snapshot, Verdict, verdicts};
use strata_tables::Capture;
use strata_tables::truth::{HugePageTruth, regions};

/// The comparison of a capture with a join, region by region.
#[derive(Debug, Default)]
pub struct Agreement {
    /// Huge pages of the program, by both.
    pub equal: usize,
    /// Of these, well aligned by both.
    pub well_aligned: usize,
    /// GVAs of huge pages that one of the two does not have as huge, or elsewhere.
    pub elsewhere: Vec<u64>,
    /// GVAs that the snapshots could not judge.
    pub unjudged: Vec<u64>,
    /// Judged differently: GVA, and what both say.
    pub different: Vec<(u64, String)>,
    /// The colours of the base pages that these huge pages are made of.
    pub colours: ColourAgreement,
}

/// The colours of a slice of 2048 sets, as almost all have them.
fn colours() -> Colours {
    let index = CacheIndex { line_bytes: 64, sets: 2048, slices: 1, hash: SliceHash::None };
    Colours::new(&index).expect("2048 sets are 32 colours")
}

/// Where a page of a guest is in the memory of the layer below.
fn below(vm: &BackedVm, frame: u64) -> Option<u64> {
    let (index, page) = (frame / 512, (frame % 512) as u16);
    let runs = &vm.region(index)?.runs;
    let run = runs.iter().find(|run| (run.first()..run.first() + run.pages()).contains(&page))?;
    Some(run.frame() + u64::from(page - run.first()))
}

/// Pages whose colours were compared.
#[derive(Debug, Default)]
pub struct ColourAgreement {
    /// How many have the same colour by both.
    pub same: usize,
    /// GVAs of those that have another one, or are backed by one of the two only.
    pub other: Vec<u64>,
}

impl ColourAgreement {
    /// Compares the colours of a page of the program that has this frame in the guest: by the tables in the
    /// machine's memory, and through what each hypervisor says of its VM.
    fn compare(&mut self, capture: &Capture, snapshots: &[Snapshot], vpn: u64, frame: u64) {
        let (colours, gva) = (colours(), vpn << 12);
        let truth = capture.translate(Gva::new(gva).page()).map(|frame| colours.of(frame));
        let mut vms = snapshots[1..].iter().map(|layer| &layer.vms[0]);
        let frame = vms.try_fold(frame, |frame, vm| below(vm, frame));
        let seen = frame.map(|frame| colours.of(Frame::<HostPhysical>::new(frame)));
        // What nobody has touched is in no table.
        if truth == seen {
            self.same += usize::from(truth.is_some());
        } else {
            self.other.push(gva);
        }
    }
}

/// Compares the colours of the program's base pages, none of them part of a huge page of the guest. Which
/// frames they have in the guest is by its table, as scans of a guest list its huge pages only; what is
/// compared is where each layer below has put them.
pub fn compare_base_pages(
    capture: &Capture,
    snapshots: &[Snapshot],
    from: std::ops::Range<u64>,
) -> ColourAgreement {
    let mut pages = Vec::new();
    capture.guest.leaves(&mut |page, hit| {
        if hit.size == PageSize::Base && from.contains(&page.addr().get()) {
            pages.push((page.get(), hit.frame.get()));
        }
    });
    let mut found = ColourAgreement::default();
    for (vpn, frame) in pages {
        found.compare(capture, snapshots, vpn, frame);
    }
    found
}

/// Compares the huge pages of a program: the captured tables against the snapshots, the innermost
/// layer's first. `program` is the program's name in the innermost layer, `from` the range of its
/// memory that is compared.
pub fn compare(
    capture: &Capture,
    snapshots: &[Snapshot],
    program: &str,
    from: std::ops::Range<u64>,
) -> Agreement {
    let truth: BTreeMap<u64, HugePageTruth> = regions(capture)
        .into_iter()
        .filter(|region| from.contains(&region.gva.get()))
        .map(|region| (region.gva.get(), region))
        .collect();
    let process = snapshots[0]
        .processes
        .iter()
        .find(|process| process.name == program)
        .unwrap_or_else(|| panic!("the snapshot has no process {program} with huge pages"));
    let judged: Vec<(u64, u64, Verdict)> = if snapshots.len() == 1 {
        // Natively a huge page is a huge page.
        let pages = process.areas.iter().flat_map(|area| &area.huge);
        pages
            .map(|page| {
                let verdict = match page.uncertain {
                    true => Verdict::Uncertain,
                    false => {
                        Verdict::WellAligned { frame: Frame::new(page.frame), pseudo_huge: false }
                    }
                };
                (page.region << 21, page.frame << 12, verdict)
            })
            .collect()
    } else {
        let all = verdicts(snapshots, &Options::default()).expect("the snapshots belong together");
        all.into_iter()
            .filter(|page| page.pid == process.pid)
            .map(|page| (page.gva.get(), page.gpa.get(), page.verdict))
            .collect()
    };
    let mut found = Agreement::default();
    let mut left = truth.clone();
    for (gva, gpa, verdict) in judged.into_iter().filter(|(gva, ..)| from.contains(gva)) {
        for page in 0..512 {
            found.colours.compare(capture, snapshots, (gva >> 12) + page, (gpa >> 12) + page);
        }
        let Some(region) = left.remove(&gva).filter(|region| region.gpa.get() == gpa) else {
            found.elsewhere.push(gva);
            continue;
        };
        let says = match verdict {
            Verdict::WellAligned { .. } => true,
            Verdict::Misaligned { .. } => false,
            Verdict::Uncertain | Verdict::Unknown => {
                found.unjudged.push(gva);
                continue;
            }
        };
        if says == region.is_well_aligned() {
            found.equal += 1;
            found.well_aligned += usize::from(says);
        } else {
            found.different.push((gva, format!("tables: {region:?}; snapshots: {verdict:?}")));
        }
    }
    found.elsewhere.extend(left.keys());
    found
}
