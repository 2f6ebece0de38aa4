//! Page tables as snapshots show them, for the hardware model: a guest's huge pages, and what they
//! are all the way down.

use std::collections::BTreeMap;
use std::sync::Arc;
use strata_addr::PageSize;
use strata_inspect::snapshot::region::Run;
use strata_paging::{ENTRIES, Format, Rights, X86, index};
use strata_tables::{Capture, Check, LEVELS, Role, Table};

/// Frames from here on, 8 TiB, are for what the snapshots do not show: page tables, and pages
/// that nothing backs yet. Half of what the modelled caches can tell apart.
pub const SYNTHETIC: u64 = 1 << 31;

/// What is below a huge page of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HugePageBacking {
    /// One huge mapping that begins in this frame of the lowest layer.
    Huge(u64),
    /// Base pages; those that are not in these runs are not there yet.
    Base(Vec<Run>),
}

impl HugePageBacking {
    /// Whether all its frames are below [`SYNTHETIC`].
    fn fits(&self) -> bool {
        match self {
            Self::Huge(frame) => frame + PageSize::Huge.base_pages() <= SYNTHETIC,
            Self::Base(runs) => {
                runs.iter().all(|run| run.frame() + u64::from(run.pages()) <= SYNTHETIC)
            }
        }
    }
}

/// One of the two tables while it grows.
struct Growing {
    role: Role,
    root: u64,
    next: u64,
    pages: BTreeMap<u64, Arc<[u64; ENTRIES]>>,
}

impl Growing {
    fn new(role: Role) -> Self {
        let root = (SYNTHETIC, Arc::new([0; ENTRIES]));
        Self { role, root: SYNTHETIC, next: SYNTHETIC + 1, pages: BTreeMap::from([root]) }
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The table page whose entries are at `level` on the way to `page`.
    fn at(&mut self, page: u64, level: u8) -> &mut [u64; ENTRIES] {
        let mut frame = self.root;
        for above in (level + 1..=LEVELS).rev() {
            let slot = index(page << PageSize::BASE_SHIFT, above);
            let bits = self.pages[&frame][slot];
            let child = if X86::is_present(bits) {
                X86::frame(bits)
            } else {
                let child = self.fresh();
                self.pages.insert(child, Arc::new([0; ENTRIES]));
                self.entries(frame)[slot] = X86::table(child);
                child
            };
            frame = child;
        }
        self.entries(frame)
    }

    fn entries(&mut self, frame: u64) -> &mut [u64; ENTRIES] {
        Arc::make_mut(self.pages.get_mut(&frame).expect("every table that is pointed to is there"))
    }

    fn map(&mut self, page: u64, size: PageSize, frame: u64) {
        let slot = index(page << PageSize::BASE_SHIFT, size.level());
        self.at(page, size.level())[slot] = X86::leaf(frame, size, Rights::ALL);
    }

    fn done(self) -> Table {
        Table { role: self.role, root: self.root, pages: self.pages }
    }
}

/// The tables of a guest's huge pages, and what is in them.
#[derive(Debug)]
pub struct Composed {
    /// The tables.
    pub capture: Capture,
    /// Huge pages in them.
    pub pages: u64,
    /// Of those, backed by one huge mapping.
    pub huge: u64,
    /// Base pages that nothing backs yet. They got a frame each, as first use in base pages would
    /// give them.
    pub added: u64,
    /// Huge pages left out, because something is beyond [`SYNTHETIC`].
    pub left_out: u64,
}

/// The tables of a guest with these huge pages: first GPA frame, a multiple of 512, and what is
/// below it. One program maps them all, one after the other from virtual page `start`. Its page
/// table is in base pages of the layers below.
pub fn tables(
    layers: u8,
    start: u64,
    pages: impl IntoIterator<Item = (u64, HugePageBacking)>,
) -> Composed {
    let (mut guest, mut second) = (Growing::new(Role::Guest), Growing::new(Role::Second));
    let step = PageSize::Huge.base_pages();
    let (mut number, mut huge, mut added, mut left_out) = (0, 0, 0, 0);
    for (gpa, backing) in pages {
        debug_assert_eq!(gpa % step, 0);
        if gpa >= SYNTHETIC || !backing.fits() {
            left_out += 1;
            continue;
        }
        guest.map(start + number * step, PageSize::Huge, gpa);
        number += 1;
        match backing {
            HugePageBacking::Huge(frame) => {
                huge += 1;
                second.map(gpa, PageSize::Huge, frame);
            }
            HugePageBacking::Base(runs) => added += base_pages(&mut second, gpa, &runs),
        }
    }
    for page in SYNTHETIC..guest.next {
        let frame = second.fresh();
        second.map(page, PageSize::Base, frame);
    }
    let tables = vec![guest.done(), second.done()];
    let capture = Capture { id: 0, layers, tables, check: Check::default(), composition: None };
    Composed { capture, pages: number, huge, added, left_out }
}

/// Maps a region in base pages; gives how many had to be added.
fn base_pages(second: &mut Growing, gpa: u64, runs: &[Run]) -> u64 {
    let mut frames = [None; ENTRIES];
    for run in runs {
        let pages = &mut frames[usize::from(run.first())..][..usize::from(run.pages())];
        for (slot, frame) in pages.iter_mut().zip(run.frame()..) {
            *slot = Some(frame);
        }
    }
    let missing = frames.iter().filter(|frame| frame.is_none()).count() as u64;
    let frames = frames.map(|frame| frame.unwrap_or_else(|| second.fresh()));
    let entries = frames.map(|frame| X86::leaf(frame, PageSize::Base, Rights::ALL));
    *second.at(gpa, PageSize::Base.level()) = entries;
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_addr::{Frame, Vpn};

    #[test]
    fn every_page_leads_where_the_snapshots_say() {
        let runs = vec![Run::new(0, 3, 70_000), Run::new(500, 12, 9)];
        let pages = [
            (512, HugePageBacking::Huge(4096)),
            (5 << 20, HugePageBacking::Base(runs.clone())),
            (1 << 31, HugePageBacking::Huge(512)),
            (1024, HugePageBacking::Huge(1 << 31)),
            (0, HugePageBacking::Base(vec![])),
        ];
        let start = 1 << 32;
        let composed = tables(2, start, pages);
        assert_eq!((composed.pages, composed.huge, composed.left_out), (3, 1, 2));
        assert_eq!(composed.added, 512 - 15 + 512);
        let capture = composed.capture;
        let frame = |page: u64| capture.translate(Vpn::new(start + page)).map(Frame::get);
        for page in 0..512 {
            assert_eq!(frame(page), Some(4096 + page));
            let run = runs
                .iter()
                .find(|run| (run.first()..run.first() + run.pages()).contains(&(page as u16)));
            let known = run.map(|run| run.frame() + page - u64::from(run.first()));
            let found = frame(512 + page).unwrap();
            assert!(known.map_or(found >= SYNTHETIC, |known| found == known), "{page}");
            assert!(frame(1024 + page).unwrap() >= SYNTHETIC);
        }
        assert_eq!(frame(1536), None);
        // No frame twice: neither of a page nor of a table.
        let mut used: Vec<u64> = (0..1536).filter_map(frame).collect();
        let second = capture.table(Role::Second).unwrap();
        used.extend(second.pages.keys());
        let guest = capture.table(Role::Guest).unwrap();
        used.extend(guest.pages.keys().map(|&page| second.walk(page).unwrap().frame));
        let all = used.len();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), all);
    }
}
