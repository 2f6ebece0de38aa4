//! Single habits of Linux that the layers keep.

mod files;
mod huge_pages;
mod hypervisors;

use crate::world::machines;
use strata_addr::{Frame, Gva, Range, space::Lower, space::Upper, space::Virtual};
use strata_nested::Instructions;
use strata_stack::{
    AlignAreas, AlignerParameters, BuildError, Collapsed, Costs, ExitCosts, ExitCounts, ExitReason,
    Flush, Found, Kernel, KernelSettings, MemoryParameters, NodeId, Owner, PageFault, Placement,
    Policy, Position, Promotion, SecondStageWrites, SpaceId, Stack, StackConfig, ThpMode,
    ThpParameters, Virtualization, VmAdvice,
};
use strata_stream::{Advice, Backing, Event, Pid, Protection, Tid};

const MIB: u64 = 1 << 20;

const PARENT: Pid = Pid(1);

const CHILD: Pid = Pid(2);

/// Linux, whose faults take huge pages or not.
struct Linux {
    huge_faults: bool,
}

impl Policy for Linux {
    fn settings(&mut self, _: Position) -> KernelSettings {
        KernelSettings {
            thp: ThpMode::Always,
            align_areas: AlignAreas::Never,
            fragmented: true,
            coloured: false,
        }
    }

    fn place(&mut self, _: NodeId, _: &mut Kernel, _: &PageFault) -> Placement {
        if self.huge_faults { Placement::Linux } else { Placement::Base }
    }
}

/// Kernels of which each runs on the one before: memory in bytes and FMFI of each.
fn config(kernels: &[(u64, f64)], thp: ThpParameters) -> StackConfig {
    let kernels = StackConfig::chain(kernels, 1);
    StackConfig { thp, colours: None, ..machines::config(kernels) }
}

struct Guest {
    stack: Stack,
    policy: Linux,
}

impl Guest {
    fn new(huge_faults: bool, thp: ThpParameters) -> Self {
        let config = config(&[(64 * MIB, 0.0)], thp);
        let mut policy = Linux { huge_faults };
        let stack = Stack::build(&config, &mut policy, &|| false).unwrap();
        Self { stack, policy }
    }

    fn event(&mut self, event: Event) {
        self.stack.event(&mut self.policy, NodeId::HOST, &event).unwrap();
    }

    /// A process with an area of this many pages from [`page`] 0, all touched.
    fn with_area(huge_faults: bool, thp: ThpParameters, pages: u64) -> Self {
        let mut guest = Self::new(huge_faults, thp);
        guest.event(Event::ProcessStart { pid: PARENT });
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        let range = range(0, pages);
        guest.event(Event::Map { pid: PARENT, range, backing, protection, fixed: true });
        (0..pages).for_each(|at| guest.store(PARENT, at));
        guest
    }

    fn space(&self, pid: Pid) -> SpaceId {
        self.stack.process_space(NodeId::HOST, pid).unwrap()
    }

    fn store(&mut self, pid: Pid, at: u64) {
        let space = self.space(pid);
        self.stack.guest_fault(&mut self.policy, NodeId::HOST, space, page(at), true).unwrap();
    }

    fn is_huge(&self, pid: Pid) -> bool {
        self.stack.kernel(NodeId::HOST).is_huge(self.space(pid), page(0))
    }

    fn frame(&self, pid: Pid, at: u64) -> Option<u64> {
        let kernel = self.stack.kernel(NodeId::HOST);
        kernel.frame_behind(self.space(pid), page(at)).map(Frame::get)
    }
}

fn page(at: u64) -> Frame<Upper> {
    Gva::new(0x4000_0000).page().cross() + at
}

fn range(at: u64, pages: u64) -> Range<Virtual> {
    Range::sized(Gva::new(0x4000_0000 + (at << 12)), pages << 12)
}

#[test]
fn one_call_drops_translations_once() {
    let mut guest = Guest::with_area(false, ThpParameters::default(), 1024);
    let drained = |guest: &mut Guest| guest.stack.drain_flushes().collect::<Vec<_>>();
    drained(&mut guest);
    guest.event(Event::Fork { parent: PARENT, child: CHILD });
    assert_eq!(drained(&mut guest).len(), 1, "fork");
    guest.event(Event::ProcessExit { pid: CHILD });
    (0..1024).for_each(|at| guest.store(PARENT, at));
    drained(&mut guest);
    let protection = Protection { write: false, ..Protection::READ_WRITE };
    guest.event(Event::Protect { pid: PARENT, range: range(0, 1024), protection });
    assert_eq!(drained(&mut guest).len(), 1, "mprotect");
    guest.event(Event::Unmap { pid: PARENT, range: range(100, 900) });
    let [Flush::Pages(_, change)] = drained(&mut guest)[..] else { panic!("munmap") };
    assert_eq!((change.page, change.pages), (page(100), 900));
}

#[test]
fn page_tables_are_made_of_booked_memory_when_there_is_no_other() {
    let mut guest = Guest::new(true, ThpParameters::default());
    let memory = guest.stack.kernel_mut(NodeId::HOST).memory_mut();
    for region in 0..32 {
        assert!(memory.reserve_region(Frame::new(region * 512)));
    }
    assert_eq!(memory.free_frames(), 0);
    guest.event(Event::ProcessStart { pid: PARENT });
    assert_eq!(guest.stack.kernel(NodeId::HOST).memory().reserved_regions(), 0);
}

#[test]
fn what_linux_refuses_changes_nothing() {
    let mut guest = Guest::with_area(true, ThpParameters::default(), 1024);
    let before = (guest.frame(PARENT, 0), guest.frame(PARENT, 1000));
    let (from, to) = (range(0, 512), range(256, 512));
    guest.event(Event::Remap { pid: PARENT, from, to });
    guest.event(Event::Remap { pid: PARENT, from, to: from });
    guest.event(Event::Fork { parent: PARENT, child: PARENT });
    guest.event(Event::Unmap { pid: PARENT, range: range(0, 0) });
    let kernel_half = Range::new(Gva::new(1 << 63), Gva::new(u64::MAX));
    guest.event(Event::Unmap { pid: PARENT, range: kernel_half });
    assert_eq!((guest.frame(PARENT, 0), guest.frame(PARENT, 1000)), before);
    assert!(guest.is_huge(PARENT));
}

#[test]
fn a_thread_is_in_the_space_of_its_process_as_long_as_both_are() {
    let mut guest = Guest::new(false, ThpParameters::default());
    let space_of = |guest: &Guest, tid| guest.stack.thread_space(NodeId::HOST, Tid(tid));
    for (pid, tids) in [(PARENT, [10, 11]), (CHILD, [20, 21])] {
        guest.event(Event::ProcessStart { pid });
        for tid in tids {
            guest.event(Event::ThreadStart { pid, tid: Tid(tid) });
        }
    }
    let spaces = [PARENT, CHILD].map(|pid| guest.space(pid));
    assert_ne!(spaces[0], spaces[1]);
    let of_all = [10, 11, 20, 21].map(|tid| space_of(&guest, tid).unwrap());
    assert_eq!(of_all, [spaces[0], spaces[0], spaces[1], spaces[1]]);
    guest.event(Event::ThreadExit { tid: Tid(10) });
    guest.event(Event::ProcessExit { pid: CHILD });
    let left = [10, 11, 20, 21, 30].map(|tid| space_of(&guest, tid));
    assert_eq!(left, [None, Some(spaces[0]), None, None, None]);
}

/// A host whose work costs other than it does by default.
fn costing(costs: Costs) -> Stack {
    let config = StackConfig { costs, ..config(&[(64 * MIB, 0.0)], ThpParameters::default()) };
    Stack::build(&config, &mut Linux { huge_faults: false }, &|| false).unwrap()
}

#[test]
fn policies_reckon_with_the_costs_that_are_set() {
    let costs = Costs { scan: 7, copy: 11, ..Costs::default() };
    assert_eq!(*costing(costs.clone()).costs(), costs);
}

#[test]
fn what_a_policy_scans_is_background_work() {
    let mut stack = costing(Costs { scan: 7, ..Costs::default() });
    let before = stack.background_cycles();
    stack.charge_scan(512);
    stack.charge_scan(3);
    assert_eq!(stack.background_cycles() - before, 515 * 7);
}
