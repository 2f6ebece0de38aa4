//! NWHPC (xGemini IV.D): regions that are huge in a guest become whole below it, and pseudo huge pages.

use super::XGemini;
use crate::budget::Budget;
use crate::coordination::{GuestRegion, promote_upper};
use crate::scanner::Scan;
use strata_addr::{Frame, PageSize, space::Upper};
use strata_paging::Region;
use strata_stack::{KernelOutOfMemory, NodeId, Stack};

impl XGemini {
    /// The guests' half of scanner and promoter, with the shadow table in place of the kernel below.
    pub(super) fn scan_guests(
        &mut self,
        stack: &mut Stack,
        now: f64,
    ) -> Result<(), KernelOutOfMemory> {
        if !self.coordination.scan_is_due(now) {
            return Ok(());
        }
        let settings = self.coordination.settings.scan.clone();
        let budget = self.coordination.budget(stack, settings.share, settings.period);
        for guest in self.coordination.guests().to_vec() {
            let scan = Scan::of_shadow(stack, guest);
            let budget = self.coordination.promotions(stack, guest, budget);
            stack.charge_scan(scan.entries);
            self.coordination.tell_upper(stack, guest, &scan);
            promote_upper(self, stack, guest, &scan, &budget)?;
        }
        Ok(())
    }

    /// NWHPC: guest huge pages whose shadow entries are not huge are completed and promoted, from
    /// where the last round stopped, within the budget.
    pub(super) fn create_aligned(
        &mut self,
        stack: &mut Stack,
        budget: &Budget,
    ) -> Result<(), KernelOutOfMemory> {
        let mut huge: Vec<GuestRegion> = Vec::new();
        let mut entries = 0;
        for guest in self.coordination.guests() {
            for (_, space) in stack.kernel(*guest).spaces() {
                entries += space.table().table_pages() as u64;
                space.table().for_each_huge(|_, mapping| huge.push((*guest, mapping.frame.get())));
            }
        }
        stack.charge_scan(entries);
        huge.sort_unstable();
        let from = huge.partition_point(|region| *region < self.resume_at);
        huge.rotate_left(from);
        for (guest, region) in huge {
            if budget.is_spent(stack) {
                self.resume_at = (guest, region);
                return Ok(());
            }
            self.complete(stack, guest, Frame::new(region))?;
        }
        self.resume_at = (NodeId::HOST, 0);
        Ok(())
    }

    /// Makes one guest huge page well aligned, if the guest hypervisor backs all of it.
    pub(super) fn complete(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        region: Frame<Upper>,
    ) -> Result<(), KernelOutOfMemory> {
        let shadow = stack.hardware_second_stage(guest).expect("a nested guest has a shadow table");
        if matches!(shadow.region(region), Region::Huge(_)) {
            return Ok(());
        }
        stack.charge_scan(PageSize::Huge.base_pages());
        if self.promote(stack, guest, region)? {
            return Ok(());
        }
        if !self.pays(stack, (guest, region.get())) {
            return Ok(());
        }
        if self.collapse_below(stack, guest, region)? {
            stack.promote_shadow(self, guest, region)?;
            return Ok(());
        }
        for i in 0..PageSize::Huge.base_pages() {
            let page = region + i;
            if stack.second_stage(guest).mapping(page.addr()).is_none() {
                // The guest hypervisor has nothing there; the guest will fault when it needs it.
                return Ok(());
            }
            if !self.steer(stack, guest, page)? {
                let region = (guest, region.get());
                self.give_up(stack, region);
                if let Some(leftovers) = &mut self.leftovers {
                    leftovers.could_not(region);
                }
                return Ok(());
            }
        }
        self.promote(stack, guest, region)?;
        Ok(())
    }

    /// Makes a region one huge entry of the shadow table if it is a row, and it may be a pseudo huge page
    /// or is none. Returns whether it is one now.
    pub(super) fn promote(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        region: Frame<Upper>,
    ) -> Result<bool, KernelOutOfMemory> {
        let may = self.settings.xgemini.pseudo_huge
            || huge_in_hypervisors(stack, guest, region).is_some();
        Ok(may && stack.promote_shadow(self, guest, region)?)
    }

    /// Whether moving all pages of a region into a row is worth it; where there are no colours to compare it
    /// with it always is. If not, its pages are left over.
    pub(super) fn pays(&mut self, stack: &mut Stack, region: GuestRegion) -> bool {
        let home = self.homes.get(&region).map(|home| home.at);
        let Some(leftovers) = &mut self.leftovers else { return true };
        let row = leftovers.prefers_row(stack, region, home);
        if !row {
            self.forget(stack, region);
        }
        row
    }

    /// Where every guest hypervisor maps the region huge, the host's own huge page is missing:
    /// collapses the host's range. Returns whether that is so and was done.
    pub(crate) fn collapse_below(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        region: Frame<Upper>,
    ) -> Result<bool, KernelOutOfMemory> {
        let Some((vm, at)) = huge_in_hypervisors(stack, guest, region) else { return Ok(false) };
        let (process, hva) = (stack.vm_process(vm), stack.hva(vm, at));
        self.collapsing = true;
        let collapsed = stack.collapse(self, NodeId::HOST, process, hva, None);
        self.collapsing = false;
        let done = collapsed?.is_huge();
        if done {
            stack.fill_shadow(self, guest, region)?;
        }
        Ok(done)
    }
}

/// The VM of the host, and the page of its memory, that back a region which every guest hypervisor maps huge;
/// `None` where one does not.
fn huge_in_hypervisors(
    stack: &Stack,
    guest: NodeId,
    region: Frame<Upper>,
) -> Option<(NodeId, Frame<Upper>)> {
    let (mut at, mut vm) = (region, guest);
    while let Some(below) = stack.below(vm).filter(|below| *below != NodeId::HOST) {
        let Region::Huge(mapping) = stack.second_stage(vm).region(at) else { return None };
        at = (mapping.frame + at.index_in(mapping.size)).cross();
        vm = below;
    }
    Some((vm, at))
}
