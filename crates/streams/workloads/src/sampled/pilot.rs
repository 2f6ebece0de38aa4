//! What a sampled stream shows while it is sampled: how long warming takes, and how far figures may be off.
//!
//! The pilot is a small machine of its own beside the modelled ones: a TLB and caches of their sizes, without
//! page tables, policies or time. It sees what they see, and decides from it where the next windows lie. So
//! the choice is the same for all machines, in all passes over a stream, and whatever the number of threads.
//!
//! **How long warming takes is measured, not guessed.** Now and then a window is a trial: it has the longest
//! warming there is. Copies of the arrays start later, each after half as much warming as the one before.
//! What they miss more than the first in the same window is what that much less warming costs.
//!
//! ```text
//!  gap ------|  1.6M instructions of warming, seen by the arrays themselves   | window |
//!                              |  800k, seen by the first copy                |        |
//!                                             |  400k, by the second          |        |
//! ```

use super::lru::{Lru, spread};
use strata_addr::PageSize;
use strata_stream::{Access, Pid};

/// Copies that start later than the arrays themselves, each half as long before the window.
pub(super) const COPIES: usize = 5;

/// Of caches one line in so many is followed: what fills them is much, and lines are alike.
const LINES: u64 = 8;

/// Pages remembered in front of the TLB. Most accesses go to one of few.
const RECENT: usize = 64;

/// An array of the modelled CPU that warming must fill.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// What it is called in notes.
    pub name: &'static str,
    /// Whether it holds pages, and not lines.
    pub pages: bool,
    /// Pages or lines that it holds.
    pub entries: u64,
    /// Its ways.
    pub ways: u32,
    /// Cycles that a miss costs, roughly: misses that cost nothing need no warming.
    pub cycles: f64,
}

/// The arrays at one moment.
#[derive(Clone, Debug)]
struct Arrays {
    arrays: Vec<(bool, Lru)>,
    recent: Box<[u64; RECENT]>,
    misses: Vec<u64>,
}

impl Arrays {
    fn new(reaches: &[Reach]) -> Self {
        let array = |reach: &Reach| {
            let entries = if reach.pages { reach.entries } else { reach.entries / LINES };
            (reach.pages, Lru::new(entries, reach.ways))
        };
        Self {
            arrays: reaches.iter().map(array).collect(),
            recent: Box::new([0; RECENT]),
            misses: vec![0; reaches.len()],
        }
    }

    fn run(&mut self, pid: Pid, accesses: &[Access]) {
        // Processes have pages of their own.
        let process = (u64::from(pid.0) + 1) << 52;
        for access in accesses {
            let at = access.addr().get();
            let page = (at >> PageSize::BASE_SHIFT) + process;
            let recent = &mut self.recent[page as usize % RECENT];
            if *recent != page {
                *recent = page;
                self.touch(true, page);
            }
            let line = (at >> 6) + process;
            if spread(line) >> 61 == 0 {
                self.touch(false, line);
            }
        }
    }

    fn touch(&mut self, pages: bool, key: u64) {
        for ((of_pages, array), misses) in self.arrays.iter_mut().zip(&mut self.misses) {
            if *of_pages == pages {
                *misses += u64::from(!array.touch(key));
            }
        }
    }
}

/// Misses of each array in a window.
pub(super) type Misses = Vec<f64>;

/// What a window showed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    /// Its instructions.
    pub(super) instructions: u64,
    /// Misses of each array.
    pub(super) misses: Misses,
    /// The same of copies that were warmed up less, if it was a trial: half as long, a quarter, and so on.
    pub(super) copies: Vec<Misses>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Pilot {
    reaches: Vec<Reach>,
    arrays: Arrays,
    /// The arrays as they were where warming began, in a trial.
    before: Option<Arrays>,
    copies: Vec<Arrays>,
    /// Instructions of warming that are left until the window.
    left: u64,
    /// The length of warming, in a trial.
    warm: u64,
    /// Instructions of the window so far.
    instructions: u64,
    in_window: bool,
}

impl Pilot {
    pub(super) fn new(reaches: &[Reach]) -> Self {
        Self {
            reaches: reaches.to_vec(),
            arrays: Arrays::new(reaches),
            before: None,
            copies: Vec::new(),
            left: 0,
            warm: 0,
            instructions: 0,
            in_window: false,
        }
    }

    /// Warming begins, which is that long; whether it is a trial.
    pub(super) fn warm(&mut self, instructions: u64, is_trial: bool) {
        self.copies.clear();
        self.before = is_trial.then(|| self.arrays.clone());
        (self.warm, self.left) = (instructions, instructions);
    }

    /// The window begins.
    pub(super) fn open(&mut self) {
        // Those whose warming was shorter than a run have none at all.
        while let Some(before) = self.before.as_ref().filter(|_| self.copies.len() < COPIES) {
            self.copies.push(before.clone());
        }
        self.before = None;
        for arrays in [&mut self.arrays].into_iter().chain(&mut self.copies) {
            arrays.misses.fill(0);
        }
        (self.instructions, self.in_window) = (0, true);
    }

    /// The window is over.
    pub(super) fn close(&mut self) -> Shown {
        let misses = |arrays: &Arrays| -> Misses {
            let scale = |reach: &Reach| if reach.pages { 1.0 } else { LINES as f64 };
            let counted = self.reaches.iter().zip(&arrays.misses);
            counted.map(|(reach, misses)| *misses as f64 * scale(reach)).collect()
        };
        let shown = Shown {
            instructions: self.instructions,
            misses: misses(&self.arrays),
            copies: self.copies.iter().map(misses).collect(),
        };
        self.copies.clear();
        self.in_window = false;
        shown
    }

    /// What is seen outside of gaps.
    pub(super) fn run(&mut self, pid: Pid, instructions: u64, accesses: &[Access]) {
        self.arrays.run(pid, accesses);
        self.copies.iter_mut().for_each(|copy| copy.run(pid, accesses));
        if self.in_window {
            self.instructions += instructions;
            return;
        }
        self.left = self.left.saturating_sub(instructions);
        while let Some(before) = &self.before
            && self.copies.len() < COPIES
            && self.left <= self.warm >> (self.copies.len() + 1)
        {
            self.copies.push(before.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_addr::Gva;

    fn reaches() -> Vec<Reach> {
        let lines = Reach { name: "cache", pages: false, entries: 16 << 10, ways: 16, cycles: 1.0 };
        vec![lines, Reach { name: "TLB", pages: true, entries: 16, ways: 4, cycles: 1.0 }]
    }

    /// Loads of lines of so many pages in turn, one an instruction.
    fn walk(pilot: &mut Pilot, pages: u64, instructions: u64) {
        let lines = pages * 64;
        for piece in 0..instructions / 1000 {
            let at = |n: u64| Gva::new((1 << 32) + (piece * 1000 + n) % lines * 64);
            let accesses: Vec<Access> = (0..1000).map(|n| Access::load(at(n), 8)).collect();
            pilot.run(Pid(0), 1000, &accesses);
        }
    }

    #[test]
    fn copies_miss_what_they_were_not_warmed_up_for() {
        // 128 pages are 8192 lines: half of the cache, twice the TLB.
        let mut pilot = Pilot::new(&reaches());
        pilot.warm(64_000, true);
        walk(&mut pilot, 128, 64_000);
        pilot.open();
        walk(&mut pilot, 128, 8000);
        let shown = pilot.close();
        assert_eq!((shown.instructions, shown.copies.len()), (8000, COPIES));
        // Thirty-two, sixteen and eight thousand instructions see all lines, four and two do not.
        let [half, fourth, eighth, sixteenth, last] = &shown.copies[..] else { panic!() };
        assert!(shown.misses[0] < 400.0 && half[0] <= shown.misses[0] + 16.0, "{shown:?}");
        assert!(fourth[0] < 400.0, "{shown:?}");
        assert!(eighth[0] < sixteenth[0] && sixteenth[0] < last[0], "{shown:?}");
        assert!((last[0] / 6000.0 - 1.0).abs() < 0.2, "{shown:?}");
        // A TLB that is too small for what is used is warm soon.
        assert!(shown.copies[..3].iter().all(|copy| copy[1] == shown.misses[1]), "{shown:?}");
    }

    #[test]
    fn a_window_that_is_no_trial_has_no_copies() {
        let mut pilot = Pilot::new(&reaches());
        walk(&mut pilot, 4, 2000);
        pilot.warm(2000, false);
        walk(&mut pilot, 4, 2000);
        pilot.open();
        walk(&mut pilot, 4, 2000);
        let shown = pilot.close();
        assert_eq!(shown.copies.len(), 0);
        assert_eq!(shown.misses, [0.0, 0.0], "all was there before the gap");
    }
}
