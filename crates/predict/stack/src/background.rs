//! Background work: khugepaged in every kernel, and operations that policies use to change a running
//! kernel.

use crate::costs::Spending;
use crate::owner::SpaceId;
use crate::policy::{Feedback, Move, Policy};
use crate::promote::{Collapsed, PromoteError};
use crate::stack::{KernelOutOfMemory, Stack};
use crate::thp::ThpMode;
use crate::tree::{NodeId, Position};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::Colour;
use strata_paging::Region;

impl Stack {
    /// When [`Stack::wake`] has something to do next for `vm`, a VM of the host, in seconds of simulated
    /// time.
    pub fn next_wake(&self, policy: &dyn Policy, vm: NodeId) -> f64 {
        let with_thp = self.nodes.iter().filter(|node| node.kernel.thp != ThpMode::Never);
        let concerned = with_thp.filter(|node| is_concerned(node.position, vm));
        let khugepaged = concerned.map(|node| node.khugepaged_next);
        let guests = self.guests().filter(|guest| self.position(*guest).vm == vm);
        let balloons = guests.map(|guest| self.next_balloon(guest));
        khugepaged
            .chain(balloons)
            .chain([self.ksm.next_wake()])
            .fold(policy.next_wake(vm), f64::min)
    }

    /// Does the background work for `vm`, a VM of the host or the host itself, that is due at `now`, in
    /// seconds of simulated time: that of the kernels in it, of the host, and of the policy, which is
    /// told what hardware showed of the programs in it.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn wake(
        &mut self,
        policy: &mut dyn Policy,
        vm: NodeId,
        now: f64,
        feedback: Feedback,
    ) -> Result<(), KernelOutOfMemory> {
        self.account = Some(Spending::Background);
        let done = self.background(policy, vm, now, feedback);
        self.account = None;
        done
    }

    fn background(
        &mut self,
        policy: &mut dyn Policy,
        vm: NodeId,
        now: f64,
        feedback: Feedback,
    ) -> Result<(), KernelOutOfMemory> {
        if policy.next_wake(vm) <= now {
            policy.wake(self, vm, now, feedback)?;
        }
        let guests: Vec<NodeId> =
            self.guests().filter(|guest| self.position(*guest).vm == vm).collect();
        for guest in guests {
            self.balloon_if_due(policy, guest, now)?;
        }
        self.ksm_if_due(policy, now)?;
        // Guests first: what they make huge is there to be matched below.
        let positions = self.nodes.iter().rev().map(|node| node.position);
        let concerned = positions.filter(|at| is_concerned(*at, vm)).map(|at| at.node);
        let ids: Vec<NodeId> = concerned.collect();
        for id in ids {
            let node = &self.nodes[id];
            if node.khugepaged_next > now || node.kernel.thp == ThpMode::Never {
                continue;
            }
            let settings = self.thp.clone();
            let failed = self.khugepaged(policy, id, &settings);
            let pause = match failed {
                Ok(false) => settings.scan_sleep,
                // Out of memory for a page table is no reason to die: it tries again later.
                Ok(true) | Err(_) => settings.alloc_sleep,
            };
            self.nodes[id].khugepaged_next = now + pause;
            self.settle(policy, id, Spending::Background)?;
        }
        Ok(())
    }

    /// Makes the region at `page` of a kernel's space huge, if it can be; the result tells why it is
    /// not. `target` names the HPAS region wanted, `None` leaves it in place or takes any.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn collapse(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        target: Option<Frame<Lower>>,
    ) -> Result<Collapsed, KernelOutOfMemory> {
        let place = self.kernel(node).space(space);
        let region = place.map(|place| place.table().region(page.floor(PageSize::Huge)));
        let asked = Move { node, space, page, to: target, size: PageSize::Huge };
        if matches!(region, Some(Region::Base { .. })) && !policy.may_move(self, &asked) {
            return Ok(Collapsed::Unchanged(PromoteError::Refused));
        }
        let outcome = self.nodes[node].kernel.collapse(space, page, target, &self.thp);
        let guest = self.position(node).is_guest();
        let fault = if guest { Spending::GuestFault } else { Spending::HypervisorFault };
        self.settle(policy, node, fault)?;
        Ok(outcome.into())
    }

    /// Moves a base page of a kernel's space to a wanted frame, splitting a huge page if need be.
    /// Returns whether it is there.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn migrate(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        to: Frame<Lower>,
    ) -> Result<bool, KernelOutOfMemory> {
        let asked = Move { node, space, page, to: Some(to), size: PageSize::Base };
        if !policy.may_move(self, &asked) {
            return Ok(false);
        }
        let moved = self.nodes[node].kernel.migrate_to(space, page, to, true);
        self.settle(policy, node, Spending::HypervisorFault)?;
        Ok(moved.unwrap_or(false))
    }

    /// Puts a base page of a kernel's space into a wanted frame, splitting a huge page if need be: moves it
    /// there if the frame is free, and lets it change places with another base page that has it. Where it
    /// does not copy no copy is charged for a move to a free frame, as if the page were free; contents are
    /// kept all the same. Returns whether it is there.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn put(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        (space, page): (SpaceId, Frame<Upper>),
        to: Frame<Lower>,
        copies: bool,
    ) -> Result<bool, KernelOutOfMemory> {
        let kernel = self.kernel(node);
        let (from, other) = (kernel.frame_behind(space, page), kernel.base_page_in(to));
        if from == Some(to) {
            return Ok(true);
        }
        let asks = [Some(((space, page), Some(to))), other.map(|other| (other, from))];
        for ((space, page), to) in asks.into_iter().flatten() {
            let asked = Move { node, space, page, to, size: PageSize::Base };
            if !policy.may_move(self, &asked) {
                return Ok(false);
            }
        }
        let kernel = &mut self.nodes[node].kernel;
        let moved = match other {
            Some(_) => kernel.exchange_with(space, page, to),
            None => kernel.migrate_to(space, page, to, copies),
        };
        self.settle(policy, node, Spending::HypervisorFault)?;
        Ok(moved.unwrap_or(false))
    }

    /// Moves a base page of a kernel's space to a frame of a cache colour, splitting a huge page if need
    /// be, unless it is in one. Where it does not copy no copy is charged, as if the page were free; the
    /// content is kept all the same. Returns whether it is there.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn recolour(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        (space, page): (SpaceId, Frame<Upper>),
        colour: Colour<Lower>,
        copies: bool,
    ) -> Result<bool, KernelOutOfMemory> {
        let moved = self.nodes[node].kernel.recolour(space, page, colour, copies);
        self.settle(policy, node, Spending::HypervisorFault)?;
        Ok(moved.unwrap_or(false))
    }

    /// Empties a region of a kernel's memory by compaction, looking at so many regions at most, and returns it.
    /// It is free.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn free_by_compaction(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
    ) -> Result<Option<Frame<Lower>>, KernelOutOfMemory> {
        let limit = self.thp.compact_regions;
        let region = self.nodes[node].kernel.compact(limit);
        self.free_emptied(policy, node, region)
    }

    /// Takes the huge page at `page` of a kernel's space apart: its pages move elsewhere, one by one. Returns the
    /// region that it was in, which is free.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn free_by_taking_apart(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
    ) -> Result<Option<Frame<Lower>>, KernelOutOfMemory> {
        let region = self.nodes[node].kernel.take_apart(space, page);
        self.free_emptied(policy, node, region)
    }

    fn free_emptied(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        region: Option<Frame<Lower>>,
    ) -> Result<Option<Frame<Lower>>, KernelOutOfMemory> {
        if let Some(region) = region {
            self.nodes[node].kernel.frames.memory.free(region, PageSize::Huge.order());
        }
        self.settle(policy, node, Spending::HypervisorFault)?;
        Ok(region)
    }

    /// Cycles of background work charged and not yet drained.
    pub fn background_cycles(&self) -> u64 {
        self.spent.0[Spending::Background as usize]
    }

    /// Charges cycles of a policy's own scanning.
    pub fn charge_scan(&mut self, entries: u64) {
        let cycles = entries * self.costs.scan;
        self.spent.add(self.account.unwrap_or(Spending::Background), cycles);
    }
}

/// Whether a kernel works for a VM of the host: it is in it, or is the host's.
fn is_concerned(at: Position, vm: NodeId) -> bool {
    at.vm == vm || at.node == NodeId::HOST
}
