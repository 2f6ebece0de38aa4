//! Half-open ranges of addresses.

use crate::{Addr, PageSize, space};
use std::fmt;

/// The addresses from `start` up to, not including, `end`.
///
/// ```
/// use strata_addr::{Gva, PageSize, Range};
/// let area = Range::sized(Gva::new(0x1f_f000), 4 << 20);
/// assert!(area.contains(Gva::new(0x40_0000)) && !area.contains(area.end));
/// // One huge page fits, the one that begins at 2 MiB; the next one does not.
/// assert!(area.contains_page(Gva::new(2 << 20), PageSize::Huge));
/// assert!(!area.contains_page(Gva::new(4 << 20), PageSize::Huge));
/// assert_eq!(area.pad(PageSize::Huge), Range::sized(Gva::new(0), 6 << 20));
/// ```
pub struct Range<S> {
    /// First address.
    pub start: Addr<S>,
    /// First address past the range.
    pub end: Addr<S>,
}

impl<S> Range<S> {
    /// The range from `start` to `end`; empty when `end <= start`.
    #[inline]
    pub fn new(start: Addr<S>, end: Addr<S>) -> Self {
        Self { start, end: end.max(start) }
    }

    /// The range of `bytes` bytes from `start`, cut at the end of 64 bits.
    #[inline]
    pub fn sized(start: Addr<S>, bytes: u64) -> Self {
        Self { start, end: Addr::new(start.get().saturating_add(bytes)) }
    }

    /// Length in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether there is no address in the range.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Whether the range holds `addr`.
    #[inline]
    pub fn contains(&self, addr: Addr<S>) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Whether the range holds the whole page of this size that starts at `page`.
    #[inline]
    pub fn contains_page(&self, page: Addr<S>, size: PageSize) -> bool {
        self.start <= page && page.get().saturating_add(size.bytes()) <= self.end.get()
    }

    /// The addresses in both ranges.
    ///
    /// ```
    /// use strata_addr::{Hpa, Range};
    /// let (low, high) = (Range::sized(Hpa::new(0), 0x3000), Range::sized(Hpa::new(0x2000), 0x3000));
    /// assert_eq!(low.intersection(&high), Range::sized(Hpa::new(0x2000), 0x1000));
    /// assert!(low.intersection(&Range::sized(Hpa::new(0x3000), 1)).is_empty());
    /// ```
    #[inline]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The smallest range of whole pages of this size that covers this one.
    pub fn pad(&self, size: PageSize) -> Self {
        Self { start: self.start.floor(size), end: self.end.ceil(size) }
    }
}

impl<S> Clone for Range<S> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Range<S> {}
impl<S> PartialEq for Range<S> {
    fn eq(&self, other: &Self) -> bool {
        (self.start, self.end) == (other.start, other.end)
    }
}
impl<S> Eq for Range<S> {}
impl<S: space::Space> fmt::Debug for Range<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}-{:#x}", S::NAME, self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gva;

    #[test]
    fn padding_covers_whole_huge_pages() {
        let range = Range::new(Gva::new(0x20_1000), Gva::new(0x40_1000));
        let padded = range.pad(PageSize::Huge);
        assert_eq!(padded, Range::new(Gva::new(0x20_0000), Gva::new(0x60_0000)));
        assert!(padded.contains_page(Gva::new(0x40_0000), PageSize::Huge));
        assert!(!range.contains_page(Gva::new(0x20_0000), PageSize::Huge));
    }

    #[test]
    fn disjoint_ranges_intersect_in_nothing() {
        let low = Range::sized(Gva::new(0), 10);
        let high = Range::sized(Gva::new(20), 10);
        assert!(low.intersection(&high).is_empty());
        assert!(high.intersection(&low).is_empty());
    }
}
