//! How each huge page of the program is backed, layer by layer: the truth that what live kernels
//! say of themselves can be compared with.

use crate::capture::{Capture, Table};
use strata_addr::space::{GuestPhysical, Space, Virtual};
use strata_addr::{Frame, Gpa, Gva, PageSize};

/// How one table maps a 2 MiB region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableMapping {
    /// Base pages of it that are mapped, up to 512.
    pub present: u16,
    /// One leaf maps all of it.
    pub huge: bool,
    /// All of it is mapped, each page to the frame after the one before.
    pub contiguous: bool,
    /// The first page is mapped to the beginning of a 2 MiB region.
    pub aligned: bool,
}

impl TableMapping {
    /// All of it lies in one aligned region, whichever way it is mapped.
    pub const fn is_region(&self) -> bool {
        self.contiguous && self.aligned
    }
}

/// One huge page of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePageTruth {
    /// Its guest virtual address.
    pub gva: Gva,
    /// Its guest physical address.
    pub gpa: Gpa,
    /// Whether the guest maps it as part of a 1 GiB page.
    pub giant: bool,
    /// How L1 maps it, in a nested VM.
    pub l1: Option<TableMapping>,
    /// How L0 maps what L1 put there; known when L1 put all of it into one region.
    pub l0: Option<TableMapping>,
    /// How the table that hardware walks maps it; `None` without a second stage.
    pub second: Option<TableMapping>,
}

impl HugePageTruth {
    /// One huge mapping, down to real memory.
    pub const fn is_well_aligned(&self) -> bool {
        match self.second {
            Some(second) => second.huge,
            None => true,
        }
    }
}

/// How a table maps the region that begins at this page; and to which frame.
fn backing<U: Space, L: Space>(
    table: &Table<U, L>,
    first: Frame<U>,
) -> (TableMapping, Option<Frame<L>>) {
    let mut found = TableMapping { contiguous: true, ..TableMapping::default() };
    let start = table.walk(first);
    found.huge = start.is_some_and(|hit| hit.size >= PageSize::Huge);
    found.aligned = start.is_some_and(|hit| hit.frame.is_aligned(PageSize::Huge));
    for page in 0..PageSize::Huge.base_pages() {
        let hit = table.walk(first + page);
        found.present += u16::from(hit.is_some());
        let expected = start.map(|start| start.frame + page);
        found.contiguous &= hit.is_some() && hit.map(|hit| hit.frame) == expected;
    }
    (found, start.map(|start| start.frame))
}

/// Every huge page of the program, by guest virtual address.
pub fn regions(capture: &Capture) -> Vec<HugePageTruth> {
    let mut huge: Vec<(Frame<Virtual>, Frame<GuestPhysical>, bool)> = Vec::new();
    capture.guest.leaves(&mut |first, hit| {
        if hit.size != PageSize::Base {
            let step = PageSize::Huge.base_pages();
            let pages = (0..hit.size.base_pages()).step_by(step as usize);
            let giant = hit.size == PageSize::Giant;
            huge.extend(pages.map(|page| (first + page, hit.frame + page, giant)));
        }
    });
    let (second, lower) = (capture.second.as_ref(), capture.lower.as_ref());
    let mut regions: Vec<HugePageTruth> = huge
        .into_iter()
        .map(|(page, gpa, giant)| {
            let l1 = lower.map(|(l1, _)| backing(l1, gpa));
            let ghpa = l1.filter(|(backing, _)| backing.is_region()).and_then(|(_, ghpa)| ghpa);
            HugePageTruth {
                gva: page.addr(),
                gpa: gpa.addr(),
                giant,
                l1: l1.map(|(backing, _)| backing),
                l0: lower.zip(ghpa).map(|((_, l0), ghpa)| backing(l0, ghpa).0),
                second: second.map(|second| backing(second, gpa).0),
            }
        })
        .collect();
    regions.sort_by_key(|region| region.gva);
    regions
}
