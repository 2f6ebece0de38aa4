//! The base pages that processes have touched, as page tables would show them.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use strata_addr::{Gva, PageSize, Range, space::Virtual};
use strata_stream::{Access, Advice, Event, Pid, Tid};

/// Pages remembered in front of the maps. Most accesses go to one of few pages.
const RECENT: usize = 256;

/// One bit for each base page, by huge page.
type Bits = FxHashMap<u64, [u64; 8]>;

/// The pages of one process.
#[derive(Clone, Debug)]
struct Pages {
    touched: Bits,
    /// Pages that are touched: page + 1, shifted, and whether a store to it is nothing new.
    recent: Box<[u64; RECENT]>,
}

impl Default for Pages {
    fn default() -> Self {
        let recent = Box::new([0; RECENT]);
        Self { touched: Bits::default(), recent }
    }
}

impl Pages {
    /// Notes a touch. Gives whether it is the first one. A store may still be news of a page that was only
    /// read in the present gap.
    fn touch(&mut self, page: u64, store: bool, in_gap: bool) -> bool {
        let (word, bit) = place(page);
        let touched = &mut self.touched.entry(page / 512).or_default()[word];
        let first = *touched & bit == 0;
        *touched |= bit;
        self.remember(page, store || !in_gap);
        first
    }

    fn remember(&mut self, page: u64, stored: bool) {
        self.recent[page as usize % RECENT] = (page + 1) << 1 | u64::from(stored);
    }

    /// Whether a touch is nothing new, at a glance.
    #[inline]
    fn knows(&self, page: u64, store: bool) -> bool {
        let entry = self.recent[page as usize % RECENT];
        entry >> 1 == page + 1 && (entry & 1 == 1 || !store)
    }

    fn forget(&mut self, range: Range<Virtual>) {
        let (first, end) = (range.start.page().get(), pages_end(range));
        let inside = |huge: u64| first <= huge * 512 && huge * 512 + 512 <= end;
        let bits = &mut self.touched;
        if (end - first) / 512 > bits.len() as u64 {
            bits.retain(|huge, _| !inside(*huge));
        } else {
            (first / 512..end.div_ceil(512)).filter(|huge| inside(*huge)).for_each(|huge| {
                bits.remove(&huge);
            });
        }
        for huge in [first / 512, end / 512] {
            let Some(bits) = bits.get_mut(&huge) else { continue };
            for page in first.max(huge * 512)..end.min(huge * 512 + 512) {
                let (word, bit) = place(page);
                bits[word] &= !bit;
            }
        }
        self.recent.fill(0);
    }

    fn remap(&mut self, from: Range<Virtual>, to: Range<Virtual>) {
        let (first, end) = (from.start.page().get(), pages_end(from));
        let moved = (first..end).filter(|page| has(&self.touched, *page));
        let moved: Vec<u64> = moved.map(|page| page - first).collect();
        self.forget(from);
        self.forget(to);
        let (start, end) = (to.start.page().get(), pages_end(to));
        moved.iter().map(|offset| start + offset).filter(|page| *page < end).for_each(|page| {
            let (word, bit) = place(page);
            self.touched.entry(page / 512).or_default()[word] |= bit;
        });
    }
}

fn place(page: u64) -> (usize, u64) {
    ((page / 64 % 8) as usize, 1 << (page % 64))
}

fn has(bits: &Bits, page: u64) -> bool {
    let (word, bit) = place(page);
    bits.get(&(page / 512)).is_some_and(|bits| bits[word] & bit != 0)
}

fn pages_end(range: Range<Virtual>) -> u64 {
    range.end.ceil(PageSize::Base).page().get().max(range.start.page().get())
}

/// What all processes have touched, and what of it is to be told.
#[derive(Debug, Default)]
pub struct Touches {
    processes: FxHashMap<Pid, Pages>,
    owners: FxHashMap<Tid, Pid>,
    /// Pages touched first in the present gap and not told yet, each with whether it was stored to.
    pending: BTreeMap<(Pid, u64), bool>,
}

impl Touches {
    /// The process of a thread.
    pub fn owner(&self, tid: Tid) -> Pid {
        self.owners.get(&tid).copied().unwrap_or_default()
    }

    /// Notes accesses by a thread; in a gap, first touches are to be told.
    pub fn run(&mut self, tid: Tid, accesses: &[Access], in_gap: bool) {
        let pid = self.owner(tid);
        let Self { processes, pending, .. } = self;
        let pages = processes.entry(pid).or_default();
        let note = |pages: &mut Pages, pending: &mut BTreeMap<_, _>, page: u64, store: bool| {
            if pages.touch(page, store, in_gap) && in_gap {
                *pending.entry((pid, page)).or_insert(false) |= store;
            } else if store && in_gap {
                // First read, then stored to, in one gap: page tables at its end show a store.
                pending.entry((pid, page)).and_modify(|stored| *stored = true);
            }
        };
        for access in accesses {
            let first = access.addr().page().get();
            if !pages.knows(first, access.is_store()) {
                note(pages, pending, first, access.is_store());
            }
            let last = (access.addr().get().wrapping_add(u64::from(access.size() - 1)))
                >> PageSize::BASE_SHIFT;
            if last == first + 1 && !pages.knows(last, access.is_store()) {
                note(pages, pending, last, access.is_store());
            }
        }
    }

    /// What an event does to what was touched. First touches that it would hide are given to `tell`.
    pub fn event(&mut self, event: &Event, tell: &mut impl FnMut(Event)) {
        match *event {
            Event::ThreadStart { pid, tid } => {
                self.owners.insert(tid, pid);
            }
            Event::ThreadExit { tid } => {
                self.owners.remove(&tid);
            }
            Event::Unmap { pid, range } | Event::Map { pid, range, .. } => {
                self.forget(pid, range, tell);
            }
            Event::Advise { pid, range, advice: Advice::DontNeed | Advice::Free } => {
                self.forget(pid, range, tell);
            }
            Event::Remap { pid, from, to } => {
                self.tell(Some((pid, from)), tell);
                self.tell(Some((pid, to)), tell);
                if let Some(pages) = self.processes.get_mut(&pid) {
                    pages.remap(from, to);
                }
            }
            Event::Fork { parent, child } => {
                self.tell(Some((parent, everywhere())), tell);
                let copy = self.processes.get(&parent).cloned().unwrap_or_default();
                self.processes.insert(child, copy);
            }
            Event::Exec { pid } | Event::ProcessExit { pid } => {
                self.tell(Some((pid, everywhere())), tell);
                self.processes.remove(&pid);
            }
            _ => {}
        }
    }

    fn forget(&mut self, pid: Pid, range: Range<Virtual>, tell: &mut impl FnMut(Event)) {
        self.tell(Some((pid, range)), tell);
        if let Some(pages) = self.processes.get_mut(&pid) {
            pages.forget(range);
        }
    }

    /// Page tables show that a process has touched pages. What of it is news is to be told.
    pub fn shown(&mut self, pid: Pid, range: Range<Virtual>, store: bool) {
        let Self { processes, pending, .. } = self;
        let pages = processes.entry(pid).or_default();
        for page in range.start.page().get()..pages_end(range) {
            if pages.touch(page, store, true) {
                *pending.entry((pid, page)).or_insert(false) |= store;
            }
        }
    }

    /// Tells of first touches: all, or those of a process in a range.
    pub fn tell(&mut self, place: Option<(Pid, Range<Virtual>)>, tell: &mut impl FnMut(Event)) {
        if self.pending.is_empty() {
            return;
        }
        let told: Vec<((Pid, u64), bool)> = match place {
            None => std::mem::take(&mut self.pending).into_iter().collect(),
            Some((pid, range)) => {
                let (first, end) = (range.start.page().get(), pages_end(range));
                let inside = (pid, first)..(pid, end);
                let told: Vec<_> = self.pending.range(inside).map(|(at, s)| (*at, *s)).collect();
                told.iter().for_each(|(at, _)| {
                    self.pending.remove(at);
                });
                told
            }
        };
        for row in told.chunk_by(|((pid, page), store), ((next_pid, next), next_store)| {
            pid == next_pid && page + 1 == *next && store == next_store
        }) {
            let ((pid, page), store) = row[0];
            let range = Range::sized(
                Gva::new(page << PageSize::BASE_SHIFT),
                (row.len() as u64) << PageSize::BASE_SHIFT,
            );
            tell(Event::Touched { pid, range, store });
        }
    }
}

/// The half of the address space that programs have, and more.
fn everywhere() -> Range<Virtual> {
    Range::new(Gva::new(0), Gva::new(u64::MAX >> 8))
}
