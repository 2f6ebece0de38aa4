//! Random lives of processes on a chain of kernels under any policy, with a checker: nothing is lost, no frame
//! has two owners, every table equals what it is composed of.

pub mod machines;

use proptest::prelude::*;
use std::collections::BTreeMap;
use strata_addr::space::{Space, Upper};
use strata_addr::{Frame, Gva, Range};
use strata_paging::{Format, Radix, TableId, X86, index};
use strata_stack::{
    Faulted, Feedback, NodeId, Owner, PlacementCounts, Policy, SpaceId, Stack, StackConfig,
    TradeCounts,
};
use strata_stream::{Advice, Backing, Event, Pid, Protection};

/// Pages the processes use: 16 MiB, from an address that is not aligned to a huge page's region.
pub const PAGES: u64 = 4096;

#[derive(Clone, Debug)]
pub enum Op {
    Touch {
        pid: u32,
        page: u64,
        store: bool,
    },
    Sweep {
        pid: u32,
        region: u64,
    },
    Map {
        pid: u32,
        page: u64,
        pages: u64,
        fixed: bool,
    },
    Unmap {
        pid: u32,
        page: u64,
        pages: u64,
    },
    Remap {
        pid: u32,
        from: u64,
        to: u64,
        pages: u64,
    },
    DontNeed {
        pid: u32,
        page: u64,
        pages: u64,
    },
    Protect {
        pid: u32,
        page: u64,
        pages: u64,
        write: bool,
    },
    Fork {
        parent: u32,
    },
    Exit {
        pid: u32,
    },
    Wake,
    Collapse {
        above_host: usize,
        page: u64,
    },
    Migrate {
        above_host: usize,
        page: u64,
    },
    Promote {
        page: u64,
    },
    /// The balloon of the guest that acts takes so many pages, or gives them back.
    Balloon {
        pages: i64,
    },
    /// The same is stored to each of some pages.
    Alike {
        pid: u32,
        page: u64,
        pages: u64,
        content: u64,
    },
    /// ksmd looks at so many pages.
    Ksm {
        pages: u64,
    },
}

pub fn op() -> impl Strategy<Value = Op> {
    let pid = 0u32..3;
    let page = 0..PAGES;
    let pages = prop_oneof![1u64..64, Just(512), Just(1024), 1u64..1500];
    prop_oneof![
        8 => (pid.clone(), page.clone(), any::<bool>())
            .prop_map(|(pid, page, store)| Op::Touch { pid, page, store }),
        3 => (pid.clone(), 0..PAGES / 512).prop_map(|(pid, region)| Op::Sweep { pid, region }),
        3 => (pid.clone(), page.clone(), pages.clone(), any::<bool>())
            .prop_map(|(pid, page, pages, fixed)| Op::Map { pid, page, pages, fixed }),
        1 => (pid.clone(), page.clone(), pages.clone())
            .prop_map(|(pid, page, pages)| Op::Unmap { pid, page, pages }),
        1 => (pid.clone(), page.clone(), page.clone(), pages.clone())
            .prop_map(|(pid, from, to, pages)| Op::Remap { pid, from, to, pages }),
        1 => (pid.clone(), page.clone(), pages.clone())
            .prop_map(|(pid, page, pages)| Op::DontNeed { pid, page, pages }),
        1 => (pid.clone(), page.clone(), pages, any::<bool>())
            .prop_map(|(pid, page, pages, write)| Op::Protect { pid, page, pages, write }),
        1 => (0u32..2).prop_map(|parent| Op::Fork { parent }),
        1 => pid.prop_map(|pid| Op::Exit { pid }),
        1 => Just(Op::Wake),
        2 => (0usize..4, page.clone()).prop_map(|(above_host, page)| Op::Collapse { above_host, page }),
        2 => (0usize..4, page.clone()).prop_map(|(above_host, page)| Op::Migrate { above_host, page }),
        1 => page.prop_map(|page| Op::Promote { page }),
        1 => (-1000i64..1000).prop_map(|pages| Op::Balloon { pages }),
        2 => (0u32..3, 0..PAGES, 1u64..200, 0u64..3)
            .prop_map(|(pid, page, pages, content)| Op::Alike { pid, page, pages, content }),
        2 => prop_oneof![Just(100_000), 1..5000u64].prop_map(|pages| Op::Ksm { pages }),
    ]
}

pub struct World {
    pub stack: Stack,
    /// The kernel whose processes act now.
    pub guest: NodeId,
    policy: Box<dyn Policy>,
    /// What every page of every process must hold, by guest, process and traced page.
    expected: BTreeMap<(NodeId, u32, u64), u64>,
    next_tag: u64,
    now: f64,
    /// What hardware shows between two times that background work is done.
    pub feedback: Feedback,
}

fn gva(page: u64) -> Gva {
    Gva::new(0x4000_0000 + 0x5000 + page * 4096)
}

fn range(page: u64, pages: u64) -> Range<strata_addr::space::Virtual> {
    Range::new(gva(page), gva((page + pages).min(PAGES)))
}

/// Marks the entry of a mapped page, as a walk does.
fn mark_accessed<U: Space, L: Space>(table: &mut Radix<X86, U, L>, addr: u64) {
    let (mut at, mut level) = (TableId::ROOT, table.levels());
    loop {
        let index = index(addr, level);
        if X86::is_leaf(table.entry(at, index), level) {
            table.mark(at, index, false);
            return;
        }
        (at, level) = (table.child(at, index), level - 1);
    }
}

impl World {
    fn of(config: StackConfig, mut policy: Box<dyn Policy>) -> Self {
        let mut stack = Stack::build(&config, policy.as_mut(), &|| false).unwrap();
        stack.track_contents();
        let guests: Vec<_> = stack.guests().collect();
        let (expected, guest) = (BTreeMap::new(), guests[0]);
        let feedback = Feedback { frequency: 1e9, ..Feedback::default() };
        let mut world = Self { stack, guest, policy, expected, next_tag: 1, now: 0.0, feedback };
        // The first one acts first.
        for guest in guests.into_iter().rev() {
            world.guest = guest;
            world.event(Event::ProcessStart { pid: Pid(0) });
            world.map(0, 0, PAGES, false);
        }
        world
    }

    /// What happens next happens to the processes of this guest, by number.
    pub fn act_in(&mut self, guest: usize) {
        let guests: Vec<_> = self.stack.guests().collect();
        self.guest = guests[guest % guests.len()];
    }

    /// What the policy says of the colours of the guest's memory.
    pub fn placement(&self) -> PlacementCounts {
        self.policy.placement(&self.stack, self.guest).expect("a policy of colours")
    }

    /// What the policy chose between rows and colours for the guest's memory.
    pub fn trade(&self) -> TradeCounts {
        self.policy.trade(&self.stack, self.guest).expect("a policy that chooses")
    }

    /// A VM ends, and with it what runs in it.
    pub fn end_vm(&mut self, vm: NodeId) {
        self.stack.end_vm(self.policy.as_mut(), vm).unwrap();
        let alive: Vec<_> = self.stack.nodes().collect();
        self.expected.retain(|(guest, ..), _| alive.contains(guest));
    }

    fn event(&mut self, event: Event) {
        self.stack.event(self.policy.as_mut(), self.guest, &event).unwrap();
    }

    fn alive(&self, pid: u32) -> bool {
        self.stack.process_space(self.guest, Pid(pid)).is_some()
    }

    fn forget(&mut self, pid: u32, page: u64, pages: u64) {
        let here = (self.guest, pid);
        self.expected
            .retain(|(guest, p, at), _| (*guest, *p) != here || !(page..page + pages).contains(at));
    }

    fn map(&mut self, pid: u32, page: u64, pages: u64, fixed: bool) {
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        let range = range(page, pages);
        self.event(Event::Map { pid: Pid(pid), range, backing, protection, fixed });
        self.forget(pid, page, pages);
    }

    /// Touches a page as hardware would: faults until it gets through, then checks the content.
    pub fn touch(&mut self, pid: u32, page: u64, store: bool) {
        let tag = store.then_some(self.next_tag);
        self.next_tag += u64::from(store);
        self.access(pid, page, tag);
    }

    /// A page is read, or this is stored to it.
    pub fn access(&mut self, pid: u32, page: u64, tag: Option<u64>) {
        let store = tag.is_some();
        let Some(space) = self.stack.process_space(self.guest, Pid(pid)) else { return };
        let addr = self.stack.relocate(self.guest, space, gva(page));
        let upper: Frame<Upper> = addr.page().cross();
        for attempt in 0.. {
            assert!(attempt < 8, "the access never gets through");
            let shadowed = self.stack.has_shadow_paging(self.guest);
            let tables = self.stack.hardware_tables(self.guest, space).unwrap();
            let (guest, second) = tables;
            let twice = shadowed && second.is_none();
            let mapping = guest.mapping(addr);
            if shadowed && mapping.is_none_or(|mapping| store && !mapping.rights.write) {
                let policy = self.policy.as_mut();
                self.stack.shadow_fault(policy, self.guest, space, upper, store).unwrap();
                continue;
            }
            let Some(mapping) = mapping else {
                let done = self
                    .stack
                    .guest_fault(self.policy.as_mut(), self.guest, space, upper, store)
                    .unwrap();
                assert!(matches!(done, Faulted::Mapped(_)));
                continue;
            };
            if store && !mapping.rights.write {
                // A read-only area that is stored to all the same: the stream is the truth.
                self.stack
                    .guest_fault(self.policy.as_mut(), self.guest, space, upper, true)
                    .unwrap();
                continue;
            }
            mark_accessed(guest, addr.get());
            let frame = mapping.frame + addr.page().index_in(mapping.size);
            let lacks = second.is_some_and(|table| {
                table.mapping(frame.addr()).is_none_or(|m| store && !m.rights.write)
            });
            if lacks && shadowed {
                let policy = self.policy.as_mut();
                self.stack.fault_below_shadow(policy, self.guest, frame.cross(), store).unwrap();
                continue;
            }
            if lacks {
                self.stack
                    .second_stage_fault(self.policy.as_mut(), self.guest, frame.cross(), store)
                    .unwrap();
                continue;
            }
            let frame = frame.cross();
            // A shadow leads to frames of the hypervisor that keeps it.
            let node = match (shadowed, twice) {
                (true, true) => NodeId::HOST,
                (true, false) => self.stack.below(self.guest).unwrap(),
                (false, _) => self.guest,
            };
            let found = self.stack.read_content(node, frame);
            let expected = self.expected.get(&(self.guest, pid, page)).copied().unwrap_or(0);
            assert_eq!(found, expected, "process {pid}, page {page:#x}");
            if let Some(tag) = tag {
                self.stack.write_content(node, frame, tag);
                self.expected.insert((self.guest, pid, page), tag);
            }
            return;
        }
    }

    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::Touch { pid, page, store } => self.touch(pid, page, store),
            Op::Sweep { pid, region } => {
                for page in region * 512..(region + 1) * 512 {
                    self.touch(pid, page, true);
                }
            }
            Op::Map { pid, page, pages, fixed } if self.alive(pid) => {
                self.map(pid, page, pages, fixed);
            }
            Op::Unmap { pid, page, pages } if self.alive(pid) => {
                self.event(Event::Unmap { pid: Pid(pid), range: range(page, pages) });
                self.forget(pid, page, pages);
            }
            Op::Remap { pid, from, to, pages } if self.alive(pid) => {
                let pages = pages.min(PAGES - from.max(to));
                let (old, new) = (range(from, pages), range(to, pages));
                if old.is_empty() || !old.intersection(&new).is_empty() {
                    return;
                }
                self.event(Event::Remap { pid: Pid(pid), from: old, to: new });
                self.forget(pid, to, pages);
                for page in 0..pages {
                    if let Some(tag) = self.expected.remove(&(self.guest, pid, from + page)) {
                        self.expected.insert((self.guest, pid, to + page), tag);
                    }
                }
            }
            Op::DontNeed { pid, page, pages } if self.alive(pid) => {
                let (pid_, range) = (Pid(pid), range(page, pages));
                self.event(Event::Advise { pid: pid_, range, advice: Advice::DontNeed });
                self.forget(pid, page, pages);
            }
            Op::Protect { pid, page, pages, write } if self.alive(pid) => {
                let protection = Protection { read: true, write, execute: false };
                let range = range(page, pages);
                self.event(Event::Protect { pid: Pid(pid), range, protection });
            }
            Op::Fork { parent } if self.alive(parent) && !self.alive(2) => {
                self.event(Event::Fork { parent: Pid(parent), child: Pid(2) });
                let of_parent = (self.guest, parent, 0)..(self.guest, parent + 1, 0);
                let copies: Vec<_> = self
                    .expected
                    .range(of_parent)
                    .map(|((guest, _, at), tag)| ((*guest, 2, *at), *tag))
                    .collect();
                self.expected.extend(copies);
            }
            Op::Exit { pid } if self.alive(pid) && pid > 0 => {
                self.event(Event::ProcessExit { pid: Pid(pid) });
                self.forget(pid, 0, PAGES);
            }
            // khugepaged and the daemons of the policy.
            Op::Wake => {
                self.now += 1.0;
                let vms: Vec<_> = self.stack.vms_of_host().collect();
                for vm in vms {
                    self.stack.wake(self.policy.as_mut(), vm, self.now, self.feedback).unwrap();
                }
            }
            Op::Collapse { above_host, page } => {
                let Some(node) = self.on_the_way_down(above_host) else { return };
                let (space, page) = self.somewhere(node, page);
                // Most regions cannot be collapsed; what matters is that nothing is lost.
                self.stack.collapse(self.policy.as_mut(), node, space, page, None).unwrap();
            }
            Op::Migrate { above_host, page } => {
                let Some(node) = self.on_the_way_down(above_host) else { return };
                let (space, page) = self.somewhere(node, page);
                let memory = self.stack.kernel(node).memory();
                let free = (0..memory.frames())
                    .map(|i| Frame::new((i * 7919 + page.get()) % memory.frames()))
                    .find(|frame| memory.is_free(*frame, 0));
                if let Some(to) = free {
                    self.stack.migrate(self.policy.as_mut(), node, space, page, to).unwrap();
                }
            }
            Op::Promote { page } => {
                let page = Frame::new(page);
                self.stack.promote_shadow(self.policy.as_mut(), self.guest, page).unwrap();
            }
            Op::Alike { pid, page, pages, content } => {
                let end = (page + pages).min(PAGES);
                (page..end).for_each(|page| self.access(pid, page, Some(content << 40)));
            }
            Op::Ksm { pages } => self.ksm(pages),
            Op::Balloon { pages } => {
                self.balloon(pages);
            }
            _ => {}
        }
    }

    /// ksmd looks at so many pages: from the beginning, twice at all of them if there are not so many.
    pub fn ksm(&mut self, pages: u64) {
        self.stack.scan_for_equal_pages(self.policy.as_mut(), pages).unwrap();
    }

    /// The balloon of the guest that acts takes so many pages or gives them back; returns how many it did.
    pub fn balloon(&mut self, pages: i64) -> u64 {
        self.stack.balloon(self.policy.as_mut(), self.guest, pages).unwrap()
    }

    /// The guest or a kernel below it, so many above the host.
    fn on_the_way_down(&self, above_host: usize) -> Option<NodeId> {
        let path: Vec<_> = self.stack.path_down(self.guest).collect();
        path.into_iter().rev().nth(above_host)
    }

    /// A page of the guest's first process, or of a VM process of a kernel below it.
    fn somewhere(&self, node: NodeId, page: u64) -> (SpaceId, Frame<Upper>) {
        if node == self.guest {
            let space = self.stack.process_space(self.guest, Pid(0)).unwrap();
            let addr = self.stack.relocate(self.guest, space, gva(page));
            return (space, addr.page().cross());
        }
        let mut path = self.stack.path_down(self.guest);
        let vm = path.find(|vm| self.stack.below(*vm) == Some(node)).unwrap();
        (self.stack.vm_process(vm), self.stack.hva(vm, Frame::new(page)))
    }

    pub fn check(&self) {
        self.stack.check_composition();
        self.stack.check_shadows();
        for node in self.stack.nodes() {
            let kernel = self.stack.kernel(node);
            kernel.memory().check().unwrap();
            let mut mapped: BTreeMap<u64, u32> = BTreeMap::new();
            for (id, space) in kernel.spaces() {
                for (page, mapping) in space.table().mapped(space.table().everything()) {
                    for i in 0..mapping.size.base_pages() {
                        let frame = mapping.frame + i;
                        *mapped.entry(frame.get()).or_default() += 1;
                        match kernel.owner(frame) {
                            Owner::Page(space, at) => assert_eq!((space, at), (id, page + i)),
                            Owner::Shared { .. } => {}
                            other => panic!("{frame:?} is mapped but belongs to {other:?}"),
                        }
                    }
                }
            }
            for (frame, count) in mapped {
                match kernel.owner(Frame::new(frame)) {
                    Owner::Shared { mappings } => assert_eq!(mappings, count),
                    _ => assert_eq!(count, 1, "frame {frame:#x} is mapped twice"),
                }
            }
        }
    }

    pub fn finish(mut self) {
        let touched: Vec<_> = self.expected.keys().copied().collect();
        for (guest, pid, page) in touched {
            self.guest = guest;
            self.touch(pid, page, false);
        }
        self.check();
        let guests: Vec<_> = self.stack.guests().collect();
        for guest in guests {
            self.guest = guest;
            let ballooned = self.stack.ballooned(guest);
            assert_eq!(self.balloon(i64::MIN + 1), ballooned, "a balloon gives back all it has");
            for pid in 0..3 {
                self.event(Event::ProcessExit { pid: Pid(pid) });
            }
        }
        self.check();
        for guest in self.stack.guests() {
            let guest = self.stack.kernel(guest);
            let others = (0..guest.memory().frames())
                .filter(|i| {
                    !matches!(
                        guest.owner(Frame::new(*i)),
                        Owner::Nobody | Owner::Movable | Owner::Pinned
                    )
                })
                .count();
            assert_eq!(others, 0, "a guest's memory is as it was before any process");
        }
    }
}
