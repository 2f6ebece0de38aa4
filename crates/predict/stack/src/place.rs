//! Where areas lie in the modelled guest: Huge Aligner (xGemini IV.B).
//!
//! The stream says where the traced kernel put each area. A kernel with Huge Aligner hands out
//! whole HPAS regions instead: the area keeps its offset within a region, shares its regions with
//! no other area, and both ends are padded. Areas at addresses the program insisted on cannot
//! move. Moves are by whole regions, so an address differs by a multiple of 2 MiB.

use crate::vma::VmaMap;
use std::collections::BTreeMap;
use strata_addr::{Addr, PageSize, Range, space::Upper};

strata_params::parameters! {
    /// Huge Aligner's settings.
    pub struct AlignerParameters {
        /// Areas are padded at all, under policies that have Huge Aligner. Off: to see what it brings.
        enabled: bool = true, "huge_aligner.enabled", "";
        /// An area is padded only when it fills at least this share of its last HPAS region; 0
        /// pads every area, 0.7 is the threshold that xGemini IV.B suggests to save addresses.
        threshold: f64 = 0.0, "huge_aligner.threshold", "share";
    }
}

/// An area that Huge Aligner placed.
#[derive(Clone, Copy, Debug)]
struct Placed {
    /// Where the stream has it.
    traced: Range<Upper>,
    /// What to add to a traced address, modulo 2^64.
    shift: u64,
    /// All of its HPAS regions, in the model.
    padded: Range<Upper>,
}

/// The placed areas of one address space, by traced address.
#[derive(Clone, Debug)]
pub(crate) struct Placements {
    placed: BTreeMap<u64, Placed>,
    /// Where areas that must move go next; far from where Linux puts anything.
    next: u64,
    moved: usize,
}

/// Room kept above a heap that moved, so that it can grow.
const HEAP_ROOM: u64 = 1 << 40;
/// Where areas that move go: above heaps and generated areas, below position-independent
/// executables, libraries and stacks, wherever page tables have four levels.
const MOVED_AREAS: std::ops::Range<u64> = 0x2000_0000_0000..0x5000_0000_0000;

impl Default for Placements {
    fn default() -> Self {
        Self { placed: BTreeMap::new(), next: MOVED_AREAS.start, moved: 0 }
    }
}

impl Placements {
    /// Whether any address differs between stream and model.
    #[inline]
    pub(crate) fn moves_any(&self) -> bool {
        self.moved > 0
    }

    /// The modelled address of a traced one.
    pub(crate) fn relocate(&self, addr: Addr<Upper>) -> Addr<Upper> {
        match self.at(addr) {
            Some(placed) => Addr::new(addr.get().wrapping_add(placed.shift)),
            None => addr,
        }
    }

    /// The shift of a whole traced HPAS region, or `None` when parts of it differ.
    pub(crate) fn region_shift(&self, addr: Addr<Upper>) -> Option<u64> {
        let region = Range::sized(addr.floor(PageSize::Huge), PageSize::Huge.bytes());
        if let Some(placed) = self.at(addr) {
            let whole = placed.traced.intersection(&region) == region;
            return whole.then_some(placed.shift);
        }
        self.overlapping(region).next().is_none().then_some(0)
    }

    /// The modelled pieces of a traced range, in order.
    pub(crate) fn pieces(&self, traced: Range<Upper>) -> Vec<Range<Upper>> {
        let mut pieces = Vec::new();
        let mut at = traced.start;
        for placed in self.overlapping(traced) {
            let part = placed.traced.intersection(&traced);
            if at < part.start {
                pieces.push(Range::new(at, part.start));
            }
            let start = Addr::new(part.start.get().wrapping_add(placed.shift));
            pieces.push(Range::sized(start, part.bytes()));
            at = part.end;
        }
        if at < traced.end {
            pieces.push(Range::new(at, traced.end));
        }
        pieces
    }

    /// The modelled pieces of what the stream has mapped in a traced range. Padding is nobody's
    /// there: a range that reaches into it must not touch what the placed area has in it.
    pub(crate) fn own_pieces(&self, traced: Range<Upper>) -> Vec<Range<Upper>> {
        let mut own = Vec::new();
        let mut at = traced.start;
        for placed in self.overlapping(traced) {
            let part = placed.traced.intersection(&traced);
            self.outside_padding(Range::new(at, part.start), &mut own);
            let start = Addr::new(part.start.get().wrapping_add(placed.shift));
            own.push(Range::sized(start, part.bytes()));
            at = part.end;
        }
        self.outside_padding(Range::new(at, traced.end), &mut own);
        own
    }

    /// Adds the parts of a range that no placed area covers, padding included.
    fn outside_padding(&self, range: Range<Upper>, parts: &mut Vec<Range<Upper>>) {
        let mut covered: Vec<_> = self
            .placed
            .values()
            .map(|placed| placed.padded.intersection(&range))
            .filter(|part| !part.is_empty())
            .collect();
        covered.sort_unstable_by_key(|part| part.start);
        let mut at = range.start;
        for part in covered {
            if at < part.start {
                parts.push(Range::new(at, part.start));
            }
            at = at.max(part.end);
        }
        if at < range.end {
            parts.push(Range::new(at, range.end));
        }
    }

    /// Places a new area and returns its padded range in the model.
    pub(crate) fn place(
        &mut self,
        traced: Range<Upper>,
        heap: bool,
        vmas: &VmaMap,
        settings: &AlignerParameters,
    ) -> Range<Upper> {
        if let Some(grown) = self.grow(traced, vmas) {
            return grown;
        }
        let last_region = Addr::<Upper>::new(traced.end.get() - 1).floor(PageSize::Huge);
        let last = traced.end - last_region.max(traced.start);
        let mut padded = Some(traced.pad(PageSize::Huge));
        let mut shift = 0;
        if (last as f64) < settings.threshold * PageSize::Huge.bytes() as f64 {
            padded = None;
        }
        if let Some(range) = padded
            && !vmas.overlapping(range).is_empty()
        {
            match self.room(range.bytes(), vmas) {
                Some(at) => {
                    shift = at.wrapping_sub(range.start.get());
                    self.next = at + range.bytes() + if heap { HEAP_ROOM } else { 0 };
                    self.moved += 1;
                }
                None => padded = None,
            }
        }
        let Some(padded) = padded else {
            self.claim(traced);
            return traced;
        };
        let padded =
            Range::sized(Addr::new(padded.start.get().wrapping_add(shift)), padded.bytes());
        self.placed.insert(traced.start.get(), Placed { traced, shift, padded });
        padded
    }

    /// Where an area of `bytes` bytes can move to: above what moved last, or else from the bottom
    /// again, in the place of areas that are gone.
    fn room(&self, bytes: u64, vmas: &VmaMap) -> Option<u64> {
        for from in [self.next, MOVED_AREAS.start] {
            let mut at = from;
            while at <= MOVED_AREAS.end && bytes <= MOVED_AREAS.end - at {
                let taken = vmas.overlapping(Range::sized(Addr::new(at), bytes));
                let Some(last) = taken.last() else { return Some(at) };
                at = last.range.end.ceil(PageSize::Huge).get();
            }
        }
        None
    }

    /// An area that begins where a placed one ends extends it, if the model has room there.
    fn grow(&mut self, traced: Range<Upper>, vmas: &VmaMap) -> Option<Range<Upper>> {
        let (_, before) = self.placed.range_mut(..traced.start.get()).next_back()?;
        if before.traced.end != traced.start {
            return None;
        }
        let end = Addr::<Upper>::new(traced.end.get().wrapping_add(before.shift));
        let new_end = end.ceil(PageSize::Huge).max(before.padded.end);
        if !vmas.overlapping(Range::new(before.padded.end, new_end)).is_empty() {
            return None;
        }
        before.traced.end = traced.end;
        before.padded.end = new_end;
        Some(before.padded)
    }

    /// Forgets a traced range; returns padding that belongs to nothing any more.
    pub(crate) fn remove(&mut self, traced: Range<Upper>) -> Vec<Range<Upper>> {
        let hit: Vec<_> = self.overlapping(traced).copied().collect();
        let mut unused = Vec::new();
        for placed in hit {
            self.placed.remove(&placed.traced.start.get());
            let model = |addr: Addr<Upper>| Addr::new(addr.get().wrapping_add(placed.shift));
            let left = Range::new(placed.traced.start, traced.start.max(placed.traced.start));
            let right = Range::new(traced.end.min(placed.traced.end), placed.traced.end);
            // A part keeps the padding on its side; padding next to what goes, goes too.
            let before = Range::new(placed.padded.start, model(left.end));
            let behind = Range::new(model(right.start), placed.padded.end);
            let mut parts = 0;
            for (rest, padded) in [(left, before), (right, behind)] {
                if rest.is_empty() {
                    unused.push(padded);
                } else {
                    parts += 1;
                    self.placed.insert(rest.start.get(), Placed { traced: rest, padded, ..placed });
                }
            }
            if placed.shift != 0 {
                self.moved = self.moved + parts - 1;
            }
        }
        unused
    }

    /// An area that was not placed is at `range` now: no padding reaches into it.
    pub(crate) fn claim(&mut self, range: Range<Upper>) {
        for placed in self.placed.values_mut() {
            if placed.padded.intersection(&range).is_empty() {
                continue;
            }
            let first = Addr::new(placed.traced.start.get().wrapping_add(placed.shift));
            if range.start > first {
                placed.padded.end = placed.padded.end.min(range.start);
            } else {
                placed.padded.start = placed.padded.start.max(range.end);
            }
        }
    }

    fn at(&self, addr: Addr<Upper>) -> Option<&Placed> {
        let (_, placed) = self.placed.range(..=addr.get()).next_back()?;
        placed.traced.contains(addr).then_some(placed)
    }

    fn overlapping(&self, traced: Range<Upper>) -> impl Iterator<Item = &Placed> {
        let first = self.placed.range(..=traced.start.get()).next_back().map_or(0, |(at, _)| *at);
        self.placed
            .range(first..traced.end.get())
            .map(|(_, placed)| placed)
            .filter(move |placed| !placed.traced.intersection(&traced).is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vma::{HugeAdvice, Vma};
    use strata_stream::{Backing, Protection};

    fn range(start: u64, end: u64) -> Range<Upper> {
        Range::new(Addr::new(start), Addr::new(end))
    }

    fn area(range: Range<Upper>) -> Vma {
        Vma {
            range,
            backing: Backing::Anonymous,
            protection: Protection::READ_WRITE,
            huge: HugeAdvice::Default,
            mapping: 0,
        }
    }

    #[test]
    fn areas_that_would_share_a_region_move_apart_and_keep_their_offset() {
        let settings = AlignerParameters::default();
        let (mut vmas, mut places) = (VmaMap::default(), Placements::default());
        let first = places.place(range(0x50_1000, 0x9f_0000), false, &vmas, &settings);
        assert_eq!(first, range(0x40_0000, 0xa0_0000));
        vmas.insert(area(first));
        let second = places.place(range(0x9f_0000 + 0x1000, 0xc0_0000), false, &vmas, &settings);
        assert!(second.intersection(&first).is_empty());
        let moved = places.relocate(Addr::new(0xa0_1234));
        assert_eq!(moved.offset(PageSize::Huge), 0x1234);
        assert!(second.contains(moved) && places.moves_any());
        assert_eq!(places.relocate(Addr::new(0x50_1234)).get(), 0x50_1234);
    }

    #[test]
    fn addresses_of_areas_that_are_gone_are_used_again() {
        let settings = AlignerParameters::default();
        let (mut vmas, mut places) = (VmaMap::default(), Placements::default());
        vmas.insert(area(range(0, 0x1000)));
        let traced = range(0x1000, 0x1000 + (1 << 40));
        for _ in 0..1000 {
            let padded = places.place(traced, false, &vmas, &settings);
            assert!(MOVED_AREAS.start <= padded.start.get());
            assert!(padded.end.get() <= MOVED_AREAS.end);
            vmas.insert(area(padded));
            for gone in places.pieces(traced) {
                vmas.remove(gone);
            }
            places.remove(traced).into_iter().for_each(|padding| vmas.remove(padding));
            assert_eq!(vmas.iter().count(), 1);
        }
    }

    #[test]
    fn an_area_that_does_not_fit_anywhere_stays_and_padding_makes_way() {
        let settings = AlignerParameters::default();
        let (mut vmas, mut places) = (VmaMap::default(), Placements::default());
        vmas.insert(area(places.place(range(0x20_0000, 0x21_0000), false, &vmas, &settings)));
        let huge = range(0x22_0000, 0x22_0000 + (1 << 46));
        assert_eq!(places.place(huge, false, &vmas, &settings), huge);
        let padding = places.remove(range(0x20_0000, 0x21_0000));
        assert!(padding.iter().all(|range| range.intersection(&huge).is_empty()), "{padding:?}");
    }

    /// A range that reaches into the padding of an area, before it and behind it, is cut there.
    #[test]
    fn padding_is_nobodys_in_a_range_of_the_stream() {
        let settings = AlignerParameters::default();
        let (vmas, mut places) = (VmaMap::default(), Placements::default());
        let traced = range(0x48_0000, 0x58_0000);
        assert_eq!(places.place(traced, false, &vmas, &settings), range(0x40_0000, 0x60_0000));
        let own = places.own_pieces(range(0x30_0000, 0x70_0000));
        assert_eq!(own, [range(0x30_0000, 0x40_0000), traced, range(0x60_0000, 0x70_0000)]);
        assert_eq!(places.own_pieces(range(0x42_0000, 0x48_0000)), []);
        assert_eq!(places.own_pieces(range(0x90_0000, 0xa0_0000)), [range(0x90_0000, 0xa0_0000)]);
    }

    #[test]
    fn growth_stays_in_the_padding_and_removal_gives_it_back() {
        let settings = AlignerParameters::default();
        let (mut vmas, mut places) = (VmaMap::default(), Placements::default());
        vmas.insert(area(places.place(range(0x40_0000, 0x41_0000), true, &vmas, &settings)));
        let grown = places.place(range(0x41_0000, 0x70_0000), true, &VmaMap::default(), &settings);
        assert_eq!(grown, range(0x40_0000, 0x80_0000));
        assert_eq!(places.remove(range(0x50_0000, 0x60_0000)), []);
        let bytes = |ranges: Vec<Range<Upper>>| ranges.iter().map(Range::bytes).sum::<u64>();
        assert_eq!(bytes(places.remove(range(0x40_0000, 0x50_0000))), 0, "no padding there");
        assert_eq!(bytes(places.remove(range(0x60_0000, 0x70_0000))), 0x10_0000);
    }

    #[test]
    fn pieces_cover_the_traced_range() {
        let settings = AlignerParameters::default();
        let mut vmas = VmaMap::default();
        vmas.insert(area(range(0x20_0000, 0x20_1000)));
        let mut places = Placements::default();
        let padded = places.place(range(0x30_0000, 0x38_0000), false, &vmas, &settings);
        let pieces = places.pieces(range(0x2f_0000, 0x39_0000));
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces.iter().map(Range::bytes).sum::<u64>(), 0xa_0000);
        assert!(padded.contains(pieces[1].start));
        assert_eq!(places.region_shift(Addr::new(0x30_0000)), None);
        assert_eq!(places.region_shift(Addr::new(0x80_0000)), Some(0));
    }
}
