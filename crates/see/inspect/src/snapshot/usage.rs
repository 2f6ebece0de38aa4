//! What a guest uses each 2 MiB of its physical memory for, from `/proc/kpageflags`.

use crate::snapshot::entry::flags;
use crate::snapshot::region::PAGES;

/// Base pages of a region by use; what is in none is the kernel's, page cache, or not RAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// GPA divided by 2 MiB.
    pub index: u64,
    /// Free.
    pub free: u16,
    /// In transparent huge pages or hugetlb.
    pub huge: u16,
    /// Anonymous, in base pages.
    pub anon: u16,
    /// Offline: given to the hypervisor by a balloon, for one.
    pub offline: u16,
    /// No RAM at all.
    pub none: u16,
}

impl Usage {
    /// Counts the flags of a region's 512 pages; what lies behind the end of the file is no RAM.
    pub fn count(index: u64, words: &[u64]) -> Self {
        debug_assert!(words.len() <= PAGES);
        let mut usage = Self { index, none: (PAGES - words.len()) as u16, ..Self::default() };
        for word in words {
            let has = |flag| word & flag != 0;
            if has(flags::NO_PAGE) {
                usage.none += 1;
            } else if has(flags::BUDDY) {
                usage.free += 1;
            } else if has(flags::OFFLINE) {
                usage.offline += 1;
            } else if has(flags::THP) || has(flags::HUGETLB) {
                usage.huge += 1;
            } else if has(flags::ANON) {
                usage.anon += 1;
            }
        }
        usage
    }

    /// Pages in use for anything: neither free, nor in a balloon, nor missing.
    pub fn used(&self) -> u16 {
        (PAGES as u16)
            .saturating_sub(self.free)
            .saturating_sub(self.offline)
            .saturating_sub(self.none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_once_by_their_strongest_flag() {
        let mut words = vec![0; 500];
        words[0] = flags::BUDDY;
        words[1] = flags::OFFLINE;
        words[2] = flags::THP | flags::ANON;
        words[3] = flags::ANON;
        words[4] = flags::NO_PAGE;
        words[5] = flags::HUGETLB;
        let usage = Usage::count(7, &words);
        let expected = Usage { index: 7, free: 1, huge: 2, anon: 1, offline: 1, none: 13 };
        assert_eq!(usage, expected);
        assert_eq!(usage.used(), 512 - 15);
    }
}
