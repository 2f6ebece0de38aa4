//! One load or store.

use std::fmt;
use strata_addr::Gva;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Reads data.
    Load,
    /// Writes data.
    Store,
}

/// One load or store of 1 to 128 bytes, packed into 8 bytes.
///
/// ```text
/// bit   63     62..60   59..57          56..0
///       store  zero     log2(size)      address, sign-extended from bit 56
/// ```
///
/// 57 bits hold every canonical address of 5-level paging (SDM volume 3A, section 4.1), kernel
/// half included.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Access(u64);

const ADDRESS_BITS: u32 = 57;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const STORE: u64 = 1 << 63;

impl Access {
    /// An access of `size` bytes at `addr`. A size that is no power of two is rounded up; sizes
    /// above 128 count as 128.
    #[inline]
    pub const fn new(kind: AccessKind, addr: Gva, size: u32) -> Self {
        let store = match kind {
            AccessKind::Load => 0,
            AccessKind::Store => STORE,
        };
        let size = if size == 0 {
            1
        } else if size > 128 {
            128
        } else {
            size
        };
        let log2 = size.next_power_of_two().trailing_zeros() as u64;
        Self(store | log2 << ADDRESS_BITS | addr.get() & ADDRESS_MASK)
    }

    /// A load; see [`Access::new`].
    #[inline]
    pub const fn load(addr: Gva, size: u32) -> Self {
        Self::new(AccessKind::Load, addr, size)
    }

    /// A store; see [`Access::new`].
    #[inline]
    pub const fn store(addr: Gva, size: u32) -> Self {
        Self::new(AccessKind::Store, addr, size)
    }

    /// The access with this packed form; bits 60 to 62 are ignored.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & (STORE | 7 << ADDRESS_BITS | ADDRESS_MASK))
    }

    /// The packed form.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The address of the first byte.
    #[inline]
    pub const fn addr(self) -> Gva {
        let unused = 64 - ADDRESS_BITS;
        Gva::new((((self.0 << unused) as i64) >> unused) as u64)
    }

    /// Bytes accessed: a power of two from 1 to 128.
    #[inline]
    pub const fn size(self) -> u32 {
        1 << (self.0 >> ADDRESS_BITS & 7)
    }

    /// Whether it writes.
    #[inline]
    pub const fn is_store(self) -> bool {
        self.0 & STORE != 0
    }

    /// Load or store.
    #[inline]
    pub const fn kind(self) -> AccessKind {
        if self.is_store() { AccessKind::Store } else { AccessKind::Load }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} +{}", self.kind(), self.addr(), self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packing_keeps_every_canonical_address(
            addr in 0u64..1 << 56, kernel: bool, log2 in 0u32..8, store: bool,
        ) {
            let addr = Gva::new(if kernel { addr | 0xff << 56 } else { addr });
            let kind = if store { AccessKind::Store } else { AccessKind::Load };
            let access = Access::new(kind, addr, 1 << log2);
            prop_assert_eq!(access.addr(), addr);
            prop_assert_eq!(access.size(), 1 << log2);
            prop_assert_eq!(access.kind(), kind);
            prop_assert_eq!(Access::from_bits(access.bits()), access);
        }
    }

    #[test]
    fn odd_sizes_are_rounded_up() {
        let size = |bytes| Access::load(Gva::new(0), bytes).size();
        assert_eq!([0, 1, 3, 10, 128, 4096].map(size), [1, 1, 4, 16, 128, 128]);
    }
}
