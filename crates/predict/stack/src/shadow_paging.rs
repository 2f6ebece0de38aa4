//! Shadow paging: a hypervisor that has no second stage keeps, for each process of its guest, a table of its own
//! from the process's addresses to the hypervisor's frames, and hardware walks that.
//!
//! ```text
//! in a VM              GVA --guest's table--> GPA --what L0 backs it with--> HPA
//!                      GVA ----------- L0's shadow, which hardware walks --> HPA
//! in a nested VM       GVA ----------- L1's shadow --> GHPA --L0's second stage--> HPA
//! or, shadow on shadow GVA ----------- L1's shadow --> GHPA --what L0 backs it with--> HPA
//!                      GVA ----------- L0's shadow of it, which hardware walks ------> HPA
//! ```
//!
//! What exits are the guest's page faults, its writes to page-table pages that are shadowed, and its loads of a
//! page table, as with KVM of 2009 (Linux 2.6.29, `arch/x86/kvm/mmu.c`, `paging_tmpl.h`; the rules are those
//! of [`strata_nested::modes`], in which every exit is executed):
//!
//! - A page that the guest's table does not map is the guest's own affair: the fault exits, and is injected.
//! - One that it maps is filled in: at first for reading only, unless it is stored to or was, so that the dirty
//!   flag in the guest's table is true.
//! - A page of the guest's table is write-protected once something of it is shadowed. The first write to a leaf
//!   table exits, and lets it go *unsync* until the guest loads a page table or flushes the TLB; of tables
//!   further up every write exits. With `nested.second_stage_writes=trap` that is so for leaf tables, too: who
//!   does the write for the guest fills the shadow at once.
//! - Where the hypervisor has not backed a page yet that the guest's kernel touches, that is a page fault, too.
//! - With page-fault bypass a fault does not exit on a page of which all shadows know that the guest's table lacks it.
//!
//! What L0 does about a shadow that L1 keeps is the same once more (`shadow_on_shadow.rs`).
//!
//! A kernel of today flushes few pages one by one (INVLPG, [`ExitReason::Invalidation`]), and more of them, or
//! whatever it was in 2009, by loading the page table anew ([`ExitReason::ControlRegister`]). Left out: changes of
//! process, which no stream tells, and that a page is no table any more after three writes in a row.

use crate::costs::Spending;
use crate::fault::{Faulted, frame_of};
use crate::frames::{Change, Frames};
use crate::kernel::{OutOfMemory, PageTable};
use crate::owner::{Owner, SpaceId};
use crate::policy::Policy;
use crate::shadowed::{Below, Entry, Paging, Shadow, Shadowed, clear, pages_of_walk, put, walk};
use crate::stack::{Flush, KernelOutOfMemory, Stack};
use crate::tree::{NodeId, Nodes, SecondStageTable};
use strata_addr::space::{Lower, Upper};
use strata_addr::{Frame, PageSize};
use strata_nested::{ExitReason, Instructions, Work};
use strata_paging::{Format, FrameSource, Mapping, Rights, X86};

impl Nodes {
    /// The shadow that hardware walks for a process, and the second stage that it walks for its entries.
    pub(crate) fn shadow_tables(
        &mut self,
        guest: NodeId,
        space: SpaceId,
    ) -> Option<crate::stack::HardwareTables<'_>> {
        let below = self[guest].vm().below;
        let (lower, upper) = self.split(guest);
        let shadowed = upper.shadows.get_mut(space.0 as usize)?.as_mut()?;
        if let Some(below) = &mut shadowed.below {
            return Some((below.shadow.table.cross_mut(), None));
        }
        let second = lower[below.index()].vm.as_mut();
        let second = second.map(|vm| vm.hardware_table_mut().cross_mut());
        Some((shadowed.shadow.table.cross_mut(), second))
    }

    /// A shadow, and the frames of the hypervisor that it is made of.
    pub(crate) fn shadow_of(
        &mut self,
        guest: NodeId,
        space: SpaceId,
    ) -> Option<(&mut Shadow, &mut Frames)> {
        let below = self[guest].vm.as_ref()?.below;
        let (lower, upper) = self.split(guest);
        let shadowed = upper.shadows.get_mut(space.0 as usize)?.as_mut()?;
        Some((&mut shadowed.shadow, &mut lower[below.index()].kernel.frames))
    }
}

impl Stack {
    /// Whether a kernel runs programs in a VM whose hypervisor keeps shadows of their tables.
    #[inline]
    pub fn has_shadow_paging(&self, node: NodeId) -> bool {
        self.paging.has_shadows() && node != NodeId::HOST && self.position(node).is_guest()
    }

    /// A process of a guest begins: its hypervisor begins a shadow, if it keeps such.
    pub(crate) fn start_shadow(
        &mut self,
        guest: NodeId,
        space: SpaceId,
    ) -> Result<(), OutOfMemory> {
        if !self.has_shadow_paging(guest) {
            return Ok(());
        }
        let below = self.below(guest).expect("it is in a VM");
        let levels = self.levels();
        let mut start = |node: NodeId| {
            let root = self.nodes[node].kernel.frames.table_frame().ok_or(OutOfMemory)?;
            Ok(Shadow::new(PageTable::new(levels, root)))
        };
        let shadow = start(below)?;
        let below = match self.paging == Paging::ShadowOnShadow && below != NodeId::HOST {
            true => Some(Box::new(Below { shadow: start(NodeId::HOST)?, upgraded: Vec::new() })),
            false => None,
        };
        let shadows = &mut self.nodes[guest].shadows;
        if shadows.len() <= space.0 as usize {
            shadows.resize_with(space.0 as usize + 1, || None);
        }
        shadows[space.0 as usize] = Some(Shadowed { shadow, below });
        Ok(())
    }

    /// A process of a guest ends, which its hypervisor learns when the guest loads another page table.
    pub(crate) fn end_shadow(&mut self, guest: NodeId, space: SpaceId) {
        let end = |(shadow, frames): (&mut Shadow, &mut Frames)| {
            shadow.table.clear(frames);
            frames.free_table_frame(shadow.table.root_frame());
        };
        let Some(shadow) = self.nodes.shadow_of(guest, space) else { return };
        end(shadow);
        if let Some((below, frames)) = self.nodes.forwarded(guest, space) {
            end((&mut below.shadow, frames));
        }
        self.nodes[guest].shadows[space.0 as usize] = None;
        self.exit(guest, ExitReason::ControlRegister, 1);
        self.enters_again(guest, None, 0);
    }

    /// Page-table pages of the shadows of a guest's processes that a kernel keeps.
    pub(crate) fn shadow_pages(&self, guest: NodeId, keeper: NodeId) -> usize {
        let shadows = self.nodes[guest].shadows.iter().flatten();
        let is_hypervisor = self.below(guest) == Some(keeper);
        let of_one = |shadowed: &Shadowed| {
            let own = if is_hypervisor { shadowed.shadow.table.table_pages() } else { 0 };
            let below = shadowed.below.as_ref().filter(|_| keeper == NodeId::HOST);
            own + below.map_or(0, |below| below.shadow.table.table_pages())
        };
        shadows.map(of_one).sum()
    }

    /// Hardware found no mapping for an access of a process in the shadow, or none for a store.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn shadow_fault(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<Faulted, KernelOutOfMemory> {
        let Some(process) = self.nodes[guest].kernel.space(space) else {
            return Ok(Faulted::Spurious);
        };
        let mapping = process.table.mapping(page.addr());
        if self.mends_below(guest, space, page, store) {
            self.exit_to(NodeId::HOST, guest, ExitReason::PageFault, 1);
            self.forward(policy, guest, space, page, store)?;
            return Ok(Faulted::Spurious);
        }
        let mapping = mapping.filter(|mapping| mapping.rights.write || !store);
        let exits = !self.bypasses(guest, space, page);
        if exits {
            let work = if mapping.is_some() { Work::Shadow } else { Work::Inject };
            self.page_faults(guest, work, 1);
        }
        if let Some(mapping) = mapping {
            self.fill(policy, guest, space, page, mapping, store)?;
            return Ok(Faulted::Spurious);
        }
        if exits {
            self.enters_again(guest, Some(space), 0);
        }
        let before = self.pages_of_walk(guest, space, page);
        let faulted = self.guest_fault(policy, guest, space, page, store)?;
        if faulted != Faulted::Spurious {
            self.wrote_entry(policy, guest, space, page, store, &before)?;
        }
        Ok(faulted)
    }

    /// A VM takes so many page faults that ask this of the hypervisor below.
    pub(crate) fn page_faults(&mut self, vm: NodeId, work: Work, faults: u64) {
        let handler = self.below(vm).expect("the host is in no VM");
        self.exit_for(handler, vm, (ExitReason::PageFault, work), faults);
    }

    /// Whether a fault on a page goes to the guest without an exit: with page-fault bypass, when the guest's table
    /// lacks it, and every shadow below is known to be in step where its leaf table has nothing.
    fn bypasses(&self, guest: NodeId, space: SpaceId, page: Frame<Upper>) -> bool {
        if !self.exit_costs().page_fault_bypass
            || self.virtualization().instructions != Instructions::Vmx
        {
            return false;
        }
        let process = self.nodes[guest].kernel.space(space);
        let shadowed = self.nodes[guest].shadows.get(space.0 as usize);
        let (Some(process), Some(Some(shadowed))) = (process, shadowed) else { return false };
        let Shadowed { shadow, below } = shadowed;
        shadow.knows_absent(page, &process.table)
            && below.as_ref().is_none_or(|below| below.shadow.knows_absent(page, &shadow.table))
    }

    /// Why a hypervisor in a VM exits for memory of its own that L0 has not backed.
    pub(crate) fn reason_of_missing(&self) -> ExitReason {
        match self.paging {
            Paging::ShadowOnShadow => ExitReason::PageFault,
            Paging::Nested | Paging::Shadow => ExitReason::SecondStageViolation,
        }
    }

    /// Hardware found no mapping below a shadow, or none for a store: for a frame of the hypervisor's that keeps
    /// it, which is L1.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn fault_below_shadow(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        let keeper = self.below(guest).expect("it is in a VM");
        self.exit_to(NodeId::HOST, guest, self.reason_of_missing(), 1);
        self.back_for(policy, keeper, page, store)
    }

    /// A guest's kernel touches a page of its memory, by its direct map, that its hypervisor has not backed.
    pub(crate) fn fault_of_direct_map(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        self.exit(guest, ExitReason::PageFault, 1);
        self.back_for(policy, guest, page, store)?;
        self.direct_entry_filled(guest, page);
        Ok(())
    }

    /// Frames of the pages of a process's table that a walk to a page reads.
    fn pages_of_walk(
        &self,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
    ) -> Vec<Frame<Lower>> {
        let Some(process) = self.nodes[guest].kernel.space(space) else { return Vec::new() };
        pages_of_walk(&process.table, page)
    }

    /// The guest's kernel has mapped a page: it made page-table pages, and wrote to one that was there before.
    fn wrote_entry(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        store: bool,
        before: &[Frame<Lower>],
    ) -> Result<(), KernelOutOfMemory> {
        let after = self.pages_of_walk(guest, space, page);
        for table in after.iter().skip(before.len()) {
            if !self.second_stage_allows(guest, table.cross(), true) {
                self.fault_of_direct_map(policy, guest, table.cross(), true)?;
            }
        }
        let levels = usize::from(self.levels());
        let Some(written) = before.last().copied() else { return Ok(()) };
        let is_leaf = before.len() == levels;
        let emulated = self.write_to_table(guest, space, written, is_leaf, 1);
        let process = self.nodes[guest].kernel.space(space);
        let mapping = process.and_then(|process| process.table.mapping(page.addr()));
        match mapping.filter(|_| emulated && is_leaf) {
            // Who writes an entry for the guest knows what it will be for.
            Some(mapping) => self.fill(policy, guest, space, page, mapping, store),
            None => Ok(()),
        }
    }

    /// The guest's kernel writes so many entries of a page of its table; gives whether the hypervisor did it.
    fn write_to_table(
        &mut self,
        guest: NodeId,
        space: SpaceId,
        table: Frame<Lower>,
        is_leaf: bool,
        entries: u64,
    ) -> bool {
        let may_unsync = is_leaf && self.lets_go_unsync();
        let Some((shadow, _)) = self.nodes.shadow_of(guest, space) else { return false };
        let exits = shadow.originals.write(table, may_unsync, entries);
        if exits == 0 {
            return false;
        }
        self.page_faults(guest, if may_unsync { Work::Shadow } else { Work::Emulate }, exits);
        match may_unsync {
            true => self.direct_entry_upgraded(guest, table.cross()),
            false => self.enters_again(guest, Some(space), 0),
        }
        !may_unsync
    }

    /// The hypervisor makes the shadow map a page as the guest's table has it.
    fn fill(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        mapping: Mapping<Lower>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        let keeper = self.below(guest).expect("it is in a VM");
        // It reads the guest's table, and gives the guest the frame.
        let tables = self.pages_of_walk(guest, space, page);
        for table in &tables {
            self.back_for(policy, guest, table.cross(), false)?;
        }
        let frame: Frame<Upper> = frame_of(&mapping, page).cross();
        self.back_for(policy, guest, frame, store)?;
        let backing = self.second_stage(guest).mapping(frame.addr()).expect("backed just now");
        let size = mapping.size.min(backing.size);
        let behind = backing.frame + frame.index_in(backing.size);
        let Some(process) = self.nodes[guest].kernel.space_mut(space) else { return Ok(()) };
        let (at, entry) = *walk(&process.table, page).last().expect("a walk has a root");
        process.table.mark(at, entry, store);
        let is_dirty = process.table.entry(at, entry) & X86::DIRTY != 0;
        let write = mapping.rights.write && backing.rights.write && is_dirty;
        let rights = Rights { write, execute: mapping.rights.execute };
        let entry = Entry { size, frame: behind.floor(size), rights };
        let Some((shadow, frames)) = self.nodes.shadow_of(guest, space) else { return Ok(()) };
        let (put, mapped) = put(&mut shadow.table, page, entry, frames);
        let new: Vec<_> =
            tables.into_iter().filter(|table| shadow.originals.protect(*table)).collect();
        if let Some((page, pages)) = put.changed {
            self.flushes.push(Flush::Pages(guest, Change { space, page, pages }));
        }
        let is_known = self.keeper_wrote(guest, space, &put);
        mapped.map_err(|_| KernelOutOfMemory { node: keeper })?;
        self.settle(policy, keeper, Spending::HypervisorFault)?;
        for table in &new {
            self.direct_entry_written(guest, table.cross());
        }
        let takes_away = put.takes_away() || !new.is_empty();
        if is_known {
            self.forward(policy, guest, space, page, store)?;
        }
        self.enters_again(guest, Some(space), u64::from(takes_away));
        Ok(())
    }

    /// A guest's kernel changed mappings of a process, and flushes the TLB for that.
    pub(crate) fn shadow_changed(&mut self, guest: NodeId, change: Change) {
        let Change { space, page, pages } = change;
        let levels = usize::from(self.levels());
        let counted = self.shadows_twice(guest);
        let Some((shadow, frames)) = self.nodes.shadow_of(guest, space) else { return };
        let cleared = clear(&mut shadow.table, page, pages, frames, counted);
        // One entry of a leaf table for each page, as far as there is a leaf table.
        let (mut at, end) = (page, page + pages);
        while at < end {
            let next = (at.floor(PageSize::Huge) + PageSize::Huge.base_pages()).min(end);
            let tables = self.pages_of_walk(guest, space, at);
            let is_leaf = tables.len() == levels;
            let entries = if is_leaf { next.get() - at.get() } else { 1 };
            if let Some(table) = tables.last() {
                self.write_to_table(guest, space, *table, is_leaf, entries);
            }
            // Where not even a table is, there is none for a GiB.
            let step = match tables.len() + 2 > levels {
                true => next,
                false => (at.floor(PageSize::Giant) + PageSize::Giant.base_pages()).min(end),
            };
            at = step;
        }
        if pages <= self.exit_costs().hypervisor.flushed_one_by_one() {
            // Page by page: what is unsync stays so, and L1 invalidates what its guest does.
            let handler = self.below(guest).expect("it is in a VM");
            self.exit_for(handler, guest, (ExitReason::Invalidation, Work::Forget), pages);
            self.keeper_wrote(guest, space, &cleared);
            return self.is_entered_again(guest, Some(space), cleared.takes_away());
        }
        // All at once: tables that were unsync are read anew, and protected again.
        self.exit(guest, ExitReason::ControlRegister, 1);
        let Some((shadow, _)) = self.nodes.shadow_of(guest, space) else { return };
        let synchronised = shadow.originals.synchronise();
        self.keeper_wrote(guest, space, &cleared);
        for table in &synchronised {
            self.direct_entry_written(guest, table.cross());
        }
        let takes_away = cleared.takes_away() || !synchronised.is_empty();
        self.enters_again(guest, Some(space), u64::from(takes_away));
    }

    /// A hypervisor took pages of a guest's memory away: shadows have them no more.
    pub(crate) fn drop_from_shadows(&mut self, guest: NodeId, start: Frame<Upper>, pages: u64) {
        for i in 0..pages {
            let owner = self.nodes[guest].kernel.owner((start + i).cross());
            match owner {
                Owner::Page(space, page) => self.drop_from_shadow(guest, space, page),
                // Who else has it is not known.
                Owner::Shared { .. } => return self.drop_all_of_shadows(guest),
                _ => {}
            }
        }
    }

    /// A shadow has a page no more, nor hardware what it was part of.
    fn drop_from_shadow(&mut self, guest: NodeId, space: SpaceId, page: Frame<Upper>) {
        let counted = self.shadows_twice(guest);
        let Some((shadow, frames)) = self.nodes.shadow_of(guest, space) else { return };
        let cleared = clear(&mut shadow.table, page, 1, frames, counted);
        let Some((page, pages)) = cleared.changed else { return };
        self.flushes.push(Flush::Pages(guest, Change { space, page, pages }));
        self.keeper_wrote(guest, space, &cleared);
        self.enters_again(guest, Some(space), 1);
    }

    fn drop_all_of_shadows(&mut self, guest: NodeId) {
        for number in 0..self.nodes[guest].shadows.len() {
            let space = SpaceId(number as u16);
            let Some((shadow, frames)) = self.nodes.shadow_of(guest, space) else { continue };
            shadow.table.clear(frames);
            self.flushes.push(Flush::Space(guest, space));
            self.keeper_cleared(guest, space);
            self.enters_again(guest, Some(space), 1);
        }
    }

    /// Checks that every entry of a shadow is what the guest's table and the hypervisor's backing come to, and
    /// allows no more; and so of L0's shadows of shadows. For tests and debug builds: walks everything.
    ///
    /// # Panics
    /// When a shadow disagrees, naming the page.
    pub fn check_shadows(&self) {
        for guest in self.guests().filter(|node| self.has_shadow_paging(*node)) {
            for (number, shadowed) in self.nodes[guest].shadows.iter().enumerate() {
                let Some(Shadowed { shadow, below }) = shadowed else { continue };
                let process = self.nodes[guest].kernel.space(SpaceId(number as u16));
                let process = process.expect("a shadow ends with its process");
                check_shadow(&shadow.table, &process.table, self.second_stage(guest));
                if let Some(below) = below {
                    let keeper = self.below(guest).expect("it is in a VM");
                    check_shadow(&below.shadow.table, &shadow.table, self.second_stage(keeper));
                }
            }
        }
    }
}

/// Checks that every entry of a shadow is what the original and what is behind its frames come to.
fn check_shadow(shadow: &PageTable, original: &PageTable, second: &SecondStageTable) {
    for (page, entry) in shadow.mapped(shadow.everything()) {
        for i in 0..entry.size.base_pages() {
            let own = original.mapping((page + i).addr());
            let own = own.unwrap_or_else(|| panic!("{:?} is shadowed alone", page + i));
            let frame: Frame<Upper> = frame_of(&own, page + i).cross();
            let backing = second.mapping(frame.addr()).expect("what is shadowed is backed");
            let behind = backing.frame + frame.index_in(backing.size);
            assert_eq!(behind, entry.frame + i, "{:?}", page + i);
            let write = own.rights.write && backing.rights.write;
            assert!(write || !entry.rights.write, "{:?}", page + i);
        }
    }
}
