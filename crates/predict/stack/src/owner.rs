//! The owner word of a frame: who uses it, so that it can be found again (reverse map).

use strata_addr::{Frame, space::Upper};

/// An address space within one layer: a process of the guest, or the VM process of a hypervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceId(pub u16);

/// Who uses a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody: the frame is free, or set aside without content.
    Nobody,
    /// It backs this page of this space, and no other.
    Page(SpaceId, Frame<Upper>),
    /// It backs pages of several spaces, copy on write.
    Shared {
        /// Number of mappings.
        mappings: u32,
    },
    /// A page table.
    Table,
    /// Somebody else's page that the kernel cannot move.
    Pinned,
    /// Somebody else's page that the kernel can move.
    Movable,
    /// The host has it, through the balloon.
    Balloon,
}

const KIND_SHIFT: u32 = 60;
const SPACE_SHIFT: u32 = 44;
const PAGE_MASK: u64 = (1 << SPACE_SHIFT) - 1;

impl Owner {
    /// The owner word, which is kept with the frame; 0 is nobody.
    #[inline]
    pub fn to_bits(self) -> u64 {
        match self {
            Self::Nobody => 0,
            Self::Page(space, page) => {
                debug_assert!(page.get() <= PAGE_MASK, "{page:?} is past 56 address bits");
                1 << KIND_SHIFT | (space.0 as u64) << SPACE_SHIFT | page.get()
            }
            Self::Shared { mappings } => 2 << KIND_SHIFT | u64::from(mappings),
            Self::Table => 3 << KIND_SHIFT,
            Self::Pinned => 4 << KIND_SHIFT,
            Self::Movable => 5 << KIND_SHIFT,
            Self::Balloon => 6 << KIND_SHIFT,
        }
    }

    /// The owner that an owner word stands for.
    ///
    /// # Panics
    /// When the bits were not made by [`Owner::to_bits`].
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        match bits >> KIND_SHIFT {
            0 => Self::Nobody,
            1 => Self::Page(SpaceId((bits >> SPACE_SHIFT) as u16), Frame::new(bits & PAGE_MASK)),
            2 => Self::Shared { mappings: bits as u32 },
            3 => Self::Table,
            4 => Self::Pinned,
            5 => Self::Movable,
            6 => Self::Balloon,
            kind => panic!("owner word of unknown kind {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_stand_for_one_owner(space: u16, page in 0..=PAGE_MASK, mappings: u32) {
            for owner in [
                Owner::Nobody,
                Owner::Page(SpaceId(space), Frame::new(page)),
                Owner::Shared { mappings },
                Owner::Table,
                Owner::Pinned,
                Owner::Movable,
                Owner::Balloon,
            ] {
                prop_assert_eq!(Owner::from_bits(owner.to_bits()), owner);
            }
        }
    }
}
