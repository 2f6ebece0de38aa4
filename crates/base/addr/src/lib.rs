//! Distinct types for the address spaces of a translation stack.
//!
//! ```text
//! GVA --g--> GPA --i--> GHPA --h--> HPA
//! ```
//!
//! An [`Addr`] carries its space in its type, so an address of one space cannot be used as one of
//! another by accident. A translation layer of any depth is written against the two *roles*
//! [`space::Upper`] (what arrives) and [`space::Lower`] (the layer's own memory); the one place
//! where the lower side of a layer becomes the upper side of the next is [`Addr::cross`].

mod page;
mod range;

pub use page::{Frame, PageSize, Vpn};
pub use range::Range;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// The address spaces, as zero-sized markers.
pub mod space {
    /// An address space. What is made of addresses of one can derive what the addresses themselves have.
    pub trait Space: Copy + Eq + std::fmt::Debug + 'static {
        /// Short name used when an address is printed.
        const NAME: &'static str;
    }

    macro_rules! spaces {
        ($($(#[$doc:meta])* $name:ident = $label:literal;)*) => {$(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $name {}
            impl Space for $name {
                const NAME: &'static str = $label;
            }
        )*};
    }

    spaces! {
        /// Guest virtual: what the program uses.
        Virtual = "GVA";
        /// Guest physical: what the guest kernel's page tables yield.
        GuestPhysical = "GPA";
        /// Guest-hypervisor physical: the memory of L1 in a nested stack.
        GuestHypervisorPhysical = "GHPA";
        /// Host physical: real memory.
        HostPhysical = "HPA";
        /// The role of the address that arrives at a layer.
        Upper = "upper";
        /// The role of an address in the layer's own memory.
        Lower = "lower";
    }
}

use space::Space;

/// Guest virtual address.
pub type Gva = Addr<space::Virtual>;
/// Guest physical address.
pub type Gpa = Addr<space::GuestPhysical>;
/// Guest-hypervisor physical address.
pub type Ghpa = Addr<space::GuestHypervisorPhysical>;
/// Host physical address.
pub type Hpa = Addr<space::HostPhysical>;

/// A byte address in the address space `S`.
///
/// ```
/// use strata_addr::{Gva, PageSize};
/// let addr = Gva::new(0x7f12_3456_7abc);
/// assert_eq!(addr.floor(PageSize::Huge), Gva::new(0x7f12_3440_0000));
/// assert_eq!(addr.offset(PageSize::Huge), 0x16_7abc);
/// assert_eq!(addr.page().addr() + 0xabc, addr);
/// assert_eq!(format!("{addr:?}"), "GVA:0x7f1234567abc");
/// ```
///
/// Addresses of different spaces do not mix:
///
/// ```compile_fail
/// use strata_addr::{Gpa, Hpa};
/// assert!(Gpa::new(0x1000) == Hpa::new(0x1000));
/// ```
///
/// The one way from one to the other is [`Addr::cross`].
///
/// ```
/// use strata_addr::{Gpa, Hpa};
/// let natively: Hpa = Gpa::new(0x1000).cross();
/// assert_eq!(natively, Hpa::new(0x1000));
/// ```
pub struct Addr<S>(u64, PhantomData<S>);

impl<S> Addr<S> {
    /// The address with this numeric value.
    #[inline]
    pub const fn new(value: u64) -> Self {
        Self(value, PhantomData)
    }

    /// The numeric value.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address rounded down to a multiple of `size`.
    #[inline]
    pub const fn floor(self, size: PageSize) -> Self {
        Self::new(self.0 & !(size.bytes() - 1))
    }

    /// The address rounded up to a multiple of `size`.
    ///
    /// # Panics
    /// In debug builds, when the result does not fit 64 bits.
    #[inline]
    pub const fn ceil(self, size: PageSize) -> Self {
        Self::new((self.0 + (size.bytes() - 1)) & !(size.bytes() - 1))
    }

    /// The offset within the page of this size.
    #[inline]
    pub const fn offset(self, size: PageSize) -> u64 {
        self.0 & (size.bytes() - 1)
    }

    /// Whether the address is a multiple of `size`.
    #[inline]
    pub const fn is_aligned(self, size: PageSize) -> bool {
        self.offset(size) == 0
    }

    /// The number of the base page that holds this address.
    #[inline]
    pub const fn page(self) -> Frame<S> {
        Frame::new(self.0 >> PageSize::BASE_SHIFT)
    }

    /// The address `bytes` further on, or `None` past 64 bits.
    #[inline]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(value) => Some(Self::new(value)),
            None => None,
        }
    }

    /// The same number in the space `T`: the step from one layer to the next, or from a role to
    /// the space that plays it. Every such step in the code is one call of this function.
    #[inline]
    pub const fn cross<T>(self) -> Addr<T> {
        Addr::new(self.0)
    }
}

impl<S> std::ops::Add<u64> for Addr<S> {
    type Output = Self;
    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self::new(self.0 + bytes)
    }
}

impl<S> std::ops::Sub for Addr<S> {
    type Output = u64;
    /// Distance in bytes; panics in debug builds when `other` is above `self`.
    #[inline]
    fn sub(self, other: Self) -> u64 {
        self.0 - other.0
    }
}

// Derives would demand the bounds on `S`, which is only a marker.
impl<S> Clone for Addr<S> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Addr<S> {}
impl<S> PartialEq for Addr<S> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<S> Eq for Addr<S> {}
impl<S> PartialOrd for Addr<S> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<S> Ord for Addr<S> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}
impl<S> Hash for Addr<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<S: Space> fmt::Debug for Addr<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", S::NAME, self.0)
    }
}
impl<S> fmt::LowerHex for Addr<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn floor_and_offset_rebuild_the_address(value in 0..u64::MAX / 2) {
            for size in PageSize::ALL {
                let addr = Gva::new(value);
                prop_assert_eq!(addr.floor(size).get() + addr.offset(size), value);
                prop_assert!(addr.floor(size).is_aligned(size));
                prop_assert!(addr.ceil(size) >= addr);
                prop_assert!(addr.ceil(size) - addr < size.bytes());
            }
        }
    }

    #[test]
    fn debug_names_the_space() {
        assert_eq!(format!("{:?}", Gpa::new(0x1000)), "GPA:0x1000");
    }
}
