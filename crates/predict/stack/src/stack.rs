//! The memory management of everything on one host.
//!
//! A native machine is the host alone, whose kernel runs the programs itself; a VM is one kernel on
//! it, a nested VM a kernel on that. Nothing stops at three, and every kernel but a guest's may have
//! several VMs. Hardware walks the host's second stage for programs in a VM,
//! and for those in a nested VM the shadow table, which the host composes from the second stages of
//! all hypervisors below them (xGemini II.C).

use crate::balloon_pages::BalloonParameters;
use crate::contents::Contents;
use crate::costs::{Costs, Spending, Spent};
use crate::exits::ExitCounts;
use crate::fault::frame_of;
use crate::frames::{Change, KernelCounters};
use crate::kernel::{Kernel, PageTable};
use crate::ksm_memory::Ksm;
use crate::owner::SpaceId;
use crate::shadowed::Paging;
use crate::thp::ThpParameters;
use crate::tree::{Node, NodeId, Nodes, Position, SecondStageTable};
use strata_addr::space::{GuestPhysical, HostPhysical, Lower, Upper, Virtual};
use strata_addr::{Frame, PageSize};
use strata_counters::counters;
use strata_nested::{ExitCosts, ExitReason, Nesting, Virtualization, Work};
use strata_paging::{Ept, Radix, X86};

/// What hardware walks: a process's page table and, below a hypervisor, the second stage.
pub type HardwareTables<'a> = (
    &'a mut Radix<X86, Virtual, GuestPhysical>,
    Option<&'a mut Radix<Ept, GuestPhysical, HostPhysical>>,
);

/// A kernel's memory is exhausted, and nothing could be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {} has no free frame left", node.index())]
pub struct KernelOutOfMemory {
    /// The kernel.
    pub node: NodeId,
}

/// Cached translations that hardware must drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Pages of a guest's process.
    Pages(NodeId, Change),
    /// Everything that went through the second stage that hardware walks for a guest.
    SecondStage(NodeId),
    /// Everything of a guest's process that is gone.
    Space(NodeId, SpaceId),
}

/// All kernels and the books.
///
/// A VM under stock Linux, whose program touches a page:
///
/// ```
/// use strata_addr::{Gva, PageSize, Range};
/// use strata_stack::{
///     AlignAreas, AlignerParameters, BalloonParameters, ColouredParameters, Costs, ExitCosts,
///     ExitReason, Faulted, KernelSettings,
///     KsmParameters, MemoryParameters, NodeId, Paging, Policy, Position, Stack, StackConfig, ThpMode, ThpParameters,
///     Virtualization,
/// };
/// use strata_stream::{Backing, Event, Pid, Protection};
///
/// struct Linux;
/// impl Policy for Linux {
///     fn settings(&mut self, _: Position) -> KernelSettings {
///         let (thp, align_areas) = (ThpMode::Always, AlignAreas::Never);
///         KernelSettings { thp, align_areas, fragmented: false, coloured: false }
///     }
/// }
///
/// let config = StackConfig {
///     // The host's memory, and the guest's; neither fragmented.
///     kernels: StackConfig::chain(&[(128 << 20, 0.0), (64 << 20, 0.0)], 1),
///     levels: 4,
///     reused: false,
///     paging: Paging::Nested,
///     costs: Costs::default(),
///     exits: ExitCosts::default(),
///     virtualization: Virtualization::default(),
///     thp: ThpParameters::default(),
///     start: MemoryParameters::default(),
///     aligner: AlignerParameters::default(),
///     colours: None,
///     coloured: ColouredParameters::default(),
///     balloon: BalloonParameters::default(),
///     ksm: KsmParameters::default(),
/// };
/// let mut stack = Stack::build(&config, &mut Linux, &|| false)?;
/// let guest = stack.guests().next().unwrap();
/// assert_eq!(stack.below(guest), Some(NodeId::HOST));
///
/// let (pid, range) = (Pid(1), Range::sized(Gva::new(1 << 30), 8 << 20));
/// let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
/// for event in [
///     Event::ProcessStart { pid },
///     Event::Map { pid, range, backing, protection, fixed: true },
/// ] {
///     stack.event(&mut Linux, guest, &event)?;
/// }
/// let space = stack.process_space(guest, pid).unwrap();
/// let page = range.start.page().cross();
/// let fault = stack.guest_fault(&mut Linux, guest, space, page, true)?;
/// assert_eq!(fault, Faulted::Mapped(PageSize::Huge));
///
/// // The guest zeroed the page, so the host had to back it, and used a huge page too.
/// assert!(stack.exits().of(guest, ExitReason::SecondStageViolation) > 0);
/// let alignment = stack.alignment(guest);
/// assert_eq!((alignment.guest_huge, alignment.well_aligned), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Stack {
    pub(crate) nodes: Nodes,
    pub(crate) costs: Costs,
    /// What exits lead to.
    nesting: Nesting,
    pub(crate) thp: ThpParameters,
    /// How hypervisors have memory for VMs that run programs.
    pub(crate) paging: Paging,
    pub(crate) balloons: BalloonParameters,
    pub(crate) ksm: Ksm,
    exits: ExitCounts,
    pub(crate) spent: Spent,
    /// On whose account kernel work goes just now.
    pub(crate) account: Option<Spending>,
    pub(crate) flushes: Vec<Flush>,
    pub(crate) shadow_demotions: u64,
    /// Entries written to second stages, ever: tells whether any was since one looked.
    pub(crate) second_stage_writes: u64,
    pub(crate) shadow_promotions: u64,
    pub(crate) contents: Option<Contents>,
}

impl Stack {
    pub(crate) fn of(nodes: Nodes, costs: Costs, nesting: Nesting, thp: ThpParameters) -> Self {
        Self {
            nodes,
            costs,
            nesting,
            paging: Paging::default(),
            thp,
            balloons: BalloonParameters::default(),
            ksm: Ksm::default(),
            exits: ExitCounts::default(),
            spent: Spent::default(),
            account: None,
            flushes: Vec::new(),
            shadow_demotions: 0,
            second_stage_writes: 0,
            shadow_promotions: 0,
            contents: None,
        }
    }

    /// What software work costs.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// What the CPU has for hypervisors in VMs.
    pub(crate) fn virtualization(&self) -> Virtualization {
        self.nesting.virtualization()
    }

    /// What VM exits cost.
    pub fn exit_costs(&self) -> &ExitCosts {
        self.nesting.costs()
    }

    /// Every kernel, the host first, a VM's after the one it runs on.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> {
        self.nodes.iter().map(|node| node.position.node)
    }

    /// The kernels that run programs.
    pub fn guests(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|node| node.position).filter(|at| at.is_guest()).map(|at| at.node)
    }

    /// The VMs of the host, or the host itself if it has none.
    pub fn vms_of_host(&self) -> impl Iterator<Item = NodeId> {
        let positions = || self.nodes.iter().map(|node| node.position);
        let level = positions().map(|at| at.level).max().unwrap_or(0).min(1);
        positions().filter(move |at| at.level == level).map(|at| at.node)
    }

    /// Where a kernel is in the tree.
    pub fn position(&self, node: NodeId) -> Position {
        self.nodes[node].position
    }

    /// The kernel below, the VM's hypervisor; none for the host.
    pub fn below(&self, node: NodeId) -> Option<NodeId> {
        Some(self.nodes[node].vm.as_ref()?.below)
    }

    /// A kernel and those below it, down to the host.
    pub fn path_down(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(node), |node| self.below(*node))
    }

    /// The kernel in the VM of a process, if the process is a VM's.
    pub fn above(&self, node: NodeId, process: SpaceId) -> Option<NodeId> {
        self.nodes[node].above.get(process.0 as usize).copied().flatten()
    }

    /// Levels of every page table.
    pub fn levels(&self) -> u8 {
        self.nodes[NodeId::HOST].kernel.levels
    }

    /// The first address past the half of the address space that programs have; the other half is
    /// the kernel's (SDM volume 1, section 3.3.7.1).
    #[inline]
    pub fn user_end(&self) -> u64 {
        1 << (PageSize::BASE_SHIFT - 1 + 9 * u32::from(self.levels()))
    }

    /// A kernel.
    pub fn kernel(&self, node: NodeId) -> &Kernel {
        &self.nodes[node].kernel
    }

    /// A kernel.
    pub fn kernel_mut(&mut self, node: NodeId) -> &mut Kernel {
        &mut self.nodes[node].kernel
    }

    /// The second stage that the hypervisor below keeps for a VM.
    ///
    /// # Panics
    /// For the host, which is in no VM.
    pub fn second_stage(&self, vm: NodeId) -> &SecondStageTable {
        &self.nodes[vm].vm().second
    }

    /// The second stage that hardware walks for a guest's programs; none when native.
    pub fn hardware_second_stage(&self, guest: NodeId) -> Option<&SecondStageTable> {
        Some(self.nodes[guest].vm.as_ref()?.hardware_table())
    }

    /// Both tables that hardware walks for a guest's process; `None` when there is no such process.
    #[inline]
    pub fn hardware_tables(&mut self, guest: NodeId, space: SpaceId) -> Option<HardwareTables<'_>> {
        if self.has_shadow_paging(guest) {
            return self.nodes.shadow_tables(guest, space);
        }
        let Node { kernel, vm, .. } = &mut self.nodes[guest];
        let table = kernel.space_mut(space)?.table_mut();
        let second = vm.as_mut().map(|vm| vm.hardware_table_mut().cross_mut());
        Some((table.cross_mut(), second))
    }

    /// The VM process of a VM, in the kernel below.
    ///
    /// # Panics
    /// For the host, which is in no VM.
    pub fn vm_process(&self, vm: NodeId) -> SpaceId {
        self.nodes[vm].vm().process
    }

    /// The page of the VM process that holds this page of a VM's memory.
    ///
    /// # Panics
    /// For the host, which is in no VM.
    pub fn hva(&self, vm: NodeId, page: Frame<Upper>) -> Frame<Upper> {
        page + self.nodes[vm].vm().slot
    }

    /// Page-table pages in a kernel's memory: of its processes, of its VMs' second stages, and, in
    /// the host's, of shadow tables.
    pub fn table_pages(&self, node: NodeId) -> usize {
        let spaces = self.kernel(node).spaces();
        let own: usize = spaces.map(|(_, space)| space.table.table_pages()).sum();
        let vms = self.nodes.iter().filter_map(|node| node.vm.as_ref());
        let for_vms: usize = vms
            .map(|vm| {
                let second = (vm.below == node).then(|| vm.second.table_pages());
                let shadow = vm.shadow.as_ref().filter(|_| node == NodeId::HOST);
                second.unwrap_or(0) + shadow.map_or(0, |shadow| shadow.table_pages())
            })
            .sum();
        own + for_vms + self.guests().map(|guest| self.shadow_pages(guest, node)).sum::<usize>()
    }

    /// The page table of a VM's process, in the kernel below.
    pub(crate) fn vm_table(&self, vm: NodeId) -> &PageTable {
        let vm = self.nodes[vm].vm();
        let process = self.nodes[vm.below].kernel.space(vm.process);
        &process.expect("the VM process lives as long as the VM").table
    }

    /// VM exits so far.
    pub fn exits(&self) -> &ExitCounts {
        &self.exits
    }

    /// Translations for hardware to drop, since this was last asked.
    pub fn drain_flushes(&mut self) -> std::vec::Drain<'_, Flush> {
        self.flushes.drain(..)
    }

    /// Whether hardware must drop translations.
    #[inline]
    pub fn has_flushes(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Cycles of software work since this was last asked.
    pub fn take_spent(&mut self) -> Spent {
        self.spent.take()
    }

    /// What exits lead to.
    pub(crate) const fn nesting(&self) -> &Nesting {
        &self.nesting
    }

    /// A VM exits this often for the hypervisor below it.
    pub(crate) fn exit(&mut self, vm: NodeId, reason: ExitReason, exits: u64) {
        let handler = self.below(vm).expect("the host is in no VM");
        self.exit_to(handler, vm, reason, exits);
    }

    /// A VM exits this often for a hypervisor somewhere below it. Every exit that follows is counted and
    /// charged, too.
    pub(crate) fn exit_to(&mut self, handler: NodeId, vm: NodeId, reason: ExitReason, exits: u64) {
        self.exit_for(handler, vm, (reason, Work::of(reason)), exits);
    }

    /// The same where an exit for this reason may ask for one thing or another.
    pub(crate) fn exit_for(
        &mut self,
        handler: NodeId,
        vm: NodeId,
        (reason, work): (ExitReason, Work),
        exits: u64,
    ) {
        self.ran(vm);
        let handler = self.position(handler).level;
        if handler > 0 {
            self.interrupt(vm, exits);
        }
        let mut at = (self.position(vm).level, vm);
        let handled = self.nesting.exit_for(at.0, handler, reason, work);
        self.spent.add(Spending::Exit, exits.saturating_mul(handled.cycles));
        if handler > 0 {
            self.exits.hand_on(vm, reason, exits);
        }
        // From the VM down to the one on the host.
        loop {
            let of_level = handled.exits.iter().filter(|(level, ..)| *level == at.0);
            for &(_, reason, times) in of_level {
                self.exits.add(at.1, reason, exits.saturating_mul(times));
            }
            for &(_, part, cycles) in handled.parts.iter().filter(|(level, ..)| *level == at.0) {
                self.exits.spend(at.1, part, exits.saturating_mul(cycles));
            }
            if at.0 <= 1 {
                return;
            }
            at = (at.0 - 1, self.nodes[at.1].vm().below);
        }
    }

    /// Of the exits of a VM that were handed on some were interrupted: its hypervisor has entered it once more.
    fn interrupt(&mut self, vm: NodeId, exits: u64) {
        let share = self.exit_costs().interrupted;
        // Between exits that are told at once nothing was written that a second entry could read anew.
        let of_vm = self.nodes[vm].vm.as_mut();
        if of_vm.is_some_and(|vm| vm.interrupts.come(share, exits)) {
            self.ran(vm);
        }
    }

    /// The host reads anew what a hypervisor in a VM wrote to second stages.
    pub(crate) fn read_second_stages_anew(&mut self, writer: NodeId, cycles: u64) {
        self.exits.add_reading(writer, cycles);
        self.spent.add(Spending::Exit, cycles);
    }

    /// Starts counting events anew; work done so far stays charged.
    pub(crate) fn reset_all_counters(&mut self) {
        let guests: Vec<NodeId> = self.guests().collect();
        self.exits = ExitCounts::default();
        self.reset_host_counters();
        guests.into_iter().for_each(|guest| self.reset_counters(guest));
    }

    fn reset_host_counters(&mut self) {
        self.shadow_demotions = 0;
        self.shadow_promotions = 0;
        let host = &mut self.nodes[NodeId::HOST];
        host.kernel.reset_counters();
        host.charged = KernelCounters::default();
    }

    /// Starts counting the events of a guest and of the hypervisors between it and the host anew, those
    /// of the host only where it is the guest. Work done so far stays charged.
    pub fn reset_counters(&mut self, guest: NodeId) {
        let path: Vec<NodeId> = self.path_down(guest).collect();
        for id in path.into_iter().filter(|node| *node != NodeId::HOST || *node == guest) {
            self.exits.forget(id);
            let node = &mut self.nodes[id];
            node.kernel.reset_counters();
            node.charged = KernelCounters::default();
        }
    }

    /// What the host's kernel has done so far, for whomever: its counters, and shadow entries that were
    /// made huge and split.
    pub fn work_of_host(&self) -> HostWork {
        HostWork {
            kernel: *self.kernel(NodeId::HOST).counters(),
            shadow_promotions: self.shadow_promotions,
            shadow_demotions: self.shadow_demotions,
        }
    }

    pub(crate) fn flush_second_stage(&mut self, guest: NodeId) {
        // One flush drops everything; asking twice in a row would only be charged twice.
        let flush = Flush::SecondStage(guest);
        if self.flushes.last() != Some(&flush) {
            self.flushes.push(flush);
            self.spent.add(Spending::Shootdown, self.costs.shootdown);
        }
    }

    /// Follows a frame of a kernel down to real memory, if every kernel below backs it.
    pub fn bottom_frame(&self, node: NodeId, frame: Frame<Lower>) -> Option<Frame<Lower>> {
        let mut frame = frame;
        let vms = self.path_down(node).filter(|node| *node != NodeId::HOST);
        for vm in vms {
            let hva = self.hva(vm, frame.cross());
            frame = frame_of(&self.vm_table(vm).mapping(hva.addr())?, hva);
        }
        Some(frame)
    }

    /// Keeps a tag per frame of real memory from now on, to check that nothing is lost.
    pub fn track_contents(&mut self) {
        self.contents = Some(Contents::default());
    }

    /// The tag in a frame of a kernel.
    ///
    /// # Panics
    /// When contents are not tracked, or the frame is not backed by real memory.
    pub fn read_content(&self, node: NodeId, frame: Frame<Lower>) -> u64 {
        let at = self.bottom_frame(node, frame).expect("content is in backed frames");
        self.contents.as_ref().expect("contents are tracked").read(at.get())
    }

    /// Writes a tag to a frame of a kernel.
    ///
    /// # Panics
    /// As [`Stack::read_content`].
    pub fn write_content(&mut self, node: NodeId, frame: Frame<Lower>, tag: u64) {
        let at = self.bottom_frame(node, frame).expect("content is in backed frames");
        self.contents.as_mut().expect("contents are tracked").write(at.get(), tag);
    }
}

counters! {
    /// What the host's kernel does besides running VMs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HostWork {
        /// Its counters.
        kernel: KernelCounters;
        /// Regions that became huge pages in shadow tables.
        shadow_promotions: u64, "strata.shadow_promotions";
        /// Huge pages of shadow tables that were split.
        shadow_demotions: u64, "strata.shadow_demotions";
    }
}

impl HostWork {
    /// Adds what was done between two moments.
    pub fn add_between(&mut self, before: &Self, after: &Self) {
        *self += after;
        *self -= before;
    }
}
