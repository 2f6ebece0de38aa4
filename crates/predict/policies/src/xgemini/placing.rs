//! NEMA's host part (xGemini IV.C): the real frame behind each page of a guest goes to the page's offset in the
//! place that is booked for its region.

use super::XGemini;
use super::home::Home;
use crate::coordination::GuestRegion;
use crate::timeout::BookingParameters;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_frames::Memory;
use strata_paging::{Format, Region, X86};
use strata_stack::{Kernel, KernelOutOfMemory, NodeId, PageFault, Placement, SpaceId, Stack};

impl XGemini {
    /// Whether a guest's region has a place.
    pub(crate) fn has_home(&self, region: GuestRegion) -> bool {
        self.homes.contains_key(&region)
    }

    /// This free region of the host's memory is the place of a guest's region, if it can be booked.
    pub(crate) fn home_at(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
        at: Frame<Lower>,
    ) {
        let memory = stack.kernel_mut(NodeId::HOST).memory_mut();
        if self.book(memory, at) {
            self.home_in(memory, guest, page, Some(at));
        }
    }

    /// A region is a row: nothing needs to be booked for it.
    pub(crate) fn end_booking(&mut self, stack: &mut Stack, region: GuestRegion) {
        if let Some(home) = self.homes.get(&region) {
            self.booking.end(stack.kernel_mut(NodeId::HOST).memory_mut(), home.at);
        }
    }

    /// A region cannot become a row where it was to be one.
    pub(crate) fn give_up(&mut self, stack: &mut Stack, region: GuestRegion) {
        if let Some(home) = self.homes.get(&region) {
            self.spoiled.insert(region, home.at);
        }
        self.forget(stack, region);
    }

    /// Bookings last as long as Algorithm 1 says, and those whose time is up go back.
    pub(crate) fn expire_bookings(&mut self, stack: &mut Stack, now: f64) {
        self.until = self.coordination.allocator(NodeId::HOST).until();
        self.expire(stack, now);
    }

    /// The place of a guest's region, booked now if it has none.
    pub(crate) fn home(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Option<Frame<Lower>> {
        let lies_right = match self.homes.get(&(guest, page.floor(PageSize::Huge).get())) {
            Some(home) => return Some(home.at),
            None => self.lies_right(stack, guest, page),
        };
        let memory = stack.kernel_mut(NodeId::HOST).memory_mut();
        self.home_in(memory, guest, page, lies_right)
    }

    /// The same in the host's memory alone; a region without a place gets the one wanted, or one that is
    /// free.
    pub(super) fn home_in(
        &mut self,
        memory: &mut Memory,
        guest: NodeId,
        page: Frame<Upper>,
        wanted: Option<Frame<Lower>>,
    ) -> Option<Frame<Lower>> {
        let region = (guest, page.floor(PageSize::Huge).get());
        if let Some(home) = self.homes.get(&region) {
            return Some(home.at);
        }
        let at = wanted.or_else(|| {
            let run = memory.next_fit(self.cursor, 1)?;
            self.cursor = run.start + PageSize::Huge.base_pages();
            self.book(memory, run.start).then_some(run.start)
        })?;
        self.homes.insert(region, Home { at, placed: 0 });
        // Whoever was to live in a region that is free again has nothing there.
        if let Some(before) = self.inhabited.insert(at.get(), region) {
            self.homes.remove(&before);
            self.left_over(before);
        }
        Some(at)
    }

    /// Books a free region of the host's memory. Returns whether it can be a home: without booking every
    /// free region can.
    fn book(&mut self, memory: &mut Memory, region: Frame<Lower>) -> bool {
        let BookingParameters { enabled, cap, .. } = self.settings.reused.booking;
        !enabled || self.booking.book(memory, region, self.until, cap)
    }

    /// The region where the page's frame is already, when it is at the page's own offset there and
    /// nothing else has that home: contiguous memory needs no moving.
    pub(super) fn lies_right(
        &self,
        stack: &Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Option<Frame<Lower>> {
        let frame = stack.compose(guest, page)?.frame;
        let region = frame.floor(PageSize::Huge);
        (frame.index_in(PageSize::Huge) == page.index_in(PageSize::Huge)
            && !self.inhabited.contains_key(&region.get())
            && self.spoiled.get(&(guest, page.floor(PageSize::Huge).get())) != Some(&region))
        .then_some(region)
    }

    /// NEMA, host part, where the host backs a page of a guest hypervisor's memory that was never touched:
    /// a base page, at the offset of the guest's page that it will back, as far as the host knows that
    /// (xGemini IV.C). The paper has the guest hypervisor write its table first. It zeroes the page
    /// before, so the host goes by the violation that it has handed on.
    pub(super) fn place_below(&mut self, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        let guess = || {
            let touched = fault.vm_page?;
            self.handed_on.as_mut().map(|handed_on| (handed_on.guest, handed_on.guess(touched)))
        };
        let known = || fault.backs.or_else(guess);
        let wanted = self.settings.xgemini.nema_host.then(known).flatten();
        let Some((guest, page)) = wanted else { return Placement::Base };
        let region = (guest, page.floor(PageSize::Huge).get());
        if self.leftovers.as_ref().is_some_and(|leftovers| leftovers.is_coloured(region)) {
            return Placement::Base;
        }
        match self.home_in(kernel.memory_mut(), guest, page, None) {
            Some(home) => Placement::BaseAt(home + page.index_in(PageSize::Huge)),
            None => Placement::Base,
        }
    }

    /// Whether the host's own coalescer may make a range of a guest hypervisor's memory huge: all of it must
    /// be in use, or a huge page would be allocated where less is touched, and nothing of it in a row of
    /// a guest's, or that row would be torn apart.
    pub(super) fn may_coalesce(&self, stack: &Stack, space: SpaceId, page: Frame<Upper>) -> bool {
        let host = stack.kernel(NodeId::HOST);
        let Some(vm) = stack.above(NodeId::HOST, space) else { return true };
        let whole = self.worker.is_none();
        if self.collapsing || !self.nested || self.coordination.is_guest(vm) {
            return true;
        }
        let table = host.space(space).map(|space| space.table().region(page.floor(PageSize::Huge)));
        let Some(Region::Base { entries, .. }) = table else { return true };
        let in_a_row = |bits: &u64| {
            let region = Frame::<Lower>::new(X86::frame(*bits)).floor(PageSize::Huge);
            self.inhabited.contains_key(&region.get())
        };
        let may = |bits: &u64| match X86::is_present(*bits) {
            true => !in_a_row(bits),
            false => !whole,
        };
        entries.iter().all(may)
    }

    /// NEMA, host part: puts the frame behind a guest's page at its region's offset, at once: where the
    /// guest hypervisor's memory has another page there, the two change places (xGemini I: the host's
    /// table is changed accordingly). Returns whether it is there.
    pub(crate) fn steer(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<bool, KernelOutOfMemory> {
        let Some(home) = self.home(stack, guest, page) else { return Ok(false) };
        let wanted = home + page.index_in(PageSize::Huge);
        // Follow the page down to the host's own guest: that is what the host can move.
        let (mut at, mut vm) = (page, guest);
        while let Some(below) = stack.below(vm).filter(|below| *below != NodeId::HOST) {
            match stack.second_stage(vm).translate(at.addr()) {
                Some(backing) => at = backing.page().cross(),
                None => return Ok(false),
            }
            vm = below;
        }
        let (process, hva) = (stack.vm_process(vm), stack.hva(vm, at));
        stack.back(self, vm, at)?;
        let copies = self.settings.xgemini.copy;
        let there = stack.put(self, NodeId::HOST, (process, hva), wanted, copies)?;
        // The move took the old entry out of the host's second stage.
        stack.back(self, vm, at)?;
        Ok(there)
    }

    /// One page of a region came to its place.
    pub(crate) fn placed(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), KernelOutOfMemory> {
        let region = page.floor(PageSize::Huge);
        let Some(home) = self.homes.get_mut(&(guest, region.get())) else { return Ok(()) };
        home.placed += 1;
        let at = home.at;
        if u64::from(home.placed) >= PageSize::Huge.base_pages()
            && self.promote(stack, guest, region)?
        {
            self.booking.end(stack.kernel_mut(NodeId::HOST).memory_mut(), at);
        }
        Ok(())
    }

    /// A region has no place as a row any more: its pages are to be coloured.
    pub(super) fn left_over(&mut self, region: GuestRegion) {
        if let Some(leftovers) = &mut self.leftovers {
            leftovers.enqueue(region);
        }
    }

    /// Bookings whose time is up go back; who had nothing there yet will be given another place.
    pub(super) fn expire(&mut self, stack: &mut Stack, now: f64) {
        for region in self.booking.expire(stack.kernel_mut(NodeId::HOST).memory_mut(), now) {
            if let Some(guest) = self.inhabited.get(&region.get()).copied()
                && self.homes.get(&guest).is_some_and(|home| home.placed == 0)
            {
                self.homes.remove(&guest);
                self.inhabited.remove(&region.get());
                self.left_over(guest);
            }
        }
    }

    /// A region's place cannot be had: another one is chosen when it is next looked at.
    pub(super) fn forget(&mut self, stack: &mut Stack, region: GuestRegion) {
        if let Some(home) = self.homes.remove(&region) {
            self.inhabited.remove(&home.at.get());
            self.booking.end(stack.kernel_mut(NodeId::HOST).memory_mut(), home.at);
            self.left_over(region);
        }
    }
}
