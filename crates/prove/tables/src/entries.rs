//! What is different about the entries of AMD's and Intel's second stages.

use crate::ram::Page;
use strata_paging::{Entry, Ept, Format, X86};

/// The format of a table's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// x86-64 page tables and AMD's nested ones (APM volume 2, sections 5.4 and 15.25).
    X86,
    /// Intel's EPT (SDM volume 3C, tables 29-1 to 29-7).
    Ept,
}

impl Entries {
    /// Both, in the order of the file's numbers for them.
    pub const ALL: [Self; 2] = [Self::X86, Self::Ept];

    /// A table page at `level` as the hardware model takes it, which has second stages of one format: the
    /// same frames, sizes, rights and flags.
    pub(crate) fn for_model(self, page: &Page, level: u8) -> Page {
        match self {
            Self::X86 => *page,
            Self::Ept => page.map(|bits| ept_to_x86(bits, level)),
        }
    }
}

fn ept_to_x86(bits: u64, level: u8) -> u64 {
    // An entry that may not be read is KVM's for memory of devices, or none.
    if !X86::is_present(bits) {
        return 0;
    }
    // Addresses have no more bits on machines that are emulated (see `walk`).
    let reserved = bits & 0xf << 48;
    match Ept::decode(bits, level) {
        Entry::Absent => 0,
        Entry::Table(frame) => X86::table(frame) | reserved,
        Entry::Leaf(leaf) => {
            let accessed = if leaf.accessed { X86::ACCESSED } else { 0 };
            let dirty = if leaf.dirty { X86::DIRTY } else { 0 };
            X86::leaf(leaf.frame, leaf.size, leaf.rights) | accessed | dirty | reserved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_addr::PageSize;
    use strata_paging::Rights;

    proptest! {
        #[test]
        fn what_an_entry_of_an_ept_says_is_kept(
            frame in 0u64..1 << 20, huge: bool, write: bool, execute: bool, flags in 0u64..4,
        ) {
            let (size, level) = if huge { (PageSize::Huge, 2) } else { (PageSize::Base, 1) };
            let frame = frame & !(size.base_pages() - 1);
            // Memory is write-back (bits 5:3), which are flags of x86-64's entries.
            let bits = Ept::leaf(frame, size, Rights { write, execute }) | flags << 8 | 6 << 3;
            let Entry::Leaf(expected) = Ept::decode(bits, level) else { panic!("a leaf") };
            let mut page = [0; 512];
            page[7] = bits;
            let loaded = Entries::Ept.for_model(&page, level);
            prop_assert_eq!(X86::decode(loaded[7], level), Entry::Leaf(expected));
            prop_assert_eq!(X86::decode(loaded[8], level), Entry::Absent);
            let table = Ept::table(frame) | 1 << 8;
            prop_assert_eq!(X86::decode(ept_to_x86(table, 3), 3), Entry::Table(frame));
            // KVM's mark for memory of devices: written and executed, not read.
            prop_assert_eq!(ept_to_x86(bits & !7 | 6, level), 0);
        }
    }
}
