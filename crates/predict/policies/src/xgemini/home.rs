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

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = PageSize::Huge.base_pages();

    /// A page of the guest's second region is wanted.
    const WANTED: Frame<Upper> = Frame::new(REGION + 100);

    fn handed_on() -> HandedOn {
        HandedOn { guest: NodeId::HOST, page: WANTED, last: None }
    }

    /// A guest hypervisor clears a huge page from its start to its end: each page will back the one at its offset in
    /// the region of the page that was wanted.
    #[test]
    fn pages_touched_one_by_one_from_the_start_of_a_region_are_those_of_a_huge_page() {
        let mut handed_on = handed_on();
        for i in 0..REGION {
            assert_eq!(handed_on.guess(Frame::new(8 * REGION + i)), Frame::new(REGION + i));
        }
        assert_eq!(handed_on.guess(Frame::new(9 * REGION)), WANTED, "no huge page is longer");
    }

    #[test]
    fn any_other_page_is_the_one_that_was_wanted() {
        let mut handed_on = handed_on();
        assert_eq!(handed_on.guess(Frame::new(8 * REGION + 1)), WANTED, "not from the start");
        assert_eq!(handed_on.guess(Frame::new(8 * REGION)), Frame::new(REGION));
        // A page table on the way does not end the huge page.
        assert_eq!(handed_on.guess(Frame::new(8 * REGION + 2)), WANTED, "not the next one");
        assert_eq!(handed_on.guess(Frame::new(8 * REGION + 1)), Frame::new(REGION + 1));
    }
}
