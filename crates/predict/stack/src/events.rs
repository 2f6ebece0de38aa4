//! A guest's processes: events of its stream, applied to its kernel.

use crate::costs::Spending;
use crate::kernel::OutOfMemory;
use crate::owner::SpaceId;
use crate::place::Placements;
use crate::policy::Policy;
use crate::promote::PromoteError;
use crate::settings::AlignAreas;
use crate::stack::{Flush, KernelOutOfMemory, Stack};
use crate::thp::ThpParameters;
use crate::tree::{Node, NodeId};
use crate::vma::{HugeAdvice, Vma};
use strata_addr::{Frame, Gva, PageSize, Range, space::Upper, space::Virtual};
use strata_stream::{Advice, Backing, Event, Pid, Protection, Tid};

/// How far below its stack area a program may touch to make it grow (Linux: `RLIMIT_STACK`).
const STACK_GROWTH: u64 = 8 << 20;

impl Stack {
    /// Applies an event of the stream.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn event(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        event: &Event,
    ) -> Result<(), KernelOutOfMemory> {
        let done = match *event {
            Event::ProcessStart { pid } => self.start_process(guest, pid).map(drop),
            Event::Fork { parent, child } => self.fork(guest, parent, child),
            Event::Exec { pid } => self.exec(guest, pid),
            Event::ProcessExit { pid } => self.end_process(guest, pid),
            Event::ThreadStart { pid, tid } => {
                self.nodes[guest].guest.threads.insert(tid, pid);
                Ok(())
            }
            Event::ThreadExit { tid } => {
                self.nodes[guest].guest.threads.remove(&tid);
                Ok(())
            }
            Event::Map { pid, range, backing, protection, fixed } => {
                self.map(guest, pid, self.pages_of(range), backing, protection, fixed)
            }
            Event::Unmap { pid, range } => self.unmap(guest, pid, self.pages_of(range)),
            Event::Remap { pid, from, to } => {
                self.remap(guest, pid, self.pages_of(from), self.pages_of(to))
            }
            Event::Protect { pid, range, protection } => {
                self.protect(guest, pid, self.pages_of(range), protection);
                Ok(())
            }
            Event::Advise { pid, range, advice } => {
                return self.advise(policy, guest, pid, self.pages_of(range), advice);
            }
            Event::Mark(_)
            | Event::Request { .. }
            | Event::Called { .. }
            | Event::Sampling(_)
            | Event::Phase { .. }
            | Event::Warmed { .. }
            | Event::Skipped { .. }
            | Event::Touched { .. }
            | Event::Begun { .. }
            | Event::Fetched { .. } => Ok(()),
        };
        let settled = self.settle(policy, guest, Spending::GuestFault);
        done.map_err(|_| KernelOutOfMemory { node: guest }).and(settled)
    }

    /// The whole pages of a range, as far as programs can have them.
    fn pages_of(&self, range: Range<Virtual>) -> Range<Upper> {
        let end = range.end.min(Gva::new(self.user_end()));
        let (start, end) = (range.start.floor(PageSize::Base), end.ceil(PageSize::Base));
        Range::new(start.cross(), end.cross())
    }

    /// The space of a thread's process; `None` for one that never started or was killed.
    pub fn thread_space(&self, guest: NodeId, tid: Tid) -> Option<SpaceId> {
        let pid = self.nodes[guest].guest.threads.get(&tid)?;
        self.nodes[guest].guest.processes.get(pid).copied()
    }

    /// The threads of a process.
    pub fn threads(&self, guest: NodeId, pid: Pid) -> impl Iterator<Item = Tid> {
        let threads = self.nodes[guest].guest.threads.iter();
        threads.filter(move |(_, of)| **of == pid).map(|(tid, _)| *tid)
    }

    /// The space of a process.
    pub fn process_space(&self, guest: NodeId, pid: Pid) -> Option<SpaceId> {
        self.nodes[guest].guest.processes.get(&pid).copied()
    }

    /// Whether a guest has any process.
    pub fn has_processes(&self, guest: NodeId) -> bool {
        !self.nodes[guest].guest.processes.is_empty()
    }

    /// The processes of a guest, by number.
    pub fn processes(&self, guest: NodeId) -> Vec<Pid> {
        let mut processes: Vec<_> = self.nodes[guest].guest.processes.keys().copied().collect();
        processes.sort_unstable();
        processes
    }

    /// Processes that a guest killed because memory ran out.
    pub fn killed(&self, guest: NodeId) -> &[Pid] {
        &self.nodes[guest].guest.killed
    }

    /// Kills the processes of a space, as the kernel does when memory ran out.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`] when a kernel below could not back a page table.
    pub fn kill(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        space: SpaceId,
    ) -> Result<(), KernelOutOfMemory> {
        let victims: Vec<Pid> = self.nodes[guest]
            .guest
            .processes
            .iter()
            .filter(|(_, s)| **s == space)
            .map(|(p, _)| *p)
            .collect();
        for pid in victims {
            self.nodes[guest].guest.killed.push(pid);
            self.end_process(guest, pid).map_err(|_| KernelOutOfMemory { node: guest })?;
        }
        self.settle(policy, guest, Spending::GuestFault)
    }

    /// Whether any address of a process differs between stream and model.
    #[inline]
    pub fn moves_areas(&self, guest: NodeId, space: SpaceId) -> bool {
        self.nodes[guest].guest.placements.get(space.0 as usize).is_some_and(Placements::moves_any)
    }

    /// The modelled address of a traced one.
    pub fn relocate(&self, guest: NodeId, space: SpaceId, addr: Gva) -> Gva {
        match self.nodes[guest].guest.placements.get(space.0 as usize) {
            Some(placements) => placements.relocate(addr.cross()).cross(),
            None => addr,
        }
    }

    /// What to add, modulo 2^64, to every traced address of the HPAS region of `addr`; `None` when
    /// its parts differ.
    pub fn region_shift(&self, guest: NodeId, space: SpaceId, addr: Gva) -> Option<u64> {
        match self.nodes[guest].guest.placements.get(space.0 as usize) {
            Some(placements) => placements.region_shift(addr.cross()),
            None => Some(0),
        }
    }

    fn start_process(&mut self, guest: NodeId, pid: Pid) -> Result<SpaceId, OutOfMemory> {
        if let Some(space) = self.nodes[guest].guest.processes.get(&pid) {
            return Ok(*space);
        }
        let kernel = &mut self.nodes[guest].kernel;
        let space = kernel.free_space_id()?;
        let free = space.0 as usize;
        kernel.create_space(space)?;
        self.start_shadow(guest, space)?;
        self.nodes[guest].guest.processes.insert(pid, space);
        let placements = &mut self.nodes[guest].guest.placements;
        if placements.len() <= free {
            placements.resize_with(free + 1, Placements::default);
        }
        placements[free] = Placements::default();
        Ok(space)
    }

    fn fork(&mut self, guest: NodeId, parent: Pid, child: Pid) -> Result<(), OutOfMemory> {
        if self.process_space(guest, child).is_some() {
            // Numbers are never used again: such a stream is damaged.
            return Ok(());
        }
        let Some(from) = self.process_space(guest, parent) else {
            return self.start_process(guest, child).map(drop);
        };
        let to = self.start_process(guest, child)?;
        self.nodes[guest].guest.placements[to.0 as usize] =
            self.nodes[guest].guest.placements[from.0 as usize].clone();
        self.nodes[guest].kernel.share_all(from, to)
    }

    fn exec(&mut self, guest: NodeId, pid: Pid) -> Result<(), OutOfMemory> {
        if self.nodes[guest].guest.processes.contains_key(&pid) {
            self.end_space(guest, pid)?;
        }
        self.start_process(guest, pid).map(drop)
    }

    fn end_process(&mut self, guest: NodeId, pid: Pid) -> Result<(), OutOfMemory> {
        self.nodes[guest].guest.threads.retain(|_, of| *of != pid);
        self.end_space(guest, pid)
    }

    fn end_space(&mut self, guest: NodeId, pid: Pid) -> Result<(), OutOfMemory> {
        let Some(space) = self.nodes[guest].guest.processes.remove(&pid) else { return Ok(()) };
        self.end_shadow(guest, space);
        self.nodes[guest].kernel.destroy_space(space)?;
        // The number will be used again: nothing of the old one may be found under it.
        self.nodes[guest].kernel.frames.log.changes.retain(|change| change.space != space);
        self.flushes.push(Flush::Space(guest, space));
        Ok(())
    }

    fn map(
        &mut self,
        guest: NodeId,
        pid: Pid,
        traced: Range<Upper>,
        backing: Backing,
        protection: Protection,
        fixed: bool,
    ) -> Result<(), OutOfMemory> {
        let space = self.start_process(guest, pid)?;
        if traced.is_empty() {
            return Ok(());
        }
        self.unmap_in(guest, space, traced)?;
        let mut range = traced;
        let heap = backing == Backing::Heap;
        let wanted = match self.nodes[guest].guest.align_areas {
            AlignAreas::Never | AlignAreas::Needless => false,
            AlignAreas::Always => self.nodes[guest].guest.aligner.enabled,
        };
        let aligned = wanted && !fixed && backing.is_private_anonymous();
        if aligned {
            let Node { kernel, guest, .. } = &mut self.nodes[guest];
            let vmas = &kernel.space(space).expect("just made").vmas;
            let placements = &mut guest.placements[space.0 as usize];
            range = placements.place(traced, heap, vmas, &guest.aligner);
        } else {
            self.nodes[guest].guest.placements[space.0 as usize].claim(traced);
        }
        let huge = HugeAdvice::Default;
        let mapping = match backing {
            Backing::File => {
                let mappings = &mut self.nodes[guest].guest.mappings;
                *mappings = mappings.wrapping_add(1).max(1);
                *mappings
            }
            _ => 0,
        };
        let area = Vma { range, backing, protection, huge, mapping };
        let place = self.nodes[guest].kernel.space_mut(space).expect("just made");
        place.vmas.insert(area);
        Ok(())
    }

    fn unmap(&mut self, guest: NodeId, pid: Pid, traced: Range<Upper>) -> Result<(), OutOfMemory> {
        match self.process_space(guest, pid) {
            Some(space) => self.unmap_in(guest, space, traced),
            None => Ok(()),
        }
    }

    fn unmap_in(
        &mut self,
        guest: NodeId,
        space: SpaceId,
        traced: Range<Upper>,
    ) -> Result<(), OutOfMemory> {
        let placements = &mut self.nodes[guest].guest.placements[space.0 as usize];
        let mut ranges = placements.own_pieces(traced);
        ranges.extend(placements.remove(traced));
        let kernel = &mut self.nodes[guest].kernel;
        for range in ranges {
            if kernel.space(space).is_some_and(|s| s.vmas.overlapping(range).is_empty()) {
                continue;
            }
            kernel.unmap_range(space, range)?;
            kernel.space_mut(space).expect("alive").vmas.remove(range);
        }
        Ok(())
    }

    fn remap(
        &mut self,
        guest: NodeId,
        pid: Pid,
        from: Range<Upper>,
        to: Range<Upper>,
    ) -> Result<(), OutOfMemory> {
        let Some(space) = self.process_space(guest, pid) else { return Ok(()) };
        if from.is_empty() || to.is_empty() || !from.intersection(&to).is_empty() {
            // Linux refuses what overlaps (`mremap_to`).
            return Ok(());
        }
        let place = self.nodes[guest].kernel.space(space).expect("alive");
        let pieces = self.nodes[guest].guest.placements[space.0 as usize].pieces(from);
        let old = pieces.iter().find_map(|piece| place.vmas.overlapping(*piece).pop());
        let Some(old) = old else {
            return self.map(guest, pid, to, Backing::Anonymous, Protection::READ_WRITE, false);
        };
        self.map(guest, pid, to, old.backing, old.protection, false)?;
        let placements = &self.nodes[guest].guest.placements[space.0 as usize];
        // Area by area, as each piece may have moved on its own.
        let moved = from.bytes().min(to.bytes());
        let mut done = 0;
        let pieces = placements.pieces(Range::sized(from.start, moved));
        let target = placements.relocate(to.start);
        for piece in pieces {
            let part = Range::sized(target + done, piece.bytes());
            // An area that grew into its padding may have a huge page there already.
            self.nodes[guest].kernel.unmap_range(space, part)?;
            self.nodes[guest].kernel.move_range(space, piece, part)?;
            done += piece.bytes();
        }
        if old.huge != HugeAdvice::Default {
            let place = self.nodes[guest].kernel.space_mut(space).expect("alive");
            place.vmas.change(Range::sized(target, to.bytes()), |vma| vma.huge = old.huge);
        }
        self.unmap_in(guest, space, from)
    }

    fn protect(&mut self, guest: NodeId, pid: Pid, traced: Range<Upper>, protection: Protection) {
        let Some(space) = self.process_space(guest, pid) else { return };
        let pieces = self.nodes[guest].guest.placements[space.0 as usize].own_pieces(traced);
        let kernel = &mut self.nodes[guest].kernel;
        for piece in pieces {
            let place = kernel.spaces[space.0 as usize].as_mut().expect("alive");
            place.vmas.change(piece, |vma| vma.protection = protection);
            if protection.write {
                // Pages become writable by the fault of the first store, as in Linux.
                continue;
            }
            kernel.write_protect(space, piece);
        }
    }

    fn advise(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        pid: Pid,
        traced: Range<Upper>,
        advice: Advice,
    ) -> Result<(), KernelOutOfMemory> {
        let Some(space) = self.process_space(guest, pid) else { return Ok(()) };
        let huge = match advice {
            Advice::HugePage => Some(HugeAdvice::Wanted),
            Advice::NoHugePage => Some(HugeAdvice::Refused),
            _ => None,
        };
        for piece in self.nodes[guest].guest.placements[space.0 as usize].own_pieces(traced) {
            let kernel = &mut self.nodes[guest].kernel;
            let place = kernel.space_mut(space).expect("alive");
            let areas = place.vmas.overlapping(piece);
            match advice {
                Advice::HugePage | Advice::NoHugePage => {
                    let huge = huge.expect("one of the two");
                    place.vmas.change(piece, |vma| vma.huge = huge);
                }
                Advice::DontNeed | Advice::Free => {
                    let done = kernel.unmap_range(space, piece);
                    done.map_err(|_| KernelOutOfMemory { node: guest })?;
                }
                Advice::Populate => {
                    for area in areas {
                        let (start, end) = (area.range.start.page(), area.range.end.page());
                        for page in start.get()..end.get() {
                            self.guest_fault(policy, guest, space, Frame::new(page), true)?;
                        }
                    }
                }
                Advice::Collapse => {
                    // The limits are khugepaged's own (madvise(2)).
                    let settings = ThpParameters { max_ptes_shared: u64::MAX, ..self.thp.clone() };
                    // Only what is mapped can be collapsed; the areas may be far larger.
                    let mut regions: Vec<Frame<Upper>> = Vec::new();
                    let table = &kernel.space(space).expect("alive").table;
                    for area in areas {
                        for (page, _) in table.mapped(area.range) {
                            let region = page.floor(PageSize::Huge);
                            let whole = area.range.contains_page(region.addr(), PageSize::Huge);
                            if whole && regions.last() != Some(&region) {
                                regions.push(region);
                            }
                        }
                    }
                    for region in regions {
                        let done = kernel.collapse(space, region, None, &settings);
                        if done == Err(PromoteError::OutOfMemory) {
                            return Err(KernelOutOfMemory { node: guest });
                        }
                    }
                }
            }
        }
        self.settle(policy, guest, Spending::GuestFault)
    }

    /// Makes an area for an access outside of all of them: the stack grows as in Linux; anything
    /// else is a mapping the stream did not show, and is counted.
    pub(crate) fn infer_area(&mut self, guest: NodeId, space: SpaceId, page: Frame<Upper>) {
        let Node { kernel, guest, .. } = &mut self.nodes[guest];
        let Some(place) = kernel.space_mut(space) else { return };
        let addr = page.addr();
        if place.vmas.find(addr).is_some() {
            return;
        }
        if let Some(above) = place.vmas.next_after(addr).copied()
            && above.backing == Backing::Stack
            && above.range.start - addr <= STACK_GROWTH
        {
            place.vmas.insert(Vma { range: Range::new(addr, above.range.start), ..above });
            return;
        }
        guest.inferred_pages += 1;
        let range = Range::sized(addr, PageSize::Base.bytes());
        place.vmas.insert(Vma {
            range,
            backing: Backing::File,
            protection: Protection::READ_WRITE,
            huge: HugeAdvice::Default,
            mapping: 0,
        });
    }

    /// Pages that a guest's programs touched outside every area the stream told of.
    pub fn inferred_pages(&self, guest: NodeId) -> u64 {
        self.nodes[guest].guest.inferred_pages
    }
}
