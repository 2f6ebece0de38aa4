//! Faults go down, changes go up: the operations that pass from one kernel to the next.
//!
//! A hypervisor's second stage follows its VM process's page table as KVM's does through MMU
//! notifiers: filled on a violation, zapped when the process's mapping changes. When a frame of a
//! VM's memory is first written by its kernel, the kernel below must back it.

use crate::costs::{Spending, kernel_cycles};
use crate::fault::{Faulted, PageFault, Placement, frame_of};
use crate::frames::{Action, Change};
use crate::owner::{Owner, SpaceId};
use crate::policy::Policy;
use crate::stack::{Flush, KernelOutOfMemory, Stack};
use crate::tree::{Node, NodeId, Vm, page_range};
use strata_addr::space::{Lower, Upper};
use strata_addr::{Frame, PageSize, Range};
use strata_nested::ExitReason;
use strata_paging::{Region, Rights};

impl Stack {
    /// A guest's process touched a page that its table does not map, or stored to one that it may
    /// not write.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn guest_fault(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<Faulted, KernelOutOfMemory> {
        self.infer_area(guest, space, page);
        let kernel = &mut self.nodes[guest].kernel;
        let outcome = match kernel.describe_fault(space, page, store) {
            Some(fault) => {
                let size = self.kernel_fault(policy, guest, &fault)?;
                self.map_around(policy, guest, &fault)?;
                Faulted::Mapped(size)
            }
            None if store => {
                let mut outcome = kernel.write_fault(space, page, Placement::Linux);
                if outcome.is_err() && policy.memory_short(guest, kernel) {
                    outcome = kernel.write_fault(space, page, Placement::Linux);
                }
                outcome.map_err(|_| KernelOutOfMemory { node: guest })?
            }
            None => Faulted::Spurious,
        };
        self.settle(policy, guest, Spending::GuestFault)?;
        Ok(outcome)
    }

    /// A guest touched a page of its memory that the second stage which hardware walks for it does
    /// not map, or stored to one that it may not write there.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn second_stage_fault(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        if self.has_shadow_paging(guest) {
            return self.fault_of_direct_map(policy, guest, page, store);
        }
        if self.nodes[guest].vm().shadow.is_some()
            && self.second_stage(guest).mapping(page.addr()).is_none()
        {
            // The guest hypervisor maps it.
            self.exit(guest, ExitReason::SecondStageViolation, 1);
            self.back_missing(policy, guest, page, store)?;
            if self.shadow_allows(guest, page, store) {
                return Ok(());
            }
            // It resumes its guest, which faults again: now on the shadow.
        }
        self.exit_to(NodeId::HOST, guest, ExitReason::SecondStageViolation, 1);
        match self.nodes[guest].vm().shadow {
            Some(_) => self.fill_shadow_for(policy, guest, page, store),
            None => self.back_for(policy, guest, page, store),
        }
    }

    /// Makes the hypervisor below `vm` map `page` of the VM's memory in its second stage.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn back(
        &mut self,
        policy: &mut dyn Policy,
        vm: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), KernelOutOfMemory> {
        self.back_for(policy, vm, page, false)
    }

    /// The same, for a `store` so that the page may be written.
    pub(crate) fn back_for(
        &mut self,
        policy: &mut dyn Policy,
        vm: NodeId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        match self.second_stage_allows(vm, page, store) {
            true => Ok(()),
            false => self.back_missing(policy, vm, page, store),
        }
    }

    /// The same for a page that the second stage does not allow.
    fn back_missing(
        &mut self,
        policy: &mut dyn Policy,
        vm: NodeId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        let hva = self.hva(vm, page);
        let &Vm { below, process, .. } = self.nodes[vm].vm();
        let writes = self.second_stage_writes;
        if let Some(mut fault) = self.nodes[below].kernel.describe_fault(process, hva, store) {
            (fault.vm, fault.vm_page) = (Some(vm), Some(page));
            fault.backs = self.backs_of_fault(policy, below, vm, page);
            self.kernel_fault(policy, below, &fault)?;
            self.settle(policy, below, Spending::HypervisorFault)?;
        } else if store {
            self.make_writable(policy, vm, page)?;
        }
        // A policy that acts on a fault may have mapped it on the way.
        if writes == self.second_stage_writes || !self.second_stage_allows(vm, page, store) {
            debug_assert!(!self.second_stage_allows(vm, page, store), "an entry is written once");
            self.map_second_stage(policy, vm, page)?;
            self.map_second_stage_around(policy, vm, page)?;
        }
        Ok(())
    }

    /// Whether a second stage maps a page, for a `store` so that it may be written.
    pub(crate) fn second_stage_allows(&self, vm: NodeId, page: Frame<Upper>, store: bool) -> bool {
        let mapping = self.second_stage(vm).mapping(page.addr());
        mapping.is_some_and(|mapping| mapping.rights.write || !store)
    }

    /// What is backed by a page that a hypervisor is about to map, where the policy asks for it: to tell cache
    /// colours apart, or to put a nested guest's pages in rows.
    fn backs_of_fault(
        &self,
        policy: &dyn Policy,
        below: NodeId,
        vm: NodeId,
        page: Frame<Upper>,
    ) -> Option<(NodeId, Frame<Upper>)> {
        let asked = below == NodeId::HOST && policy.wants_backs();
        if asked { self.backs(vm, page) } else { None }
    }

    /// A page of a VM's memory that its hypervisor maps is stored to. If it is merged with others it is
    /// copied to where the policy wants it.
    fn make_writable(
        &mut self,
        policy: &mut dyn Policy,
        vm: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), KernelOutOfMemory> {
        let hva = self.hva(vm, page);
        let &Vm { below, process, .. } = self.nodes[vm].vm();
        let backs = self.backs_of_fault(policy, below, vm, page);
        let kernel = &mut self.nodes[below].kernel;
        let Some(place) = kernel.space(process) else { return Ok(()) };
        let (mapping, vma) = (place.table.mapping(hva.addr()), place.vmas.find(hva.addr()));
        let (Some(mapping), Some(&vma)) = (mapping, vma) else { return Ok(()) };
        let fault = PageFault {
            space: process,
            vm: Some(vm),
            vm_page: Some(page),
            backs,
            page: hva,
            vma,
            store: true,
            huge_possible: false,
        };
        let copies = kernel.is_shared(frame_of(&mapping, hva));
        let placement = if copies { policy.place(below, kernel, &fault) } else { Placement::Linux };
        let mut outcome = kernel.write_fault(process, hva, placement);
        if outcome.is_err() && policy.memory_short(below, kernel) {
            outcome = kernel.write_fault(process, hva, placement);
        }
        if outcome.map_err(|_| KernelOutOfMemory { node: below })? == Faulted::Writable {
            kernel.frames.counters.unmerged_pages += 1;
            self.ksm.note_store(vm, page);
        }
        self.settle(policy, below, Spending::HypervisorFault)?;
        if copies {
            policy.mapped(self, below, &fault, PageSize::Base)?;
        }
        Ok(())
    }

    /// Copies the VM process's mapping of `page` into the second stage of its VM.
    pub(crate) fn map_second_stage(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), KernelOutOfMemory> {
        let hva = self.hva(node, page);
        let mapping = self.vm_table(node).mapping(hva.addr()).expect("the fault mapped it");
        let (vm, kernel) = self.nodes.vm_and_below(node);
        let alike = vm.slot.is_multiple_of(mapping.size.base_pages());
        let size = if alike { mapping.size } else { PageSize::Base };
        let frame = frame_of(&mapping, hva);
        let (first, frame) = (page.floor(size), frame.floor(size));
        let rights = Rights { write: mapping.rights.write, ..Rights::ALL };
        let (second, frames) = (&mut vm.second, &mut kernel.frames);
        let replaces =
            size == PageSize::Huge && matches!(second.region(first), Region::Base { .. });
        let written = match replaces {
            true => second.collapse(first, frame, rights, frames).map(|_| 1),
            false => second.map(first, size, frame, rights, frames),
        };
        let below = vm.below;
        let written = written.map_err(|_| KernelOutOfMemory { node: below })?;
        self.second_stage_writes += 1;
        // Without a second stage that the host follows nobody sees it written.
        let is_followed = below != NodeId::HOST && !self.has_shadow_paging(node);
        if is_followed {
            self.second_stage_mapped(node, first, size, u64::from(written));
        }
        self.settle(policy, below, Spending::HypervisorFault)?;
        if is_followed {
            policy.second_stage_written(self, node, first, size)?;
        }
        Ok(())
    }

    fn kernel_fault(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        fault: &PageFault,
    ) -> Result<PageSize, KernelOutOfMemory> {
        let Node { position, kernel, .. } = &mut self.nodes[node];
        let account =
            if position.is_guest() { Spending::GuestFault } else { Spending::HypervisorFault };
        kernel.frames.counters.faults += 1;
        let placement = policy.place(node, kernel, fault);
        let limit = self.thp.compact_regions;
        let mut mapped = kernel.map_fault(fault, placement, limit);
        if mapped.is_err() && policy.memory_short(node, kernel) {
            mapped = kernel.map_fault(fault, placement, limit);
        }
        let size = mapped.map_err(|_| KernelOutOfMemory { node })?;
        self.settle(policy, node, account)?;
        policy.mapped(self, node, fault, size)?;
        Ok(size)
    }

    /// Passes on what a kernel did: frames it wrote are backed below, translations it changed are
    /// dropped above, and the work is charged.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel that could not back a frame.
    pub fn settle(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        account: Spending,
    ) -> Result<(), KernelOutOfMemory> {
        self.charge_kernel(node, account);
        let log = &mut self.nodes[node].kernel.frames.log;
        if log.changes.is_empty() && log.freed_huge.is_empty() {
            // So it is at most first touches: nothing is moved about for them.
            match log.actions.len() {
                0 => return Ok(()),
                1 => {
                    let action = log.actions.pop().expect("there is one");
                    return self.act(policy, node, action);
                }
                _ => {}
            }
        }
        // Taken out so that the hooks below can log more; given back to reuse the memory.
        let mut log = std::mem::take(&mut self.nodes[node].kernel.frames.log);
        for change in log.changes.drain(..) {
            self.propagate(node, change);
        }
        for (space, frame) in log.freed_huge.drain(..) {
            let vm = self.above(node, space);
            policy.freed_huge(self, node, vm, frame);
        }
        for action in log.actions.drain(..) {
            self.act(policy, node, action)?;
        }
        let now = &mut self.nodes[node].kernel.frames.log;
        if now.actions.is_empty() && now.changes.is_empty() && now.freed_huge.is_empty() {
            *now = log;
        }
        Ok(())
    }

    /// What a kernel did to its memory is done to the memory below it.
    fn act(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        action: Action,
    ) -> Result<(), KernelOutOfMemory> {
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
                    // What nothing backs is read as zeroes: pages that were never written, or whose
                    // frames the host took through a balloon. What the fault costs is left out.
                    let backed = self.bottom_frame(node, from).is_some();
                    let tag = if backed { self.read_content(node, from) } else { 0 };
                    self.write_content(node, to, tag);
                }
            }
            Action::Exchange(one, other) => {
                self.write_block(policy, node, one, 0)?;
                self.write_block(policy, node, other, 0)?;
                if self.contents.is_some() {
                    let tags = [one, other].map(|frame| self.read_content(node, frame));
                    self.write_content(node, one, tags[1]);
                    self.write_content(node, other, tags[0]);
                }
            }
        }
        Ok(())
    }

    /// A kernel writes 2^order of its frames: the hypervisor below must back them, so that they may be
    /// written.
    pub(crate) fn write_block(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        frame: Frame<Lower>,
        order: u32,
    ) -> Result<(), KernelOutOfMemory> {
        if node == NodeId::HOST {
            return Ok(());
        }
        let guest = self.position(node).is_guest();
        let mut rest = Range::sized(frame.cross().addr(), PageSize::Base.bytes() << order);
        while let Some(page) = self.first_unwritable(node, rest) {
            if guest {
                self.second_stage_fault(policy, node, page, true)?;
            } else {
                self.exit(node, self.reason_of_missing(), 1);
                self.back_missing(policy, node, page, true)?;
            }
            rest.start = page.addr();
        }
        // For a guest with a second stage hardware walks one table with the rights of all layers.
        let one_table = guest && !self.has_shadow_paging(node);
        if one_table || self.nodes[node].vm().below == NodeId::HOST {
            return Ok(());
        }
        // Hardware translates through all layers at once, and the lower ones may have taken frames back.
        for i in 0..1 << order {
            let page = (frame + i).cross();
            let below = self.nodes[node].vm().below;
            let Some(backing) = self.second_stage(node).translate(page.addr()) else { continue };
            let frame = backing.page();
            if !guest {
                self.write_block(policy, below, frame, 0)?;
            } else if !self.second_stage_allows(below, frame.cross(), true) {
                self.fault_below_shadow(policy, node, frame.cross(), true)?;
            }
        }
        Ok(())
    }

    /// The first page of a kernel's memory that it cannot write without a violation.
    fn first_unwritable(&self, node: NodeId, range: Range<Upper>) -> Option<Frame<Upper>> {
        let Node { position, vm, .. } = &self.nodes[node];
        let vm = vm.as_ref()?;
        let below = if position.is_guest() { vm.hardware_table() } else { &vm.second };
        let hole = below.first_hole(range).map(|hole| hole.start.page());
        if !self.ksm.has_merged() {
            return hole;
        }
        let mapped = Range::new(range.start, hole.map_or(range.end, |hole| hole.addr()));
        let merged = below.mapped(mapped).find(|(_, mapping)| !mapping.rights.write);
        merged.map(|(page, _)| page.max(range.start.page())).or(hole)
    }

    /// Translations of a kernel's space changed: whatever was built on them goes.
    fn propagate(&mut self, node: NodeId, change: Change) {
        let Some(above) = self.above(node, change.space) else {
            if self.has_shadow_paging(node) {
                self.shadow_changed(node, change);
            }
            self.flushes.push(Flush::Pages(node, change));
            return;
        };
        let slot = self.nodes[above].vm().slot;
        let Some(start) = change.page.get().checked_sub(slot) else { return };
        let (vm, kernel) = self.nodes.vm_and_below(above);
        let pages = page_range(Frame::new(start), change.pages);
        let zapped = vm.second.unmap_range(pages, &mut kernel.frames);
        if zapped == 0 {
            return;
        }
        if node != NodeId::HOST && !self.has_shadow_paging(above) {
            self.second_stage_zapped(above, Frame::new(start), change.pages, zapped);
        }
        self.drop_through(above, Frame::new(start), change.pages);
    }

    /// What a hypervisor had for pages of a VM's memory is gone: drops what hardware and shadow
    /// tables know through it.
    fn drop_through(&mut self, node: NodeId, start: Frame<Upper>, pages: u64) {
        if self.has_shadow_paging(node) {
            return self.drop_from_shadows(node, start, pages);
        }
        let Node { position, vm, .. } = &self.nodes[node];
        if position.is_guest() {
            match vm.as_ref().and_then(|vm| vm.shadow.as_ref()) {
                Some(_) => self.zap_shadow(node, start, pages),
                None => self.flush_second_stage(node),
            }
            return;
        }
        let shadowed: Vec<NodeId> = self
            .guests()
            .filter(|guest| self.below(*guest) == Some(node) && self.has_shadow_paging(*guest))
            .collect();
        if !shadowed.is_empty() {
            // What its hypervisor keeps stays as it is; where its frames lie is the affair of hardware alone, or of
            // L0's shadow.
            return shadowed.into_iter().for_each(|guest| match self.shadows_twice(guest) {
                true => self.drop_from_forwarded(guest, start, pages),
                false => self.flush_second_stage(guest),
            });
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
        let account = self.account.unwrap_or(account);
        if matches!(account, Spending::GuestFault | Spending::HypervisorFault) {
            let by_work = &mut kernel.frames.counters.fault_cycles;
            by_work.iter_mut().zip(cycles).for_each(|(sum, cycles)| *sum += cycles);
        }
        *charged = *kernel.counters();
        self.spent.add(account, cycles.iter().sum());
    }
}
