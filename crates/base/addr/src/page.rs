//! Page sizes and page numbers.

use crate::{Addr, space};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// The page sizes of x86-64 (SDM volume 3A, section 4.5).
///
/// ```
/// use strata_addr::PageSize;
/// assert_eq!(PageSize::Huge.bytes(), 2 << 20);
/// assert_eq!(PageSize::Huge.base_pages(), 512);
/// assert_eq!((PageSize::Huge.order(), PageSize::Huge.level()), (9, 2));
/// assert_eq!(PageSize::at_level(3), Some(PageSize::Giant));
/// assert_eq!(PageSize::Giant.to_string(), "1g");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PageSize {
    /// 4 KiB: a base page.
    Base = 0,
    /// 2 MiB: a huge page.
    Huge = 1,
    /// 1 GiB.
    Giant = 2,
}

impl PageSize {
    /// Every size, smallest first.
    pub const ALL: [Self; 3] = [Self::Base, Self::Huge, Self::Giant];
    /// log2 of the bytes in a base page.
    pub const BASE_SHIFT: u32 = 12;

    /// log2 of the bytes in a page.
    #[inline]
    pub const fn shift(self) -> u32 {
        Self::BASE_SHIFT + 9 * self as u32
    }

    /// Bytes in a page.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// Base pages in a page.
    #[inline]
    pub const fn base_pages(self) -> u64 {
        1 << (9 * self as u32)
    }

    /// The buddy order of a page: log2 of its base pages.
    #[inline]
    pub const fn order(self) -> u32 {
        9 * self as u32
    }

    /// The table level whose leaf entries map this size: 1, 2 or 3.
    #[inline]
    pub const fn level(self) -> u8 {
        self as u8 + 1
    }

    /// The size mapped by a leaf entry at this level, if leaves can be there.
    #[inline]
    pub const fn at_level(level: u8) -> Option<Self> {
        match level {
            1 => Some(Self::Base),
            2 => Some(Self::Huge),
            3 => Some(Self::Giant),
            _ => None,
        }
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base => "4k",
            Self::Huge => "2m",
            Self::Giant => "1g",
        })
    }
}

/// The number of a base page (a page frame number, when `S` is a physical space).
///
/// ```
/// use strata_addr::{Gpa, PageSize, Vpn};
/// let page = Vpn::new(513);
/// assert_eq!(page.addr().get(), 513 << 12);
/// assert_eq!((page.floor(PageSize::Huge), page.index_in(PageSize::Huge)), (Vpn::new(512), 1));
/// assert!(Gpa::new(2 << 20).page().is_aligned(PageSize::Huge));
/// ```
pub struct Frame<S>(u64, PhantomData<S>);

/// Virtual page number: the number of a base page of guest virtual memory.
pub type Vpn = Frame<space::Virtual>;

impl<S> Frame<S> {
    /// The page with this number.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number, PhantomData)
    }

    /// The page number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The address of the page's first byte.
    #[inline]
    pub const fn addr(self) -> Addr<S> {
        Addr::new(self.0 << PageSize::BASE_SHIFT)
    }

    /// The first base page of the page of this size that holds this one.
    #[inline]
    pub const fn floor(self, size: PageSize) -> Self {
        Self::new(self.0 & !(size.base_pages() - 1))
    }

    /// Position within the page of this size, in base pages.
    #[inline]
    pub const fn index_in(self, size: PageSize) -> u64 {
        self.0 & (size.base_pages() - 1)
    }

    /// Whether a page of this size can start here.
    #[inline]
    pub const fn is_aligned(self, size: PageSize) -> bool {
        self.index_in(size) == 0
    }

    /// The same number in the space `T`; see [`Addr::cross`].
    #[inline]
    pub const fn cross<T>(self) -> Frame<T> {
        Frame::new(self.0)
    }
}

impl<S> std::ops::Add<u64> for Frame<S> {
    type Output = Self;
    #[inline]
    fn add(self, pages: u64) -> Self {
        Self::new(self.0 + pages)
    }
}

impl<S> std::ops::Sub for Frame<S> {
    type Output = u64;
    /// Distance in base pages; panics in debug builds when `other` is above `self`.
    #[inline]
    fn sub(self, other: Self) -> u64 {
        self.0 - other.0
    }
}

impl<S> Clone for Frame<S> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Frame<S> {}
impl<S> PartialEq for Frame<S> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<S> Eq for Frame<S> {}
impl<S> PartialOrd for Frame<S> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<S> Ord for Frame<S> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}
impl<S> Hash for Frame<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<S: space::Space> fmt::Debug for Frame<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:#x}", S::NAME, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_manual() {
        assert_eq!(PageSize::ALL.map(PageSize::bytes), [4 << 10, 2 << 20, 1 << 30]);
        assert_eq!(PageSize::ALL.map(PageSize::order), [0, 9, 18]);
        for size in PageSize::ALL {
            assert_eq!(PageSize::at_level(size.level()), Some(size));
        }
        assert_eq!(PageSize::at_level(4), None);
    }
}
