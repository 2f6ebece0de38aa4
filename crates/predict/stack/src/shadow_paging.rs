//! Shadow paging: a hypervisor that has no second stage keeps, for each process of its guest, a table of its own
//! from the process's addresses to the hypervisor's frames, and hardware walks that.
//!
//! ```text
//! in a VM              GVA --guest's table--> GPA --what L0 backs it with--> HPA
//!                      GVA ----------- L0's shadow, which hardware walks --> HPA
//! in a nested VM       GVA ----------- L1's shadow --> GHPA --L0's second stage--> HPA
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
//!
//! A flush of a single page (INVLPG) is taken for one of all, which loads the page table anew
//! ([`ExitReason::ControlRegister`]). Left out: changes of process, which no stream tells, and that a page is
//! no table any more after three writes in a row.

use crate::costs::Spending;
use crate::fault::{Faulted, frame_of};
use crate::frames::{Change, Frames};
use crate::kernel::{OutOfMemory, PageTable};
use crate::owner::{Owner, SpaceId};
use crate::policy::Policy;
use crate::shadowed::{Paging, Shadowed};
use crate::stack::{Flush, KernelOutOfMemory, Stack};
use crate::tree::{NodeId, Nodes, page_range};
use rustc_hash::FxHashMap;
use strata_addr::space::{Lower, Upper};
use strata_addr::{Frame, PageSize};
use strata_nested::ExitReason;
use strata_paging::{Format, FrameSource, Mapping, Rights, TableId, X86, index};

/// Where a walk of a guest's table went: page-table pages from the root on, each with its entry.
type Walk = Vec<(TableId, usize)>;

fn walk(table: &PageTable, page: Frame<Upper>) -> Walk {
    let (mut at, mut walk) = (TableId::ROOT, Vec::new());
    for level in (1..=table.levels()).rev() {
        let index = index(page.addr().get(), level);
        walk.push((at, index));
        let entry = table.entry(at, index);
        if !X86::is_present(entry) || X86::is_leaf(entry, level) {
            break;
        }
        at = table.child(at, index);
    }
    walk
}

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
        let second = lower[below.index()].vm.as_mut();
        let second = second.map(|vm| vm.hardware_table_mut().cross_mut());
        Some((shadowed.table.cross_mut(), second))
    }

    /// A shadow, and the frames of the hypervisor that it is made of.
    fn shadow_of(&mut self, guest: NodeId, space: SpaceId) -> Option<(&mut Shadowed, &mut Frames)> {
        let below = self[guest].vm.as_ref()?.below;
        let (lower, upper) = self.split(guest);
        let shadowed = upper.shadows.get_mut(space.0 as usize)?.as_mut()?;
        Some((shadowed, &mut lower[below.index()].kernel.frames))
    }
}

impl Stack {
    /// Whether a kernel runs programs in a VM whose hypervisor keeps shadows of their tables.
    #[inline]
    pub fn has_shadow_paging(&self, node: NodeId) -> bool {
        self.paging == Paging::Shadow && node != NodeId::HOST && self.position(node).is_guest()
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
        let root = self.nodes[below].kernel.frames.table_frame().ok_or(OutOfMemory)?;
        let shadows = &mut self.nodes[guest].shadows;
        if shadows.len() <= space.0 as usize {
            shadows.resize_with(space.0 as usize + 1, || None);
        }
        let table = PageTable::new(levels, root);
        shadows[space.0 as usize] = Some(Shadowed { table, pages: FxHashMap::default() });
        Ok(())
    }

    /// A process of a guest ends, which its hypervisor learns when the guest loads another page table.
    pub(crate) fn end_shadow(&mut self, guest: NodeId, space: SpaceId) {
        let Some((shadowed, frames)) = self.nodes.shadow_of(guest, space) else { return };
        shadowed.table.clear(frames);
        let root = shadowed.table.root_frame();
        frames.free_table_frame(root);
        self.nodes[guest].shadows[space.0 as usize] = None;
        self.exit(guest, ExitReason::ControlRegister, 1);
    }

    /// Page-table pages of the shadows of a guest's processes.
    pub(crate) fn shadow_pages(&self, guest: NodeId) -> usize {
        let shadows = self.nodes[guest].shadows.iter().flatten();
        shadows.map(|shadowed| shadowed.table.table_pages()).sum()
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
        // Injected or filled, it is a page fault that exits.
        self.exit(guest, ExitReason::PageFault, 1);
        if let Some(mapping) = mapping.filter(|mapping| mapping.rights.write || !store) {
            self.fill(policy, guest, space, page, mapping, store)?;
            return Ok(Faulted::Spurious);
        }
        let before = self.pages_of_walk(guest, space, page);
        let faulted = self.guest_fault(policy, guest, space, page, store)?;
        if faulted != Faulted::Spurious {
            self.wrote_entry(policy, guest, space, page, store, &before)?;
        }
        Ok(faulted)
    }

    /// Hardware found no mapping in the second stage below a shadow: for a frame of the hypervisor's that keeps
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
        self.exit_to(NodeId::HOST, guest, ExitReason::SecondStageViolation, 1);
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
        self.back_for(policy, guest, page, store)
    }

    /// Frames of the pages of a process's table that a walk to a page reads.
    fn pages_of_walk(
        &self,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
    ) -> Vec<Frame<Lower>> {
        let Some(process) = self.nodes[guest].kernel.space(space) else { return Vec::new() };
        let table = &process.table;
        walk(table, page).into_iter().map(|(at, _)| table.frame_of(at)).collect()
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
        let Some((shadowed, _)) = self.nodes.shadow_of(guest, space) else { return false };
        let exits = match shadowed.pages.get_mut(&table.get()) {
            Some(unsync) if !*unsync && may_unsync => {
                *unsync = true;
                1
            }
            Some(false) => entries,
            _ => return false,
        };
        self.exit(guest, ExitReason::PageFault, exits);
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
        let (first, frame) = (page.floor(size), behind.floor(size));
        let Some((shadowed, frames)) = self.nodes.shadow_of(guest, space) else { return Ok(()) };
        // What is there may be read-only, of another size, or pieces of what is whole now.
        let (from, pages) = match shadowed.table.mapping(page.addr()) {
            Some(old) => {
                let size = size.max(old.size);
                (page.floor(size), size.base_pages())
            }
            None => (first, size.base_pages()),
        };
        if shadowed.table.unmap_range(page_range(from, pages), frames) > 0 {
            self.flushes.push(Flush::Pages(guest, Change { space, page: from, pages }));
        }
        let Some((shadowed, frames)) = self.nodes.shadow_of(guest, space) else { return Ok(()) };
        let mapped = shadowed.table.map(first, size, frame, rights, frames);
        mapped.map_err(|_| KernelOutOfMemory { node: keeper })?;
        for table in tables {
            shadowed.pages.entry(table.get()).or_insert(false);
        }
        self.settle(policy, keeper, Spending::HypervisorFault)
    }

    /// A guest's kernel changed mappings of a process, and flushes the TLB for that.
    pub(crate) fn shadow_changed(&mut self, guest: NodeId, change: Change) {
        let Change { space, page, pages } = change;
        let levels = usize::from(self.levels());
        let Some((shadowed, frames)) = self.nodes.shadow_of(guest, space) else { return };
        shadowed.table.unmap_range(page_range(page, pages), frames);
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
        // The flush: tables that were unsync are read anew, and protected again.
        self.exit(guest, ExitReason::ControlRegister, 1);
        let Some((shadowed, _)) = self.nodes.shadow_of(guest, space) else { return };
        shadowed.pages.values_mut().for_each(|unsync| *unsync = false);
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
        let Some((shadowed, frames)) = self.nodes.shadow_of(guest, space) else { return };
        let Some(mapping) = shadowed.table.mapping(page.addr()) else { return };
        let (page, pages) = (page.floor(mapping.size), mapping.size.base_pages());
        shadowed.table.unmap_range(page_range(page, pages), frames);
        self.flushes.push(Flush::Pages(guest, Change { space, page, pages }));
    }

    fn drop_all_of_shadows(&mut self, guest: NodeId) {
        for number in 0..self.nodes[guest].shadows.len() {
            let space = SpaceId(number as u16);
            let Some((shadowed, frames)) = self.nodes.shadow_of(guest, space) else { continue };
            shadowed.table.clear(frames);
            self.flushes.push(Flush::Space(guest, space));
        }
    }

    /// Checks that every entry of a shadow is what the guest's table and the hypervisor's backing come to, and
    /// allows no more. For tests and debug builds: walks everything.
    ///
    /// # Panics
    /// When a shadow disagrees, naming the page.
    pub fn check_shadows(&self) {
        for guest in self.guests().filter(|node| self.has_shadow_paging(*node)) {
            for (number, shadowed) in self.nodes[guest].shadows.iter().enumerate() {
                let Some(shadowed) = shadowed else { continue };
                let process = self.nodes[guest].kernel.space(SpaceId(number as u16));
                let process = process.expect("a shadow ends with its process");
                for (page, entry) in shadowed.table.mapped(shadowed.table.everything()) {
                    for i in 0..entry.size.base_pages() {
                        let own = process.table.mapping((page + i).addr());
                        let own = own.unwrap_or_else(|| panic!("{:?} is shadowed alone", page + i));
                        let frame: Frame<Upper> = frame_of(&own, page + i).cross();
                        let backing = self.second_stage(guest).mapping(frame.addr());
                        let backing = backing.expect("what is shadowed is backed");
                        let behind = backing.frame + frame.index_in(backing.size);
                        assert_eq!(behind, entry.frame + i, "{:?}", page + i);
                        let write = own.rights.write && backing.rights.write;
                        assert!(write || !entry.rights.write, "{:?}", page + i);
                    }
                }
            }
        }
    }
}
