//! News of random lives of processes, against that of a twin which goes page by page.

use super::tests::{at, range};
use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use strata_stream::{Backing, Protection};

const PROCESSES: u32 = 4;

/// How a touch comes to be known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Seen,
    /// By page tables alone, or by page faults as well.
    Shown {
        watched: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Touch { pid: u32, page: u64, store: bool, how: How },
    Fork { parent: u32, child: u32 },
    Unmap { pid: u32, first: u64, pages: u64 },
    Map { pid: u32, first: u64, pages: u64 },
    Remap { pid: u32, first: u64, pages: u64, to: u64, more: u64 },
    Leave { pid: u32 },
    Exit { pid: u32 },
}

fn act() -> impl Strategy<Value = Act> {
    let pid = || 0..PROCESSES;
    // Around the border of a huge page.
    let page = || 505..520u64;
    let pages = || prop_oneof![8 => 1..8u64, 1 => 500..1600u64];
    let how =
        prop_oneof![Just(How::Seen), any::<bool>().prop_map(|watched| How::Shown { watched })];
    prop_oneof![
        12 => (pid(), page(), any::<bool>(), how)
            .prop_map(|(pid, page, store, how)| Act::Touch { pid, page, store, how }),
        3 => (pid(), pid()).prop_map(|(parent, child)| Act::Fork { parent, child }),
        1 => (pid(), page(), pages())
            .prop_map(|(pid, first, pages)| Act::Unmap { pid, first, pages }),
        1 => (pid(), page(), pages())
            .prop_map(|(pid, first, pages)| Act::Map { pid, first, pages }),
        1 => (pid(), page(), 1..8u64, 2000..2010u64, 1..8u64).prop_map(
            |(pid, first, pages, to, more)| Act::Remap { pid, first, pages, to, more }
        ),
        1 => pid().prop_map(|pid| Act::Leave { pid }),
        1 => pid().prop_map(|pid| Act::Exit { pid }),
    ]
}

/// The same page by page: what is in each page that was touched, a number of its own if it was stored to.
#[derive(Default)]
struct Naive {
    pages: BTreeMap<(u32, u64), Option<u64>>,
    made: u64,
    /// Pages that a fork left read-only.
    kept: BTreeSet<(u32, u64)>,
}

impl Naive {
    fn make(&mut self, pid: u32, page: u64) {
        self.made += 1;
        self.pages.insert((pid, page), Some(self.made));
    }

    /// Whether it is news: to page tables alone, a store to what only this process has still is none.
    fn touch(&mut self, pid: u32, page: u64, store: bool, tables_alone: bool) -> bool {
        let was_kept = store && self.kept.remove(&(pid, page)) && !tables_alone;
        let first = !self.pages.contains_key(&(pid, page));
        let before = *self.pages.entry((pid, page)).or_default();
        let others = self.pages.values().filter(|content| **content == before).count() > 1;
        let is_new = store && (before.is_none() || others);
        if is_new {
            self.make(pid, page);
        }
        first || is_new || was_kept
    }

    fn take(&mut self, pid: u32, first: u64, pages: u64) {
        let stays = |of: &u32, page: &u64| *of != pid || !(first..first + pages).contains(page);
        self.pages.retain(|(of, page), _| stays(of, page));
        self.kept.retain(|(of, page)| stays(of, page));
    }

    /// Takes pages as they are to another process, or another place.
    fn put(&mut self, pid: u32, page: u64, content: Option<u64>, kept: bool) {
        self.pages.insert((pid, page), content);
        if kept {
            self.kept.insert((pid, page));
        }
    }

    fn of(&self, pid: u32) -> Vec<(u64, Option<u64>)> {
        let its = self.pages.range((pid, 0)..(pid, u64::MAX));
        its.map(|((_, page), content)| (*page, *content)).collect()
    }
}

proptest! {
    #[test]
    fn news_is_that_of_a_page_by_page_twin(acts in prop::collection::vec(act(), 0..80)) {
        let (mut touches, mut naive) = (Touches::default(), Naive::default());
        for pid in 0..PROCESSES {
            touches.event(&Event::ThreadStart { pid: Pid(pid), tid: Tid(pid) }, &mut |_| ());
        }
        for act in acts {
            let mut told = BTreeSet::new();
            let mut tell = |event| {
                if let Event::Touched { pid, range, store } = event {
                    let pages = range.start.page().get()..range.end.page().get();
                    told.extend(pages.map(|page| (pid.0, page, store)));
                }
            };
            let mut expected = BTreeSet::new();
            match act {
                Act::Touch { pid, page, store, how } => {
                    match how {
                        How::Shown { watched } => {
                            let faults = watched.then_some(Faults::One);
                            let shown = Shown { own: store, faults };
                            touches.shown(Pid(pid), range(page, 1), shown, &[]);
                        }
                        How::Seen if store => {
                            touches.run(Tid(pid), &[Access::store(at(page), 8)], true);
                        }
                        How::Seen => {
                            touches.run(Tid(pid), &[Access::load(at(page), 8)], true);
                        }
                    }
                    let tables_alone = how == How::Shown { watched: false };
                    if naive.touch(pid, page, store, tables_alone) {
                        expected.insert((pid, page, store));
                    }
                }
                Act::Fork { parent, child } => {
                    let (parent_pid, child_pid) = (Pid(parent), Pid(child));
                    touches.event(
                        &Event::Fork { parent: parent_pid, child: child_pid },
                        &mut tell,
                    );
                    if parent != child {
                        naive.take(child, 0, u64::MAX);
                        for (page, content) in naive.of(parent) {
                            for pid in [parent, child] {
                                naive.put(pid, page, content, content.is_some());
                            }
                        }
                    }
                }
                Act::Unmap { pid, first, pages } => {
                    let event = Event::Unmap { pid: Pid(pid), range: range(first, pages) };
                    touches.event(&event, &mut tell);
                    naive.take(pid, first, pages);
                }
                Act::Map { pid, first, pages } => {
                    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
                    let (pid, range) = (Pid(pid), range(first, pages));
                    let event = Event::Map { pid, range, backing, protection, fixed: true };
                    touches.event(&event, &mut tell);
                    naive.take(pid.0, first, pages);
                }
                Act::Remap { pid, first, pages, to, more } => {
                    let (from_range, to_range) = (range(first, pages), range(to, more));
                    let event = Event::Remap { pid: Pid(pid), from: from_range, to: to_range };
                    touches.event(&event, &mut tell);
                    let moved: Vec<_> = naive
                        .of(pid)
                        .into_iter()
                        .filter(|(page, _)| (first..first + pages.min(more)).contains(page))
                        .map(|(page, content)| (page, content, naive.kept.contains(&(pid, page))))
                        .collect();
                    naive.take(pid, first, pages);
                    naive.take(pid, to, more);
                    for (page, content, kept) in moved {
                        naive.put(pid, page - first + to, content, kept);
                    }
                }
                Act::Leave { pid } => {
                    touches.leave(Pid(pid));
                    for (page, content) in naive.of(pid) {
                        if content.is_some() {
                            naive.make(pid, page);
                        }
                        naive.kept.remove(&(pid, page));
                    }
                }
                Act::Exit { pid } => {
                    touches.event(&Event::ProcessExit { pid: Pid(pid) }, &mut tell);
                    naive.take(pid, 0, u64::MAX);
                }
            }
            touches.tell(None, &mut tell);
            prop_assert_eq!(told, expected, "{:?}", act);
        }
        for pid in 0..PROCESSES {
            touches.event(&Event::ProcessExit { pid: Pid(pid) }, &mut |_| ());
        }
        let Shared { sharers, free } = touches.shared;
        prop_assert!(sharers.iter().all(|sharers| *sharers == 0));
        prop_assert_eq!(free.len(), sharers.len() - 1, "no number is lost or given out twice");
    }
}
