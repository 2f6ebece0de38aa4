//! Colours of frames.

use crate::{CacheIndex, ColourError, SliceHash};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use strata_addr::space::Space;
use strata_addr::{Frame, PageSize};

/// The colours of a cache: real ones of host physical frames, virtual ones of a VM's own frames by the
/// cache it believes in.
///
/// Where a way of the cache is larger than a huge page they are those of huge pages: all frames of an HPAS region
/// have one colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colours {
    count: u32,
    /// What the frames of one colour that follow each other are.
    unit: PageSize,
}

impl Colours {
    /// The colours of a cache: the sets of one slice x bytes a line / 4 KiB. Without a hash the slices
    /// are one piece, and all their sets count. One colour means that the index has no bit above a
    /// page's.
    ///
    /// # Errors
    /// [`ColourError`] when there can be no such cache, or its sets are not a whole number of pages.
    pub fn new(index: &CacheIndex) -> Result<Self, ColourError> {
        index.check()?;
        let sets = if index.hash == SliceHash::None { index.all_sets() } else { index.sets };
        let bytes = sets * u64::from(index.line_bytes);
        let whole = bytes.is_multiple_of(PageSize::Base.bytes());
        match u32::try_from(bytes / PageSize::Base.bytes()) {
            Ok(count) if whole => Ok(Self { count, unit: PageSize::Base }),
            _ => Err(ColourError::NotWhole { sets, line_bytes: index.line_bytes }),
        }
    }

    /// The colours of a cache of one piece with lines of 64 bytes.
    ///
    /// # Errors
    /// As [`Colours::new`].
    pub fn of_size(bytes: u64, ways: u32) -> Result<Self, ColourError> {
        let line_bytes = 64;
        let sets = bytes / (u64::from(line_bytes) * u64::from(ways.max(1)));
        Self::new(&CacheIndex { line_bytes, sets, slices: 1, hash: SliceHash::None })
    }

    /// So many colours; `None` for none.
    pub fn counted(count: u32) -> Option<Self> {
        (count > 0).then_some(Self { count, unit: PageSize::Base })
    }

    /// The colours of huge pages, where the sets of a cache of one piece are several whole huge pages; `None`
    /// elsewhere.
    pub fn of_huge_pages(index: &CacheIndex) -> Option<Self> {
        let bytes = index.all_sets() * u64::from(index.line_bytes);
        let huge = PageSize::Huge.bytes();
        let whole = index.hash == SliceHash::None && bytes > huge && bytes.is_multiple_of(huge);
        let count = u32::try_from(bytes / huge).ok().filter(|_| whole)?;
        Some(Self { count, unit: PageSize::Huge })
    }

    /// Whether they are colours of huge pages.
    pub const fn are_of_huge_pages(self) -> bool {
        matches!(self.unit, PageSize::Huge)
    }

    /// The pages of which each has the colour after that of the one before: base pages, or huge ones.
    #[inline]
    pub const fn unit(self) -> PageSize {
        self.unit
    }

    /// How many there are; at least 1.
    #[inline]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The colour of a frame: its number, or that of its HPAS region, modulo their number.
    #[inline]
    pub fn of<S>(self, frame: Frame<S>) -> Colour<S> {
        Colour::new(((frame.get() >> self.unit.order()) % u64::from(self.count)) as u32)
    }

    /// Every colour, in order.
    pub fn all<S>(self) -> impl Iterator<Item = Colour<S>> {
        (0..self.count).map(Colour::new)
    }
}

/// The last-level cache that a VM is told of, where that is not one like the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualCache {
    /// Its colours: what the VM's kernel tells the frames of its memory apart by.
    pub colours: Colours,
    /// The real colour that the first of them is given. The others follow it, and begin anew with
    /// real colour 0 after the last real one: with fewer colours than the host's, a VM fills a part of
    /// the cache; with more, several of them share a real one.
    pub first: u32,
}

impl VirtualCache {
    /// One like the host's.
    pub const fn like(colours: Colours) -> Self {
        Self { colours, first: 0 }
    }

    /// The number of the real colour of each of its colours, of so many real ones.
    pub fn given(self, real: Colours) -> impl Iterator<Item = u32> {
        let count = u64::from(real.count());
        (0..u64::from(self.colours.count()))
            .map(move |colour| ((u64::from(self.first) + colour) % count) as u32)
    }
}

/// The colour of a frame of the space `S`; numbers are dense from 0.
pub struct Colour<S>(u32, PhantomData<S>);

impl<S> Colour<S> {
    /// The colour with this number.
    #[inline]
    pub const fn new(index: u32) -> Self {
        Self(index, PhantomData)
    }

    /// Its number.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0
    }

    /// The same number in the space `T`; see [`strata_addr::Addr::cross`].
    #[inline]
    pub const fn cross<T>(self) -> Colour<T> {
        Colour::new(self.0)
    }
}

// Derives would demand the bounds on `S`, which is only a marker.
impl<S> Clone for Colour<S> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Colour<S> {}
impl<S> PartialEq for Colour<S> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<S> Eq for Colour<S> {}
impl<S> PartialOrd for Colour<S> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<S> Ord for Colour<S> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}
impl<S> Hash for Colour<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<S: Space> fmt::Debug for Colour<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} colour {}", S::NAME, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_addr::space::HostPhysical;

    fn index(sets: u64, slices: u32, hash: SliceHash) -> CacheIndex {
        CacheIndex { line_bytes: 64, sets, slices, hash }
    }

    proptest! {
        #[test]
        fn frames_of_two_colours_share_no_set(
            log in 6u32..12,
            slices in prop_oneof![Just(1u32), Just(2), Just(4), Just(8)],
            hash in prop::sample::select(&SliceHash::ALL[..]),
            frames in prop::array::uniform2(0u64..1 << 26),
        ) {
            let slices = if hash == SliceHash::Skylake { 20 } else { slices };
            let index = index(1 << log, slices, hash);
            let colours = Colours::new(&index).unwrap();
            let [one, other] = frames.map(Frame::<HostPhysical>::new);
            let sets = |frame: Frame<HostPhysical>| {
                (0..64).map(|line| index.set(frame.get() * 64 + line)).collect::<Vec<_>>()
            };
            let shared = sets(one).iter().any(|set| sets(other).contains(set));
            prop_assert!(!shared || colours.of(one) == colours.of(other));
            // Without a hash, those of one colour share all.
            if hash == SliceHash::None && colours.of(one) == colours.of(other) {
                prop_assert_eq!(sets(one), sets(other));
            }
        }
    }

    #[test]
    fn counts_are_those_of_the_processors() {
        let count =
            |sets, slices, hash| Colours::new(&index(sets, slices, hash)).map(Colours::count);
        // 2048 sets a slice, as on the machine of xPlace: 32 colours.
        assert_eq!(count(2048, 20, SliceHash::Skylake), Ok(32));
        assert_eq!(count(2048, 20, SliceHash::Even), Ok(32));
        assert_eq!(count(2048, 20, SliceHash::None), Ok(640));
        // A first-level cache, and one of which two sets are missing.
        assert_eq!(count(64, 1, SliceHash::None), Ok(1));
        let error = count(126, 1, SliceHash::None).unwrap_err().to_string();
        assert!(error.starts_with("126 sets of 64 B are 8064 B, not a whole number"), "{error}");
        assert!(error.ends_with("a multiple of 64"), "{error}");
    }

    #[test]
    fn a_way_larger_than_a_huge_page_has_colours_of_huge_pages() {
        let of = |mib: u64| Colours::of_huge_pages(&index(mib << 14, 1, SliceHash::None));
        assert_eq!([1, 2, 3].map(of), [None; 3]);
        let colours = of(1024).unwrap();
        assert_eq!((colours.count(), colours.unit()), (512, PageSize::Huge));
        let of_frame = |frame| colours.of(Frame::<HostPhysical>::new(frame)).index();
        assert_eq!([0, 511, 512, 512 * 512 + 3].map(of_frame), [0, 0, 1, 0]);
    }

    #[test]
    fn debug_names_the_space() {
        assert_eq!(format!("{:?}", Colour::<HostPhysical>::new(3)), "HPA colour 3");
    }
}
