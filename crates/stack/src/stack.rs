//! The memory management of everything on one host: faults going down, changes going up.
//!
//! A native machine is the host alone, whose kernel runs the programs itself; a VM is one kernel on
//! it, a nested VM a kernel on that. Nothing stops at three, and every kernel but a guest's may have
//! several VMs. Hardware walks the host's second stage for programs in a VM,
//! and for those in a nested VM the shadow table, which the host composes from the second stages of
//! all hypervisors below them (xGemini II.C).
//!
//! A hypervisor's second stage follows its VM process's page table as KVM's does through MMU
//! notifiers: filled on a violation, zapped when the process's mapping changes. When a frame of a
//! VM's memory is first written by its kernel, the kernel below must back it.

use crate::contents::Contents;
use crate::costs::{Costs, Spending, Spent, kernel_cycles};
use crate::exits::{ExitCounts, ExitReason};
use crate::fault::{Faulted, PageFault, frame_of};
use crate::frames::{Action, Change, Frames, KernelCounters};
use crate::kernel::{Kernel, PageTable};
use crate::owner::{Owner, SpaceId};
use crate::policy::Policy;
use crate::thp::ThpParameters;
use crate::tree::{Node, NodeId, Nodes, Position, Vm};
use strata_addr::space::{GuestPhysical, HostPhysical, Lower, Upper, Virtual};
use strata_addr::{Frame, PageSize};
use strata_paging::{Ept, Lookup, Radix, Region, Rights, X86};

/// A second-stage table of a hypervisor, or the shadow table.
pub type SecondStageTable = Radix<Ept, Upper, Lower>;

/// What hardware walks: a process's page table and, below a hypervisor, the second stage.
pub type HardwareTables<'a> = (
    &'a mut Radix<X86, Virtual, GuestPhysical>,
    Option<&'a mut Radix<Ept, GuestPhysical, HostPhysical>>,
);

/// A kernel's memory is exhausted, and nothing could be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {} has no free frame left", node.index())]
pub struct Exhausted {
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
pub struct Stack {
    pub(crate) nodes: Nodes,
    pub(crate) costs: Costs,
    pub(crate) thp: ThpParameters,
    exits: ExitCounts,
    pub(crate) spent: Spent,
    /// On whose account kernel work goes just now.
    pub(crate) account: Option<Spending>,
    pub(crate) flushes: Vec<Flush>,
    pub(crate) shadow_demotions: u64,
    pub(crate) shadow_promotions: u64,
    pub(crate) inferred_pages: u64,
    pub(crate) contents: Option<Contents>,
}

impl Stack {
    pub(crate) fn of(nodes: Nodes, costs: Costs, thp: ThpParameters) -> Self {
        Self {
            nodes,
            costs,
            thp,
            exits: ExitCounts::default(),
            spent: Spent::default(),
            account: None,
            flushes: Vec::new(),
            shadow_demotions: 0,
            shadow_promotions: 0,
            inferred_pages: 0,
            contents: None,
        }
    }

    /// What software work costs.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Every kernel, the host first, a VM's after the one it runs on.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> {
        self.nodes.iter().map(|node| node.position.node)
    }

    /// The kernels that run programs.
    pub fn guests(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().map(|node| node.position).filter(|at| at.guest).map(|at| at.node)
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
        own + for_vms
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

    /// A guest's process touched a page that its table does not map, or stored to one that it may
    /// not write.
    ///
    /// # Errors
    /// [`Exhausted`], with the kernel.
    pub fn guest_fault(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<Faulted, Exhausted> {
        self.infer_area(guest, space, page);
        let kernel = &mut self.nodes[guest].kernel;
        let outcome = match kernel.describe_fault(space, page) {
            Some(fault) => Faulted::Mapped(self.kernel_fault(policy, guest, &fault)?),
            None if store => {
                let mut outcome = kernel.write_fault(space, page);
                if outcome.is_err() && policy.memory_short(guest, kernel) {
                    outcome = kernel.write_fault(space, page);
                }
                outcome.map_err(|_| Exhausted { node: guest })?
            }
            None => Faulted::Spurious,
        };
        self.settle(policy, guest, Spending::GuestFault)?;
        Ok(outcome)
    }

    /// A guest touched a page of its memory that the second stage which hardware walks for it does
    /// not map.
    ///
    /// # Errors
    /// [`Exhausted`], with the kernel.
    pub fn second_stage_fault(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        self.exit(guest, ExitReason::SecondStageViolation, 1);
        if self.nodes[guest].vm().shadow.is_none() {
            return self.back(policy, guest, page);
        }
        if self.second_stage(guest).mapping(page.addr()).is_none() {
            self.exit(guest, ExitReason::HandedOn, 1);
            self.back(policy, guest, page)?;
            if self.shadow_maps(guest, page) {
                return Ok(());
            }
            // The guest hypervisor resumes its guest, which faults again: now on the shadow.
            self.exit(guest, ExitReason::SecondStageViolation, 1);
        }
        self.fill_shadow(policy, guest, page)
    }

    /// Makes the hypervisor below `vm` map `page` of the VM's memory in its second stage.
    ///
    /// # Errors
    /// [`Exhausted`], with the kernel.
    pub fn back(
        &mut self,
        policy: &mut dyn Policy,
        vm: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        if self.second_stage(vm).mapping(page.addr()).is_some() {
            return Ok(());
        }
        let hva = self.hva(vm, page);
        let &Vm { below, process, .. } = self.nodes[vm].vm();
        if let Some(fault) = self.nodes[below].kernel.describe_fault(process, hva) {
            self.kernel_fault(policy, below, &fault)?;
            self.settle(policy, below, Spending::HypervisorFault)?;
        }
        // A policy that acts on a fault may have mapped it on the way.
        if self.second_stage(vm).mapping(page.addr()).is_none() {
            self.map_second_stage(policy, vm, page)?;
        }
        Ok(())
    }

    /// Copies the VM process's mapping of `page` into the second stage of its VM.
    fn map_second_stage(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        let hva = self.hva(node, page);
        let mapping = self.vm_table(node).mapping(hva.addr()).expect("the fault mapped it");
        let (vm, kernel) = self.nodes.vm_and_below(node);
        let alike = vm.slot.is_multiple_of(mapping.size.base_pages());
        let size = if alike { mapping.size } else { PageSize::Base };
        let frame = frame_of(&mapping, hva);
        let (first, frame) = (page.floor(size), frame.floor(size));
        let (second, frames) = (&mut vm.second, &mut kernel.frames);
        let written = match (size, second.region(first)) {
            (PageSize::Huge, Region::Base { .. }) => {
                second.collapse(first, frame, Rights::ALL, frames).map(|_| 1)
            }
            _ => second.map(first, size, frame, Rights::ALL, frames),
        };
        let below = vm.below;
        let written = written.map_err(|_| Exhausted { node: below })?;
        if below != NodeId::HOST {
            self.exit(below, ExitReason::SecondStageWrite, u64::from(written));
        }
        self.settle(policy, below, Spending::HypervisorFault)?;
        if below != NodeId::HOST {
            policy.second_stage_written(self, node, first, size)?;
        }
        Ok(())
    }

    fn kernel_fault(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        fault: &PageFault,
    ) -> Result<PageSize, Exhausted> {
        let Node { position, kernel, .. } = &mut self.nodes[node];
        let account = if position.guest { Spending::GuestFault } else { Spending::HypervisorFault };
        kernel.frames.counters.faults += 1;
        let placement = policy.place(node, kernel, fault);
        let limit = self.thp.compact_regions;
        let mut mapped = kernel.map_fault(fault, placement, limit);
        if mapped.is_err() && policy.memory_short(node, kernel) {
            mapped = kernel.map_fault(fault, placement, limit);
        }
        let size = mapped.map_err(|_| Exhausted { node })?;
        self.settle(policy, node, account)?;
        policy.mapped(self, node, fault, size)?;
        Ok(size)
    }

    /// Passes on what a kernel did: frames it wrote are backed below, translations it changed are
    /// dropped above, and the work is charged.
    ///
    /// # Errors
    /// [`Exhausted`], with the kernel that could not back a frame.
    pub fn settle(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        account: Spending,
    ) -> Result<(), Exhausted> {
        self.charge_kernel(node, account);
        // Taken out so that the hooks below can log more; given back to reuse the memory.
        let mut log = std::mem::take(&mut self.nodes[node].kernel.frames.log);
        for change in log.changes.drain(..) {
            self.propagate(node, change);
        }
        for frame in log.freed_huge.drain(..) {
            policy.freed_huge(node, &mut self.nodes[node].kernel, frame);
        }
        for action in log.actions.drain(..) {
            match action {
                Action::Zero(frame, order) => {
                    self.write_block(policy, node, frame, order)?;
                    if self.contents.is_some() {
                        for i in 0..1 << order {
                            self.write_content(node, frame + i, 0);
                        }
                    }
                }
                Action::Copy(from, to) => {
                    self.write_block(policy, node, to, 0)?;
                    if self.contents.is_some() {
                        let tag = self.read_content(node, from);
                        self.write_content(node, to, tag);
                    }
                }
            }
        }
        let now = &mut self.nodes[node].kernel.frames.log;
        if now.actions.is_empty() && now.changes.is_empty() && now.freed_huge.is_empty() {
            *now = log;
        }
        Ok(())
    }

    /// A kernel writes 2^order of its frames: the hypervisor below must back them.
    pub(crate) fn write_block(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        frame: Frame<Lower>,
        order: u32,
    ) -> Result<(), Exhausted> {
        if node == NodeId::HOST {
            return Ok(());
        }
        let guest = self.position(node).guest;
        let first: Frame<Upper> = frame.cross();
        let end = first + (1 << order);
        let mut page = first;
        while page < end {
            let vm = self.nodes[node].vm();
            let below = if guest { vm.hardware_table() } else { &vm.second };
            match below.lookup(page.addr()) {
                Lookup::Mapped(mapping) => {
                    page = page.floor(mapping.size) + mapping.size.base_pages();
                }
                Lookup::Absent { .. } if guest => self.second_stage_fault(policy, node, page)?,
                Lookup::Absent { .. } => {
                    self.exit(node, ExitReason::SecondStageViolation, 1);
                    self.back(policy, node, page)?;
                }
            }
        }
        Ok(())
    }

    /// Translations of a kernel's space changed: whatever was built on them goes.
    fn propagate(&mut self, node: NodeId, change: Change) {
        let Some(above) = self.above(node, change.space) else {
            self.flushes.push(Flush::Pages(node, change));
            return;
        };
        let slot = self.nodes[above].vm().slot;
        let Some(start) = change.page.get().checked_sub(slot) else { return };
        let (vm, kernel) = self.nodes.vm_and_below(above);
        let zapped = zap(&mut vm.second, Frame::new(start), change.pages, &mut kernel.frames);
        if zapped == 0 {
            return;
        }
        if node != NodeId::HOST {
            self.exit(node, ExitReason::SecondStageWrite, zapped);
            self.exit(node, ExitReason::Invalidation, 1);
        }
        self.drop_through(above, Frame::new(start), change.pages);
    }

    /// What a hypervisor had for pages of a VM's memory is gone: drops what hardware and shadow
    /// tables know through it.
    fn drop_through(&mut self, node: NodeId, start: Frame<Upper>, pages: u64) {
        let Node { position, vm, .. } = &self.nodes[node];
        if position.guest {
            match vm.as_ref().and_then(|vm| vm.shadow.as_ref()) {
                Some(_) => self.zap_shadow(node, start, pages),
                None => self.flush_second_stage(node),
            }
            return;
        }
        for i in 0..pages {
            // The frame is memory of this kernel: its owner tells what it backs for which VM.
            let owner = self.nodes[node].kernel.owner((start + i).cross());
            if let Owner::Page(process, hva) = owner
                && let Some(above) = self.above(node, process)
                && let Some(page) = hva.get().checked_sub(self.nodes[above].vm().slot)
            {
                self.drop_through(above, Frame::new(page), 1);
            }
        }
    }

    /// Charges the work of a kernel since the last time.
    fn charge_kernel(&mut self, node: NodeId, account: Spending) {
        let Node { kernel, charged, .. } = &mut self.nodes[node];
        let cycles = kernel_cycles(&self.costs, charged, kernel.counters());
        *charged = *kernel.counters();
        self.spent.add(self.account.unwrap_or(account), cycles);
    }

    /// A VM exits this often, and each exit is charged.
    fn exit(&mut self, vm: NodeId, reason: ExitReason, exits: u64) {
        self.exits.add(vm, reason, exits);
        self.spent.add(Spending::Exit, exits * reason.cycles(&self.costs));
    }

    /// Starts counting events anew; work done so far stays charged.
    pub fn reset_counters(&mut self) {
        self.exits = ExitCounts::default();
        self.shadow_demotions = 0;
        self.shadow_promotions = 0;
        for node in self.nodes.iter_mut() {
            node.kernel.reset_counters();
            node.charged = KernelCounters::default();
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

/// Unmaps whatever a table maps in a range of pages; returns the number of entries removed.
pub(crate) fn zap(
    table: &mut SecondStageTable,
    start: Frame<Upper>,
    pages: u64,
    frames: &mut Frames,
) -> u64 {
    let end = start + pages;
    let mut page = start;
    let mut removed = 0;
    while page < end {
        match table.lookup(page.addr()) {
            Lookup::Mapped(mapping) => {
                table.unmap(page.addr(), frames);
                removed += 1;
                page = page.floor(mapping.size) + mapping.size.base_pages();
            }
            Lookup::Absent { level } => {
                let shift = 9 * (u32::from(level) - 1);
                page = Frame::new(((page.get() >> shift) + 1) << shift);
            }
        }
    }
    removed
}
