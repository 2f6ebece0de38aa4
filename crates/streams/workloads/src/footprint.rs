//! Counts the base pages that each process touches.

use rustc_hash::FxHashMap;
use strata_addr::PageSize;
use strata_stream::{Access, Event, Pid, Tid};

/// Pages remembered in front of the map. Most accesses go to one of few pages.
const RECENT: usize = 256;

/// Counts distinct base pages over all processes.
///
/// A page that is unmapped and mapped again counts once; a page that a child shares with its
/// parent after `fork` counts for each of them that touches it. Threads nobody has announced
/// belong to process 0.
#[derive(Debug, Default)]
pub struct Footprint {
    processes: FxHashMap<Pid, Pages>,
    owners: FxHashMap<Tid, Pid>,
    pages: u64,
}

#[derive(Debug)]
struct Pages {
    recent: Box<[u64; RECENT]>,
    /// One bit per base page, by huge page.
    touched: FxHashMap<u64, [u64; 8]>,
}

impl Default for Pages {
    fn default() -> Self {
        Self { recent: Box::new([u64::MAX; RECENT]), touched: FxHashMap::default() }
    }
}

impl Footprint {
    /// Notes which process a thread belongs to, and what is touched without an access.
    pub fn event(&mut self, event: &Event) {
        match *event {
            Event::ThreadStart { pid, tid } => {
                self.owners.insert(tid, pid);
            }
            Event::ThreadExit { tid } => {
                self.owners.remove(&tid);
            }
            Event::Touched { pid, range, .. } | Event::Fetched { pid, range } => {
                let pages = self.processes.entry(pid).or_default();
                let first = range.start.page().get();
                let number = range.bytes() >> PageSize::BASE_SHIFT;
                self.pages += (first..first + number).map(|page| pages.touch(page)).sum::<u64>();
            }
            _ => {}
        }
    }

    /// Notes accesses by one thread.
    pub fn run(&mut self, tid: Tid, accesses: &[Access]) {
        let pid = self.owners.get(&tid).copied().unwrap_or_default();
        let pages = self.processes.entry(pid).or_default();
        for access in accesses {
            let addr = access.addr().get();
            let first = addr >> PageSize::BASE_SHIFT;
            if pages.recent[first as usize % RECENT] != first {
                self.pages += pages.touch(first);
            }
            let last = addr.wrapping_add(u64::from(access.size() - 1)) >> PageSize::BASE_SHIFT;
            if last != first {
                self.pages += pages.touch(last);
            }
        }
    }

    /// Bytes of the pages touched so far.
    pub fn bytes(&self) -> u64 {
        self.pages << PageSize::BASE_SHIFT
    }
}

impl Pages {
    /// Notes a page; returns 1 when it is new.
    fn touch(&mut self, page: u64) -> u64 {
        self.recent[page as usize % RECENT] = page;
        let bits = self.touched.entry(page / 512).or_default();
        let (word, bit) = ((page / 64 % 8) as usize, 1 << (page % 64));
        let new = bits[word] & bit == 0;
        bits[word] |= bit;
        new.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn counts_like_a_set(
            runs in prop::collection::vec(
                (0u32..3, prop::collection::vec((0u64..1 << 24, 0u32..8), 0..60)), 0..20),
        ) {
            let mut footprint = Footprint::default();
            // Threads 1 and 2 share a process, thread 0 is not announced.
            for tid in [1, 2] {
                footprint.event(&Event::ThreadStart { pid: Pid(7), tid: Tid(tid) });
            }
            let mut set = HashSet::new();
            for (tid, accesses) in runs {
                let accesses: Vec<_> = accesses
                    .into_iter()
                    .map(|(addr, log2)| Access::load(strata_addr::Gva::new(addr), 1 << log2))
                    .collect();
                footprint.run(Tid(tid), &accesses);
                for access in &accesses {
                    let first = access.addr();
                    let last = first + u64::from(access.size() - 1);
                    set.extend([(tid > 0, first.page().get()), (tid > 0, last.page().get())]);
                }
            }
            prop_assert_eq!(footprint.bytes(), 4096 * set.len() as u64);
        }
    }
}
