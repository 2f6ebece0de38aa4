//! Where a guest's region is to live, and what the host guesses a page is for.

use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_stack::NodeId;

/// Where the host puts one HPAS region of guest-physical memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    /// HostOffset, as the region of real memory.
    pub(super) at: Frame<Lower>,
    /// Pages put there so far: when all are, the region is tried for a pseudo huge page.
    pub(super) placed: u32,
}

/// A violation of a nested guest that the host has handed on and that its hypervisor has not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandedOn {
    pub(super) guest: NodeId,
    /// The page of the guest's memory that it wanted.
    pub(super) page: Frame<Upper>,
    /// The page of its own memory that the guest hypervisor touched last since, as one of a huge page.
    pub(super) last: Option<Frame<Upper>>,
}

impl HandedOn {
    /// The page of the guest's memory that a page of the guest hypervisor's will back which it touches for
    /// the first time now. One by one from the start of a region they are those of a huge page; else
    /// it is the page that the guest wanted. A guess: page tables are touched on the way, too.
    pub(super) fn guess(&mut self, touched: Frame<Upper>) -> Frame<Upper> {
        let index = touched.index_in(PageSize::Huge);
        let goes_on = self.last.map_or(index == 0, |last| index > 0 && touched == last + 1);
        if !goes_on {
            return self.page;
        }
        self.last = Some(touched);
        self.page.floor(PageSize::Huge) + index
    }
}
