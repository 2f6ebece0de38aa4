//! One word of `/proc/PID/pagemap` and the flags of `/proc/kpageflags`
//! (`Documentation/admin-guide/mm/pagemap.rst`).

/// A word of pagemap: what maps one base page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PagemapEntry(pub u64);

/// Most frames there can be: 4 PiB, x86-64's limit (52 bits).
pub const FRAMES: u64 = 1 << 40;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE: u64 = 1 << 61;
const FRAME: u64 = (1 << 55) - 1;

impl PagemapEntry {
    /// A page in this frame.
    pub const fn present_at(frame: u64) -> Self {
        Self(PRESENT | frame)
    }

    /// A page whose frame is hidden from readers without privileges.
    pub const fn present_hidden() -> Self {
        Self(PRESENT)
    }

    /// A page in swap.
    pub const fn in_swap() -> Self {
        Self(SWAPPED)
    }

    /// Whether the page is in memory.
    pub const fn present(self) -> bool {
        self.0 & PRESENT != 0
    }

    /// Whether it is in swap. A page under migration shows so too: the second reading tells them
    /// apart.
    pub const fn swapped(self) -> bool {
        self.0 & SWAPPED != 0 && self.0 & PRESENT == 0
    }

    /// Whether it belongs to a file or to shmem.
    pub const fn file(self) -> bool {
        self.0 & FILE != 0
    }

    /// The frame, unless hidden. No kernel gives frame 0 to a process.
    pub const fn frame(self) -> Option<u64> {
        let frame = self.0 & FRAME;
        if self.present() && frame != 0 && frame < FRAMES { Some(frame) } else { None }
    }

    /// The word without what changes with mere use: soft-dirty (55), exclusive (56), write
    /// protection (57) and guard (58) bits.
    pub const fn place(self) -> u64 {
        self.0 & !(0xf << 55)
    }
}

/// Bits of `/proc/kpageflags`.
pub mod flags {
    /// Found accessed when its page was looked at last.
    pub const REFERENCED: u64 = 1 << 2;
    /// On one of the LRU lists.
    pub const LRU: u64 = 1 << 5;
    /// On an active one of them.
    pub const ACTIVE: u64 = 1 << 6;
    /// Head or tail of a hugetlb page.
    pub const HUGETLB: u64 = 1 << 17;
    /// Free, in the buddy allocator.
    pub const BUDDY: u64 = 1 << 10;
    /// Anonymous.
    pub const ANON: u64 = 1 << 12;
    /// Head of a compound page.
    pub const HEAD: u64 = 1 << 15;
    /// Tail of a compound page.
    pub const TAIL: u64 = 1 << 16;
    /// No such page.
    pub const NO_PAGE: u64 = 1 << 20;
    /// Merged by KSM.
    pub const KSM: u64 = 1 << 21;
    /// Part of a transparent huge page.
    pub const THP: u64 = 1 << 22;
    /// Offline: in a balloon, for one.
    pub const OFFLINE: u64 = 1 << 23;
    /// The zero page.
    pub const ZERO: u64 = 1 << 24;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_the_kernel_documents_them() {
        let word = PagemapEntry(0x8600_0000_0001_2345);
        assert!(word.present() && !word.swapped() && !word.file());
        assert_eq!(word.frame(), Some(0x12345), "bits 55 and up are no part of the frame");
        assert_eq!(word.place(), PagemapEntry::present_at(0x12345).0);
        assert!(PagemapEntry::in_swap().swapped());
        assert_eq!(PagemapEntry::present_hidden().frame(), None);
        assert!(PagemapEntry(FILE | PRESENT | 1).file());
    }
}
