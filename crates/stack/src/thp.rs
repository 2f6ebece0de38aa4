//! Linux's transparent huge pages: the settings, and khugepaged.
//!
//! Source: Linux 6.12, `mm/khugepaged.c`, `mm/huge_memory.c`, and
//! `Documentation/admin-guide/mm/transhuge.rst`.

use crate::kernel::{Kernel, OutOfMemory};
use crate::owner::SpaceId;
use crate::promote::{PromoteError, Promotion};
use crate::vma::{HugeAdvice, Vma};
use strata_addr::{Addr, Frame, PageSize, Range, space::Upper};
use strata_paging::{Format, Region, X86};

/// `/sys/kernel/mm/transparent_hugepage/enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpMode {
    /// Base pages only.
    Never,
    /// Huge pages where the program asked for them.
    Madvise,
    /// Huge pages wherever they fit.
    Always,
}

impl ThpMode {
    /// Whether an area may have huge pages under this setting.
    pub fn allows(self, vma: &Vma) -> bool {
        match (self, vma.huge) {
            (Self::Never, _) | (_, HugeAdvice::Refused) => false,
            (Self::Always, _) | (Self::Madvise, HugeAdvice::Wanted) => true,
            (Self::Madvise, HugeAdvice::Default) => false,
        }
    }
}

/// Why the first fault of an HPAS region was not answered with a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fallback {
    /// Huge pages are off for this area.
    Disabled,
    /// The area does not cover the whole region, or is not private anonymous memory.
    DoesNotFit,
    /// No free order-9 block.
    NoFreeBlock,
    /// The policy chose base pages.
    Policy,
    /// A huge page was there and was split.
    Split,
}

impl Fallback {
    /// A short sentence for people.
    pub const fn explain(self) -> &'static str {
        match self {
            Self::Disabled => "huge pages are disabled for the area",
            Self::DoesNotFit => "the area does not cover a whole huge page",
            Self::NoFreeBlock => "no free order-9 block (fragmentation)",
            Self::Policy => "the policy placed base pages and has not promoted them yet",
            Self::Split => "a huge page was split",
        }
    }
}

strata_params::parameters! {
    /// khugepaged's settings. Defaults: Linux 6.12, `mm/khugepaged.c`.
    pub struct ThpParameters {
        /// Base pages khugepaged looks at per wake-up.
        pages_to_scan: u64 = 4096, "thp.pages_to_scan", "pages";
        /// Pause between two wake-ups.
        scan_sleep: f64 = 10.0, "thp.scan_sleep", "s";
        /// Pause after an allocation failed.
        alloc_sleep: f64 = 60.0, "thp.alloc_sleep", "s";
        /// Absent pages a region may have to be collapsed all the same.
        max_ptes_none: u64 = 511, "thp.max_ptes_none", "pages";
        /// Shared pages a region may have to be collapsed all the same.
        max_ptes_shared: u64 = 256, "thp.max_ptes_shared", "pages";
        /// Regions compaction may look at for one huge page.
        compact_regions: u64 = 32, "thp.compact_regions", "regions";
    }
}

/// Where khugepaged is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Khugepaged {
    next: Option<(SpaceId, Addr<Upper>)>,
}

/// Pages of an HPAS region, as khugepaged counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionPages {
    /// Mapped base pages.
    pub present: u64,
    /// Of these, pages shared copy on write.
    pub shared: u64,
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

    /// One wake-up of khugepaged: looks at `pages_to_scan` pages from where it stopped and
    /// collapses regions that qualify. Returns whether an allocation failed (the caller then waits
    /// `alloc_sleep`).
    ///
    /// # Errors
    /// [`OutOfMemory`] when page tables could not be allocated.
    pub fn khugepaged(&mut self, settings: &ThpParameters) -> Result<bool, OutOfMemory> {
        let mut budget = settings.pages_to_scan;
        let mut wrapped = false;
        let mut failed = false;
        while budget > 0 {
            let Some((space, region)) = self.next_collapsible() else {
                self.khugepaged.next = None;
                if wrapped {
                    break;
                }
                wrapped = true;
                continue;
            };
            self.khugepaged.next = Some((space, region.addr() + PageSize::Huge.bytes()));
            let scanned = PageSize::Huge.base_pages().min(budget);
            budget -= scanned;
            self.frames.counters.scanned_pages += scanned;
            let Some(pages) = self.region_pages(space, region) else { continue };
            if PageSize::Huge.base_pages() - pages.present > settings.max_ptes_none {
                continue;
            }
            match self.collapse(space, region, None, settings) {
                Ok(Promotion::InPlace | Promotion::Moved | Promotion::AlreadyHuge) => {}
                Err(PromoteError::NoBlock | PromoteError::Taken) => {
                    failed = true;
                    break;
                }
                Err(PromoteError::NotEligible) => {}
                Err(PromoteError::OutOfMemory) => return Err(OutOfMemory),
            }
        }
        Ok(failed)
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
