//! The base pages that processes have touched, as page tables would show them.
//!
//! After a `fork` parent and child have the same pages. Whoever stores to one faults, and gets a copy unless all others
//! have copied it or are gone. Page tables alone show of each page whether others have it still: of the processes that
//! share one each but one can copy it, and which one did not is not to be seen, as two have pages of their own after
//! one has copied. Then the copy is that of the process which shows a page of its own before the other, and the last
//! that has a page shows nothing. Where page faults are watched, they tell.

mod process;
mod shared;
#[cfg(test)]
mod twin;

use process::{Pages, Touch, pages_end};
use rustc_hash::FxHashMap;
use shared::{ALONE, Shared};
use std::collections::{BTreeMap, BTreeSet};
use strata_addr::{Gva, PageSize, Range, space::Virtual};
use strata_stream::{Access, Advice, Event, Faults, Pid, Shown, Tid};

/// What is to be told of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Read,
    Stored,
    ReadThenStored,
}

impl News {
    fn of(store: bool) -> Self {
        if store { Self::Stored } else { Self::Read }
    }

    /// With news of the same page after it.
    fn then(self, store: bool) -> Self {
        if self == Self::Read && store { Self::ReadThenStored } else { self }
    }
}

/// What all processes have touched, and what of it is to be told.
#[derive(Debug, Default)]
pub struct Touches {
    processes: FxHashMap<Pid, Pages>,
    owners: FxHashMap<Tid, Pid>,
    shared: Shared,
    /// Pages of which there is news in the present gap that is not told yet.
    pending: BTreeMap<(Pid, u64), News>,
    /// Pages that were touched first outside of gaps, since the last one.
    begun: BTreeSet<(Pid, u64)>,
}

impl Touches {
    /// The process of a thread.
    pub fn owner(&self, tid: Tid) -> Pid {
        self.owners.get(&tid).copied().unwrap_or_default()
    }

    /// Notes accesses by a thread; in a gap, what is news of its pages is to be told.
    pub fn run(&mut self, tid: Tid, accesses: &[Access], in_gap: bool) {
        let pid = self.owner(tid);
        let Self { processes, shared, pending, begun, .. } = self;
        let pages = processes.entry(pid).or_default();
        let mut note = |pages: &mut Pages, page: u64, store: bool| {
            let touch = if store { Touch::Store } else { Touch::Read };
            if !pages.touch(page, touch, shared) {
                return;
            }
            if in_gap {
                add(pending, (pid, page), store);
            } else {
                begun.insert((pid, page));
            }
        };
        for access in accesses {
            let first = access.addr().page().get();
            if !pages.knows(first, access.is_store()) {
                note(pages, first, access.is_store());
            }
            let last = (access.addr().get().wrapping_add(u64::from(access.size() - 1)))
                >> PageSize::BASE_SHIFT;
            if last == first + 1 && !pages.knows(last, access.is_store()) {
                note(pages, last, access.is_store());
            }
        }
    }

    /// What an event does to what was touched. News of a process whose memory it changes is given to `tell` before: the
    /// frames that it gives back were not free to what has been touched.
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
            Event::Advise { pid, .. } => self.tell(Some(pid), tell),
            // What was read before may fault again.
            Event::Protect { pid, range, .. } => {
                self.drop_begun(pid, range);
                self.tell(Some(pid), tell);
            }
            Event::Remap { pid, from, to } => {
                self.drop_begun(pid, from);
                self.drop_begun(pid, to);
                self.tell(Some(pid), tell);
                if let Some(pages) = self.processes.get_mut(&pid) {
                    pages.remap(from, to, &mut self.shared);
                }
            }
            Event::Fork { parent, child } if parent != child => {
                self.tell(Some(parent), tell);
                self.leave(child);
                let Self { processes, shared, .. } = self;
                let copy = processes.get_mut(&parent).map(|pages| pages.fork(shared));
                processes.insert(child, copy.unwrap_or_default());
            }
            Event::Exec { pid } | Event::ProcessExit { pid } => {
                self.drop_begun(pid, everywhere());
                self.tell(Some(pid), tell);
                self.leave(pid);
                self.processes.remove(&pid);
            }
            _ => {}
        }
    }

    fn forget(&mut self, pid: Pid, range: Range<Virtual>, tell: &mut impl FnMut(Event)) {
        self.drop_begun(pid, range);
        self.tell(Some(pid), tell);
        if let Some(pages) = self.processes.get_mut(&pid) {
            pages.forget(range, &mut self.shared);
        }
    }

    fn drop_begun(&mut self, pid: Pid, range: Range<Virtual>) {
        let inside = (pid, range.start.page().get())..(pid, pages_end(range));
        let gone: Vec<_> = self.begun.range(inside).copied().collect();
        gone.iter().for_each(|at| {
            self.begun.remove(at);
        });
    }

    /// A gap begins: tells of the pages that were touched first before it, since the last one. A process mostly goes
    /// on to use all of a page.
    pub fn tell_begun(&mut self, tell: &mut impl FnMut(Event)) {
        let begun = std::mem::take(&mut self.begun).into_iter().map(|place| (place, ()));
        rows(&begun.collect::<Vec<_>>(), |pid, range, ()| tell(Event::Begun { pid, range }));
    }

    /// A process is about to give up its memory: what it shares is the others' alone from now on.
    pub fn leave(&mut self, pid: Pid) {
        if let Some(pages) = self.processes.get_mut(&pid) {
            pages.leave_all(&mut self.shared);
        }
    }

    /// Pages of a process are there, and this is shown of each. What of it is news is to be told. What it shares with
    /// any of `unheard` it may have for itself as that one is gone, which has not been told: where page faults are not
    /// watched, it is no news then.
    pub fn shown(&mut self, pid: Pid, range: Range<Virtual>, shown: Shown, unheard: &[Pid]) {
        for page in range.start.page().get()..pages_end(range) {
            let touch = match shown.faults {
                // The kernel put it beside a page of its file that was read, or read it itself.
                Some(Faults::None) if !shown.own => continue,
                _ if !shown.own => Touch::Read,
                None if unheard.iter().any(|other| self.share(pid, *other, page)) => Touch::Read,
                None => Touch::Own,
                Some(Faults::None) => Touch::Unfaulted,
                Some(Faults::One | Faults::More) => Touch::Store,
            };
            if touch == Touch::Store && shown.faults == Some(Faults::More) {
                self.touched(pid, page, Touch::Read);
            }
            self.touched(pid, page, touch);
        }
    }

    /// Notes what a process did in a gap.
    fn touched(&mut self, pid: Pid, page: u64, touch: Touch) {
        let Self { processes, shared, pending, .. } = self;
        if processes.entry(pid).or_default().touch(page, touch, shared) {
            add(pending, (pid, page), touch != Touch::Read);
        }
    }

    /// Whether two processes share the page that each has at a place.
    fn share(&self, one: Pid, other: Pid, page: u64) -> bool {
        let number = |pid| self.processes.get(&pid).map_or(ALONE, |pages| pages.number(page));
        one != other && number(one) != ALONE && number(one) == number(other)
    }

    /// Tells of what is news: all, or that of a process.
    pub fn tell(&mut self, of: Option<Pid>, tell: &mut impl FnMut(Event)) {
        if self.pending.is_empty() {
            return;
        }
        let told: Vec<((Pid, u64), News)> = match of {
            None => std::mem::take(&mut self.pending).into_iter().collect(),
            Some(pid) => {
                let its = self.pending.range((pid, 0)..=(pid, u64::MAX));
                let told: Vec<_> = its.map(|(at, news)| (*at, *news)).collect();
                told.iter().for_each(|(at, _)| {
                    self.pending.remove(at);
                });
                told
            }
        };
        rows(&told, |pid, range, news| {
            if news != News::Stored {
                tell(Event::Touched { pid, range, store: false });
            }
            if news != News::Read {
                tell(Event::Touched { pid, range, store: true });
            }
        });
    }
}

/// Notes news of a page.
fn add(pending: &mut BTreeMap<(Pid, u64), News>, at: (Pid, u64), store: bool) {
    pending
        .entry(at)
        .and_modify(|news| *news = news.then(store))
        .or_insert_with(|| News::of(store));
}

/// Gives pages in order as rows of pages that are alike.
fn rows<T: PartialEq + Copy>(
    pages: &[((Pid, u64), T)],
    mut give: impl FnMut(Pid, Range<Virtual>, T),
) {
    for row in pages.chunk_by(|((pid, page), kind), ((next_pid, next), next_kind)| {
        pid == next_pid && page + 1 == *next && kind == next_kind
    }) {
        let ((pid, page), kind) = row[0];
        let start = Gva::new(page << PageSize::BASE_SHIFT);
        give(pid, Range::sized(start, (row.len() as u64) << PageSize::BASE_SHIFT), kind);
    }
}

/// The half of the address space that programs have, and more.
fn everywhere() -> Range<Virtual> {
    Range::new(Gva::new(0), Gva::new(u64::MAX >> 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_stream::{Backing, Protection};

    pub(super) fn at(page: u64) -> Gva {
        Gva::new(page << PageSize::BASE_SHIFT)
    }

    pub(super) fn range(first: u64, pages: u64) -> Range<Virtual> {
        Range::new(at(first), at(first + pages))
    }

    #[test]
    fn pages_begun_outside_of_gaps_are_told_as_the_gap_begins_unless_they_go() {
        let mut touches = Touches::default();
        touches.event(&Event::ThreadStart { pid: Pid(1), tid: Tid(1) }, &mut |_| ());
        let load = |page| Access::load(at(page), 8);
        let begun = |touches: &mut Touches| {
            let mut told = Vec::new();
            touches.tell_begun(&mut |event| told.push(event));
            told
        };
        touches.run(Tid(1), &[3, 4, 5, 9, 20, 30, 40].map(load), false);
        touches.event(&Event::Unmap { pid: Pid(1), range: range(9, 1) }, &mut |_| ());
        let protection = Protection::NONE;
        let protect = Event::Protect { pid: Pid(1), range: range(20, 1), protection };
        touches.event(&protect, &mut |_| ());
        let remap = Event::Remap { pid: Pid(1), from: range(30, 1), to: range(40, 1) };
        touches.event(&remap, &mut |_| ());
        assert_eq!(begun(&mut touches), [Event::Begun { pid: Pid(1), range: range(3, 3) }]);
        // What a gap touches first is told as that, and what was known before not at all.
        touches.run(Tid(1), &[50].map(load), true);
        touches.run(Tid(1), &[3, 50, 51].map(load), false);
        assert_eq!(begun(&mut touches), [Event::Begun { pid: Pid(1), range: range(51, 1) }]);
        touches.run(Tid(1), &[60].map(load), false);
        touches.event(&Event::ProcessExit { pid: Pid(1) }, &mut |_| ());
        assert_eq!(begun(&mut touches), []);
    }

    /// Page tables alone show that pages are a process's own.
    const OWN: Shown = Shown { own: true, faults: None };

    fn told(touches: &mut Touches) -> Vec<Event> {
        let mut told = Vec::new();
        touches.tell(None, &mut |event| told.push(event));
        told
    }

    fn touched(pid: Pid, range: Range<Virtual>, store: bool) -> Event {
        Event::Touched { pid, range, store }
    }

    #[test]
    fn what_is_read_and_then_stored_to_in_one_gap_is_told_as_both() {
        let (pid, tid) = (Pid(1), Tid(1));
        let both =
            |first, pages| [false, true].map(|store| touched(pid, range(first, pages), store));
        let mut seen = Touches::default();
        seen.event(&Event::ThreadStart { pid, tid }, &mut |_| ());
        let (load, store) = (|page| Access::load(at(page), 8), |page| Access::store(at(page), 8));
        seen.run(tid, &[load(4), load(3), store(4), store(3), store(5), load(5), load(6)], true);
        let rest = [touched(pid, range(5, 1), true), touched(pid, range(6, 1), false)];
        assert_eq!(told(&mut seen), [both(3, 2), rest].concat());

        let mut watched = Touches::default();
        let show = |touches: &mut Touches, first, pages, own, faults| {
            touches.shown(pid, range(first, pages), Shown { own, faults: Some(faults) }, &[]);
        };
        show(&mut watched, 3, 2, true, Faults::More);
        show(&mut watched, 5, 1, true, Faults::One);
        show(&mut watched, 6, 1, false, Faults::One);
        assert_eq!(told(&mut watched), [both(3, 2), rest].concat());
        // It is nothing new in the next gap; what was read is stored to then.
        show(&mut watched, 3, 3, true, Faults::None);
        show(&mut watched, 6, 1, true, Faults::More);
        assert_eq!(told(&mut watched), [touched(pid, range(6, 1), true)]);
    }

    /// Of a program that copies a table into a larger one and frees the first, both are there at once.
    #[test]
    fn what_was_touched_is_told_before_the_process_gives_anything_back() {
        let (pid, other) = (Pid(1), Pid(2));
        let shown = Shown { own: true, faults: Some(Faults::One) };
        let given_back = Event::Unmap { pid, range: range(64, 8) };
        let mapped = Event::Map {
            pid,
            range: range(64, 8),
            backing: Backing::Anonymous,
            protection: Protection::READ_WRITE,
            fixed: false,
        };
        let advised = Event::Advise { pid, range: range(64, 8), advice: Advice::HugePage };
        for event in [given_back, mapped, advised] {
            let mut touches = Touches::default();
            touches.shown(pid, range(0, 4), shown, &[]);
            touches.shown(other, range(0, 4), shown, &[]);
            let mut before = Vec::new();
            touches.event(&event, &mut |told| before.push(told));
            assert_eq!(before, [touched(pid, range(0, 4), true)], "{event:?}");
            assert_eq!(told(&mut touches), [touched(other, range(0, 4), true)]);
        }
    }

    #[test]
    fn what_the_kernel_mapped_beside_a_page_that_was_read_is_not_told() {
        let pid = Pid(1);
        let mut touches = Touches::default();
        let shown = |faults| Shown { own: false, faults };
        touches.shown(pid, range(0, 1), shown(Some(Faults::One)), &[]);
        touches.shown(pid, range(1, 15), shown(Some(Faults::None)), &[]);
        assert_eq!(told(&mut touches), [touched(pid, range(0, 1), false)]);
        // Where nobody knows, it may have been read.
        touches.shown(pid, range(0, 16), shown(None), &[]);
        assert_eq!(told(&mut touches), [touched(pid, range(1, 15), false)]);
        // What only the kernel stored to is the program's to use.
        touches.shown(pid, range(20, 1), Shown { own: true, faults: Some(Faults::None) }, &[]);
        assert_eq!(told(&mut touches), [touched(pid, range(20, 1), true)]);
    }

    #[test]
    fn the_last_that_has_a_page_after_a_fork_is_told_of_when_its_fault_is_seen() {
        let (parent, child, all) = (Pid(1), Pid(2), range(0, 4));
        let own = |faults| Shown { own: true, faults: Some(faults) };
        let mut touches = Touches::default();
        touches.shown(parent, all, own(Faults::One), &[]);
        touches.event(&Event::Fork { parent, child }, &mut |_| ());
        told(&mut touches);
        // The child is gone: all are the parent's own, of which it stores to one.
        touches.event(&Event::ProcessExit { pid: child }, &mut |_| ());
        touches.shown(parent, range(0, 1), own(Faults::None), &[]);
        touches.shown(parent, range(1, 1), own(Faults::One), &[]);
        touches.shown(parent, range(2, 2), own(Faults::None), &[]);
        assert_eq!(told(&mut touches), [touched(parent, range(1, 1), true)]);
        // A second time it does not fault, and the others do.
        touches.shown(parent, all, own(Faults::One), &[]);
        let others = [range(0, 1), range(2, 2)];
        assert_eq!(told(&mut touches), others.map(|range| touched(parent, range, true)));
    }

    #[test]
    fn what_is_shared_with_a_process_that_may_be_gone_is_no_news() {
        let mut touches = Touches::default();
        let (parent, child, all) = (Pid(1), Pid(2), range(0, 4));
        touches.shown(parent, all, OWN, &[]);
        touches.event(&Event::Fork { parent, child }, &mut |_| ());
        told(&mut touches);
        touches.shown(parent, all, OWN, &[parent, child]);
        assert_eq!(told(&mut touches), []);
        // It did copy a page, and says so itself.
        touches.shown(child, range(1, 1), OWN, &[]);
        assert_eq!(told(&mut touches), [touched(child, range(1, 1), true)]);
        // The other pages are still shared.
        touches.shown(parent, all, OWN, &[parent]);
        assert_eq!(
            told(&mut touches),
            [(0, 1), (2, 2)].map(|(first, pages)| touched(parent, range(first, pages), true))
        );
    }
}
