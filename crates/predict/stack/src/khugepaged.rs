//! khugepaged: the thread of a kernel that makes huge pages of base pages.
//!
//! Source: Linux 6.12, `mm/khugepaged.c`.

use crate::kernel::{Kernel, OutOfMemory};
use crate::owner::SpaceId;
use crate::policy::{Move, Policy};
use crate::promote::PromoteError;
use crate::stack::Stack;
use crate::thp::{ThpMode, ThpParameters};
use crate::tree::NodeId;
use strata_addr::{Addr, Frame, PageSize, Range, space::Upper};
use strata_paging::{Format, Region, X86};

/// Pages of an HPAS region, as khugepaged counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionPages {
    /// Mapped base pages.
    pub present: u64,
    /// Of these, pages shared copy on write.
    pub shared: u64,
}

/// One wake-up of khugepaged.
struct Round {
    /// Pages that it may still look at.
    budget: u64,
    /// It went past the last space, and began again with the first.
    wrapped: bool,
}

impl Stack {
    /// One wake-up of khugepaged in a kernel: looks at `pages_to_scan` pages from where it stopped and
    /// collapses regions that qualify and that the policy has no objection to. Returns whether an
    /// allocation failed (the caller then waits `alloc_sleep`). What was done is not settled yet.
    ///
    /// # Errors
    /// [`OutOfMemory`] when page tables could not be allocated.
    pub fn khugepaged(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        settings: &ThpParameters,
    ) -> Result<bool, OutOfMemory> {
        let ahead = std::mem::take(&mut self.nodes[node].kernel.khugepaged.ahead);
        let budget = settings.pages_to_scan.saturating_sub(ahead);
        let mut round = Round { budget, wrapped: false };
        while let Some((space, region)) =
            self.nodes[node].kernel.next_qualified(&mut round, settings)
        {
            let asked = Move { node, space, page: region, to: None, size: PageSize::Huge };
            if !policy.may_move(self, &asked) {
                continue;
            }
            match self.nodes[node].kernel.collapse(space, region, None, settings) {
                Err(PromoteError::NoBlock | PromoteError::Taken) => return Ok(true),
                Err(PromoteError::OutOfMemory) => return Err(OutOfMemory),
                Ok(_) | Err(PromoteError::NotEligible | PromoteError::Refused) => {}
            }
        }
        Ok(false)
    }

    /// Pages that khugepaged of a kernel may look at before its next wake-up: a policy may have it look at
    /// some that it names before all others.
    pub fn khugepaged_left(&self, node: NodeId) -> u64 {
        let kernel = self.kernel(node);
        match kernel.thp {
            ThpMode::Never => 0,
            _ => self.thp.pages_to_scan.saturating_sub(kernel.khugepaged.ahead),
        }
    }

    /// A policy had khugepaged of a kernel look at so many pages ahead of its next wake-up, which are taken
    /// off that one's. If it `failed` to get a huge page, it does nothing more until then.
    pub fn khugepaged_looked(&mut self, node: NodeId, pages: u64, failed: bool) {
        let most = self.thp.pages_to_scan;
        let ahead = &mut self.nodes[node].kernel.khugepaged.ahead;
        *ahead = if failed { most } else { ahead.saturating_add(pages).min(most) };
    }
}

impl Kernel {
    /// Counts the pages of the region at `page`; `None` when it is huge or not mapped at all.
    pub fn region_pages(&self, space: SpaceId, page: Frame<Upper>) -> Option<RegionPages> {
        let table = &self.space(space)?.table;
        let Region::Base { entries, present } = table.region(page.floor(PageSize::Huge)) else {
            return None;
        };
        let shared = entries
            .iter()
            .filter(|bits| X86::is_present(**bits))
            .filter(|bits| self.is_shared(Frame::new(X86::frame(**bits))))
            .count() as u64;
        Some(RegionPages { present: u64::from(present), shared })
    }

    /// The next region from where khugepaged stopped that qualifies, within what a wake-up may look at.
    fn next_qualified(
        &mut self,
        round: &mut Round,
        settings: &ThpParameters,
    ) -> Option<(SpaceId, Frame<Upper>)> {
        while round.budget > 0 {
            let Some((space, region)) = self.next_collapsible() else {
                self.khugepaged.next = None;
                if round.wrapped {
                    return None;
                }
                round.wrapped = true;
                continue;
            };
            self.khugepaged.next = Some((space, region.addr() + PageSize::Huge.bytes()));
            let scanned = PageSize::Huge.base_pages().min(round.budget);
            round.budget -= scanned;
            self.frames.counters.scanned_pages += scanned;
            let Some(pages) = self.region_pages(space, region) else { continue };
            if PageSize::Huge.base_pages() - pages.present <= settings.max_ptes_none {
                return Some((space, region));
            }
        }
        None
    }

    /// The next region from the cursor on that huge pages are allowed in.
    fn next_collapsible(&self) -> Option<(SpaceId, Frame<Upper>)> {
        let (first, from) = self.khugepaged.next.unwrap_or((SpaceId(0), Addr::new(0)));
        for (id, space) in self.spaces().skip_while(|(id, _)| *id < first) {
            let from = if id == first { from } else { Addr::new(0) };
            let everything = Range::new(from, Addr::new(u64::MAX));
            // Searching from the cursor keeps a wake-up proportional to what it looks at.
            let mut at = from;
            while let Some(vma) = space.vmas.find(at).or_else(|| space.vmas.next_after(at)) {
                let part = vma.range.intersection(&everything);
                let start = part.start.ceil(PageSize::Huge);
                if self.thp.allows(vma) && vma.fits_huge(start.page()) {
                    return Some((id, start.page()));
                }
                if vma.range.end.get() <= at.get() {
                    break;
                }
                at = vma.range.end;
            }
        }
        None
    }
}
