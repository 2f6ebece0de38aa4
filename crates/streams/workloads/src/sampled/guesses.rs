//! Lines that are taken for used as their page was touched in a gap, and may be used first later.

use super::arrays::{LINE_BYTES, LINES_OF_PAGE, of_process};
use super::lru::spread;
use rustc_hash::FxHashMap;
use strata_addr::{PageSize, Range, space::Virtual};
use strata_stream::{Access, Pid};

/// Of pages one in so many is followed line by line.
const PAGES: u64 = 8;

/// Pages that count as begun besides, as ones of which nothing is used: what few pages show may be chance.
const FEW: f64 = 4.0;

/// What is known of the lines of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    /// Those that were used outside of gaps.
    used: u64,
    /// Whether all have been taken for used, as the page was touched.
    all: bool,
}

/// Lines that were all taken for used as their page was, so that modelled caches have them, and may not have been.
#[derive(Clone, Debug, Default)]
pub(super) struct Guesses {
    /// Pages that are followed.
    pages: FxHashMap<u64, Lines>,
    /// Those that are used now for the first time, as far as is seen.
    seen: u64,
    /// Lines that were not used yet, of pages that were touched outside of gaps.
    unused: u64,
    /// Such pages, and lines of them that were used until the gap. Those of the part that is run whole are not among
    /// them: they had longer than a window.
    begun: [u64; 2],
    /// Whether there has been a window.
    is_sampled: bool,
    /// Pages that were touched in gaps.
    in_gaps: u64,
}

impl Guesses {
    pub(super) fn run(&mut self, pid: Pid, accesses: &[Access]) {
        let process = of_process(pid);
        for access in accesses {
            let at = access.addr().get();
            let page = (at >> PageSize::BASE_SHIFT) + process;
            if spread(page).is_multiple_of(PAGES) {
                let lines = self.pages.entry(page).or_default();
                let line = 1 << (at / LINE_BYTES % LINES_OF_PAGE);
                self.seen += u64::from(lines.all && lines.used & line == 0);
                lines.used |= line;
            }
        }
    }

    pub(super) fn touched(&mut self, pid: Pid, range: Range<Virtual>, begun: bool) {
        let process = of_process(pid);
        for page in range.start.page().get()..range.end.page().get() {
            if spread(page + process).is_multiple_of(PAGES) {
                let lines = self.pages.entry(page + process).or_default();
                if begun {
                    let used = u64::from(lines.used.count_ones());
                    self.unused += LINES_OF_PAGE - used;
                    if self.is_sampled {
                        self.begun = [self.begun[0] + 1, self.begun[1] + used];
                    }
                } else {
                    // Another page may have been in its place.
                    lines.used = 0;
                    self.in_gaps += 1;
                }
                lines.all = true;
            }
        }
    }

    /// A window begins.
    pub(super) fn open(&mut self) {
        (self.seen, self.is_sampled) = (0, true);
    }

    /// Those of the window so far, of all pages.
    pub(super) fn in_window(&self) -> f64 {
        (self.seen * PAGES) as f64
    }

    /// Lines of all pages that were touched.
    pub(super) fn lines(&self) -> u64 {
        self.pages.len() as u64 * PAGES * LINES_OF_PAGE
    }

    /// Lines that may have been used first after they were taken for used, if pages touched in gaps are used as
    /// others are.
    pub(super) fn most(&self) -> f64 {
        let [pages, used] = self.begun.map(|count| count as f64);
        let each = LINES_OF_PAGE as f64 - used / (pages + FEW);
        (self.unused as f64 + self.in_gaps as f64 * each) * PAGES as f64
    }
}
