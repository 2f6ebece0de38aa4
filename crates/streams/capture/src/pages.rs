//! A set of base pages.

use std::collections::BTreeSet;
use strata_addr::{Gva, PageSize, Range, space::Virtual};

/// Numbers of base pages, in order: whole ranges of them come and go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages(BTreeSet<u64>);

impl Pages {
    /// Adds those of a range; gives the parts of it that are new.
    pub(crate) fn add(&mut self, range: Range<Virtual>) -> Vec<Range<Virtual>> {
        let mut new: Vec<Range<Virtual>> = Vec::new();
        for page in numbers(range).filter(|page| self.0.insert(*page)) {
            let (start, end) = (at(page), at(page + 1));
            match new.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => new.push(Range::new(start, end)),
            }
        }
        new
    }

    /// Takes those of a range out.
    pub(crate) fn remove(&mut self, range: Range<Virtual>) {
        let inside: Vec<u64> = self.0.range(numbers(range)).copied().collect();
        for page in inside {
            self.0.remove(&page);
        }
    }
}

fn numbers(range: Range<Virtual>) -> std::ops::Range<u64> {
    let first = range.start.page().get();
    first..range.end.ceil(PageSize::Base).page().get().max(first)
}

fn at(page: u64) -> Gva {
    Gva::new(page << PageSize::BASE_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, end: u64) -> Range<Virtual> {
        Range::new(at(first), at(end))
    }

    #[test]
    fn only_what_is_new_is_given_and_what_was_taken_out_is_new_again() {
        let mut pages = Pages::default();
        assert_eq!(pages.add(range(3, 5)), [range(3, 5)]);
        assert_eq!(pages.add(range(2, 7)), [range(2, 3), range(5, 7)]);
        assert_eq!(pages.add(range(2, 7)), []);
        pages.remove(range(0, 4));
        pages.remove(range(6, 1 << 30));
        assert_eq!(pages.add(range(2, 7)), [range(2, 4), range(6, 7)]);
    }
}
