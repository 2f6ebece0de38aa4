//! Which pages of a VM were used while it was watched.

use crate::snapshot::region::PAGES;
use serde::{Deserialize, Serialize};

/// How use was noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    /// Frames were marked idle, and those that were not idle later were used in between.
    #[default]
    #[serde(rename = "page_idle")]
    PageIdle,
    /// What the kernel's reclaim last thought of the frames: referenced, or on an active list.
    #[serde(rename = "kpageflags")]
    KernelFlags,
}

impl By {
    /// Its name: that of the file it comes from.
    pub fn name(self) -> &'static str {
        match self {
            Self::PageIdle => "page_idle",
            Self::KernelFlags => "kpageflags",
        }
    }
}

/// How a VM was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// How use was noticed.
    pub by: By,
    /// Milliseconds between marking and looking; 0 where nothing was marked.
    pub milliseconds: u64,
}

/// Some of the base pages of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages(pub [u64; PAGES / 64]);

impl Pages {
    /// All of them.
    pub const ALL: Self = Self([u64::MAX; PAGES / 64]);

    /// Adds a page, 0 to 511.
    pub fn set(&mut self, page: u16) {
        self.0[usize::from(page) / 64] |= 1 << (page % 64);
    }

    /// Whether a page is among them.
    pub fn has(&self, page: u16) -> bool {
        self.0[usize::from(page) / 64] >> (page % 64) & 1 == 1
    }

    /// How many they are.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether all of them are among the others.
    pub fn within(&self, others: &Self) -> bool {
        self.0.iter().zip(&others.0).all(|(own, other)| own & !other == 0)
    }
}

/// A region of a VM that was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotRegion {
    /// GPA divided by 2 MiB.
    pub index: u64,
    /// Base pages whose use could be noticed.
    pub watched: Pages,
    /// Those of them that were used.
    pub used: Pages,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_and_compared_one_by_one() {
        let mut pages = Pages::default();
        assert_eq!(pages.count(), 0);
        for page in [0, 63, 64, 511] {
            pages.set(page);
        }
        assert!(pages.has(63) && pages.has(511) && !pages.has(1));
        assert_eq!((pages.count(), Pages::ALL.count()), (4, 512));
        assert!(pages.within(&Pages::ALL) && pages.within(&pages) && !Pages::ALL.within(&pages));
    }
}
