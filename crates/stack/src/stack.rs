//! The stack of layers: faults going down, changes going up.
//!
//! ```text
//! layer 0   guest kernel      processes: GVA -> GPA
//! layer 1   hypervisor (L1)   VM process: HVA -> GHPA     second stage: GPA  -> GHPA
//! layer 2   hypervisor (L0)   VM process: HVA -> HPA      second stage: GHPA -> HPA
//!           shadow table, in layer 2's memory             GPA -> HPA
//! ```
//!
//! Native is the guest alone, a VM has one hypervisor, a nested VM two; nothing stops at three.
//! With one hypervisor hardware walks that hypervisor's second stage, with more it walks the
//! shadow table, which the lowest layer composes from all of them (xGemini II.C).
//!
//! A hypervisor's second stage follows its VM process's page table as KVM's does through MMU
//! notifiers: filled on a violation, zapped when the process's mapping changes. When a frame of
//! one layer is first written by that layer's kernel, the layer below must back it.

use crate::contents::Contents;
use crate::costs::{Costs, Exits, Spending, Spent, kernel_cycles};
use crate::fault::{Faulted, PageFault, frame_of};
use crate::frames::{Action, Change, Frames, KernelCounters};
use crate::guest::Guest;
use crate::kernel::Kernel;
use crate::owner::{Owner, SpaceId};
use crate::policy::{Layer, Policy};
use crate::thp::ThpParameters;
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

/// The VM process of a hypervisor.
pub const VM: SpaceId = SpaceId(0);

/// A layer's memory is exhausted, and nothing could be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer} has no free frame left")]
pub struct Exhausted {
    /// The layer.
    pub layer: Layer,
}

/// A hypervisor's view of its guest.
pub(crate) struct SecondStage {
    pub(crate) table: SecondStageTable,
    /// Where the guest's memory starts in the VM process, in base pages.
    pub(crate) slot: u64,
}

/// One layer: its kernel, and for a hypervisor its second stage.
pub(crate) struct StackLayer {
    pub(crate) kernel: Kernel,
    pub(crate) second: Option<SecondStage>,
    /// Counters up to which work has been charged.
    charged: KernelCounters,
}

impl StackLayer {
    pub(crate) fn new(kernel: Kernel, second: Option<SecondStage>) -> Self {
        Self { kernel, second, charged: KernelCounters::default() }
    }

    pub(crate) fn second(&self) -> &SecondStage {
        self.second.as_ref().expect("a hypervisor has a second stage")
    }
}

/// Cached translations that hardware must drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Pages of a guest process.
    Pages(Change),
    /// Everything that went through the second stage.
    SecondStage,
    /// Everything of a guest process that is gone.
    Space(SpaceId),
}

/// All layers, the shadow table and the books.
pub struct Stack {
    pub(crate) guest: Guest,
    pub(crate) layers: Vec<StackLayer>,
    pub(crate) shadow: Option<SecondStageTable>,
    pub(crate) costs: Costs,
    pub(crate) thp: ThpParameters,
    pub(crate) khugepaged_next: Vec<f64>,
    pub(crate) exits: Exits,
    exits_charged: Exits,
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
    pub(crate) fn assemble(
        layers: Vec<StackLayer>,
        shadow: Option<SecondStageTable>,
        costs: Costs,
        thp: ThpParameters,
    ) -> Self {
        let khugepaged_next = vec![thp.scan_sleep; layers.len()];
        Self {
            guest: Guest::default(),
            layers,
            shadow,
            costs,
            thp,
            khugepaged_next,
            exits: Exits::default(),
            exits_charged: Exits::default(),
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

    /// Number of layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Levels of every page table.
    pub fn levels(&self) -> u8 {
        self.layers[0].kernel.levels
    }

    /// The first address past the half of the address space that programs have; the other half is
    /// the kernel's (SDM volume 1, section 3.3.7.1).
    #[inline]
    pub fn user_end(&self) -> u64 {
        1 << (PageSize::BASE_SHIFT - 1 + 9 * u32::from(self.levels()))
    }

    /// The lowest layer.
    pub fn bottom(&self) -> Layer {
        self.layers.len() - 1
    }

    /// The kernel of a layer.
    pub fn kernel(&self, layer: Layer) -> &Kernel {
        &self.layers[layer].kernel
    }

    /// The kernel of a layer.
    pub fn kernel_mut(&mut self, layer: Layer) -> &mut Kernel {
        &mut self.layers[layer].kernel
    }

    /// The second stage of hypervisor `layer`.
    ///
    /// # Panics
    /// For layer 0, the guest.
    pub fn second_stage(&self, layer: Layer) -> &SecondStageTable {
        &self.layers[layer].second().table
    }

    /// The second stage that hardware walks; none when native.
    pub fn hardware_second_stage(&self) -> Option<&SecondStageTable> {
        match self.layers.len() {
            1 => None,
            2 => Some(&self.layers[1].second().table),
            _ => self.shadow.as_ref(),
        }
    }

    /// Both tables that hardware walks for a guest process; `None` when there is no such process.
    #[inline]
    pub fn hardware_tables(&mut self, space: SpaceId) -> Option<HardwareTables<'_>> {
        let (guest, hypervisors) = self.layers.split_first_mut()?;
        let table = guest.kernel.space_mut(space)?.table_mut();
        let second = match hypervisors {
            [] => None,
            [only] => only.second.as_mut().map(|second| &mut second.table),
            _ => self.shadow.as_mut(),
        };
        Some((table.cross_mut(), second.map(Radix::cross_mut)))
    }

    /// The page of the VM process of hypervisor `layer` that holds this page of its guest.
    pub fn hva(&self, layer: Layer, page: Frame<Upper>) -> Frame<Upper> {
        page + self.layers[layer].second().slot
    }

    /// VM exits so far.
    pub fn exits(&self) -> &Exits {
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
        self.charge_exits();
        self.spent.take()
    }

    /// A guest process touched a page that its table does not map, or stored to one that it may
    /// not write.
    ///
    /// # Errors
    /// [`Exhausted`], with the layer.
    pub fn guest_fault(
        &mut self,
        policy: &mut dyn Policy,
        space: SpaceId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<Faulted, Exhausted> {
        self.infer_area(space, page);
        let outcome = match self.layers[0].kernel.describe_fault(space, page) {
            Some(fault) => Faulted::Mapped(self.kernel_fault(policy, 0, &fault)?),
            None if store => {
                let mut outcome = self.layers[0].kernel.write_fault(space, page);
                if outcome.is_err() && policy.memory_short(0, &mut self.layers[0].kernel) {
                    outcome = self.layers[0].kernel.write_fault(space, page);
                }
                outcome.map_err(|_| Exhausted { layer: 0 })?
            }
            None => Faulted::Spurious,
        };
        self.settle(policy, 0, Spending::GuestFault)?;
        Ok(outcome)
    }

    /// The guest touched a guest-physical page that the hardware-walked second stage does not map.
    ///
    /// # Errors
    /// [`Exhausted`], with the layer.
    pub fn second_stage_fault(
        &mut self,
        policy: &mut dyn Policy,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        self.exits.ept_violation += 1;
        if self.shadow.is_none() {
            return self.back(policy, 1, page);
        }
        if self.layers[1].second().table.mapping(page.addr()).is_none() {
            self.exits.reflected += 1;
            self.back(policy, 1, page)?;
            if self.shadow_maps(page) {
                return Ok(());
            }
            // The guest hypervisor resumes its guest, which faults again: now on the shadow.
            self.exits.ept_violation += 1;
        }
        self.fill_shadow(policy, page)
    }

    /// Makes hypervisor `layer` map `page` of its guest's memory in its second stage.
    ///
    /// # Errors
    /// [`Exhausted`], with the layer.
    pub fn back(
        &mut self,
        policy: &mut dyn Policy,
        layer: Layer,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        if self.layers[layer].second().table.mapping(page.addr()).is_some() {
            return Ok(());
        }
        let hva = self.hva(layer, page);
        if let Some(fault) = self.layers[layer].kernel.describe_fault(VM, hva) {
            self.kernel_fault(policy, layer, &fault)?;
            self.settle(policy, layer, Spending::HypervisorFault)?;
        }
        // A policy that acts on a fault may have mapped it on the way.
        if self.layers[layer].second().table.mapping(page.addr()).is_none() {
            self.map_second_stage(policy, layer, page)?;
        }
        Ok(())
    }

    /// Copies the VM process's mapping of `page` into the second stage of `layer`.
    fn map_second_stage(
        &mut self,
        policy: &mut dyn Policy,
        layer: Layer,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        let StackLayer { kernel, second, .. } = &mut self.layers[layer];
        let second = second.as_mut().expect("a hypervisor has a second stage");
        let hva = page + second.slot;
        let vm = kernel.spaces[0].as_ref().expect("the VM process lives as long as the VM");
        let mapping = vm.table.mapping(hva.addr()).expect("the fault mapped it");
        let alike = second.slot.is_multiple_of(mapping.size.base_pages());
        let size = if alike { mapping.size } else { PageSize::Base };
        let frame = frame_of(&mapping, hva);
        let (first, frame) = (page.floor(size), frame.floor(size));
        let written = match (size, second.table.region(first)) {
            (PageSize::Huge, Region::Base { .. }) => {
                second.table.collapse(first, frame, Rights::ALL, &mut kernel.frames).map(|_| 1)
            }
            _ => second.table.map(first, size, frame, Rights::ALL, &mut kernel.frames),
        };
        let written = written.map_err(|_| Exhausted { layer })?;
        if layer < self.bottom() {
            self.exits.l1_ept_write += u64::from(written);
        }
        self.settle(policy, layer, Spending::HypervisorFault)?;
        if layer < self.bottom() {
            policy.second_stage_written(self, layer, first, size)?;
        }
        Ok(())
    }

    fn kernel_fault(
        &mut self,
        policy: &mut dyn Policy,
        layer: Layer,
        fault: &PageFault,
    ) -> Result<PageSize, Exhausted> {
        let kernel = &mut self.layers[layer].kernel;
        kernel.frames.counters.faults += 1;
        let placement = policy.place(layer, kernel, fault);
        let limit = self.thp.compact_regions;
        let mut mapped = kernel.map_fault(fault, placement, limit);
        if mapped.is_err() && policy.memory_short(layer, kernel) {
            mapped = kernel.map_fault(fault, placement, limit);
        }
        let size = mapped.map_err(|_| Exhausted { layer })?;
        let account = if layer == 0 { Spending::GuestFault } else { Spending::HypervisorFault };
        self.settle(policy, layer, account)?;
        policy.mapped(self, layer, fault, size)?;
        Ok(size)
    }

    /// Passes on what the kernel of `layer` did: frames it wrote are backed below, translations it
    /// changed are dropped above, and the work is charged.
    ///
    /// # Errors
    /// [`Exhausted`], with the layer that could not back a frame.
    pub fn settle(
        &mut self,
        policy: &mut dyn Policy,
        layer: Layer,
        account: Spending,
    ) -> Result<(), Exhausted> {
        self.charge_kernel(layer, account);
        // Taken out so that the hooks below can log more; given back to reuse the memory.
        let mut log = std::mem::take(&mut self.layers[layer].kernel.frames.log);
        for change in log.changes.drain(..) {
            self.propagate(layer, change);
        }
        for frame in log.freed_huge.drain(..) {
            policy.freed_huge(layer, &mut self.layers[layer].kernel, frame);
        }
        for action in log.actions.drain(..) {
            match action {
                Action::Zero(frame, order) => {
                    self.write_block(policy, layer, frame, order)?;
                    if self.contents.is_some() {
                        for i in 0..1 << order {
                            self.write_content(layer, frame + i, 0);
                        }
                    }
                }
                Action::Copy(from, to) => {
                    self.write_block(policy, layer, to, 0)?;
                    if self.contents.is_some() {
                        let tag = self.read_content(layer, from);
                        self.write_content(layer, to, tag);
                    }
                }
            }
        }
        let now = &mut self.layers[layer].kernel.frames.log;
        if now.actions.is_empty() && now.changes.is_empty() && now.freed_huge.is_empty() {
            *now = log;
        }
        Ok(())
    }

    /// The kernel of `layer` writes 2^order of its frames: the layer below must back them.
    pub(crate) fn write_block(
        &mut self,
        policy: &mut dyn Policy,
        layer: Layer,
        frame: Frame<Lower>,
        order: u32,
    ) -> Result<(), Exhausted> {
        if layer == self.bottom() {
            return Ok(());
        }
        let first: Frame<Upper> = frame.cross();
        let end = first + (1 << order);
        let mut page = first;
        while page < end {
            let below = if layer == 0 {
                self.hardware_second_stage().expect("there is a layer below")
            } else {
                &self.layers[layer + 1].second().table
            };
            match below.lookup(page.addr()) {
                Lookup::Mapped(mapping) => {
                    page = page.floor(mapping.size) + mapping.size.base_pages();
                }
                Lookup::Absent { .. } if layer == 0 => self.second_stage_fault(policy, page)?,
                Lookup::Absent { .. } => {
                    self.exits.l1_ept_violation += 1;
                    self.back(policy, layer + 1, page)?;
                }
            }
        }
        Ok(())
    }

    /// Translations of `layer` changed: whatever was built on them goes.
    fn propagate(&mut self, layer: Layer, change: Change) {
        if layer == 0 {
            self.flushes.push(Flush::Pages(change));
            return;
        }
        debug_assert_eq!(change.space, VM);
        let slot = self.layers[layer].second().slot;
        let Some(start) = change.page.get().checked_sub(slot) else { return };
        let zapped = self.zap_second_stage(layer, Frame::new(start), change.pages);
        if zapped == 0 {
            return;
        }
        if layer < self.bottom() {
            self.exits.l1_ept_write += zapped;
            self.exits.l1_invept += 1;
        }
        if self.shadow.is_none() {
            self.flush_second_stage();
        } else {
            self.zap_shadow_through(layer, Frame::new(start), change.pages);
        }
    }

    fn zap_second_stage(&mut self, layer: Layer, start: Frame<Upper>, pages: u64) -> u64 {
        let StackLayer { kernel, second, .. } = &mut self.layers[layer];
        let second = second.as_mut().expect("a hypervisor has a second stage");
        zap(&mut second.table, start, pages, &mut kernel.frames)
    }

    /// Charges the kernel work of `layer` since the last time.
    fn charge_kernel(&mut self, layer: Layer, account: Spending) {
        let StackLayer { kernel, charged, .. } = &mut self.layers[layer];
        let cycles = kernel_cycles(&self.costs, charged, kernel.counters());
        *charged = *kernel.counters();
        self.spent.add(self.account.unwrap_or(account), cycles);
    }

    fn charge_exits(&mut self) {
        let cycles = self.exits.cycles(&self.costs) - self.exits_charged.cycles(&self.costs);
        self.exits_charged = self.exits;
        self.spent.add(Spending::Exit, cycles);
    }

    /// Starts counting events anew; work done so far stays charged.
    pub fn reset_counters(&mut self) {
        self.charge_exits();
        self.exits = Exits::default();
        self.exits_charged = Exits::default();
        self.shadow_demotions = 0;
        self.shadow_promotions = 0;
        for layer in &mut self.layers {
            layer.kernel.reset_counters();
            layer.charged = KernelCounters::default();
        }
    }

    pub(crate) fn flush_second_stage(&mut self) {
        // One flush drops everything; asking twice in a row would only be charged twice.
        if self.flushes.last() != Some(&Flush::SecondStage) {
            self.flushes.push(Flush::SecondStage);
            self.spent.add(Spending::Shootdown, self.costs.shootdown);
        }
    }

    /// Follows a frame of `layer` down to real memory, if every layer backs it.
    pub fn bottom_frame(&self, layer: Layer, frame: Frame<Lower>) -> Option<Frame<Lower>> {
        let mut frame = frame;
        for (below, stack_layer) in self.layers.iter().enumerate().skip(layer + 1) {
            let hva = self.hva(below, frame.cross());
            frame = stack_layer.kernel.frame_behind(VM, hva)?;
        }
        Some(frame)
    }

    /// Keeps a tag per frame of real memory from now on, to check that nothing is lost.
    pub fn track_contents(&mut self) {
        self.contents = Some(Contents::default());
    }

    /// The tag in a frame of `layer`.
    ///
    /// # Panics
    /// When contents are not tracked, or the frame is not backed by real memory.
    pub fn read_content(&self, layer: Layer, frame: Frame<Lower>) -> u64 {
        let at = self.bottom_frame(layer, frame).expect("content is in backed frames");
        self.contents.as_ref().expect("contents are tracked").read(at.get())
    }

    /// Writes a tag to a frame of `layer`.
    ///
    /// # Panics
    /// As [`Stack::read_content`].
    pub fn write_content(&mut self, layer: Layer, frame: Frame<Lower>, tag: u64) {
        let at = self.bottom_frame(layer, frame).expect("content is in backed frames");
        self.contents.as_mut().expect("contents are tracked").write(at.get(), tag);
    }

    /// Who uses the frame of `layer` that a page of the next layer's guest is.
    pub(crate) fn owner_above(&self, layer: Layer, page: Frame<Upper>) -> Owner {
        self.layers[layer - 1].kernel.owner(page.cross())
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
