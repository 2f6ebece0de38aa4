//! Packed parts: regions, uses, huge pages. Numbers that follow from the one before cost a byte.

use crate::snapshot::entry::FRAMES;
use crate::snapshot::hot::{HotRegion, Pages};
use crate::snapshot::model::HugePage;
use crate::snapshot::pseudo::PseudoHuge;
use crate::snapshot::region::{Class, PAGES, Region, Run};
use crate::snapshot::usage::Usage;
use strata_files::varint::{put, put_signed, take, take_signed};

/// What comes after what, so that differences are stored.
#[derive(Default)]
struct Previous {
    index: u64,
    frame: u64,
}

impl Previous {
    fn put_index(&mut self, out: &mut Vec<u8>, index: u64) {
        put_signed(out, index.wrapping_sub(self.index) as i64);
        self.index = index.wrapping_add(1);
    }

    fn take_index(&mut self, input: &mut &[u8]) -> Option<u64> {
        let index = self.index.wrapping_add(take_signed(input)? as u64);
        self.index = index.wrapping_add(1);
        Some(index)
    }

    fn put_frame(&mut self, out: &mut Vec<u8>, frame: u64, pages: u64) {
        put_signed(out, frame.wrapping_sub(self.frame) as i64);
        self.frame = frame.wrapping_add(pages);
    }

    fn take_frame(&mut self, input: &mut &[u8]) -> Option<u64> {
        Some(self.frame.wrapping_add(take_signed(input)? as u64))
    }
}

const UNCERTAIN: u8 = 1 << 3;
const FILE: u8 = 1 << 4;
const PARTIAL: u8 = 1 << 5;
/// One run of 512 pages, all present, none swapped nor merged: the usual, in two numbers.
const WHOLE: u8 = 1 << 6;

/// Packs regions.
pub fn put_regions(regions: &[Region]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = Previous::default();
    put(&mut out, regions.len() as u64);
    for region in regions {
        let whole = region.present as usize == PAGES
            && region.swapped == 0
            && region.merged == 0
            && matches!(region.runs.as_slice(), [run] if run.pages() as usize == PAGES);
        let flag = |set, flag| if set { flag } else { 0 };
        out.push(
            region.class as u8
                | flag(region.uncertain, UNCERTAIN)
                | flag(region.file, FILE)
                | flag(region.partial, PARTIAL)
                | flag(whole, WHOLE),
        );
        before.put_index(&mut out, region.index);
        if !whole {
            put(&mut out, region.present.into());
            put(&mut out, region.swapped.into());
            put(&mut out, region.merged.into());
            put(&mut out, region.runs.len() as u64);
        }
        let mut next_page = 0;
        for run in &region.runs {
            if !whole {
                put(&mut out, (run.first() - next_page).into());
                put(&mut out, (run.pages() - 1).into());
                next_page = run.first() + run.pages();
            }
            before.put_frame(&mut out, run.frame(), run.pages().into());
        }
    }
    out
}

/// Unpacks regions, `None` when the bytes are none.
pub fn take_regions(mut input: &[u8]) -> Option<Vec<Region>> {
    let input = &mut input;
    let mut before = Previous::default();
    let count = take(input)?;
    // Each takes two bytes at least.
    if count > input.len() as u64 {
        return None;
    }
    let mut regions = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (&flags, rest) = input.split_first()?;
        *input = rest;
        let mut region = Region {
            index: before.take_index(input)?,
            class: *Class::ALL.get(usize::from(flags & 7))?,
            uncertain: flags & UNCERTAIN != 0,
            file: flags & FILE != 0,
            partial: flags & PARTIAL != 0,
            ..Region::default()
        };
        // No GPA has more than 52 bits.
        if region.index >= 1 << (52 - crate::snapshot::region::SHIFT) {
            return None;
        }
        let runs = if flags & WHOLE != 0 {
            region.present = PAGES as u16;
            1
        } else {
            region.present = take_pages(input)?;
            region.swapped = take_pages(input)?;
            region.merged = take_pages(input)?;
            take_pages(input)?
        };
        let mut next_page = 0u64;
        for _ in 0..runs {
            let (first, pages) = if flags & WHOLE != 0 {
                (0, PAGES as u64)
            } else {
                let first = next_page.checked_add(take(input)?)?;
                (first, take(input)?.checked_add(1)?)
            };
            next_page = first.checked_add(pages)?;
            let frame = before.take_frame(input)?;
            let end = frame.checked_add(pages)?;
            if next_page > PAGES as u64 || end > FRAMES {
                return None;
            }
            before.frame = end;
            region.runs.push(Run::new(first as u16, pages as u16, frame));
        }
        regions.push(region);
    }
    (input.is_empty() && regions.is_sorted_by(|a, b| a.index < b.index)).then_some(regions)
}

/// A count of base pages of a region.
fn take_pages(input: &mut &[u8]) -> Option<u16> {
    let pages = take(input)?;
    (pages <= PAGES as u64).then_some(pages as u16)
}

/// Packs uses.
pub fn put_usage(all: &[Usage]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = Previous::default();
    put(&mut out, all.len() as u64);
    for usage in all {
        before.put_index(&mut out, usage.index);
        for pages in [usage.free, usage.huge, usage.anon, usage.offline, usage.none] {
            put(&mut out, pages.into());
        }
    }
    out
}

/// Unpacks uses, `None` when the bytes are none.
pub fn take_usage(mut input: &[u8]) -> Option<Vec<Usage>> {
    let input = &mut input;
    let mut before = Previous::default();
    let count = take(input)?;
    if count > input.len() as u64 {
        return None;
    }
    let mut all = Vec::with_capacity(count as usize);
    for _ in 0..count {
        all.push(Usage {
            index: before.take_index(input)?,
            free: take_pages(input)?,
            huge: take_pages(input)?,
            anon: take_pages(input)?,
            offline: take_pages(input)?,
            none: take_pages(input)?,
        });
    }
    (input.is_empty() && all.is_sorted_by(|a, b| a.index < b.index)).then_some(all)
}

/// Packs pseudo huge pages.
pub fn put_pseudo_huge(all: &[PseudoHuge]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = Previous::default();
    let mut root = 0;
    put(&mut out, all.len() as u64);
    for page in all {
        before.put_index(&mut out, page.guest_frame / PAGES as u64);
        before.put_frame(&mut out, page.frame / PAGES as u64, 1);
        put_signed(&mut out, page.root.wrapping_sub(root) as i64);
        root = page.root;
    }
    out
}

/// Unpacks pseudo huge pages, `None` when the bytes are none.
pub fn take_pseudo_huge(mut input: &[u8]) -> Option<Vec<PseudoHuge>> {
    let input = &mut input;
    let mut before = Previous::default();
    let mut root = 0u64;
    let count = take(input)?;
    if count > input.len() as u64 {
        return None;
    }
    let mut all = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let index = before.take_index(input)?;
        let block = before.take_frame(input)?;
        root = root.wrapping_add(take_signed(input)? as u64);
        if [index, block].iter().any(|&at| at >= FRAMES / PAGES as u64) || root >= FRAMES {
            return None;
        }
        before.frame = block + 1;
        let pages = PAGES as u64;
        all.push(PseudoHuge { guest_frame: index * pages, frame: block * pages, root });
    }
    (input.is_empty() && all.is_sorted_by(|a, b| a < b)).then_some(all)
}

/// How the pages of a region are packed: none, all, or a bit for each.
const NO_PAGE: u8 = 0;
const ALL_PAGES: u8 = 1;
const SOME_PAGES: u8 = 2;
/// Where the second such kind stands in the byte of both.
const USED_SHIFT: u32 = 2;

fn kind(pages: &Pages) -> u8 {
    match pages {
        _ if *pages == Pages::default() => NO_PAGE,
        _ if *pages == Pages::ALL => ALL_PAGES,
        _ => SOME_PAGES,
    }
}

/// Packs what was used of regions.
pub fn put_hot(all: &[HotRegion]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = Previous::default();
    put(&mut out, all.len() as u64);
    for region in all {
        before.put_index(&mut out, region.index);
        out.push(kind(&region.watched) | kind(&region.used) << USED_SHIFT);
        for pages in [&region.watched, &region.used] {
            if kind(pages) == SOME_PAGES {
                out.extend(pages.0.iter().flat_map(|word| word.to_le_bytes()));
            }
        }
    }
    out
}

/// Unpacks what was used of regions, `None` when the bytes are none.
pub fn take_hot(mut input: &[u8]) -> Option<Vec<HotRegion>> {
    let input = &mut input;
    let mut before = Previous::default();
    let count = take(input)?;
    if count > input.len() as u64 {
        return None;
    }
    let mut all = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let index = before.take_index(input)?;
        let (&kinds, rest) = input.split_first()?;
        *input = rest;
        let watched = take_bits(kinds & 3, input)?;
        let used = take_bits(kinds >> USED_SHIFT, input)?;
        if index >= FRAMES / PAGES as u64 || !used.within(&watched) {
            return None;
        }
        all.push(HotRegion { index, watched, used });
    }
    (input.is_empty() && all.is_sorted_by(|a, b| a.index < b.index)).then_some(all)
}

fn take_bits(kind: u8, input: &mut &[u8]) -> Option<Pages> {
    match kind {
        NO_PAGE => Some(Pages::default()),
        ALL_PAGES => Some(Pages::ALL),
        SOME_PAGES => {
            let (bytes, rest) = input.split_at_checked(PAGES / 8)?;
            *input = rest;
            let mut pages = Pages::default();
            for (word, bytes) in pages.0.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            }
            Some(pages)
        }
        _ => None,
    }
}

/// Packs the huge pages of an area.
pub fn put_huge(out: &mut Vec<u8>, pages: &[HugePage]) {
    let mut before = Previous::default();
    put(out, pages.len() as u64);
    for page in pages {
        before.put_index(out, page.region);
        before.put_frame(out, page.frame, PAGES as u64);
        out.push(u8::from(page.uncertain));
    }
}

/// Unpacks the huge pages of an area.
pub fn take_huge(input: &mut &[u8]) -> Option<Vec<HugePage>> {
    let mut before = Previous::default();
    let count = take(input)?;
    if count > input.len() as u64 {
        return None;
    }
    let mut pages = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let region = before.take_index(input)?;
        let frame = before.take_frame(input)?;
        let (&uncertain, rest) = input.split_first()?;
        *input = rest;
        if frame >= FRAMES || uncertain > 1 {
            return None;
        }
        before.frame = frame + PAGES as u64;
        pages.push(HugePage { region, frame, uncertain: uncertain == 1 });
    }
    Some(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::entry::PagemapEntry;
    use crate::snapshot::region::{Special, pack};
    use proptest::prelude::*;

    fn regions() -> impl Strategy<Value = Vec<Region>> {
        let page = prop_oneof![
            6 => (1..1u64 << 30).prop_map(PagemapEntry::present_at),
            1 => Just(PagemapEntry::in_swap()),
            1 => Just(PagemapEntry::default()),
        ];
        let region = (1..5u64, prop::collection::vec(page, 8), any::<bool>(), 1..1u64 << 20);
        prop::collection::vec(region, 0..20).prop_map(|parts| {
            let mut index = 0;
            let all = parts.into_iter().map(|(gap, pages, huge, block)| {
                index += gap;
                let words: Vec<_> = (0..512)
                    .map(|page| match huge {
                        true => Some(PagemapEntry::present_at(block * 512 + page as u64)),
                        false => Some(pages[page % 8]),
                    })
                    .collect();
                let mut region = pack(index, &words, huge, |_| Special::None);
                region.uncertain = index % 3 == 0;
                region
            });
            all.collect()
        })
    }

    proptest! {
        #[test]
        fn regions_come_back(regions in regions()) {
            prop_assert_eq!(take_regions(&put_regions(&regions)), Some(regions));
        }

        #[test]
        fn any_bytes_are_refused_or_well_formed(bytes: Vec<u8>) {
            if let Some(regions) = take_regions(&bytes) {
                for region in regions {
                    prop_assert!(region.runs.iter().all(|run| usize::from(run.first() + run.pages()) <= PAGES));
                }
            }
            let _ = take_usage(&bytes);
            let _ = take_pseudo_huge(&bytes);
            let _ = take_huge(&mut bytes.as_slice());
            for region in take_hot(&bytes).unwrap_or_default() {
                prop_assert!(region.used.within(&region.watched));
            }
        }

        #[test]
        fn hot_pages_come_back(
            regions in prop::collection::btree_map(0..1u64 << 31, any::<([u64; 8], [u64; 8], u8)>(), 0..40),
        ) {
            let of = |pages, which| match which % 3 {
                0 => Pages::default(),
                1 => Pages::ALL,
                _ => Pages(pages),
            };
            let one = |(index, (watched, used, which))| {
                let (watched, mut used) = (of(watched, which), of(used, which / 3));
                used.0.iter_mut().zip(&watched.0).for_each(|(used, watched)| *used &= watched);
                HotRegion { index, watched, used }
            };
            let regions: Vec<_> = regions.into_iter().map(one).collect();
            prop_assert_eq!(take_hot(&put_hot(&regions)), Some(regions));
        }

        #[test]
        fn pseudo_huge_pages_come_back(mut pages in prop::collection::vec((0..1u64 << 31, 0..1u64 << 31, 0..1u64 << 40), 0..50)) {
            pages.sort_unstable();
            pages.dedup();
            let one = |(at, block, root)| PseudoHuge { guest_frame: at * 512, frame: block * 512, root };
            let pages: Vec<_> = pages.into_iter().map(one).collect();
            prop_assert_eq!(take_pseudo_huge(&put_pseudo_huge(&pages)), Some(pages));
        }

        #[test]
        fn uses_and_huge_pages_come_back(pages in prop::collection::vec((0..1u64 << 36, 0..1u64 << 39, any::<bool>()), 0..50)) {
            let pages: Vec<_> = pages
                .into_iter()
                .map(|(region, frame, uncertain)| HugePage { region, frame, uncertain })
                .collect();
            let mut bytes = Vec::new();
            put_huge(&mut bytes, &pages);
            prop_assert_eq!(take_huge(&mut bytes.as_slice()), Some(pages.clone()));
            let mut uses: Vec<_> = pages
                .iter()
                .map(|page| Usage { index: page.region, free: 512, anon: 3, ..Usage::default() })
                .collect();
            uses.sort_by_key(|usage| usage.index);
            uses.dedup_by_key(|usage| usage.index);
            prop_assert_eq!(take_usage(&put_usage(&uses)), Some(uses));
        }
    }

    #[test]
    fn a_huge_region_after_its_neighbour_takes_four_bytes_at_most() {
        let block = |index: u64| Region {
            index,
            class: Class::Huge,
            present: 512,
            runs: vec![Run::new(0, 512, (index + 7) * 512)],
            ..Region::default()
        };
        let regions: Vec<_> = (0..1000).map(block).collect();
        assert!(put_regions(&regions).len() < 4 * 1000);
    }
}
