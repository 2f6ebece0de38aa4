//! Linux's transparent huge pages: what can be set, and what is remembered.
//!
//! Source: Linux 6.12, `mm/khugepaged.c`, `mm/huge_memory.c`, and
//! `Documentation/admin-guide/mm/transhuge.rst`.

use crate::owner::SpaceId;
use crate::vma::{HugeAdvice, Vma};
use strata_addr::{Addr, space::Upper};

/// `/sys/kernel/mm/transparent_hugepage/enabled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    pub(crate) next: Option<(SpaceId, Addr<Upper>)>,
    /// Pages it has looked at for a policy since its last wake-up.
    pub(crate) ahead: u64,
}
