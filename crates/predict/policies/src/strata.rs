//! What the kernel in `linux/` does (`docs/kernel.md`): the host's half of xGemini, and what it takes to work
//! beside stock kernels above and below it.
//!
//! Only the host's kernel is changed. Guests and guest hypervisors are stock, with huge pages always, and the
//! host has them, too; so pages lie anywhere when a region of the guest's memory is found to be mapped. Beyond
//! xGemini's, the kernel makes free regions where there is none, by compaction and by taking apart a huge page
//! of the same VM that is behind no aligned one; it fills the shadow table with the page that it has just
//! handed a fault on for when the guest is entered next; it lets the guest hypervisor go on writing a leaf table
//! that it fills; it puts pages of a booked region into it one by one as the guest hypervisor maps them; and a fault of
//! the guest hypervisor's own maps the base pages around it, so that a huge page which was split costs few. Each
//! of these can be switched off, to see what it brings.
//!
//! Not modelled: the order of its scan by accessed bits, and the pause for regions that are broken up again and
//! again.

use crate::budget::Budget;
use crate::coordination::GuestRegion;
use crate::parameters::{ParameterSet, PolicyParameters};
use crate::timeout::BookingParameters;
use crate::worker::{StrataParameters, Worker};
use crate::xgemini::{XGemini, XGeminiSettings};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_paging::Region;
use strata_stack::{KernelOutOfMemory, NodeId, SpaceId, Stack};

/// The sets of parameters that it reads.
pub const SETS: &[ParameterSet] =
    &[ParameterSet::of::<StrataParameters>(), ParameterSet::of::<BookingParameters>()];

/// Pages of a region before the last of which a table that is kept writable is protected and read for the last time.
const READ_LAST: u64 = 2;

/// The policy.
pub fn policy(parameters: &PolicyParameters) -> XGemini {
    let mut settings = XGeminiSettings::default();
    settings.reused.booking = parameters.get();
    let worker: StrataParameters = parameters.get();
    settings.xgemini.l1_thp = worker.l1_thp;
    XGemini::with_worker(settings, Worker::new(worker))
}

/// Pages of a guest's region that its hypervisor maps one by one.
fn present(stack: &Stack, guest: NodeId, region: Frame<Upper>) -> u64 {
    match stack.second_stage(guest).region(region) {
        Region::Base { present, .. } => u64::from(present),
        _ => 0,
    }
}

impl XGemini {
    /// A guest hypervisor mapped a page of a guest's memory: one of a booked region goes there, and a region
    /// that is whole now is steered, as far as that needs no free region to be made.
    pub(crate) fn worker_sees(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        let Some(worker) = &self.worker else { return Ok(()) };
        let StrataParameters { fill_ahead, keep_unsync, one_by_one, .. } = worker.settings;
        let region = page.floor(PageSize::Huge);
        if size == PageSize::Base {
            let present = present(stack, guest, region);
            if keep_unsync && present < PageSize::Huge.base_pages() - READ_LAST {
                stack.keep_unsync(guest, page);
            }
            let whole = present == PageSize::Huge.base_pages();
            if one_by_one && self.has_home((guest, region.get())) {
                if self.steer(stack, guest, page)? && whole {
                    self.make_row(stack, guest, region)?;
                }
            } else if whole && !stack.promote_shadow(self, guest, region)? {
                self.make_row(stack, guest, region)?;
            }
        }
        if fill_ahead {
            stack.fill_shadow(self, guest, page)?;
        }
        Ok(())
    }

    /// Puts what is mapped of a region into its place. Returns whether it is huge now.
    fn make_row(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        region: Frame<Upper>,
    ) -> Result<bool, KernelOutOfMemory> {
        if stack.promote_shadow(self, guest, region)? {
            return Ok(true);
        }
        for page in (0..PageSize::Huge.base_pages()).map(|i| region + i) {
            if stack.second_stage(guest).mapping(page.addr()).is_some()
                && !self.steer(stack, guest, page)?
            {
                self.give_up(stack, (guest, region.get()));
                return Ok(false);
            }
        }
        let huge = stack.promote_shadow(self, guest, region)?;
        if huge {
            self.end_booking(stack, (guest, region.get()));
        }
        Ok(huge)
    }

    /// One round of the worker, if it is due.
    pub(crate) fn work(&mut self, stack: &mut Stack, now: f64) -> Result<(), KernelOutOfMemory> {
        let Some(worker) = &self.worker else { return Ok(()) };
        if worker.next_round > now {
            return Ok(());
        }
        let StrataParameters { period, share, .. } = worker.settings;
        self.expire_bookings(stack, now);
        let share = share * self.coordination.part_of_host();
        let budget = self.coordination.budget(stack, share, period);
        let mut regions: Vec<GuestRegion> = Vec::new();
        for guest in self.coordination.guests().to_vec() {
            let frames = stack.kernel(guest).memory().frames();
            let all = (0..frames).step_by(PageSize::Huge.base_pages() as usize);
            regions.extend(all.map(|region| (guest, region)));
            stack.charge_scan(stack.second_stage(guest).table_pages() as u64);
        }
        let from = self.worker.as_ref().map_or((NodeId::HOST, 0), |worker| worker.resume_at);
        let from = regions.partition_point(|region| *region < from);
        regions.rotate_left(from);
        let mut stopped = (NodeId::HOST, 0);
        for (guest, region) in regions {
            if budget.is_spent(stack) {
                stopped = (guest, region);
                break;
            }
            self.visit(stack, guest, Frame::new(region), &budget)?;
        }
        if let Some(worker) = &mut self.worker {
            (worker.next_round, worker.resume_at) = (now + period, stopped);
        }
        Ok(())
    }

    /// The worker looks at one region.
    fn visit(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        region: Frame<Upper>,
        budget: &Budget,
    ) -> Result<(), KernelOutOfMemory> {
        let shadow = stack.hardware_second_stage(guest);
        if shadow.is_some_and(|shadow| matches!(shadow.region(region), Region::Huge(_))) {
            return Ok(());
        }
        if let Region::Huge(_) = stack.second_stage(guest).region(region) {
            // What the guest hypervisor maps huge and the host does not.
            if !self.collapse_below(stack, guest, region)? {
                stack.promote_shadow(self, guest, region)?;
            }
            return Ok(());
        }
        let there = present(stack, guest, region);
        let Some(worker) = &mut self.worker else { return Ok(()) };
        let StrataParameters { min_present, max_fmfi, .. } = worker.settings;
        let before = worker.present.insert((guest, region.get()), there);
        let whole = there == PageSize::Huge.base_pages();
        if there < min_present || !whole && before != Some(there) {
            return Ok(());
        }
        stack.charge_scan(PageSize::Huge.base_pages());
        if stack.promote_shadow(self, guest, region)?
            || !whole && crate::allocator::fmfi(stack.kernel(NodeId::HOST)) > max_fmfi
        {
            return Ok(());
        }
        if !self.has_home((guest, region.get())) && self.home(stack, guest, region).is_none() {
            let Some(made) = self.make_region(stack, guest, budget)? else { return Ok(()) };
            self.home_at(stack, guest, region, made);
        }
        self.make_row(stack, guest, region)?;
        Ok(())
    }

    /// Makes a free region of the host's memory, for a guest's.
    fn make_region(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        budget: &Budget,
    ) -> Result<Option<Frame<Lower>>, KernelOutOfMemory> {
        let Some(worker) = &self.worker else { return Ok(None) };
        let StrataParameters { compact, take_apart, .. } = worker.settings;
        if compact && let Some(region) = stack.free_by_compaction(self, NodeId::HOST)? {
            return Ok(Some(region));
        }
        if !take_apart || budget.is_spent(stack) {
            return Ok(None);
        }
        let vm = stack.position(guest).vm;
        let process = stack.vm_process(vm);
        let Some(page) = self.next_to_take_apart(stack, vm, process) else { return Ok(None) };
        stack.free_by_taking_apart(self, NodeId::HOST, process, page)
    }

    /// The next huge page of a VM, by address, that no huge entry of a shadow table needs.
    fn next_to_take_apart(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        process: SpaceId,
    ) -> Option<Frame<Upper>> {
        let worker = self.worker.as_mut()?;
        let from = worker.next_apart.get(&process).copied().unwrap_or(0);
        let mut huge = Vec::new();
        let table = stack.kernel(NodeId::HOST).space(process)?.table();
        table.for_each_huge(|page, _| huge.push(page));
        let first = huge.partition_point(|page| page.get() < from);
        huge.rotate_left(first);
        let slot = stack.hva(vm, Frame::new(0)).get();
        let is_needed = |page: Frame<Upper>| {
            (0..PageSize::Huge.base_pages()).any(|i| {
                let own = (page + i).get().checked_sub(slot).map(Frame::new);
                let backed = own.and_then(|own| stack.backs(vm, own));
                let shadow = |(guest, page): (NodeId, Frame<Upper>)| {
                    let shadow = stack.hardware_second_stage(guest)?;
                    Some(matches!(shadow.region(page.floor(PageSize::Huge)), Region::Huge(_)))
                };
                backed.and_then(shadow).unwrap_or(false)
            })
        };
        let page = huge.into_iter().find(|page| !is_needed(*page))?;
        worker.next_apart.insert(process, page.get() + 1);
        Some(page)
    }
}
