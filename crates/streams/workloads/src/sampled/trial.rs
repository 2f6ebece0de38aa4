//! A window that shows how much warming is enough.
//!
//! **How long warming takes is measured, not guessed.** Now and then a window is a trial: it has long warming, and
//! checks as long as a window in the second half of it, of which the window itself is the last. For each check copies of
//! the arrays start as they were at the end of the gap, each half as long before it as the one before.
//! What they miss more in the check than the arrays themselves is what that much less warming costs. What a
//! program comes back to only after many million instructions shows in no shorter trial.
//!
//! ```text
//!  gap ------|  3.2M instructions of warming, seen by the arrays themselves          | window |
//!                                  | check  |             | check  |                 | check  |
//!                                              |  1.6M, seen by a copy for the last  |        |
//!                    |  800k       |        |                 |  800k, by another one|        |
//! ```

use super::aim::Misses;
use super::arrays::Cpus;
use strata_stream::{Access, Pid};

/// Copies that a check has at most, the next one with twice as much warming.
const COPIES: usize = 8;

/// Parts of the warming of a trial from one check to the next.
const PARTS: u64 = 8;

/// How much warming a copy has, if windows are that long.
pub(super) fn warming_of(copy: usize, window: u64) -> u64 {
    (window / 8) << copy
}

/// What a program uses first since the end of the gap, in the second half of the warming of a trial.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct New {
    /// Instructions of that half.
    pub(super) instructions: u64,
    /// Misses of arrays that were empty at the end of the gap.
    pub(super) misses: Misses,
    /// Pages that CPUs use first, each for itself.
    pub(super) pages: f64,
}

/// What a check of a trial showed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Check {
    /// Its instructions.
    pub(super) instructions: u64,
    /// Misses of each array.
    pub(super) misses: Misses,
    /// The same of copies that were warmed up less, the shortest first, up to half as long as the arrays themselves.
    pub(super) copies: Vec<Misses>,
}

/// What is to be done in a trial.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A copy starts, for a check.
    Start(usize),
    /// A check begins.
    Open(usize),
    /// It is over.
    Close(usize),
    /// Half of the warming is over.
    Half,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// The arrays as they were at the end of the gap.
    before: Cpus,
    /// What is to be done until the window, after how many instructions, the last first.
    steps: Vec<(u64, Step)>,
    /// Instructions since the end of the gap.
    instructions: u64,
    /// The copies that there are, the longest first, and for which check each is.
    copies: Vec<(usize, Cpus)>,
    /// Instructions, and misses of the arrays, where the present check began.
    opened: (u64, Vec<u64>),
    pub(super) checks: Vec<Check>,
    /// Arrays that were empty at the end of the gap.
    empty: Cpus,
    /// Instructions, their misses and the pages they used, after half of the warming.
    half: (u64, Vec<u64>, u64),
    pub(super) new: Option<New>,
}

/// The check that is the window itself.
const WINDOW: usize = 0;

impl Trial {
    /// One that has so many instructions to warm up for a window that is so long.
    pub(super) fn new(before: Cpus, warm: u64, window: u64) -> Self {
        let apart = (warm / PARTS).max(2 * window).max(1);
        let checks = (0..).map(|check| warm - (check * apart).min(warm));
        let mut steps = Vec::new();
        for (check, begin) in checks.take_while(|begin| 2 * begin >= warm.max(1)).enumerate() {
            let lengths = (0..COPIES).map(|copy| warming_of(copy, window));
            let lengths = lengths.take_while(|length| 2 * length <= begin);
            steps.extend(lengths.map(|length| (begin - length, Step::Start(check))));
            if check != WINDOW {
                steps.extend([(begin, Step::Open(check)), (begin + window, Step::Close(check))]);
            }
        }
        steps.push((warm / 2, Step::Half));
        steps.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let empty = Cpus::with_pages(&before.reaches);
        Self {
            half: (0, empty.misses.clone(), 0),
            empty,
            new: None,
            before,
            steps,
            instructions: 0,
            copies: Vec::new(),
            opened: (0, Vec::new()),
            checks: Vec::new(),
        }
    }

    /// So many instructions were run until now, on a CPU. The arrays have seen them.
    pub(super) fn run(
        &mut self,
        cpu: usize,
        pid: Pid,
        instructions: u64,
        accesses: &[Access],
        arrays: &Cpus,
    ) {
        self.copies.iter_mut().for_each(|(_, copy)| copy.run(cpu, pid, accesses));
        if self.new.is_none() {
            self.empty.run(cpu, pid, accesses);
        }
        self.instructions += instructions;
        while let Some((_, step)) = self.steps.pop_if(|(at, _)| *at <= self.instructions) {
            self.take(step, arrays);
        }
    }

    fn take(&mut self, step: Step, arrays: &Cpus) {
        match step {
            Step::Start(check) => self.copies.push((check, self.before.clone())),
            Step::Open(check) => self.open(check, arrays),
            Step::Close(check) => self.close(check, arrays),
            Step::Half => {
                let Self { instructions, empty, .. } = self;
                self.half = (*instructions, empty.misses.clone(), empty.pages());
            }
        }
    }

    fn open(&mut self, check: usize, arrays: &Cpus) {
        self.opened = (self.instructions, arrays.misses.clone());
        let copies = self.copies.iter_mut().filter(|(of, _)| *of == check);
        copies.for_each(|(_, copy)| copy.misses.fill(0));
    }

    fn close(&mut self, check: usize, arrays: &Cpus) {
        let (since, before) = &self.opened;
        let copies = self.copies.extract_if(.., |(of, _)| *of == check);
        let mut copies: Vec<Misses> = copies.map(|(_, copy)| copy.missed()).collect();
        copies.reverse();
        let (instructions, misses) = (self.instructions - since, arrays.missed_since(before));
        self.checks.push(Check { instructions, misses, copies });
    }

    /// Warming is over. The misses of the arrays are those since the end of the gap, as yet.
    pub(super) fn end_warming(&mut self, arrays: &Cpus) {
        // Copies whose warming was shorter than a run have none at all.
        while let Some((_, step)) = self.steps.pop() {
            self.take(step, arrays);
        }
        let (since, before, pages) = &self.half;
        let (instructions, misses) = (self.instructions - since, self.empty.missed_since(before));
        let pages = (self.empty.pages() - pages) as f64;
        self.new = Some(New { instructions, misses, pages });
    }

    /// The window begins.
    pub(super) fn open_window(&mut self, arrays: &Cpus) {
        self.open(WINDOW, arrays);
    }

    /// The window is over.
    pub(super) fn close_window(&mut self, arrays: &Cpus) {
        self.close(WINDOW, arrays);
    }
}
