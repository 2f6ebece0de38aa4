//! Page tables as snapshots show them, for the hardware model: a guest's huge pages, and what they
//! are all the way down.

use std::collections::BTreeMap;
use std::sync::Arc;
use strata_addr::space::{GuestPhysical, HostPhysical, Space, Virtual};
use strata_addr::{Frame, PageSize, Vpn};
use strata_inspect::snapshot::region::Run;
use strata_paging::{ENTRIES, Format, Rights, X86, index};
use strata_tables::{Capture, Entries, LEVELS, Role, Table};

/// Frames from here on, 8 TiB, are for what the snapshots do not show: page tables, and pages
/// that nothing backs yet. Half of what the modelled caches can tell apart.
pub const SYNTHETIC: u64 = 1 << 31;

/// What is below a huge page of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HugePageBacking {
    /// One huge mapping that begins in this frame of the lowest layer.
    Huge(Frame<HostPhysical>),
    /// Base pages; those that are not in these runs are not there yet.
    Base(Vec<Run>),
}

impl HugePageBacking {
    /// Whether all its frames are below [`SYNTHETIC`].
    fn fits(&self) -> bool {
        match self {
            Self::Huge(frame) => frame.get() + PageSize::Huge.base_pages() <= SYNTHETIC,
            Self::Base(runs) => {
                runs.iter().all(|run| run.frame() + u64::from(run.pages()) <= SYNTHETIC)
            }
        }
    }
}

/// One of the two tables while it grows.
struct Growing<U: Space, L: Space> {
    table: Table<U, L>,
    next: Frame<L>,
}

impl<U: Space, L: Space> Growing<U, L> {
    fn new(role: Role) -> Self {
        let root = Frame::new(SYNTHETIC);
        let pages = BTreeMap::from([(root, Arc::new([0; ENTRIES]))]);
        Self { table: Table::new((role, Entries::X86), root, pages), next: root + 1 }
    }

    fn fresh(&mut self) -> Frame<L> {
        let frame = self.next;
        self.next = frame + 1;
        frame
    }

    /// The table page whose entries are at `level` on the way to `page`.
    fn at(&mut self, page: Frame<U>, level: u8) -> &mut [u64; ENTRIES] {
        let mut frame = self.table.root;
        for above in (level + 1..=LEVELS).rev() {
            let slot = index(page.addr().get(), above);
            let bits = self.table.pages[&frame][slot];
            let child = if X86::is_present(bits) {
                Frame::new(X86::frame(bits))
            } else {
                let child = self.fresh();
                self.table.pages.insert(child, Arc::new([0; ENTRIES]));
                self.entries(frame)[slot] = X86::table(child.get());
                child
            };
            frame = child;
        }
        self.entries(frame)
    }

    fn entries(&mut self, frame: Frame<L>) -> &mut [u64; ENTRIES] {
        let page = self.table.pages.get_mut(&frame);
        Arc::make_mut(page.expect("every table that is pointed to is there"))
    }

    fn map(&mut self, page: Frame<U>, size: PageSize, frame: Frame<L>) {
        let slot = index(page.addr().get(), size.level());
        self.at(page, size.level())[slot] = X86::leaf(frame.get(), size, Rights::ALL);
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
    start: Vpn,
    pages: impl IntoIterator<Item = (Frame<GuestPhysical>, HugePageBacking)>,
) -> Composed {
    let mut guest = Growing::<Virtual, GuestPhysical>::new(Role::Guest);
    let mut second = Growing::<GuestPhysical, HostPhysical>::new(Role::Second);
    let step = PageSize::Huge.base_pages();
    let (mut number, mut huge, mut added, mut left_out) = (0, 0, 0, 0);
    for (gpa, backing) in pages {
        debug_assert!(gpa.is_aligned(PageSize::Huge));
        if gpa.get() >= SYNTHETIC || !backing.fits() {
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
    for page in SYNTHETIC..guest.next.get() {
        let frame = second.fresh();
        second.map(Frame::new(page), PageSize::Base, frame);
    }
    let second = Some(second.table);
    let capture = Capture { second, ..Capture::of_guest(layers, guest.table) };
    Composed { capture, pages: number, huge, added, left_out }
}

/// Maps a region in base pages; gives how many had to be added.
fn base_pages(
    second: &mut Growing<GuestPhysical, HostPhysical>,
    gpa: Frame<GuestPhysical>,
    runs: &[Run],
) -> u64 {
    let mut frames = [None; ENTRIES];
    for run in runs {
        let pages = &mut frames[usize::from(run.first())..][..usize::from(run.pages())];
        for (slot, frame) in pages.iter_mut().zip(run.frame()..) {
            *slot = Some(Frame::new(frame));
        }
    }
    let missing = frames.iter().filter(|frame| frame.is_none()).count() as u64;
    let frames = frames.map(|frame| frame.unwrap_or_else(|| second.fresh()));
    let entries = frames.map(|frame| X86::leaf(frame.get(), PageSize::Base, Rights::ALL));
    *second.at(gpa, PageSize::Base.level()) = entries;
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_leads_where_the_snapshots_say() {
        let runs = vec![Run::new(0, 3, 70_000), Run::new(500, 12, 9)];
        let pages = [
            (512, HugePageBacking::Huge(Frame::new(4096))),
            (5 << 20, HugePageBacking::Base(runs.clone())),
            (1 << 31, HugePageBacking::Huge(Frame::new(512))),
            (1024, HugePageBacking::Huge(Frame::new(1 << 31))),
            (0, HugePageBacking::Base(vec![])),
        ];
        let pages = pages.map(|(gpa, backing)| (Frame::new(gpa), backing));
        let start = Vpn::new(1 << 32);
        let composed = tables(2, start, pages);
        assert_eq!((composed.pages, composed.huge, composed.left_out), (3, 1, 2));
        assert_eq!(composed.added, 512 - 15 + 512);
        let capture = composed.capture;
        let frame = |page: u64| capture.translate(start + page).map(Frame::get);
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
        let second = capture.second.unwrap();
        used.extend(second.pages.keys().map(|frame| frame.get()));
        let tables = capture.guest.pages.keys();
        used.extend(tables.map(|&page| second.walk(page).unwrap().frame.get()));
        let all = used.len();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), all);
    }
}
