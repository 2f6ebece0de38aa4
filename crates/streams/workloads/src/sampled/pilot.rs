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
//! Each thread has a CPU of its own, with all arrays but the last-level cache; a thread that begins gets that of one
//! that has ended.
//!
//! ```text
//!  gap ------|  1.6M instructions of warming, seen by the arrays themselves   | window |
//!                              |  800k, seen by the first copy                |        |
//!                                             |  400k, by the second          |        |
//! ```

use super::lru::{Lru, spread};
use rustc_hash::FxHashMap;
use strata_addr::{PageSize, Range, space::Virtual};
use strata_stream::{Access, Array, Event, Pid, Tid};

/// Copies that start later than the arrays themselves, each half as long before the window.
pub(super) const COPIES: usize = 5;

/// Of caches one line in so many is followed: what fills them is much, and lines are alike.
const LINES: u64 = 8;

/// Bytes of a line.
const LINE_BYTES: u64 = 64;

/// Lines of a page.
const LINES_OF_PAGE: u64 = 64;

/// Of pages one in so many is followed line by line.
const PAGES: u64 = 8;

/// CPUs that are followed. More threads than that share them.
const CPUS: usize = 64;

/// Pages remembered in front of the TLB. Most accesses go to one of few.
const RECENT: usize = 64;

/// An array of the modelled CPU that warming must fill.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// Which one.
    pub array: Array,
    /// Pages or lines that it holds.
    pub entries: u64,
    /// Its ways.
    pub ways: u32,
    /// Cycles that a miss costs, roughly: misses that cost nothing need no warming.
    pub cycles: f64,
}

impl Reach {
    /// Whether it holds pages, and not lines.
    fn holds_pages(&self) -> bool {
        matches!(self.array, Array::L1Tlb | Array::L2Tlb)
    }

    /// Whether all CPUs have one together.
    fn is_shared(&self) -> bool {
        self.array == Array::LastLevelCache
    }
}

/// Arrays of a CPU, or those that CPUs share.
#[derive(Clone, Debug)]
struct Arrays {
    /// Which of the reaches each is of, and whether it holds pages.
    arrays: Vec<(usize, bool, Lru)>,
}

impl Arrays {
    /// Those of the reaches that are shared, or that are not.
    fn new(reaches: &[Reach], shared: bool) -> Self {
        let own = reaches.iter().enumerate().filter(|(_, reach)| reach.is_shared() == shared);
        let array = |(at, reach): (usize, &Reach)| {
            let pages = reach.holds_pages();
            let entries = if pages { reach.entries } else { reach.entries / LINES };
            (at, pages, Lru::new(entries, reach.ways))
        };
        Self { arrays: own.map(array).collect() }
    }

    fn touch(&mut self, pages: bool, key: u64, misses: &mut [u64]) {
        // Sets of a TLB are by number. Which frames lines are in follows no order.
        let index = if pages { key } else { spread(key) };
        for (at, of_pages, array) in &mut self.arrays {
            if *of_pages == pages {
                misses[*at] += u64::from(!array.touch(key, index));
            }
        }
    }
}

/// What a CPU has for itself.
#[derive(Clone, Debug)]
struct Cpu {
    arrays: Arrays,
    recent: Box<[u64; RECENT]>,
}

/// All arrays at one moment.
#[derive(Clone, Debug)]
struct Cpus {
    reaches: Vec<Reach>,
    cpus: Vec<Cpu>,
    shared: Arrays,
    misses: Vec<u64>,
}

impl Cpus {
    fn new(reaches: &[Reach]) -> Self {
        Self {
            reaches: reaches.to_vec(),
            cpus: Vec::new(),
            shared: Arrays::new(reaches, true),
            misses: vec![0; reaches.len()],
        }
    }

    /// A CPU, with what all share.
    fn on(&mut self, cpu: usize) -> (&mut Cpu, &mut Arrays, &mut [u64]) {
        while self.cpus.len() <= cpu {
            let arrays = Arrays::new(&self.reaches, false);
            self.cpus.push(Cpu { arrays, recent: Box::new([0; RECENT]) });
        }
        (&mut self.cpus[cpu], &mut self.shared, &mut self.misses)
    }

    fn run(&mut self, cpu: usize, pid: Pid, accesses: &[Access]) {
        let (cpu, shared, misses) = self.on(cpu);
        let process = of_process(pid);
        for access in accesses {
            let at = access.addr().get();
            let page = (at >> PageSize::BASE_SHIFT) + process;
            let recent = &mut cpu.recent[page as usize % RECENT];
            if *recent != page {
                *recent = page;
                cpu.arrays.touch(true, page, misses);
            }
            touch_line(at / LINE_BYTES + process, cpu, shared, misses);
        }
    }

    /// Uses each line of a range. What misses then is not the program's.
    fn touch_all(&mut self, cpu: usize, pid: Pid, range: Range<Virtual>) {
        let process = of_process(pid);
        let missed = self.misses.clone();
        let (cpu, shared, misses) = self.on(cpu);
        for page in range.start.page().get()..range.end.page().get() {
            cpu.arrays.touch(true, page + process, misses);
            for line in page * LINES_OF_PAGE..(page + 1) * LINES_OF_PAGE {
                touch_line(line + process, cpu, shared, misses);
            }
        }
        self.misses = missed;
    }
}

fn touch_line(line: u64, cpu: &mut Cpu, shared: &mut Arrays, misses: &mut [u64]) {
    if spread(line) >> 61 == 0 {
        cpu.arrays.touch(false, line, misses);
        shared.touch(false, line, misses);
    }
}

/// Which CPU each thread is on.
#[derive(Clone, Debug, Default)]
struct Threads {
    cpus: FxHashMap<Tid, (Pid, usize)>,
    /// Those of threads that have ended, the last one last.
    idle: Vec<usize>,
    /// CPUs that any thread had.
    used: usize,
    /// Where a process ran last.
    of_processes: FxHashMap<Pid, usize>,
    last: Option<(Pid, Tid, usize)>,
}

impl Threads {
    /// The CPU that a thread runs on.
    fn cpu(&mut self, pid: Pid, tid: Tid) -> usize {
        if let Some((_, _, cpu)) = self.last.filter(|last| (last.0, last.1) == (pid, tid)) {
            return cpu;
        }
        let Self { cpus, idle, used, .. } = self;
        let (_, cpu) = *cpus.entry(tid).or_insert_with(|| {
            let cpu = idle.pop().unwrap_or_else(|| {
                *used += 1;
                (*used - 1) % CPUS
            });
            (pid, cpu)
        });
        self.of_processes.insert(pid, cpu);
        self.last = Some((pid, tid, cpu));
        cpu
    }

    /// The CPU that a process ran on last.
    fn of_process(&self, pid: Pid) -> usize {
        self.of_processes.get(&pid).copied().unwrap_or(0)
    }

    fn ended(&mut self, tid: Tid) {
        self.last = None;
        self.idle.extend(self.cpus.remove(&tid).map(|(_, cpu)| cpu));
    }

    /// A process has ended, and threads of it that are left.
    fn exited(&mut self, pid: Pid) {
        self.of_processes.remove(&pid);
        let threads = self.cpus.iter().filter(|(_, (of, _))| *of == pid).map(|(tid, _)| *tid);
        let mut threads: Vec<Tid> = threads.collect();
        threads.sort_unstable();
        threads.into_iter().for_each(|tid| self.ended(tid));
    }
}

/// Processes have pages of their own.
fn of_process(pid: Pid) -> u64 {
    (u64::from(pid.0) + 1) << 52
}

/// Misses of each array in a window.
pub(super) type Misses = Vec<f64>;

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
struct Guesses {
    /// Pages that are followed.
    pages: FxHashMap<u64, Lines>,
    /// Those that are used now for the first time, as far as is seen.
    seen: u64,
    /// Lines that were not used yet, of pages that were touched outside of gaps.
    unused: u64,
    /// Such pages, and lines of them that were used until the gap.
    begun: [u64; 2],
    /// Pages that were touched in gaps.
    in_gaps: u64,
}

impl Guesses {
    fn run(&mut self, pid: Pid, accesses: &[Access]) {
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

    fn touched(&mut self, pid: Pid, range: Range<Virtual>, begun: bool) {
        let process = of_process(pid);
        for page in range.start.page().get()..range.end.page().get() {
            if spread(page + process).is_multiple_of(PAGES) {
                let lines = self.pages.entry(page + process).or_default();
                if begun {
                    let used = u64::from(lines.used.count_ones());
                    self.unused += LINES_OF_PAGE - used;
                    self.begun = [self.begun[0] + 1, self.begun[1] + used];
                } else {
                    // Another page may have been in its place.
                    lines.used = 0;
                    self.in_gaps += 1;
                }
                lines.all = true;
            }
        }
    }

    /// Lines that may have been used first after they were taken for used, if pages touched in gaps are used as
    /// others are.
    fn most(&self) -> f64 {
        let [pages, used] = self.begun.map(|count| count as f64);
        let each = LINES_OF_PAGE as f64 - used / pages.max(1.0);
        (self.unused as f64 + self.in_gaps as f64 * each) * PAGES as f64
    }
}

/// What a window showed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    /// Its instructions.
    pub(super) instructions: u64,
    /// Misses of each array.
    pub(super) misses: Misses,
    /// The same of copies that were warmed up less, if it was a trial: half as long, a quarter, and so on.
    pub(super) copies: Vec<Misses>,
    /// Lines that were taken for used before, and may not have been.
    pub(super) guessed: f64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Pilot {
    arrays: Cpus,
    /// The arrays as they were where warming began, in a trial.
    before: Option<Cpus>,
    copies: Vec<Cpus>,
    threads: Threads,
    /// Instructions of warming that are left until the window.
    left: u64,
    /// The length of warming, in a trial.
    warm: u64,
    /// Instructions of the window so far.
    instructions: u64,
    in_window: bool,
    guesses: Guesses,
}

impl Pilot {
    pub(super) fn new(reaches: &[Reach]) -> Self {
        Self {
            arrays: Cpus::new(reaches),
            before: None,
            copies: Vec::new(),
            threads: Threads::default(),
            left: 0,
            warm: 0,
            instructions: 0,
            in_window: false,
            guesses: Guesses::default(),
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
        self.guesses.seen = 0;
        (self.instructions, self.in_window) = (0, true);
    }

    /// The window is over.
    pub(super) fn close(&mut self) -> Shown {
        let misses = |arrays: &Cpus| -> Misses {
            let scale = |reach: &Reach| if reach.holds_pages() { 1.0 } else { LINES as f64 };
            let counted = arrays.reaches.iter().zip(&arrays.misses);
            counted.map(|(reach, misses)| *misses as f64 * scale(reach)).collect()
        };
        let shown = Shown {
            instructions: self.instructions,
            misses: misses(&self.arrays),
            copies: self.copies.iter().map(misses).collect(),
            guessed: (self.guesses.seen * PAGES) as f64,
        };
        self.copies.clear();
        self.in_window = false;
        shown
    }

    /// Pages were touched first in a gap, or begun before it: modelled machines then have all their lines.
    pub(super) fn touched(&mut self, pid: Pid, range: Range<Virtual>, begun: bool) {
        self.arrays.touch_all(self.threads.of_process(pid), pid, range);
        self.guesses.touched(pid, range, begun);
    }

    /// Lines in all that may have been used first after they were taken for used.
    pub(super) fn most_guessed(&self) -> f64 {
        self.guesses.most()
    }

    /// What is seen outside of gaps.
    pub(super) fn run(&mut self, pid: Pid, tid: Tid, instructions: u64, accesses: &[Access]) {
        let cpu = self.threads.cpu(pid, tid);
        self.arrays.run(cpu, pid, accesses);
        self.guesses.run(pid, accesses);
        self.copies.iter_mut().for_each(|copy| copy.run(cpu, pid, accesses));
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

    /// Something happened.
    pub(super) fn event(&mut self, event: &Event) {
        match *event {
            Event::ThreadExit { tid } => self.threads.ended(tid),
            Event::ProcessExit { pid } => self.threads.exited(pid),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_addr::Gva;

    fn reaches() -> Vec<Reach> {
        let reach = |array, entries, ways| Reach { array, entries, ways, cycles: 1.0 };
        vec![reach(Array::L2Cache, 16 << 10, 16), reach(Array::L2Tlb, 16, 4)]
    }

    /// Loads of lines of so many pages in turn, one an instruction.
    fn walk(pilot: &mut Pilot, pages: u64, instructions: u64) {
        let lines = pages * 64;
        for piece in 0..instructions / 1000 {
            let at = |n: u64| Gva::new((1 << 32) + (piece * 1000 + n) % lines * 64);
            let accesses: Vec<Access> = (0..1000).map(|n| Access::load(at(n), 8)).collect();
            pilot.run(Pid(0), Tid(0), 1000, &accesses);
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

    fn pages(number: u64) -> Range<Virtual> {
        Range::sized(Gva::new(1 << 32), number << PageSize::BASE_SHIFT)
    }

    #[test]
    fn lines_of_pages_that_were_touched_in_a_gap_are_there() {
        let missed = |touched: u64| {
            let mut pilot = Pilot::new(&reaches());
            pilot.touched(Pid(0), pages(touched), false);
            pilot.warm(0, false);
            pilot.open();
            walk(&mut pilot, 16, 1000);
            // The gap that follows may tell of pages before the window is closed.
            pilot.touched(Pid(1), pages(touched), true);
            pilot.close().misses
        };
        assert!(missed(0)[0] > 500.0);
        assert_eq!(missed(16), [0.0, 0.0]);
    }

    /// Loads of lines from `first` to `end` of each of so many pages.
    fn use_lines(pilot: &mut Pilot, number: u64, first: u64, end: u64) {
        let at = |page: u64, line: u64| Gva::new((1 << 32) + (page << 12) + line * LINE_BYTES);
        let loads = |page| (first..end).map(move |line| Access::load(at(page, line), 8));
        pilot.run(Pid(0), Tid(0), 1000, &(0..number).flat_map(loads).collect::<Vec<_>>());
    }

    #[test]
    fn lines_that_were_taken_for_used_may_have_been_used_first_once() {
        // Of 512 pages sixteen lines each are used, and as many pages were touched in a gap.
        let mut pilot = Pilot::new(&reaches());
        use_lines(&mut pilot, 512, 0, 16);
        pilot.touched(Pid(0), pages(512), true);
        pilot.touched(Pid(1), pages(512), false);
        let most = pilot.most_guessed();
        assert!((most / (2.0 * 512.0 * 48.0) - 1.0).abs() < 0.2, "{most}");
        // A window that uses what was used before, and sixteen lines more of each page.
        pilot.warm(0, false);
        pilot.open();
        use_lines(&mut pilot, 512, 0, 32);
        let found = pilot.close().guessed;
        assert!((found / (512.0 * 16.0) - 1.0).abs() < 0.2, "{found}");
        // The next one meets none of them for the first time.
        pilot.warm(0, false);
        pilot.open();
        use_lines(&mut pilot, 512, 0, 32);
        assert_eq!(pilot.close().guessed, 0.0);
    }

    /// Two threads use more together than one CPU's TLB holds.
    #[test]
    fn threads_have_arrays_of_their_own() {
        let thread: fn(u32) -> Event = |tid| Event::ThreadExit { tid: Tid(tid) };
        let process: fn(u32) -> Event = |_| Event::ProcessExit { pid: Pid(0) };
        let missed = |tids: [u32; 2], end: Option<fn(u32) -> Event>| {
            let reach = Reach { array: Array::L2Tlb, entries: 128, ways: 4, cycles: 1.0 };
            let mut pilot = Pilot::new(&[reach]);
            let both = |pilot: &mut Pilot| {
                for (half, tid) in (0..).zip(tids) {
                    let page = |n: u64| Gva::new((1 << 32) + (half * 96 + n) * 4096);
                    let accesses: Vec<Access> = (0..96).map(|n| Access::load(page(n), 8)).collect();
                    pilot.run(Pid(0), Tid(tid), 1000, &accesses);
                    if let Some(end) = end {
                        pilot.event(&end(tid));
                    }
                }
            };
            both(&mut pilot);
            pilot.warm(0, false);
            pilot.open();
            both(&mut pilot);
            pilot.close().misses[0]
        };
        assert_eq!(missed([0, 0], None), 192.0, "one CPU's TLB has room for half");
        assert_eq!(missed([0, 1], None), 0.0);
        // Who comes after another has ended is on its CPU.
        for end in [thread, process] {
            assert_eq!(missed([0, 1], Some(end)), 192.0);
        }
    }

    #[test]
    fn the_last_level_cache_is_one_for_all() {
        let reaches = Array::ALL.map(|array| Reach { array, entries: 64, ways: 4, cycles: 1.0 });
        let mut cpus = Cpus::new(&reaches);
        cpus.run(70, Pid(0), &[Access::load(Gva::new(0), 8)]);
        let shared = reaches.iter().position(|reach| reach.is_shared());
        assert_eq!(
            cpus.shared.arrays.iter().map(|(at, ..)| *at).collect::<Vec<_>>(),
            [shared.unwrap()]
        );
        assert!(cpus.cpus.iter().all(|cpu| cpu.arrays.arrays.len() == reaches.len() - 1));
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
