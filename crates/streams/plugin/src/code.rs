//! Pages that instructions were fetched from, as far as the emulator's translations show.
//!
//! The emulator translates a block when it is about to be executed first, and anew when its page was mapped
//! anew. Children of a `fork` go on with what their parent has translated, so that their own fetches of it are not
//! seen.

use std::collections::HashSet;
use strata_addr::{Range, space::Virtual};

const PAGE: u64 = 4096;

/// What is known of a process's code. Some of what was told may be told again.
#[derive(Debug, Default)]
pub struct Code {
    /// Pages that were told of, by number, since the address space last changed.
    told: HashSet<u64>,
    /// Those of threads that cannot tell yet.
    waiting: Vec<Range<Virtual>>,
}

impl Code {
    /// What is to be told now, when a block in this range is translated.
    pub fn news(&mut self, range: Range<Virtual>) -> Vec<Range<Virtual>> {
        let mut news = std::mem::take(&mut self.waiting);
        news.push(range);
        news.retain(|range| self.is_new(*range));
        news
    }

    /// The same, and it is told with the next one.
    pub fn wait(&mut self, range: Range<Virtual>) {
        if self.waiting.last() != Some(&range) {
            self.waiting.push(range);
        }
    }

    fn is_new(&mut self, range: Range<Virtual>) -> bool {
        let pages = range.start.get() / PAGE..range.end.get() / PAGE;
        let before = self.told.len();
        self.told.extend(pages);
        self.told.len() > before
    }

    /// The address space changes: what is translated after that may be other code.
    pub fn forget(&mut self) {
        self.told.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_addr::Gva;

    fn page(number: u64) -> Range<Virtual> {
        Range::new(Gva::new(number * PAGE), Gva::new((number + 1) * PAGE))
    }

    #[test]
    fn a_page_is_told_of_once_until_the_address_space_changes() {
        let mut code = Code::default();
        assert_eq!(code.news(page(7)), [page(7)]);
        assert_eq!(code.news(page(7)), []);
        code.forget();
        assert_eq!(code.news(page(7)), [page(7)]);
    }

    #[test]
    fn what_a_thread_could_not_tell_is_told_by_the_next_that_can() {
        let mut code = Code::default();
        code.wait(page(3));
        code.wait(page(3));
        assert_eq!(code.news(page(4)), [page(3), page(4)]);
        let both = Range::new(page(4).start, page(5).end);
        assert_eq!(code.news(both), [both], "one page of it is new");
    }
}
