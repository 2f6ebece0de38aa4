//! The mappings of one process, as far as the stream needs them: to find accesses to memory that
//! no mapping accounts for, and what a mapping that grows is made of.

use std::collections::BTreeMap;
use strata_addr::{Gva, PageSize, Range, space::Virtual};
use strata_stream::{Access, Backing, Protection};

/// Pages remembered as mapped, direct-mapped by page number.
const KNOWN: usize = 1024;

/// A mapping, by its start in [`Vmas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Vma {
    end: Gva,
    backing: Backing,
    protection: Protection,
}

/// The mappings of one process.
#[derive(Clone, Debug)]
pub(crate) struct Vmas {
    map: BTreeMap<Gva, Vma>,
    /// Page numbers + 1 of pages that are mapped; cleared when something is unmapped.
    known: Box<[u64; KNOWN]>,
}

impl Default for Vmas {
    fn default() -> Self {
        Self { map: BTreeMap::new(), known: Box::new([0; KNOWN]) }
    }
}

impl Vmas {
    /// Maps a range, replacing what was there.
    pub(crate) fn map(&mut self, range: Range<Virtual>, backing: Backing, protection: Protection) {
        self.unmap(range);
        self.map.insert(range.start, Vma { end: range.end, backing, protection });
    }

    /// Unmaps a range.
    pub(crate) fn unmap(&mut self, range: Range<Virtual>) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let gone: Vec<_> = self.map.range(range.start..range.end).map(|(&at, _)| at).collect();
        if !gone.is_empty() {
            for at in gone {
                self.map.remove(&at);
            }
            self.known.fill(0);
        }
    }

    /// Moves a range; what the new place has beyond the old one's length is like its last page.
    pub(crate) fn remap(&mut self, from: Range<Virtual>, to: Range<Virtual>) {
        self.split(from.start);
        self.split(from.end);
        let pieces: Vec<_> =
            self.map.range(from.start..from.end).map(|(&at, &vma)| (at, vma)).collect();
        self.unmap(from);
        self.unmap(to);
        for (index, (start, vma)) in pieces.iter().enumerate() {
            let last = index + 1 == pieces.len();
            let start = to.start + (*start - from.start);
            let end = if last { to.end } else { to.start + (vma.end - from.start) };
            if start < to.end {
                self.map.insert(start, Vma { end: end.min(to.end), ..*vma });
            }
        }
    }

    /// Changes the rights of a range.
    pub(crate) fn protect(&mut self, range: Range<Virtual>, protection: Protection) {
        self.split(range.start);
        self.split(range.end);
        for (_, vma) in self.map.range_mut(range.start..range.end) {
            vma.protection = protection;
        }
    }

    /// What the page before `at` is made of.
    pub(crate) fn before(&self, at: Gva) -> Option<(Backing, Protection)> {
        let (_, vma) = self.map.range(..at).next_back()?;
        (vma.end >= at).then_some((vma.backing, vma.protection))
    }

    /// The parts of a range that programs use as data: mapped, and not the code of a file, which the
    /// emulator reads itself.
    pub(crate) fn data_in(&self, range: Range<Virtual>) -> Vec<Range<Virtual>> {
        let first = self.map.range(..=range.start).next_back().map_or(range.start, |(at, _)| *at);
        let inside = self.map.range(first..range.end);
        let data =
            inside.filter(|(_, vma)| vma.backing != Backing::File || !vma.protection.execute);
        let cut = data.map(|(&at, vma)| {
            let end = vma.end.min(range.end);
            Range::new(at.max(range.start).min(end), end)
        });
        cut.filter(|range| !range.is_empty()).collect()
    }

    /// Cuts the mapping that spans `at` in two there.
    fn split(&mut self, at: Gva) {
        let Some((_, vma)) = self.map.range_mut(..at).next_back() else { return };
        if vma.end > at {
            let rest = *vma;
            vma.end = at;
            self.map.insert(at, rest);
        }
    }

    fn is_mapped(&self, at: Gva) -> bool {
        self.map.range(..=at).next_back().is_some_and(|(_, vma)| at < vma.end)
    }

    /// The position of the first access outside every mapping.
    pub(crate) fn first_outside(&mut self, accesses: &[Access]) -> Option<usize> {
        let mut last = u64::MAX;
        for (index, access) in accesses.iter().enumerate() {
            let page = access.addr().page().get();
            if page == last {
                continue;
            }
            last = page;
            let slot = page as usize % KNOWN;
            if self.known[slot] != page + 1 {
                if !self.is_mapped(access.addr()) {
                    return Some(index);
                }
                self.known[slot] = page + 1;
            }
        }
        None
    }
}

/// The page of an address, as a range.
pub(crate) fn page_of(at: Gva) -> Range<Virtual> {
    Range::sized(at.floor(PageSize::Base), PageSize::Base.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const PAGE: u64 = 4096;
    const BACKINGS: [Backing; 3] = [Backing::Anonymous, Backing::Heap, Backing::File];

    #[derive(Clone, Debug)]
    enum Step {
        Map(u64, u64, usize),
        Unmap(u64, u64),
        Remap(u64, u64, u64, u64),
        Protect(u64, u64, u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let at = || 0..40u64;
        let pages = || 1..12u64;
        prop::collection::vec(
            prop_oneof![
                (at(), pages(), 0..BACKINGS.len()).prop_map(|(a, n, b)| Step::Map(a, n, b)),
                (at(), pages()).prop_map(|(a, n)| Step::Unmap(a, n)),
                // The kernel refuses overlapping moves, and those of more than one mapping.
                (at(), pages(), 60..100u64, pages())
                    .prop_map(|(a, n, b, m)| Step::Remap(a, n, b, m)),
                (at(), pages(), 0..8u32).prop_map(|(a, n, p)| Step::Protect(a, n, p)),
            ],
            0..30,
        )
    }

    fn range(page: u64, pages: u64) -> Range<Virtual> {
        Range::sized(Gva::new(page * PAGE), pages * PAGE)
    }

    proptest! {
        /// The same on a table with an entry for each page.
        #[test]
        fn mappings_equal_a_page_by_page_table(steps in steps()) {
            let mut vmas = Vmas::default();
            let mut pages: HashMap<u64, (Backing, Protection)> = HashMap::new();
            for step in steps {
                match step {
                    Step::Map(at, count, backing) => {
                        vmas.map(range(at, count), BACKINGS[backing], Protection::READ_WRITE);
                        for page in at..at + count {
                            pages.insert(page, (BACKINGS[backing], Protection::READ_WRITE));
                        }
                    }
                    Step::Unmap(at, count) => {
                        vmas.unmap(range(at, count));
                        pages.retain(|page, _| !(at..at + count).contains(page));
                    }
                    Step::Remap(at, count, to, more) => {
                        if !(at..at + count).all(|page| pages.contains_key(&page)) {
                            continue;
                        }
                        vmas.remap(range(at, count), range(to, more));
                        let old: Vec<_> =
                            (at..at + count).filter_map(|page| pages.remove(&page)).collect();
                        for page in 0..more {
                            let like = old[(page as usize).min(old.len() - 1)];
                            pages.insert(to + page, like);
                        }
                    }
                    Step::Protect(at, count, bits) => {
                        let protection = Protection::from_bits(bits);
                        vmas.protect(range(at, count), protection);
                        for page in at..at + count {
                            pages.entry(page).and_modify(|entry| entry.1 = protection);
                        }
                    }
                }
                for page in 0..120 {
                    let access = Access::load(Gva::new(page * PAGE + 8), 8);
                    let outside = vmas.first_outside(&[access]).is_some();
                    prop_assert_eq!(outside, !pages.contains_key(&page), "page {}", page);
                    let before = vmas.before(Gva::new((page + 1) * PAGE));
                    prop_assert_eq!(before, pages.get(&page).copied());
                }
            }
        }
    }
}
