//! Shadow on shadow: L1 keeps a shadow of each page table of its guest's (S12), and L0, which has no second stage
//! for hardware either, a shadow of that (S02), which hardware walks alone.
//!
//! ```text
//! L2's table   GVA -> GPA
//! S12          GVA -> GHPA   in L1's memory, write-protected by L0 where something of it is in S02
//! S02          GVA -> HPA    in L0's memory
//! ```
//!
//! - A fault on a page that S12 maps, for what is tried, is L0's own: S02 gets what S12 and L0's backing come to.
//!   All others are handed on to L1.
//! - L1's writes to S12 exit as L2's do to its own table: the first to a leaf table, which goes unsync, and all to
//!   tables above; with `nested.second_stage_writes=trap` all do, and S02 is filled at once.
//! - L0 reads what is unsync anew, and protects it again, when L1 enters L2: with AMD's instructions, or without
//!   VPID as in 2009. Today's L1 on Intel has VPID, and L0 waits for its INVVPID for what it took away.
//! - What L1 takes out of S12, or L0 out of L1's memory, is out of S02 at once.
//!
//! The guest's kernel has its memory in its direct map, too, which is no table here: each page that is touched
//! first, and each table that is protected or goes unsync, is one entry of a leaf table of S12 that L1 writes.

use crate::costs::Spending;
use crate::fault::frame_of;
use crate::frames::{Change, Frames};
use crate::owner::{Owner, SpaceId};
use crate::policy::Policy;
use crate::shadowed::{
    Below, Entry, Originals, Paging, Rewritten, Shadowed, clear, pages_of_walk, put,
};
use crate::stack::{Flush, KernelOutOfMemory, Stack};
use crate::tree::{NodeId, Nodes, page_range};
use strata_addr::space::{Lower, Upper};
use strata_addr::{Frame, PageSize};
use strata_nested::{ExitReason, Hypervisor, Instructions};
use strata_paging::Rights;

impl Nodes {
    /// L0's shadow of a shadow, and the frames that it is made of.
    pub(crate) fn forwarded(
        &mut self,
        guest: NodeId,
        space: SpaceId,
    ) -> Option<(&mut Below, &mut Frames)> {
        let (lower, upper) = self.split(guest);
        let shadowed = upper.shadows.get_mut(space.0 as usize)?.as_mut()?;
        let host = &mut lower.get_mut(NodeId::HOST.index())?.kernel.frames;
        Some((&mut **shadowed.below.as_mut()?, host))
    }
}

impl Stack {
    /// Whether L0 keeps shadows of the shadows that the hypervisor of a guest keeps.
    pub(crate) fn shadows_twice(&self, guest: NodeId) -> bool {
        self.paging == Paging::ShadowOnShadow
            && self.has_shadow_paging(guest)
            && self.below(guest) != Some(NodeId::HOST)
    }

    fn shadowed(&self, guest: NodeId, space: SpaceId) -> Option<&Shadowed> {
        self.nodes[guest].shadows.get(space.0 as usize)?.as_ref()
    }

    /// Whether a fault is L0's own: L1's shadow maps the page for what is tried.
    pub(crate) fn mends_below(
        &self,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        store: bool,
    ) -> bool {
        let shadowed = self.shadowed(guest, space).filter(|shadowed| shadowed.below.is_some());
        let mapping = shadowed.and_then(|shadowed| shadowed.shadow.table.mapping(page.addr()));
        mapping.is_some_and(|mapping| mapping.rights.write || !store)
    }

    /// L0's shadow gets what L1's shadow and L0's backing come to for a page.
    pub(crate) fn forward(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        store: bool,
    ) -> Result<(), KernelOutOfMemory> {
        let keeper = self.below(guest).expect("it is in a VM");
        let Some(Shadowed { shadow, .. }) = self.shadowed(guest, space) else { return Ok(()) };
        let Some(own) = shadow.table.mapping(page.addr()) else { return Ok(()) };
        let tables = pages_of_walk(&shadow.table, page);
        for table in &tables {
            self.back_for(policy, keeper, table.cross(), false)?;
        }
        let frame: Frame<Upper> = frame_of(&own, page).cross();
        self.back_for(policy, keeper, frame, store)?;
        let backing = self.second_stage(keeper).mapping(frame.addr()).expect("backed just now");
        let size = own.size.min(backing.size);
        let behind = backing.frame + frame.index_in(backing.size);
        let write = own.rights.write && backing.rights.write;
        let rights = Rights { write, execute: own.rights.execute };
        let entry = Entry { size, frame: behind.floor(size), rights };
        let Some((below, frames)) = self.nodes.forwarded(guest, space) else { return Ok(()) };
        let (put, mapped) = put(&mut below.shadow.table, page, entry, frames);
        for table in tables {
            below.shadow.originals.protect(table);
        }
        if let Some((page, pages)) = put.changed {
            self.flushes.push(Flush::Pages(guest, Change { space, page, pages }));
        }
        mapped.map_err(|_| KernelOutOfMemory { node: NodeId::HOST })?;
        self.settle(policy, NodeId::HOST, Spending::HypervisorFault)
    }

    /// L1 wrote entries of the shadow that it keeps: what that costs it, and what L0 has no more. Gives whether
    /// L0 did it for L1 and knows what a leaf table got, which it takes over at once.
    pub(crate) fn keeper_wrote(
        &mut self,
        guest: NodeId,
        space: SpaceId,
        rewritten: &Rewritten,
    ) -> bool {
        let keeper = self.below(guest).expect("it is in a VM");
        let may_unsync = self.lets_go_unsync();
        let Some((below, frames)) = self.nodes.forwarded(guest, space) else { return false };
        let (mut exits, mut emulated) = (0, false);
        for written in &rewritten.written {
            let unsync = may_unsync && written.is_leaf;
            let own = below.shadow.originals.write(written.table, unsync, written.entries);
            emulated |= own > 0 && written.is_leaf && !unsync;
            exits += own;
        }
        rewritten.forget_freed(&mut below.shadow.originals);
        if let Some((page, pages)) = rewritten.changed {
            match rewritten.is_upgrade {
                true => below.upgraded.push((page, pages)),
                false => drop(clear(&mut below.shadow.table, page, pages, frames, false)),
            }
        }
        if exits > 0 {
            self.exit(keeper, ExitReason::PageFault, exits);
        }
        emulated
    }

    /// L1 cleared the shadow that it keeps: one write for all.
    pub(crate) fn keeper_cleared(&mut self, guest: NodeId, space: SpaceId) {
        let keeper = self.below(guest).expect("it is in a VM");
        let Some((below, frames)) = self.nodes.forwarded(guest, space) else { return };
        below.shadow.table.clear(frames);
        below.shadow.originals = Originals::default();
        below.upgraded.clear();
        self.exit(keeper, ExitReason::PageFault, 1);
    }

    /// L1 enters its guest again, having taken something out of the shadow that it keeps for a process so many
    /// times: it invalidates that, and L0 reads what is unsync anew, as far as they do.
    pub(crate) fn enters_again(&mut self, guest: NodeId, space: Option<SpaceId>, taken: u64) {
        let Some(keeper) = self.below(guest).filter(|keeper| *keeper != NodeId::HOST) else {
            return;
        };
        if taken > 0 && self.has_vpid() {
            self.exit(keeper, ExitReason::Invalidation, taken);
        }
        self.is_entered_again(guest, space, taken > 0);
    }

    /// Whether an L1 on Intel's instructions tells L2's translations from its own.
    fn has_vpid(&self) -> bool {
        self.virtualization().instructions == Instructions::Vmx
            && self.exit_costs().hypervisor == Hypervisor::Kvm612
    }

    /// L1 enters its guest again, and has told L0 of what it took out of the shadow that it keeps for a process, if it
    /// took anything and is to tell: L0 reads what is unsync anew.
    pub(crate) fn is_entered_again(
        &mut self,
        guest: NodeId,
        space: Option<SpaceId>,
        took_away: bool,
    ) {
        if self.shadows_twice(guest) && (took_away || self.is_read_at_entry()) {
            self.nodes[guest].unsync_direct.clear();
            if let Some(space) = space {
                self.read_shadow_anew(guest, space);
            }
        }
    }

    /// Whether L0 reads what is unsync anew whenever L1 enters its guest.
    fn is_read_at_entry(&self) -> bool {
        self.virtualization().instructions == Instructions::Svm
            || self.exit_costs().hypervisor == Hypervisor::Kvm84
    }

    /// L0 reads leaf tables of L1's shadow that are unsync anew: pages that it has may be written now.
    fn read_shadow_anew(&mut self, guest: NodeId, space: SpaceId) {
        let Some((below, _)) = self.nodes.forwarded(guest, space) else { return };
        below.shadow.originals.synchronise();
        for (page, pages) in std::mem::take(&mut below.upgraded) {
            self.upgrade(guest, space, page, pages);
        }
    }

    /// L0's shadow lets pages be written that it maps, as far as L1's shadow and L0's backing do.
    fn upgrade(&mut self, guest: NodeId, space: SpaceId, page: Frame<Upper>, pages: u64) {
        let keeper = self.below(guest).expect("it is in a VM");
        let Some(Shadowed { shadow, below: Some(below) }) = self.shadowed(guest, space) else {
            return;
        };
        let may_write = |page: Frame<Upper>| {
            let own = shadow.table.mapping(page.addr()).filter(|own| own.rights.write)?;
            let frame: Frame<Upper> = frame_of(&own, page).cross();
            self.second_stage(keeper).mapping(frame.addr()).map(|backing| backing.rights.write)
        };
        let mapped = below.shadow.table.mapped(page_range(page, pages));
        let read_only = mapped.filter(|(_, mapping)| !mapping.rights.write);
        let pages: Vec<_> = read_only
            .filter(|(page, _)| may_write(*page) == Some(true))
            .map(|(page, mapping)| (page, mapping.size.base_pages()))
            .collect();
        for (page, pages) in pages {
            let Some((below, _)) = self.nodes.forwarded(guest, space) else { return };
            below.shadow.table.update(page.addr(), |mapping| {
                (mapping.frame, Rights { write: true, ..mapping.rights })
            });
            self.flushes.push(Flush::Pages(guest, Change { space, page, pages }));
        }
    }

    /// L1 writes the entry for a page of the guest's memory by its direct map in the shadow that it keeps. Gives whether
    /// L0 does that for L1 and knows it.
    pub(crate) fn direct_entry_written(&mut self, guest: NodeId, page: Frame<Upper>) -> bool {
        if !self.shadows_twice(guest) {
            return false;
        }
        let keeper = self.below(guest).expect("it is in a VM");
        let backing = self.second_stage(guest).mapping(page.addr());
        let is_leaf = backing.is_none_or(|backing| backing.size == PageSize::Base);
        let unsync = is_leaf && self.lets_go_unsync();
        let region = page.floor(PageSize::Huge).get();
        let is_first = !unsync || self.nodes[guest].unsync_direct.insert(region);
        if is_first {
            self.exit(keeper, ExitReason::PageFault, 1);
        }
        !unsync && is_leaf
    }

    /// The same for a page that was not there: L0 has to be told of it, too, and the guest faults once more.
    pub(crate) fn direct_entry_filled(&mut self, guest: NodeId, page: Frame<Upper>) {
        let is_known = self.direct_entry_written(guest, page);
        self.enters_again(guest, None, 0);
        if self.shadows_twice(guest) && !is_known {
            self.exit_to(NodeId::HOST, guest, ExitReason::PageFault, 1);
        }
    }

    /// The same for one that may be written now.
    pub(crate) fn direct_entry_upgraded(&mut self, guest: NodeId, page: Frame<Upper>) {
        let is_known = self.direct_entry_written(guest, page) || self.is_read_at_entry();
        self.enters_again(guest, None, 0);
        if self.shadows_twice(guest) && !is_known {
            self.exit_to(NodeId::HOST, guest, ExitReason::PageFault, 1);
        }
    }

    /// L0 took pages of L1's memory away: its shadows have them no more.
    pub(crate) fn drop_from_forwarded(&mut self, guest: NodeId, start: Frame<Upper>, pages: u64) {
        let keeper = self.below(guest).expect("it is in a VM");
        let (process, slot) = (self.vm_process(guest), self.nodes[guest].vm().slot);
        for i in 0..pages {
            let owner = match self.nodes[keeper].kernel.owner((start + i).cross()) {
                Owner::Page(of, hva) if of == process => {
                    let Some(page) = hva.get().checked_sub(slot) else { continue };
                    self.nodes[guest].kernel.owner(Frame::<Lower>::new(page))
                }
                Owner::Shared { .. } => Owner::Shared { mappings: 0 },
                _ => continue,
            };
            match owner {
                Owner::Page(space, page) => {
                    let Some((below, frames)) = self.nodes.forwarded(guest, space) else {
                        continue;
                    };
                    let cleared = clear(&mut below.shadow.table, page, 1, frames, false);
                    if let Some((page, pages)) = cleared.changed {
                        self.flushes.push(Flush::Pages(guest, Change { space, page, pages }));
                    }
                }
                // Who else has it is not known.
                Owner::Shared { .. } => return self.drop_all_forwarded(guest),
                _ => {}
            }
        }
    }

    fn drop_all_forwarded(&mut self, guest: NodeId) {
        for number in 0..self.nodes[guest].shadows.len() {
            let space = SpaceId(number as u16);
            let Some((below, frames)) = self.nodes.forwarded(guest, space) else { continue };
            below.shadow.table.clear(frames);
            self.flushes.push(Flush::Space(guest, space));
        }
    }
}
