//! Entry formats: what the bits of a table entry mean.

use std::fmt::Debug;
use strata_addr::PageSize;

/// Access rights and the accessed and dirty flags of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Stores allowed.
    pub write: bool,
    /// Instruction fetches allowed.
    pub execute: bool,
}

impl Rights {
    /// Loads only.
    pub const READ: Self = Self { write: false, execute: false };
    /// Loads and stores.
    pub const READ_WRITE: Self = Self { write: true, execute: false };
    /// Everything.
    pub const ALL: Self = Self { write: true, execute: true };
}

/// A leaf entry, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Number of the first base frame.
    pub frame: u64,
    /// Size mapped.
    pub size: PageSize,
    /// Rights.
    pub rights: Rights,
    /// The accessed flag.
    pub accessed: bool,
    /// The dirty flag.
    pub dirty: bool,
}

/// A table entry, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Maps nothing.
    Absent,
    /// Points to the table page in this frame.
    Table(u64),
    /// Maps a page.
    Leaf(Leaf),
}

/// How entries are encoded. All formats keep the frame number in bits 51:12 and the page-size
/// flag in bit 7 (SDM volume 3A, tables 4-14 to 4-19; volume 3C, tables 29-1 to 29-7).
///
/// ```
/// use strata_addr::PageSize;
/// use strata_paging::{Entry, Ept, Format, Rights, X86};
///
/// // A huge page for loads only, at level 2: user and present, the page-size flag, no execution.
/// let bits = X86::leaf(0x600, PageSize::Huge, Rights::READ);
/// assert_eq!(bits, 0x600 << 12 | 1 << 63 | 1 << 7 | 0b101);
/// let Entry::Leaf(leaf) = X86::decode(bits, 2) else { panic!("it maps a page") };
/// assert_eq!((leaf.frame, leaf.size, leaf.rights), (0x600, PageSize::Huge, Rights::READ));
///
/// // The same page in Intel's second stage: other bits, the same meaning.
/// let second = Ept::leaf(0x600, PageSize::Huge, Rights::READ);
/// assert_ne!(second, bits);
/// assert_eq!(Ept::decode(second, 2), Entry::Leaf(leaf));
/// assert_eq!(Ept::decode(Ept::table(7), 2), Entry::Table(7));
/// assert_eq!(Ept::decode(0, 1), Entry::Absent);
/// ```
pub trait Format: Copy + Debug + Send + Sync + 'static {
    /// Name in messages.
    const NAME: &'static str;
    /// Any of these bits set: the entry is present.
    const PRESENT: u64;
    /// The accessed flag.
    const ACCESSED: u64;
    /// The dirty flag, in leaves.
    const DIRTY: u64;
    /// The bit that allows stores.
    const WRITE: u64;

    /// The bits of an entry that points to a table.
    fn table(frame: u64) -> u64;

    /// The bits of a leaf; accessed and dirty clear.
    fn leaf(frame: u64, size: PageSize, rights: Rights) -> u64;

    /// The execute right in the bits of a leaf.
    fn executable(bits: u64) -> bool;

    /// Whether the bits are of a present entry.
    #[inline]
    fn is_present(bits: u64) -> bool {
        bits & Self::PRESENT != 0
    }

    /// Whether present bits at this level are of a leaf.
    #[inline]
    fn is_leaf(bits: u64, level: u8) -> bool {
        level == 1 || bits & PAGE_SIZE != 0
    }

    /// The frame number in the bits.
    #[inline]
    fn frame(bits: u64) -> u64 {
        (bits & FRAME_MASK) >> 12
    }

    /// The meaning of the bits of an entry at `level`.
    fn decode(bits: u64, level: u8) -> Entry {
        if !Self::is_present(bits) {
            return Entry::Absent;
        }
        let size = if Self::is_leaf(bits, level) { PageSize::at_level(level) } else { None };
        match size {
            None => Entry::Table(Self::frame(bits)),
            Some(size) => Entry::Leaf(Leaf {
                frame: Self::frame(bits),
                size,
                rights: Rights { write: bits & Self::WRITE != 0, execute: Self::executable(bits) },
                accessed: bits & Self::ACCESSED != 0,
                dirty: bits & Self::DIRTY != 0,
            }),
        }
    }
}

const PAGE_SIZE: u64 = 1 << 7;
const FRAME_MASK: u64 = ((1 << 52) - 1) & !0xfff;

const fn page_size_flag(size: PageSize) -> u64 {
    match size {
        PageSize::Base => 0,
        PageSize::Huge | PageSize::Giant => PAGE_SIZE,
    }
}

/// x86-64 page tables, and AMD's nested page tables, which have the same format (SDM volume 3A,
/// section 4.5; APM volume 2, sections 5.4 and 15.25).
#[derive(Clone, Copy, Debug)]
pub enum X86 {}

impl X86 {
    const USER: u64 = 1 << 2;
    const NO_EXECUTE: u64 = 1 << 63;
}

impl Format for X86 {
    const NAME: &'static str = "x86-64";
    const PRESENT: u64 = 1;
    const WRITE: u64 = 1 << 1;
    const ACCESSED: u64 = 1 << 5;
    const DIRTY: u64 = 1 << 6;

    #[inline]
    fn table(frame: u64) -> u64 {
        frame << 12 | Self::PRESENT | Self::WRITE | Self::USER
    }

    #[inline]
    fn leaf(frame: u64, size: PageSize, rights: Rights) -> u64 {
        let write = if rights.write { Self::WRITE } else { 0 };
        let execute = if rights.execute { 0 } else { Self::NO_EXECUTE };
        frame << 12 | Self::PRESENT | Self::USER | write | execute | page_size_flag(size)
    }

    #[inline]
    fn executable(bits: u64) -> bool {
        bits & Self::NO_EXECUTE == 0
    }
}

/// Intel's extended page tables (SDM volume 3C, section 29.3.2), write-back memory type.
#[derive(Clone, Copy, Debug)]
pub enum Ept {}

impl Ept {
    const READ: u64 = 1;
    const EXECUTE: u64 = 1 << 2;
    const WRITE_BACK: u64 = 6 << 3;
}

impl Format for Ept {
    const NAME: &'static str = "EPT";
    const PRESENT: u64 = 0b111;
    const WRITE: u64 = 1 << 1;
    const ACCESSED: u64 = 1 << 8;
    const DIRTY: u64 = 1 << 9;

    #[inline]
    fn table(frame: u64) -> u64 {
        frame << 12 | Self::READ | Self::WRITE | Self::EXECUTE
    }

    #[inline]
    fn leaf(frame: u64, size: PageSize, rights: Rights) -> u64 {
        let write = if rights.write { Self::WRITE } else { 0 };
        let execute = if rights.execute { Self::EXECUTE } else { 0 };
        frame << 12 | Self::READ | write | execute | Self::WRITE_BACK | page_size_flag(size)
    }

    #[inline]
    fn executable(bits: u64) -> bool {
        bits & Self::EXECUTE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip<F: Format>(frame: u64, size: PageSize, rights: Rights) {
        let expected = Leaf { frame, size, rights, accessed: false, dirty: false };
        let bits = F::leaf(frame, size, rights);
        assert_eq!(F::decode(bits, size.level()), Entry::Leaf(expected));
        let used = Leaf { accessed: true, dirty: true, ..expected };
        assert_eq!(F::decode(bits | F::ACCESSED | F::DIRTY, size.level()), Entry::Leaf(used));
        for level in 2..=5 {
            assert_eq!(F::decode(F::table(frame), level), Entry::Table(frame));
        }
        assert_eq!(F::decode(0, 1), Entry::Absent);
    }

    proptest! {
        #[test]
        fn entries_decode_to_what_was_encoded(frame in 0u64..1 << 40, write: bool, execute: bool) {
            for size in PageSize::ALL {
                let aligned = frame & !(size.base_pages() - 1);
                round_trip::<X86>(aligned, size, Rights { write, execute });
                round_trip::<Ept>(aligned, size, Rights { write, execute });
            }
        }
    }

    #[test]
    fn bits_are_those_of_the_manuals() {
        // SDM volume 3A, tables 4-18 and 4-20: P, R/W, U/S, PS, XD.
        assert_eq!(X86::leaf(0x200, PageSize::Huge, Rights::READ_WRITE), 0x8000_0000_0020_0087);
        // SDM volume 3C, table 29-7: R, W, X, write-back.
        assert_eq!(Ept::leaf(0x123, PageSize::Base, Rights::ALL), 0x0012_3037);
        // Of an entry that leads to a table: what it allows, all pages below may have (SDM volume 3A, table 4-19;
        // volume 3C, table 29-6).
        assert_eq!(X86::table(0x123), 0x0012_3007);
        assert_eq!(Ept::table(0x123), 0x0012_3007);
    }
}
