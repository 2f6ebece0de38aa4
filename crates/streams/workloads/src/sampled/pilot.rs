//! What a sampled stream shows while it is sampled: how long warming takes, and how far figures may be off.
//!
//! The pilot is a small machine of its own beside the modelled ones: a TLB and caches of their sizes, without
//! page tables, policies or time. It sees what they see, and decides from it where the next windows lie. So
//! the choice is the same for all machines, in all passes over a stream, and whatever the number of threads.
//!
//! Each thread has a CPU of its own, with all arrays but the last-level cache; a thread that begins gets that of one
//! that has ended.

use super::aim::{Misses, Reach};
use super::arrays::Cpus;
use super::guesses::Guesses;
use super::trial::{Check, New, Trial};
use rustc_hash::FxHashMap;
use strata_addr::{Range, space::Virtual};
use strata_stream::{Access, Event, Pid, Tid};

/// CPUs that are followed. More threads than that share them.
const CPUS: usize = 64;

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

/// What a window showed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shown {
    /// Its instructions.
    pub(super) instructions: u64,
    /// Misses of each array.
    pub(super) misses: Misses,
    /// Lines that were taken for used before, and may not have been.
    pub(super) guessed: f64,
    /// The checks of a trial.
    pub(super) checks: Vec<Check>,
    /// What is new after half of its warming.
    pub(super) new: Option<New>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Pilot {
    arrays: Cpus,
    threads: Threads,
    trial: Option<Box<Trial>>,
    /// Instructions of the window so far.
    instructions: u64,
    in_window: bool,
    guesses: Guesses,
}

impl Pilot {
    pub(super) fn new(reaches: &[Reach]) -> Self {
        Self {
            arrays: Cpus::new(reaches),
            threads: Threads::default(),
            trial: None,
            instructions: 0,
            in_window: false,
            guesses: Guesses::default(),
        }
    }

    /// Warming begins, which is that long, for a window; the length of the window if it is a trial.
    pub(super) fn warm(&mut self, instructions: u64, trial: Option<u64>) {
        let trial = trial.map(|window| Trial::new(self.arrays.clone(), instructions, window));
        self.trial = trial.map(Box::new);
    }

    /// The window begins.
    pub(super) fn open(&mut self) {
        if let Some(trial) = &mut self.trial {
            trial.end_warming(&self.arrays);
        }
        self.arrays.misses.fill(0);
        if let Some(trial) = &mut self.trial {
            trial.open_window(&self.arrays);
        }
        self.guesses.open();
        (self.instructions, self.in_window) = (0, true);
    }

    /// The window is over.
    pub(super) fn close(&mut self) -> Shown {
        let mut trial = self.trial.take();
        trial.iter_mut().for_each(|trial| trial.close_window(&self.arrays));
        let (checks, new) = trial.map_or((Vec::new(), None), |trial| (trial.checks, trial.new));
        self.in_window = false;
        Shown {
            instructions: self.instructions,
            misses: self.arrays.missed(),
            guessed: self.guesses.in_window(),
            checks,
            new,
        }
    }

    /// Pages were touched first in a gap, or begun before it: modelled machines then have all their lines.
    pub(super) fn touched(&mut self, pid: Pid, range: Range<Virtual>, begun: bool) {
        self.arrays.touch_all(self.threads.of_process(pid), pid, range);
        self.guesses.touched(pid, range, begun);
    }

    /// Lines of all pages that were touched until now, as far as is told.
    pub(super) fn lines(&self) -> u64 {
        self.guesses.lines()
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
        if let Some(trial) = &mut self.trial {
            trial.run(cpu, pid, instructions, accesses, &self.arrays);
        }
        if self.in_window {
            self.instructions += instructions;
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
    use crate::sampled::arrays::LINE_BYTES;
    use strata_addr::{Gva, PageSize};
    use strata_stream::Array;

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
        pilot.warm(64_000, Some(8000));
        walk(&mut pilot, 128, 64_000);
        pilot.open();
        walk(&mut pilot, 128, 8000);
        let shown = pilot.close();
        assert_eq!(shown.instructions, 8000);
        // Windows and checks are 16,000 instructions apart, and copies have at most half as much as what they are held against.
        let copies: Vec<usize> = shown.checks.iter().map(|check| check.copies.len()).collect();
        assert_eq!(copies, [5, 5, 6]);
        for check in &shown.checks {
            let [least, second, .., largest] = &check.copies[..] else { panic!() };
            assert!(check.instructions == 8000 && check.misses[0] < 400.0, "{check:?}");
            // Sixteen thousand instructions see all lines, one and two do not.
            assert!(largest[0] < 400.0, "{check:?}");
            assert!(second[0] < least[0] && (least[0] / 7000.0 - 1.0).abs() < 0.2, "{check:?}");
            // A TLB that is too small for what is used is warm soon.
            assert!(check.copies[3..].iter().all(|copy| copy[1] == check.misses[1]), "{check:?}");
        }
        // Nothing is new after all lines were used once, of the cache; the TLB never has them.
        let new = shown.new.unwrap();
        assert_eq!((new.instructions, new.misses[0]), (32_000, 0.0));
        assert_eq!(new.misses[1], 32_000.0 / 64.0);
    }

    #[test]
    fn a_trial_that_is_cut_short_shows_what_it_saw() {
        // Of many threads a window may begin long before all instructions are told.
        let mut pilot = Pilot::new(&reaches());
        walk(&mut pilot, 128, 16_000);
        pilot.warm(64_000, Some(8000));
        walk(&mut pilot, 128, 36_000);
        pilot.open();
        walk(&mut pilot, 128, 8000);
        let checks = pilot.close().checks;
        let instructions: Vec<u64> = checks.iter().map(|check| check.instructions).collect();
        // The check that was under way ends, and the one after it has nothing.
        assert_eq!(instructions, [4000, 0, 8000]);
        // The TLB is asked for a page once in 64 loads.
        assert!(checks.iter().all(|check| check.misses[1] <= check.instructions as f64 / 60.0));
        assert!(checks[0].misses[1] > 50.0 && checks[2].misses[1] > 50.0, "{checks:?}");
    }

    fn pages(number: u64) -> Range<Virtual> {
        Range::sized(Gva::new(1 << 32), number << PageSize::BASE_SHIFT)
    }

    #[test]
    fn lines_of_pages_that_were_touched_in_a_gap_are_there() {
        let missed = |touched: u64| {
            let mut pilot = Pilot::new(&reaches());
            pilot.touched(Pid(0), pages(touched), false);
            pilot.warm(0, None);
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
        let mut pilot = Pilot::new(&reaches());
        // A beginning that uses all lines of many pages, and has time for it.
        let at = |n: u64| Gva::new((2 << 32) + n * LINE_BYTES);
        let all: Vec<Access> = (0..2048 * 64).map(|n| Access::load(at(n), 8)).collect();
        pilot.run(Pid(0), Tid(0), 1000, &all);
        pilot.touched(Pid(0), Range::sized(at(0), 2048 << 12), true);
        pilot.warm(0, None);
        pilot.open();
        // Of 512 pages sixteen lines each are used, and as many pages were touched in a gap.
        use_lines(&mut pilot, 512, 0, 16);
        pilot.touched(Pid(0), pages(512), true);
        pilot.touched(Pid(1), pages(512), false);
        let most = pilot.most_guessed();
        assert!((most / (2.0 * 512.0 * 48.0) - 1.0).abs() < 0.2, "{most}");
        // A window that uses what was used before, and sixteen lines more of each page.
        pilot.warm(0, None);
        pilot.open();
        use_lines(&mut pilot, 512, 0, 32);
        let found = pilot.close().guessed;
        assert!((found / (512.0 * 16.0) - 1.0).abs() < 0.2, "{found}");
        // The next one meets none of them for the first time.
        pilot.warm(0, None);
        pilot.open();
        use_lines(&mut pilot, 512, 0, 32);
        assert_eq!(pilot.close().guessed, 0.0);
    }

    #[test]
    fn what_few_pages_show_of_those_of_gaps_may_be_chance() {
        let mut pilot = Pilot::new(&reaches());
        pilot.warm(0, None);
        pilot.open();
        use_lines(&mut pilot, 32, 0, 64);
        pilot.touched(Pid(0), pages(32), true);
        pilot.touched(Pid(1), pages(512), false);
        let share = pilot.most_guessed() / (512.0 * 64.0);
        assert!((0.2..0.8).contains(&share), "{share}");
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
            pilot.warm(0, None);
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
    fn pages_are_used_first_once_since_a_gap_by_each_cpu() {
        let mut pilot = Pilot::new(&reaches());
        let load = |pilot: &mut Pilot, tid: u32, pages: std::ops::Range<u64>| {
            let loads = pages.map(|page| Access::load(Gva::new((1 << 32) + (page << 12)), 8));
            pilot.run(Pid(0), Tid(tid), 1000, &loads.collect::<Vec<_>>());
        };
        load(&mut pilot, 0, 0..200);
        pilot.warm(4000, Some(400));
        [0..32, 32..64, 16..96, 96..160].into_iter().for_each(|pages| load(&mut pilot, 0, pages));
        pilot.open();
        let new = pilot.close().new.unwrap();
        assert_eq!((new.instructions, new.pages), (2000, 96.0));
        // Another thread has used none of them.
        pilot.warm(4000, Some(400));
        load(&mut pilot, 0, 0..32);
        load(&mut pilot, 0, 0..32);
        load(&mut pilot, 1, 0..32);
        load(&mut pilot, 0, 0..40);
        pilot.open();
        assert_eq!(pilot.close().new.unwrap().pages, 40.0);
    }

    #[test]
    fn a_window_that_is_no_trial_has_no_checks() {
        let mut pilot = Pilot::new(&reaches());
        walk(&mut pilot, 4, 2000);
        pilot.warm(2000, None);
        walk(&mut pilot, 4, 2000);
        pilot.open();
        walk(&mut pilot, 4, 2000);
        let shown = pilot.close();
        assert_eq!((shown.checks, shown.new), (Vec::new(), None));
        assert_eq!(shown.misses, [0.0, 0.0], "all was there before the gap");
    }
}
