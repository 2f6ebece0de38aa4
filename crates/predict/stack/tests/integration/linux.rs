//! Single habits of Linux that the layers keep.

use strata_addr::{Frame, Gva, Range, space::Lower, space::Upper, space::Virtual};
use strata_nested::Instructions;
use strata_stack::{
    AlignAreas, AlignerParameters, BalloonParameters, BuildError, Collapsed, ColouredParameters,
    Costs, ExitCosts, ExitCounts, ExitReason, Flush, Found, Kernel, KernelSettings, KsmParameters,
    MemoryParameters, NodeId, Owner, PageFault, Placement, Policy, Position, Promotion,
    SecondStageWrites, SpaceId, Stack, StackConfig, ThpMode, ThpParameters, Virtualization,
    VmAdvice,
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
    StackConfig {
        paging: strata_stack::Paging::Nested,
        kernels: StackConfig::chain(kernels, 1),
        levels: 4,
        reused: false,
        costs: Costs::default(),
        exits: ExitCosts::default(),
        virtualization: Virtualization::default(),
        thp,
        start: MemoryParameters::default(),
        aligner: AlignerParameters::default(),
        colours: None,
        coloured: ColouredParameters::default(),
        balloon: BalloonParameters::default(),
        ksm: KsmParameters::default(),
    }
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
fn a_huge_page_outlives_a_child_that_ended() {
    let mut guest = Guest::with_area(true, ThpParameters::default(), 512);
    assert!(guest.is_huge(PARENT));
    guest.event(Event::Fork { parent: PARENT, child: CHILD });
    guest.event(Event::ProcessExit { pid: CHILD });
    guest.store(PARENT, 7);
    assert!(guest.is_huge(PARENT), "nobody shares it any more");
    assert_eq!(guest.stack.kernel(NodeId::HOST).counters().demotions, 0);
    guest.event(Event::Fork { parent: PARENT, child: CHILD });
    guest.store(PARENT, 7);
    assert!(!guest.is_huge(PARENT) && guest.is_huge(CHILD), "one page of it is copied");
    guest.event(Event::ProcessExit { pid: CHILD });
    guest.stack.kernel(NodeId::HOST).memory().check().unwrap();
}

#[test]
fn a_fault_takes_no_huge_page_beyond_the_end_of_its_area() {
    let guest = Guest::with_area(true, ThpParameters::default(), 700);
    let (kernel, space) = (guest.stack.kernel(NodeId::HOST), guest.space(PARENT));
    let is_huge = [0, 511, 512, 699].map(|at| kernel.is_huge(space, page(at)));
    assert_eq!(is_huge, [true, true, false, false]);
    assert_eq!([699, 700].map(|at| guest.frame(PARENT, at).is_some()), [true, false]);
}

/// Linux, `move_page_tables`.
#[test]
fn a_huge_page_moves_whole_where_it_lies_alike_and_page_by_page_elsewhere() {
    for (to, is_whole) in [(4096, true), (4097, false)] {
        let mut guest = Guest::with_area(true, ThpParameters::default(), 512);
        let frames = |guest: &Guest, from: u64| -> Vec<_> {
            (from..from + 512).map(|at| guest.frame(PARENT, at)).collect()
        };
        let before = frames(&guest, 0);
        guest.event(Event::Remap { pid: PARENT, from: range(0, 512), to: range(to, 512) });
        assert_eq!(frames(&guest, 0), [None; 512]);
        assert_eq!(frames(&guest, to), before, "to {to}: the same frames in the same order");
        let (kernel, space) = (guest.stack.kernel(NodeId::HOST), guest.space(PARENT));
        assert_eq!(kernel.is_huge(space, page(to)), is_whole);
        for (at, frame) in (to..).zip(before.iter().flatten()) {
            assert_eq!(kernel.owner(Frame::new(*frame)), Owner::Page(space, page(at)));
        }
        kernel.memory().check().unwrap();
    }
}

#[test]
fn khugepaged_copies_shared_pages_up_to_its_limit() {
    for (limit, collapsed) in [(211, false), (212, true)] {
        let thp = ThpParameters { max_ptes_shared: limit, ..ThpParameters::default() };
        let mut guest = Guest::with_area(false, thp.clone(), 512);
        guest.event(Event::Fork { parent: PARENT, child: CHILD });
        (0..300).for_each(|at| guest.store(PARENT, at));
        let of_child = guest.frame(CHILD, 400);
        assert_eq!(of_child, guest.frame(PARENT, 400), "shared");
        // The child's region has as many shared pages, so only one of the two is looked at.
        let once = ThpParameters { pages_to_scan: 512, ..thp };
        guest.stack.khugepaged(&mut guest.policy, NodeId::HOST, &once).unwrap();
        assert_eq!(guest.is_huge(PARENT), collapsed, "{limit}");
        assert_eq!(guest.frame(CHILD, 400), of_child, "the child keeps its own");
        for pid in [PARENT, CHILD] {
            guest.event(Event::ProcessExit { pid });
        }
        assert_eq!(guest.stack.kernel(NodeId::HOST).memory().used_frames(), 0);
    }
}

/// A region of which every page was moved to where it belongs in a block, and another block that is free.
fn lying_in_a_block() -> (Guest, [Frame<Lower>; 2]) {
    let mut guest = Guest::with_area(false, ThpParameters::default(), 512);
    let space = guest.space(PARENT);
    let memory = guest.stack.kernel(NodeId::HOST).memory();
    let blocks = (0..32).map(|region| Frame::new(region * 512));
    let mut free = blocks.filter(|block| memory.free_in_region(*block) == 512);
    let blocks = [0, 1].map(|_| free.next().unwrap());
    for at in 0..512 {
        let (policy, to) = (&mut guest.policy, blocks[0] + at);
        assert!(guest.stack.migrate(policy, NodeId::HOST, space, page(at), to).unwrap());
    }
    (guest, blocks)
}

impl Guest {
    fn collapse(&mut self, pid: Pid, target: Option<Frame<Lower>>) -> Collapsed {
        let (space, policy) = (self.space(pid), &mut self.policy);
        self.stack.collapse(policy, NodeId::HOST, space, page(0), target).unwrap()
    }
}

#[test]
fn a_region_becomes_huge_in_the_wanted_block_and_is_copied_unless_it_lies_there() {
    for (at, promotion) in [Promotion::InPlace, Promotion::Moved].into_iter().enumerate() {
        let (mut guest, blocks) = lying_in_a_block();
        assert_eq!(guest.collapse(PARENT, Some(blocks[at])), Collapsed::Huge(promotion));
        assert_eq!(guest.frame(PARENT, 0), Some(blocks[at].get()));
    }
}

#[test]
fn a_region_that_lies_in_a_block_is_copied_while_others_share_pages_of_it() {
    let (mut guest, [block, _]) = lying_in_a_block();
    guest.event(Event::Fork { parent: PARENT, child: CHILD });
    // Of these the parent gets copies; the child's region lies as it did.
    (0..300).for_each(|at| guest.store(PARENT, at));
    assert_eq!(guest.collapse(CHILD, None), Collapsed::Huge(Promotion::Moved));
    assert_ne!(guest.frame(CHILD, 0), Some(block.get()));
    assert_eq!(guest.frame(PARENT, 400), Some(block.get() + 400), "the parent keeps its own");
    guest.stack.kernel(NodeId::HOST).memory().check().unwrap();
}

#[test]
fn faults_compact_where_the_program_asked_for_huge_pages() {
    for advised in [false, true] {
        let mut guest = Guest::new(true, ThpParameters::default());
        // Somebody's movable page in every region.
        let memory = guest.stack.kernel_mut(NodeId::HOST).memory_mut();
        for frame in (0..32).map(|region| Frame::new(region * 512 + 7)) {
            assert!(memory.alloc_at(frame, 0));
            memory.set_owner(frame, Owner::Movable.to_bits());
        }
        guest.event(Event::ProcessStart { pid: PARENT });
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        let range = range(0, 512);
        guest.event(Event::Map { pid: PARENT, range, backing, protection, fixed: true });
        if advised {
            let advice = Advice::HugePage;
            guest.event(Event::Advise { pid: PARENT, range, advice });
        }
        guest.store(PARENT, 0);
        assert_eq!(guest.is_huge(PARENT), advised);
        let compacted = guest.stack.kernel(NodeId::HOST).counters().compacted_regions;
        assert_eq!(compacted, u64::from(advised));
        guest.stack.kernel(NodeId::HOST).memory().check().unwrap();
    }
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

/// What is stored to a huge page all the same is stored without a fault.
#[test]
fn mprotect_takes_the_right_to_write_from_base_pages_and_leaves_it_to_huge_ones() {
    for huge in [false, true] {
        let mut guest = Guest::with_area(huge, ThpParameters::default(), 512);
        guest.stack.drain_flushes().for_each(drop);
        let protection = Protection { write: false, ..Protection::READ_WRITE };
        guest.event(Event::Protect { pid: PARENT, range: range(0, 512), protection });
        assert_eq!(guest.is_huge(PARENT), huge, "it is not split");
        let space = guest.stack.kernel(NodeId::HOST).space(guest.space(PARENT)).unwrap();
        let write = |at| space.table().mapping(page(at).addr()).unwrap().rights.write;
        assert_eq!([0, 7, 511].map(write), [huge; 3]);
        assert_eq!(guest.stack.drain_flushes().count(), usize::from(!huge));
    }
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

/// A nested stack in the proportions of the xGemini testbed, its memory fragmented.
fn nested(backed: bool, huge_faults: bool) -> Stack {
    let config = StackConfig {
        paging: strata_stack::Paging::Nested,
        kernels: StackConfig::chain(&[256, 220, 200].map(|mib| (mib * MIB, 0.8)), 1),
        levels: 4,
        reused: false,
        costs: Costs::default(),
        exits: ExitCosts::default(),
        virtualization: Virtualization::default(),
        thp: ThpParameters::default(),
        start: MemoryParameters { backed, ..MemoryParameters::default() },
        aligner: AlignerParameters::default(),
        colours: None,
        coloured: ColouredParameters::default(),
        balloon: BalloonParameters::default(),
        ksm: KsmParameters::default(),
    };
    Stack::build(&config, &mut Linux { huge_faults }, &|| false).unwrap()
}

#[test]
fn whoever_fragments_a_guest_has_it_backed_in_every_layer() {
    for huge_faults in [false, true] {
        let stack = nested(true, huge_faults);
        stack.check_composition();
        let guest = stack.guests().next().unwrap();
        let frames = stack.kernel(guest).memory().frames();
        for page in 0..frames {
            let page: Frame<Upper> = Frame::new(page);
            let mapped = stack.hardware_second_stage(guest).unwrap().mapping(page.addr());
            assert!(mapped.is_some(), "{page:?}");
        }
        // The guest looks as it would have without, and nothing of it was counted.
        assert_eq!(stack.fmfi(guest), nested(false, huge_faults).fmfi(guest));
        assert_eq!(stack.exits(), &ExitCounts::default());
        assert!(stack.nodes().all(|node| stack.kernel(node).counters().faults == 0));
        // Huge pages of the guest hypervisor were to be had for some of it only.
        let mut huge = 0;
        stack.second_stage(guest).for_each_huge(|_, _| huge += 1);
        let share = huge as f64 * 512.0 / frames as f64;
        let expected = if huge_faults { 0.1..0.4 } else { 0.0..0.001 };
        assert!(expected.contains(&share), "{share}");
    }
}

#[test]
fn nobody_fills_a_guest_that_is_merely_declared_fragmented() {
    let stack = nested(false, true);
    let guest = stack.guests().next().unwrap();
    let table = stack.hardware_second_stage(guest).unwrap();
    assert_eq!(table.mapped(table.everything()).count(), 0);
}

/// Linux with Huge Aligner.
struct Padding;

impl Policy for Padding {
    fn settings(&mut self, at: Position) -> KernelSettings {
        let linux = Linux { huge_faults: true }.settings(at);
        KernelSettings { align_areas: AlignAreas::Always, ..linux }
    }
}

#[test]
fn huge_aligner_can_be_left_out() {
    let bytes = |enabled| {
        let config = StackConfig {
            aligner: AlignerParameters { enabled, ..AlignerParameters::default() },
            ..config(&[(64 * MIB, 0.0)], ThpParameters::default())
        };
        let mut stack = Stack::build(&config, &mut Padding, &|| false).unwrap();
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        for event in [
            Event::ProcessStart { pid: PARENT },
            Event::Map { pid: PARENT, range: range(3, 5), backing, protection, fixed: false },
        ] {
            stack.event(&mut Padding, NodeId::HOST, &event).unwrap();
        }
        let space = stack.process_space(NodeId::HOST, PARENT).unwrap();
        let vmas = stack.kernel(NodeId::HOST).space(space).unwrap().vmas();
        vmas.find(page(3).addr()).unwrap().range.bytes()
    };
    assert_eq!((bytes(true), bytes(false)), (2 * MIB, 5 * 4096));
}

/// A workload before that read files leaves pages of them in use, here and there; what it had itself is free.
#[test]
fn a_workload_before_leaves_what_it_is_told_to_leave() {
    let after = |reused_left: f64, huge_faults| {
        let config = StackConfig {
            reused: true,
            start: MemoryParameters { reused_left, ..MemoryParameters::default() },
            ..config(&[(128 * MIB, 0.0), (96 * MIB, 0.0)], ThpParameters::default())
        };
        let stack = Stack::build(&config, &mut Linux { huge_faults }, &|| false).unwrap();
        stack.check_composition();
        let guest = stack.guests().next().unwrap();
        let memory = stack.kernel(guest).memory();
        let table = stack.hardware_second_stage(guest).unwrap();
        let backed: u64 =
            table.mapped(table.everything()).map(|(_, mapping)| mapping.size.base_pages()).sum();
        (memory.used_frames() as f64 / memory.frames() as f64, stack.fmfi(guest), backed)
    };
    for huge_faults in [false, true] {
        let (used, fmfi, backed) = after(0.0, huge_faults);
        assert!(used < 0.01 && fmfi < 0.05, "{used}, {fmfi}");
        let (used, fmfi, backed_too) = after(0.1, huge_faults);
        // Nine tenths were used, and a tenth of that is left, with its page tables.
        assert!((0.088..0.1).contains(&used), "{used}");
        assert!(fmfi > if huge_faults { 0.05 } else { 0.8 }, "{fmfi}");
        let memory = 96 * MIB / 4096;
        assert!([backed, backed_too].into_iter().all(|pages| pages > memory * 8 / 10));
    }
}

/// Whoever sets up a machine is asked often whether to go on, and nothing is done after a no.
#[test]
fn setting_up_can_be_stopped_at_any_time() {
    let config = |reused, backed| StackConfig {
        paging: strata_stack::Paging::Nested,
        kernels: StackConfig::chain(&[96, 80, 64].map(|mib| (mib * MIB, 0.5)), 1),
        levels: 4,
        reused,
        costs: Costs::default(),
        exits: ExitCosts::default(),
        virtualization: Virtualization::default(),
        thp: ThpParameters::default(),
        start: MemoryParameters { backed, ..MemoryParameters::default() },
        aligner: AlignerParameters::default(),
        colours: None,
        coloured: ColouredParameters::default(),
        balloon: BalloonParameters::default(),
        ksm: KsmParameters::default(),
    };
    // A question for each layer, page of the process before, and region of the layers backed.
    for (reused, backed, least) in [(false, false, 3), (true, false, 8000), (false, true, 3 + 72)] {
        let build = |stops_at: usize| {
            let asked = std::cell::Cell::new(0);
            let stopped = || asked.replace(asked.get() + 1) == stops_at;
            let built =
                Stack::build(&config(reused, backed), &mut Linux { huge_faults: false }, &stopped);
            (built.map(drop), asked.get())
        };
        let (built, questions) = build(usize::MAX);
        assert!(built.is_ok() && questions >= least, "{questions}");
        for stops_at in [0, 2, questions / 2, questions - 1] {
            let (built, asked) = build(stops_at);
            assert!(matches!(built, Err(BuildError::Stopped)), "{built:?}");
            assert_eq!(asked, stops_at + 1);
        }
    }
}

/// A host with a VM on it. Every region of the host's memory has a page in it that can be moved, so that
/// it has no huge page to give; how many the VM's hypervisor gets, and how many regions were emptied for that.
fn huge_pages_of_a_fragmented_host(advice: VmAdvice, without_compaction: bool) -> (u64, u64) {
    let mut config = StackConfig {
        start: MemoryParameters { advice, movable: 1.0, ..MemoryParameters::default() },
        ..config(&[(128 * MIB, 1.0), (32 * MIB, 0.0)], ThpParameters::default())
    };
    config.kernels[0].found = Found { without_compaction, ..Found::default() };
    let mut policy = Linux { huge_faults: true };
    let mut stack = Stack::build(&config, &mut policy, &|| false).unwrap();
    let guest = stack.guests().next().unwrap();
    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
    for event in [
        Event::ProcessStart { pid: PARENT },
        Event::Map { pid: PARENT, range: range(0, 4096), backing, protection, fixed: true },
    ] {
        stack.event(&mut policy, guest, &event).unwrap();
    }
    let space = stack.process_space(guest, PARENT).unwrap();
    for at in 0..4096 {
        stack.guest_fault(&mut policy, guest, space, page(at), true).unwrap();
    }
    (stack.alignment(guest).host_huge, stack.kernel(NodeId::HOST).counters().compacted_regions)
}

/// QEMU advises `MADV_HUGEPAGE` on a VM's memory. So hypervisors compact at a fault, where a program that
/// says nothing gets base pages.
#[test]
fn hypervisors_compact_at_faults_because_qemu_advises_huge_pages() {
    let (huge, compacted) = huge_pages_of_a_fragmented_host(VmAdvice::default(), false);
    assert!(huge >= 8 && compacted >= 8, "{huge}, {compacted}");
    assert_eq!(huge_pages_of_a_fragmented_host(VmAdvice::None, false), (0, 0));
    // Nor does one that was told not to (`never` in `transparent_hugepage/defrag`).
    assert_eq!(huge_pages_of_a_fragmented_host(VmAdvice::default(), true), (0, 0));
}

/// Two regions of a nested guest's memory filled page by page, then the first made huge by its hypervisor.
/// Exits of the hypervisor for writes to its second stage, for both.
fn writes_of_l1(second_stage_writes: SecondStageWrites, instructions: Instructions) -> [u64; 2] {
    let config = StackConfig {
        exits: ExitCosts { second_stage_writes, ..ExitCosts::default() },
        virtualization: Virtualization { instructions, ..Virtualization::default() },
        ..config(&[(128 * MIB, 0.0), (64 * MIB, 0.0), (32 * MIB, 0.0)], ThpParameters::default())
    };
    let mut policy = Linux { huge_faults: false };
    let mut stack = Stack::build(&config, &mut policy, &|| false).unwrap();
    let (guest, l1) = (stack.guests().next().unwrap(), stack.nodes().nth(1).unwrap());
    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
    for event in [
        Event::ProcessStart { pid: PARENT },
        Event::Map { pid: PARENT, range: range(0, 1024), backing, protection, fixed: true },
    ] {
        stack.event(&mut policy, guest, &event).unwrap();
    }
    let space = stack.process_space(guest, PARENT).unwrap();
    let writes = |stack: &Stack| stack.exits().of(l1, ExitReason::SecondStageWrite);
    let before = writes(&stack);
    for at in 0..1024 {
        stack.guest_fault(&mut policy, guest, space, page(at), true).unwrap();
    }
    let filled = writes(&stack);
    let (process, hva) = (stack.vm_process(guest), stack.hva(guest, Frame::new(512)));
    assert!(stack.collapse(&mut policy, l1, process, hva, None).unwrap().is_huge());
    [filled - before, writes(&stack) - filled]
}

/// Real KVM lets the leaf tables that a hypervisor in a VM writes go unsync: the first write exits, until the
/// table is read anew. That is at the VM's next entry on AMD's instructions, so that a table filled
/// page by page exits as often as before; and at an invalidation on Intel's, of which there is none while
/// pages are only added. What is taken away in one go is one write or two.
#[test]
fn leaf_tables_that_go_unsync_save_exits() {
    let [filled, zapped] = writes_of_l1(SecondStageWrites::Trap, Instructions::Vmx);
    assert!(filled >= 1024 && zapped >= 512, "{filled}, {zapped}");
    assert_eq!(writes_of_l1(SecondStageWrites::Trap, Instructions::Svm), [filled, zapped]);
    let [on_amd, zapped] = writes_of_l1(SecondStageWrites::Unsync, Instructions::Svm);
    assert!((1000..filled).contains(&on_amd) && zapped <= 2, "{on_amd}, {zapped}");
    let [on_intel, zapped] = writes_of_l1(SecondStageWrites::default(), Instructions::Vmx);
    assert!((3..20).contains(&on_intel) && zapped <= 2, "{on_intel}, {zapped}");
}

/// A guest with an area of a file of these pages, from [`page`] `first` on; nothing of it is touched.
fn with_file(first: u64, pages: u64) -> Guest {
    let mut guest = Guest::new(false, ThpParameters::default());
    guest.event(Event::ProcessStart { pid: PARENT });
    let (backing, protection) = (Backing::File, Protection::READ_WRITE);
    let range = range(first, pages);
    guest.event(Event::Map { pid: PARENT, range, backing, protection, fixed: true });
    guest
}

impl Guest {
    fn load(&mut self, at: u64) {
        let space = self.space(PARENT);
        self.stack.guest_fault(&mut self.policy, NodeId::HOST, space, page(at), false).unwrap();
    }

    fn mapped(&self, pages: std::ops::Range<u64>) -> Vec<u64> {
        pages.filter(|at| self.frame(PARENT, *at).is_some()).collect()
    }

    fn faults(&self) -> u64 {
        self.stack.kernel(NodeId::HOST).counters().faults
    }
}

#[test]
fn a_page_of_a_file_that_is_read_is_mapped_with_those_around_it() {
    let mut guest = with_file(0, 40);
    guest.load(20);
    assert_eq!(guest.mapped(0..40), Vec::from_iter(16..32), "from a multiple of 16 on");
    guest.load(39);
    assert_eq!(guest.mapped(0..60), Vec::from_iter(16..40), "up to the end of the area");
    assert_eq!(guest.faults(), 2);
    // From where the area begins 16 pages, however that lies (do_fault_around).
    let mut guest = with_file(5, 100);
    guest.load(7);
    assert_eq!(guest.mapped(0..60), Vec::from_iter(5..21));
    // But not beyond what one page table maps.
    let mut guest = with_file(505, 100);
    guest.load(508);
    assert_eq!(guest.mapped(500..600), Vec::from_iter(505..512));
    guest.stack.kernel(NodeId::HOST).memory().check().unwrap();
}

#[test]
fn a_store_to_a_file_maps_one_page_and_what_was_read_faults_again_at_the_first_store() {
    let mut guest = with_file(0, 40);
    guest.store(PARENT, 3);
    assert_eq!(guest.mapped(0..40), [3]);
    guest.load(4);
    assert_eq!((guest.mapped(0..40), guest.faults()), (Vec::from_iter(0..16), 2));
    let written = guest.frame(PARENT, 3);
    for (at, faults) in [(4, 3), (5, 4), (5, 4), (3, 4)] {
        guest.store(PARENT, at);
        assert_eq!(guest.faults(), faults, "page {at}");
    }
    assert_eq!(guest.frame(PARENT, 3), written);
}

#[test]
fn nothing_is_mapped_around_memory_that_is_no_file() {
    let mut guest = Guest::with_area(false, ThpParameters::default(), 40);
    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
    let range = range(100, 40);
    guest.event(Event::Map { pid: PARENT, range, backing, protection, fixed: true });
    guest.load(120);
    assert_eq!(guest.mapped(100..140), [120]);
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
