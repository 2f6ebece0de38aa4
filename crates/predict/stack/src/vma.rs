//! Virtual memory areas of one address space.

use std::collections::BTreeMap;
use strata_addr::{Addr, Frame, PageSize, Range, space::Upper};
use strata_stream::{Backing, Protection};

/// What the program asked of huge pages in an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugeAdvice {
    /// Nothing: the system's setting decides.
    Default,
    /// `MADV_HUGEPAGE`.
    Wanted,
    /// `MADV_NOHUGEPAGE`.
    Refused,
}

/// One area: a range with one backing, one set of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    /// Where.
    pub range: Range<Upper>,
    /// What it holds.
    pub backing: Backing,
    /// Rights.
    pub protection: Protection,
    /// Advice on huge pages.
    pub huge: HugeAdvice,
    /// Which mapping of a file it is of, by number; 0 for all else. Two mappings may be of two files.
    pub mapping: u32,
}

impl Vma {
    fn same_kind(&self, other: &Self) -> bool {
        let kind = |vma: &Self| (vma.backing, vma.protection, vma.huge, vma.mapping);
        kind(self) == kind(other)
    }

    /// Whether a huge page may ever be at the region of `page`: the whole region is inside and
    /// private anonymous (Linux, `thp_vma_allowable_order`).
    pub fn fits_huge(&self, page: Frame<Upper>) -> bool {
        self.backing.is_private_anonymous()
            && self.range.contains_page(page.floor(PageSize::Huge).addr(), PageSize::Huge)
    }
}

/// The areas of one address space; they never overlap, and neighbours of the same kind are one.
///
/// ```
/// use strata_addr::{Addr, PageSize, Range};
/// use strata_stack::{HugeAdvice, Vma, VmaMap};
/// use strata_stream::{Backing, Protection};
///
/// let anonymous = |start: u64, bytes: u64| Vma {
///     range: Range::sized(Addr::new(start), bytes),
///     backing: Backing::Anonymous,
///     protection: Protection::READ_WRITE,
///     huge: HugeAdvice::Default,
///     mapping: 0,
/// };
/// let mut areas = VmaMap::default();
/// areas.insert(anonymous(2 << 20, 3 << 20));
/// areas.insert(anonymous(5 << 20, 1 << 20));
/// assert_eq!(areas.iter().count(), 1, "they are one area of 4 MiB");
/// let area = areas.find(Addr::new(3 << 20)).expect("it holds the address");
/// assert!(area.fits_huge(Addr::new(5 << 20).page()));
///
/// // Advice for a part, and a part that is gone: the area falls into three, around a hole.
/// areas.change(Range::sized(Addr::new(2 << 20), 1 << 20), |area| area.huge = HugeAdvice::Refused);
/// areas.remove(Range::sized(Addr::new(4 << 20), 1 << 20));
/// let starts: Vec<u64> = areas.iter().map(|area| area.range.start.get() >> 20).collect();
/// assert_eq!(starts, [2, 3, 5]);
/// assert!(areas.find(Addr::new(4 << 20)).is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct VmaMap {
    areas: BTreeMap<u64, Vma>,
}

impl VmaMap {
    /// The area that holds `addr`.
    pub fn find(&self, addr: Addr<Upper>) -> Option<&Vma> {
        let (_, vma) = self.areas.range(..=addr.get()).next_back()?;
        vma.range.contains(addr).then_some(vma)
    }

    /// The first area that starts above `addr`.
    pub fn next_after(&self, addr: Addr<Upper>) -> Option<&Vma> {
        self.areas.range(addr.get() + 1..).next().map(|(_, vma)| vma)
    }

    /// Every area, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Vma> {
        self.areas.values()
    }

    /// The areas that overlap `range`, by address, each cut to it.
    pub fn overlapping(&self, range: Range<Upper>) -> Vec<Vma> {
        let first = self.areas.range(..=range.start.get()).next_back().map_or(0, |(at, _)| *at);
        self.areas
            .range(first..range.end.get())
            .map(|(_, vma)| Vma { range: vma.range.intersection(&range), ..*vma })
            .filter(|vma| !vma.range.is_empty())
            .collect()
    }

    /// Puts an area in place of whatever was in its range.
    pub fn insert(&mut self, vma: Vma) {
        if vma.range.is_empty() {
            return;
        }
        self.remove(vma.range);
        let mut merged = vma;
        if let Some((&at, before)) = self.areas.range(..vma.range.start.get()).next_back()
            && before.range.end == vma.range.start
            && before.same_kind(&vma)
        {
            merged.range.start = before.range.start;
            self.areas.remove(&at);
        }
        if let Some(after) = self.areas.get(&vma.range.end.get())
            && after.same_kind(&vma)
        {
            merged.range.end = after.range.end;
            self.areas.remove(&vma.range.end.get());
        }
        self.areas.insert(merged.range.start.get(), merged);
    }

    /// Removes a range; areas that reach over its ends keep the parts outside.
    pub fn remove(&mut self, range: Range<Upper>) {
        for part in self.overlapping(range) {
            let whole = *self.find(part.range.start).expect("the part was found in an area");
            self.areas.remove(&whole.range.start.get());
            for rest in [
                Range::new(whole.range.start, part.range.start),
                Range::new(part.range.end, whole.range.end),
            ] {
                if !rest.is_empty() {
                    self.areas.insert(rest.start.get(), Vma { range: rest, ..whole });
                }
            }
        }
    }

    /// Changes every area within a range; parts outside stay as they are.
    pub fn change(&mut self, range: Range<Upper>, change: impl Fn(&mut Vma)) {
        for mut part in self.overlapping(range) {
            change(&mut part);
            self.insert(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AREA: Vma = Vma {
        range: Range { start: Addr::new(0), end: Addr::new(0) },
        backing: Backing::Anonymous,
        protection: Protection::READ_WRITE,
        huge: HugeAdvice::Default,
        mapping: 0,
    };

    fn kinds() -> impl Strategy<Value = Backing> {
        prop_oneof![Just(Backing::Anonymous), Just(Backing::File)]
    }

    /// From 3 to 9 MiB two regions of 2 MiB are whole.
    #[test]
    fn huge_pages_have_room_in_whole_regions_of_private_memory_alone() {
        let range = Range::sized(Addr::new(3 << 20), 6 << 20);
        let with_room = |backing| -> Vec<u64> {
            let vma = Vma { range, backing, ..AREA };
            (0..12).filter(|mib| vma.fits_huge(Addr::new(mib << 20).page())).collect()
        };
        assert_eq!(with_room(Backing::Anonymous), [4, 5, 6, 7]);
        assert!(with_room(Backing::File).is_empty());
    }

    /// Linux joins what is of one file alone (`can_vma_merge_before`), and maps nothing around a fault beyond it.
    #[test]
    fn mappings_of_files_stay_apart_but_for_their_own_parts() {
        let mapped = |start, mapping| {
            let range = Range::sized(Addr::new(start), 4 << 12);
            Vma { range, backing: Backing::File, mapping, ..AREA }
        };
        let mut map = VmaMap::default();
        map.insert(mapped(0, 1));
        map.insert(mapped(4 << 12, 2));
        assert_eq!(map.iter().count(), 2);
        let half = Range::sized(Addr::new(0), 2 << 12);
        map.change(half, |vma| vma.protection = Protection::NONE);
        assert_eq!(map.iter().count(), 3);
        map.change(half, |vma| vma.protection = AREA.protection);
        assert_eq!(map.iter().count(), 2, "the parts are one again");
    }

    proptest! {
        #[test]
        fn areas_equal_a_page_by_page_twin(
            ops in prop::collection::vec((0u8..3, 0u64..64, 1u64..32, kinds()), 1..40)
        ) {
            let mut map = VmaMap::default();
            let mut twin = [None; 128];
            for (op, start, pages, backing) in ops {
                let range = Range::sized(Addr::new(start << 12), pages << 12);
                let slots = &mut twin[start as usize..(start + pages) as usize];
                match op {
                    0 => {
                        map.insert(Vma { range, backing, ..AREA });
                        slots.fill(Some((backing, HugeAdvice::Default)));
                    }
                    1 => {
                        map.remove(range);
                        slots.fill(None);
                    }
                    _ => {
                        map.change(range, |vma| vma.huge = HugeAdvice::Wanted);
                        slots.iter_mut().flatten().for_each(|slot| slot.1 = HugeAdvice::Wanted);
                    }
                }
            }
            for (page, slot) in (0u64..).zip(&twin) {
                let vma = map.find(Addr::new(page << 12 | 0xfff));
                prop_assert_eq!(vma.map(|v| (v.backing, v.huge)), *slot);
            }
            let areas: Vec<_> = map.iter().collect();
            for pair in areas.windows(2) {
                prop_assert!(pair[0].range.end <= pair[1].range.start);
                let touching = pair[0].range.end == pair[1].range.start;
                prop_assert!(!(touching && pair[0].same_kind(pair[1])), "neighbours are merged");
            }
        }
    }
}
