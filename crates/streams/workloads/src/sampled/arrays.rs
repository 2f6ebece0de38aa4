//! The arrays of CPUs, as far as a pilot follows them.

use super::aim::{Misses, Reach};
use super::lru::{Lru, spread};
use rustc_hash::FxHashSet;
use strata_addr::{PageSize, Range, space::Virtual};
use strata_stream::{Access, Pid};

/// Of caches one line in so many is followed: what fills them is much, and lines are alike.
const LINES: u64 = 8;

/// Bytes of a line.
pub(super) const LINE_BYTES: u64 = 64;

/// Lines of a page.
pub(super) const LINES_OF_PAGE: u64 = 64;

/// Pages remembered in front of the TLB. Most accesses go to one of few.
const RECENT: usize = 64;

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
pub(super) struct Cpus {
    pub(super) reaches: Vec<Reach>,
    cpus: Vec<Cpu>,
    shared: Arrays,
    pub(super) misses: Vec<u64>,
    /// Pages that each CPU has used, where that is asked for.
    used: Option<FxHashSet<(usize, u64)>>,
}

impl Cpus {
    pub(super) fn new(reaches: &[Reach]) -> Self {
        Self {
            reaches: reaches.to_vec(),
            cpus: Vec::new(),
            shared: Arrays::new(reaches, true),
            misses: vec![0; reaches.len()],
            used: None,
        }
    }

    /// The same, which knows how many pages its CPUs use.
    pub(super) fn with_pages(reaches: &[Reach]) -> Self {
        Self { used: Some(FxHashSet::default()), ..Self::new(reaches) }
    }

    /// How many pages CPUs have used, each for itself; 0 where that is not asked for.
    pub(super) fn pages(&self) -> u64 {
        self.used.as_ref().map_or(0, |used| used.len() as u64)
    }

    /// A CPU, with what all share.
    fn on(&mut self, cpu: usize) -> (&mut Cpu, &mut Arrays, &mut [u64]) {
        while self.cpus.len() <= cpu {
            let arrays = Arrays::new(&self.reaches, false);
            self.cpus.push(Cpu { arrays, recent: Box::new([0; RECENT]) });
        }
        (&mut self.cpus[cpu], &mut self.shared, &mut self.misses)
    }

    pub(super) fn run(&mut self, number: usize, pid: Pid, accesses: &[Access]) {
        let mut used = self.used.take();
        let (cpu, shared, misses) = self.on(number);
        let process = of_process(pid);
        for access in accesses {
            let at = access.addr().get();
            let page = (at >> PageSize::BASE_SHIFT) + process;
            let recent = &mut cpu.recent[page as usize % RECENT];
            if *recent != page {
                *recent = page;
                cpu.arrays.touch(true, page, misses);
                if let Some(used) = &mut used {
                    used.insert((number, page));
                }
            }
            touch_line(at / LINE_BYTES + process, cpu, shared, misses);
        }
        self.used = used;
    }

    /// Uses each line of a range. What misses then is not the program's.
    pub(super) fn touch_all(&mut self, cpu: usize, pid: Pid, range: Range<Virtual>) {
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

    /// Misses of each array, of all there is where a part is followed.
    pub(super) fn missed(&self) -> Misses {
        self.missed_since(&vec![0; self.misses.len()])
    }

    /// The same since there were so many.
    pub(super) fn missed_since(&self, before: &[u64]) -> Misses {
        let since = self.misses.iter().zip(before).map(|(now, before)| (now - before) as f64);
        let scale = |reach: &Reach| if reach.holds_pages() { 1.0 } else { LINES as f64 };
        self.reaches.iter().zip(since).map(|(reach, misses)| misses * scale(reach)).collect()
    }
}

fn touch_line(line: u64, cpu: &mut Cpu, shared: &mut Arrays, misses: &mut [u64]) {
    if spread(line) >> 61 == 0 {
        cpu.arrays.touch(false, line, misses);
        shared.touch(false, line, misses);
    }
}

/// Processes have pages of their own.
pub(super) fn of_process(pid: Pid) -> u64 {
    (u64::from(pid.0) + 1) << 52
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_addr::Gva;
    use strata_stream::Array;

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
}
