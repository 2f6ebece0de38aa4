//! The shadow table: GPA to HPA in one table, composed by the lowest layer.

use crate::owner::Owner;
use crate::policy::Policy;
use crate::stack::{KernelOutOfMemory, Stack};
use crate::tree::{NodeId, page_range};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_nested::ExitReason;
use strata_paging::{Region, Rights};

/// What all second stages together say of a guest page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComposedPage {
    /// The real frame.
    pub frame: Frame<Lower>,
    /// The smallest page size on the way.
    pub size: PageSize,
    /// Every hypervisor lets it be written.
    pub write: bool,
}

impl Stack {
    /// Composes the second stages of all hypervisors below a guest for a page of its memory; `None`
    /// when one of them does not map it.
    pub fn compose(&self, guest: NodeId, page: Frame<Upper>) -> Option<ComposedPage> {
        let mut at = page;
        let (mut size, mut write) = (PageSize::Giant, true);
        for vm in self.path_down(guest).filter(|vm| *vm != NodeId::HOST) {
            let mapping = self.second_stage(vm).mapping(at.addr())?;
            size = size.min(mapping.size);
            write &= mapping.rights.write;
            at = (mapping.frame + at.index_in(mapping.size)).cross();
        }
        Some(ComposedPage { frame: at.cross(), size, write })
    }

    /// The guest, and the page of its memory, that a page of a VM's memory backs: the second stages of all
    /// hypervisors above say so, which the host shadows. The page itself where the VM is a guest.
    pub fn backs(&self, vm: NodeId, page: Frame<Upper>) -> Option<(NodeId, Frame<Upper>)> {
        let (mut at, mut vm) = (page, vm);
        while !self.position(vm).is_guest() {
            let Owner::Page(process, hva) = self.kernel(vm).owner(at.cross()) else { return None };
            let above = self.above(vm, process)?;
            let page = Frame::new(hva.get().checked_sub(self.nodes[above].vm().slot)?);
            let mapped = self.second_stage(above).translate(page.addr())?;
            if mapped.page() != at.cross() {
                return None;
            }
            (at, vm) = (page, above);
        }
        Some((vm, at))
    }

    fn second_stage_maps(&self, vm: NodeId, page: Frame<Upper>) -> bool {
        self.second_stage(vm).mapping(page.addr()).is_some()
    }

    /// Whether the shadow table maps a page, for a `store` so that it may be written.
    pub(crate) fn shadow_allows(&self, guest: NodeId, page: Frame<Upper>, store: bool) -> bool {
        let vm = self.nodes[guest].vm.as_ref();
        let mapping = vm.and_then(|vm| vm.shadow.as_ref()?.mapping(page.addr()));
        mapping.is_some_and(|mapping| mapping.rights.write || !store)
    }

    /// Makes the shadow table of a nested guest map a page of its memory, backing it in every kernel
    /// below first where need be. Nothing happens for other guests.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn fill_shadow(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), KernelOutOfMemory> {
        self.fill_shadow_for(policy, guest, page, false)
    }

    /// The same, for a `store` so that the page may be written.
    pub(crate) fn fill_shadow_for(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        if self.nodes.shadow_and_frames(guest).is_none() || self.shadow_allows(guest, page, store) {
            return Ok(());
        }
        let allowed = |composed: &ComposedPage| composed.write || !store;
        let composed = match self.compose(guest, page).filter(allowed) {
            Some(composed) => composed,
            None => {
                self.back_all(policy, guest, page, store)?;
                if self.shadow_allows(guest, page, store) {
                    return Ok(());
                }
                self.compose(guest, page).expect("every kernel below backs it")
            }
        };
        let ComposedPage { frame, size, write } = composed;
        self.map_shadow(guest, page.floor(size), frame.floor(size), size, write)?;
        self.settle(policy, NodeId::HOST, crate::costs::Spending::HypervisorFault)
    }

    /// Every kernel below a guest backs a page of its memory.
    fn back_all(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        let (mut at, mut vm) = (page, guest);
        while let Some(below) = self.below(vm) {
            // Hypervisors between the guest's and the host do not know that they will need it. The guest
            // faults, one of them maps the page, and the guest faults again.
            if vm != guest && below != NodeId::HOST && !self.second_stage_maps(vm, at) {
                self.exit_to(below, guest, ExitReason::SecondStageViolation, 1);
            }
            self.back_for(policy, vm, at, store)?;
            let backed = self.second_stage(vm).translate(at.addr());
            at = backed.expect("backed just now").page().cross();
            vm = below;
        }
        Ok(())
    }

    fn map_shadow(
        &mut self,
        guest: NodeId,
        page: Frame<Upper>,
        frame: Frame<Lower>,
        size: PageSize,
        write: bool,
    ) -> Result<(), KernelOutOfMemory> {
        let rights = Rights { write, ..Rights::ALL };
        let shadow = self.nodes.shadow_and_frames(guest);
        let (shadow, frames) = shadow.expect("the guest is nested");
        let replaces = size == PageSize::Huge && matches!(shadow.region(page), Region::Base { .. });
        let mapped = match replaces {
            true => shadow.collapse(page, frame, rights, frames).map(|_| 1),
            false => shadow.map(page, size, frame, rights, frames),
        };
        mapped.map_err(|_| KernelOutOfMemory { node: NodeId::HOST })?;
        if replaces {
            // Base entries may be cached; the huge one must replace them.
            self.flush_second_stage(guest);
        }
        Ok(())
    }

    /// Makes the shadow map the HPAS region at `page` by one huge entry, if its 512 pages lie in
    /// one HPAS region of real memory and may all be written, whatever the layers between look like: a pseudo
    /// huge page (xGemini IV.D). Returns whether it is huge now.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`] when a page table could not be allocated.
    pub fn promote_shadow(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<bool, KernelOutOfMemory> {
        let page = page.floor(PageSize::Huge);
        let shadow = self.nodes.shadow_and_frames(guest);
        match shadow.map(|(shadow, _)| shadow.region(page)) {
            None => return Ok(false),
            Some(Region::Huge(_)) => return Ok(true),
            Some(_) => {}
        }
        let Some(first) = self.compose(guest, page) else { return Ok(false) };
        if !first.frame.is_aligned(PageSize::Huge) || !first.write {
            return Ok(false);
        }
        for i in 1..PageSize::Huge.base_pages() {
            let right = |c: ComposedPage| c.frame == first.frame + i && c.write;
            if !self.compose(guest, page + i).is_some_and(right) {
                return Ok(false);
            }
        }
        self.map_shadow(guest, page, first.frame, PageSize::Huge, true)?;
        self.shadow_promotions += 1;
        self.settle(policy, NodeId::HOST, crate::costs::Spending::HypervisorFault)?;
        Ok(true)
    }

    pub(crate) fn zap_shadow(&mut self, guest: NodeId, start: Frame<Upper>, pages: u64) {
        let Some((shadow, frames)) = self.nodes.shadow_and_frames(guest) else { return };
        let pseudo = pages < PageSize::Huge.base_pages()
            && matches!(shadow.region(start.floor(PageSize::Huge)), Region::Huge(_));
        if shadow.unmap_range(page_range(start, pages), frames) > 0 {
            self.shadow_demotions += u64::from(pseudo);
            self.flush_second_stage(guest);
        }
    }

    /// Checks that every entry of a shadow table equals the composition of the second stages, and every
    /// entry of a second stage the VM process's mapping, rights to write included. For tests and debug
    /// builds: walks everything.
    ///
    /// # Panics
    /// When a table disagrees, naming the page.
    pub fn check_composition(&self) {
        for node in self.nodes.iter() {
            let Some(vm) = &node.vm else { continue };
            let at = node.position.node;
            for (page, mapping) in vm.second.mapped(vm.second.everything()) {
                for i in 0..mapping.size.base_pages() {
                    let hva = self.hva(at, page + i);
                    let behind = self.kernel(vm.below).frame_behind(vm.process, hva);
                    assert_eq!(behind, Some(mapping.frame + i), "{at:?}, {:?}", page + i);
                    let below = self.vm_table(at).mapping(hva.addr()).map(|m| m.rights.write);
                    assert_eq!(below, Some(mapping.rights.write), "{at:?}, {:?}", page + i);
                }
            }
            let Some(shadow) = &vm.shadow else { continue };
            for (page, mapping) in shadow.mapped(shadow.everything()) {
                for i in 0..mapping.size.base_pages() {
                    let composed = self.compose(at, page + i).map(|c| (c.frame, c.write));
                    assert_eq!(
                        composed,
                        Some((mapping.frame + i, mapping.rights.write)),
                        "shadow of {at:?}, {:?}",
                        page + i
                    );
                }
            }
        }
    }
}
