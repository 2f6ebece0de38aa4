//! One level of data TLB: arrays that each hold some page sizes.

use crate::access::Asid;
use crate::full::Full;
use crate::model::TlbLevel;
use crate::sets::Sets;
use strata_addr::{Gva, PageSize, Range, Vpn, space::Virtual};

/// Page number bits of a 57-bit address (SDM volume 3A, section 4.5.2).
const VPN_BITS: u32 = 45;
const VPN_MASK: u64 = (1 << VPN_BITS) - 1;

/// A translation as a TLB entry holds it: frame, sizes and rights, in 64 bits.
///
/// ```text
/// bit  63     62     61..60   59..58              39..0
///      dirty  write  size     size in the guest   first base frame of the page
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation(u64);

impl Translation {
    const DIRTY: u64 = 1 << 63;
    const WRITE: u64 = 1 << 62;
    const FRAME: u64 = (1 << 40) - 1;

    /// The translation for the page of `size` around the base frame `frame`, all or a piece of a
    /// page that the guest maps with `guest_size`.
    #[inline]
    pub(crate) fn new(
        frame: u64,
        size: PageSize,
        guest_size: PageSize,
        write: bool,
        dirty: bool,
    ) -> Self {
        debug_assert!(frame <= Self::FRAME && size <= guest_size);
        let first = frame & !(size.base_pages() - 1);
        let flags = if write { Self::WRITE } else { 0 } | if dirty { Self::DIRTY } else { 0 };
        Self(first | flags | (size as u64) << 60 | (guest_size as u64) << 58)
    }

    #[inline]
    pub(crate) fn size(self) -> PageSize {
        Self::decode_size(self.0 >> 60)
    }

    #[inline]
    fn guest_size(self) -> PageSize {
        Self::decode_size(self.0 >> 58)
    }

    #[inline]
    fn decode_size(bits: u64) -> PageSize {
        match bits & 3 {
            0 => PageSize::Base,
            1 => PageSize::Huge,
            _ => PageSize::Giant,
        }
    }

    /// Whether a store needs no walk: allowed, and the dirty flags set already.
    #[inline]
    pub(crate) fn takes_stores(self) -> bool {
        self.0 & (Self::WRITE | Self::DIRTY) == Self::WRITE | Self::DIRTY
    }

    #[inline]
    pub(crate) fn is_writable(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// The host physical address behind `gva`, which must lie in the page.
    #[inline]
    pub(crate) fn resolve(self, gva: Gva) -> u64 {
        ((self.0 & Self::FRAME) << PageSize::BASE_SHIFT) + gva.offset(self.size())
    }

    /// Whether both map the same page to the same place.
    pub(crate) fn is_same_page(self, other: Self) -> bool {
        (self.0 ^ other.0) & !(Self::WRITE | Self::DIRTY) == 0
    }
}

/// ```text
/// bit  63      62..61   60..45   44..0
///      valid   size     asid     number of the page of that size
/// ```
#[inline]
fn tag(page: u64, size: PageSize, asid: Asid) -> u64 {
    1 << 63 | (size as u64) << 61 | u64::from(asid.0) << VPN_BITS | page
}

fn tag_asid(tag: u64) -> Asid {
    Asid((tag >> VPN_BITS) as u16)
}

/// First and last base page of the guest's page that an entry is made from.
fn guest_pages(tag: u64, translation: Translation) -> (u64, u64) {
    let size = Translation::decode_size(tag >> 61);
    let guest_size = translation.guest_size();
    let first = (tag & VPN_MASK) << size.order() & !(guest_size.base_pages() - 1);
    (first, first + guest_size.base_pages() - 1)
}

/// Above this associativity comparing every way costs more than a search structure.
const MANY_WAYS: u32 = 8;

enum Array {
    Sets(Sets),
    Full(Full<u64>),
}

impl Array {
    #[inline(always)]
    fn lookup(&mut self, page: u64, tag: u64) -> Option<u64> {
        match self {
            Self::Sets(sets) => sets.lookup(page, tag),
            Self::Full(full) => full.lookup(tag),
        }
    }

    fn payload_mut(&mut self, page: u64, tag: u64) -> Option<&mut u64> {
        match self {
            Self::Sets(sets) => sets.payload_mut(page, tag),
            Self::Full(full) => full.payload_mut(tag),
        }
    }

    #[inline(always)]
    fn fill(&mut self, page: u64, tag: u64, payload: u64) {
        match self {
            Self::Sets(sets) => sets.fill(page, tag, payload),
            Self::Full(full) => full.fill(tag, payload),
        }
    }

    fn remove(&mut self, page: u64, tag: u64) {
        match self {
            Self::Sets(sets) => sets.remove(page, tag),
            Self::Full(full) => full.remove(tag),
        }
    }

    fn remove_where(&mut self, mut drop: impl FnMut(u64, Translation) -> bool) {
        let drop = |tag, payload: &u64| drop(tag, Translation(*payload));
        match self {
            Self::Sets(sets) => sets.remove_where(drop),
            Self::Full(full) => full.remove_where(drop),
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Sets(sets) => sets.clear(),
            Self::Full(full) => full.clear(),
        }
    }
}

/// A level of TLB.
pub(crate) struct Tlb {
    arrays: Vec<Array>,
    /// Sizes that have an array.
    held: [bool; 3],
    /// The array of a size that has one.
    of_size: [u8; 3],
    /// Sizes looked up: those with an entry filled since the last flush of everything. A lookup
    /// of the others could only miss.
    used: [bool; 3],
    /// 1 GiB translations are held in pieces of 2 MiB.
    smash_giant: bool,
    /// There may be entries for pieces of the guest's pages.
    pieces: bool,
}

impl Tlb {
    pub(crate) fn new(level: &TlbLevel, smash_giant: bool) -> Self {
        let mut arrays = Vec::new();
        let mut held = [false; 3];
        let mut of_size = [0; 3];
        for (sizes, geometry) in level.arrays() {
            for size in sizes {
                held[size as usize] = true;
                of_size[size as usize] = arrays.len() as u8;
            }
            let sets = geometry.entries / geometry.ways;
            arrays.push(if sets == 1 && geometry.ways > MANY_WAYS {
                Array::Full(Full::new(geometry.entries as u16))
            } else {
                Array::Sets(Sets::new(sets as usize, geometry.ways as usize))
            });
        }
        let smash_giant = smash_giant && !held[PageSize::Giant as usize];
        Self { arrays, held, of_size, used: [false; 3], smash_giant, pieces: false }
    }

    /// The size of the pieces in which translations of this size are held, if they are.
    fn piece(&self, size: PageSize) -> Option<PageSize> {
        let piece = if size == PageSize::Giant && self.smash_giant { PageSize::Huge } else { size };
        self.held[piece as usize].then_some(piece)
    }

    #[inline]
    fn array(&mut self, size: PageSize) -> &mut Array {
        &mut self.arrays[self.of_size[size as usize] as usize]
    }

    /// Whether entries of this size have a place here.
    pub(crate) fn holds(&self, size: PageSize) -> bool {
        self.held[size as usize]
    }

    /// The translation of a page, which becomes the most recently used of its set. Sizes are
    /// tried smallest first. Inlined into each place of use: a level's geometry never changes, so
    /// its branches there are always the same.
    #[inline(always)]
    pub(crate) fn lookup(&mut self, vpn: Vpn, asid: Asid) -> Option<Translation> {
        for size in PageSize::ALL {
            if self.used[size as usize] {
                let page = (vpn.get() & VPN_MASK) >> size.order();
                let tag = tag(page, size, asid);
                if let Some(payload) = self.array(size).lookup(page, tag) {
                    return Some(Translation(payload));
                }
            }
        }
        None
    }

    /// Holds a translation that [`Tlb::lookup`] did not find, if its size has a place here.
    #[inline(always)]
    pub(crate) fn fill(&mut self, vpn: Vpn, asid: Asid, translation: Translation) {
        let Some(size) = self.piece(translation.size()) else {
            return;
        };
        debug_assert!(self.held[size as usize]);
        let page = (vpn.get() & VPN_MASK) >> size.order();
        self.used[size as usize] = true;
        self.pieces |= size < translation.guest_size();
        self.array(size).fill(page, tag(page, size, asid), translation.0);
    }

    /// Replaces the translation of a page in place, if it is here; recency stays.
    pub(crate) fn update(&mut self, vpn: Vpn, asid: Asid, translation: Translation) {
        let Some(size) = self.piece(translation.size()) else {
            return;
        };
        let page = (vpn.get() & VPN_MASK) >> size.order();
        if let Some(held) = self.array(size).payload_mut(page, tag(page, size, asid)) {
            *held = translation.0;
        }
    }

    /// Drops the entries for a base page, whatever their size.
    pub(crate) fn drop_entries(&mut self, vpn: Vpn, asid: Asid) {
        for size in PageSize::ALL {
            if self.used[size as usize] && self.held[size as usize] {
                let page = (vpn.get() & VPN_MASK) >> size.order();
                self.array(size).remove(page, tag(page, size, asid));
            }
        }
    }

    /// Drops the translations of a page. One that is held in pieces is dropped whole: software
    /// cannot know of the pieces (SDM volume 3A, section 4.10.2.3).
    pub(crate) fn invalidate_page(&mut self, vpn: Vpn, asid: Asid) {
        if self.pieces {
            self.invalidate_range(Range::sized(vpn.addr(), PageSize::Base.bytes()), asid);
        } else {
            self.drop_entries(vpn, asid);
        }
    }

    /// Drops every translation of a page that has a byte in `range`.
    pub(crate) fn invalidate_range(&mut self, range: Range<Virtual>, asid: Asid) {
        if range.is_empty() {
            return;
        }
        let first = range.start.page().get() & VPN_MASK;
        let last = (range.end.get() - 1) >> PageSize::BASE_SHIFT & VPN_MASK;
        for array in &mut self.arrays {
            array.remove_where(|tag, translation| {
                let (from, to) = guest_pages(tag, translation);
                tag_asid(tag) == asid && from <= last && first <= to
            });
        }
    }

    /// Drops every translation of some address spaces.
    pub(crate) fn flush_asids(&mut self, is_one: impl Fn(Asid) -> bool) {
        for array in &mut self.arrays {
            array.remove_where(|tag, _| is_one(tag_asid(tag)));
        }
    }

    /// Drops everything.
    pub(crate) fn flush(&mut self) {
        for array in &mut self.arrays {
            array.clear();
        }
        self.used = [false; 3];
        self.pieces = false;
    }
}
