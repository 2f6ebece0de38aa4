//! Whether what live kernels say of themselves is what their page tables say.

use std::collections::BTreeMap;
use strata_addr::Frame;
use strata_inspect::{Options, Snapshot, Verdict, verdicts};
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
        .filter(|region| from.contains(&region.gva))
        .map(|region| (region.gva, region))
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
        let Some(region) = left.remove(&gva).filter(|region| region.gpa == gpa) else {
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
