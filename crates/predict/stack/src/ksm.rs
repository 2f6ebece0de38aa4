//! ksmd: the thread of the host's kernel that merges equal pages of VMs.
//!
//! It looks at the memory of all VMs on the host, page by page. A page equal to one that is shared
//! already (in Linux's stable tree) joins it at once; one that has not changed since the last pass joins
//! another such (in the unstable tree, which lasts for a pass). Guest hypervisors merge nothing, since
//! the host finds equal pages of all VMs (xPlace 5.4). Under a policy of cache colours pages whose
//! colours differ stay apart.
//!
//! Frames have no contents in a run, so which pages are equal is an assumption: see [`KsmParameters`](crate::KsmParameters).
//! Only memory of programs is ever equal, not page tables.
//!
//! Source: Linux 6.12, `mm/ksm.c`, and `Documentation/admin-guide/mm/ksm.rst`.

use crate::costs::Spending;
use crate::fault::frame_of;
use crate::ksm_memory::Page;
use crate::owner::Owner;
use crate::policy::Policy;
use crate::ppm::mix;
use crate::stack::{KernelOutOfMemory, Stack};
use crate::tree::{NodeId, page_range};
use strata_addr::{Frame, space::Lower};

impl Stack {
    /// ksmd looks at its pages if it is time.
    pub(crate) fn ksm_if_due(
        &mut self,
        policy: &mut dyn Policy,
        now: f64,
    ) -> Result<(), KernelOutOfMemory> {
        if self.ksm.next_wake() > now {
            return Ok(());
        }
        self.ksm.next = now + self.ksm.settings.sleep;
        self.scan_for_equal_pages(policy, self.ksm.settings.pages_to_scan)
    }

    /// ksmd looks at so many pages from where it stopped, and merges equal ones.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn scan_for_equal_pages(
        &mut self,
        policy: &mut dyn Policy,
        pages: u64,
    ) -> Result<(), KernelOutOfMemory> {
        let mut at_end = false;
        let mut scanned = 0;
        while scanned < pages {
            let Some((page, frame)) = self.next_to_scan() else {
                // Once around is enough for one wake-up; and there may be no page at all.
                if std::mem::replace(&mut at_end, true) {
                    break;
                }
                self.ksm.cursor = None;
                self.ksm.unstable.clear();
                continue;
            };
            self.ksm.cursor = Some((page.0, page.1 + 1));
            scanned += 1;
            self.look_at(policy, page, frame)?;
        }
        self.spent.add(Spending::Background, scanned * self.ksm.settings.cycles);
        Ok(())
    }

    /// The next page of a VM of the host that is mapped, with its frame.
    fn next_to_scan(&self) -> Option<(Page, Frame<Lower>)> {
        let (first, start) = self.ksm.cursor.unwrap_or((NodeId::HOST, Frame::new(0)));
        let host = self.kernel(NodeId::HOST);
        let vms = self.nodes.iter().filter(|node| node.position.level == 1);
        vms.filter(|node| node.position.node >= first).find_map(|node| {
            let (id, vm) = (node.position.node, node.vm());
            let from = if id == first { start } else { Frame::new(0) };
            let pages = node.kernel.memory().frames().saturating_sub(from.get());
            let table = &host.space(vm.process)?.table;
            let (page, mapping) = table.first_mapped(page_range(from + vm.slot, pages))?;
            let page = page.max(from + vm.slot);
            Some(((id, Frame::new(page.get() - vm.slot)), frame_of(&mapping, page)))
        })
    }

    /// What is in a page that may be equal to others.
    fn content_of(&self, (vm, page): Page, frame: Frame<Lower>) -> Option<u64> {
        let (guest, own) = self.backs(vm, page)?;
        let Owner::Page(_, address) = self.kernel(guest).owner(own.cross()) else { return None };
        if let Some(contents) = &self.contents {
            return Some(contents.read(frame.get()));
        }
        let drawn = mix(self.ksm.seed.wrapping_add(mix(address.get()))) as f64 / u64::MAX as f64;
        let alike = drawn < self.ksm.settings.duplicates && !self.ksm.stored.contains(&(vm, page));
        alike.then_some(address.get())
    }

    fn look_at(
        &mut self,
        policy: &mut dyn Policy,
        page: Page,
        frame: Frame<Lower>,
    ) -> Result<(), KernelOutOfMemory> {
        let Owner::Page(..) = self.kernel(NodeId::HOST).owner(frame) else { return Ok(()) };
        let Some(content) = self.content_of(page, frame) else { return Ok(()) };
        let shared = self.frames_shared_with(content);
        let suits = |policy: &mut dyn Policy, stack: &Self, other: Frame<Lower>| {
            policy.may_merge(stack, page.0, page.1, other)
        };
        let refused = !shared.is_empty();
        if let Some(kept) = shared.into_iter().find(|kept| suits(policy, self, *kept)) {
            return self.merge(policy, page, kept).map(drop);
        }
        if self.ksm.seen.insert(page, content) != Some(content) {
            // It may change again (Linux, `cmp_and_merge_page`: the checksum).
            return Ok(());
        }
        let mut others = self.ksm.unstable.remove(&content).unwrap_or_default();
        others.retain(|other| *other != page && self.frame_of_equal(*other, content).is_some());
        let refused = refused || !others.is_empty();
        let found = others.iter().enumerate().find_map(|(index, other)| {
            let kept = self.frame_of_equal(*other, content)?;
            suits(policy, self, kept).then_some((index, kept))
        });
        match found {
            Some((index, kept)) => {
                others.swap_remove(index);
                if self.merge(policy, page, kept)? {
                    self.ksm.stable.entry(content).or_default().push(kept);
                    self.ksm.content.insert(kept, content);
                }
            }
            None => {
                others.push(page);
                let host = &mut self.nodes[NodeId::HOST].kernel;
                host.frames.counters.kept_apart += u64::from(refused);
            }
        }
        if !others.is_empty() {
            self.ksm.unstable.insert(content, others);
        }
        Ok(())
    }

    /// The frames that pages with this in them share; those that are no longer shared are forgotten.
    fn frames_shared_with(&mut self, content: u64) -> Vec<Frame<Lower>> {
        let host = &self.nodes[NodeId::HOST].kernel;
        let Some(frames) = self.ksm.stable.get_mut(&content) else { return Vec::new() };
        frames.retain(|frame| {
            matches!(host.owner(*frame), Owner::Shared { .. })
                && self.ksm.content.get(frame) == Some(&content)
        });
        frames.clone()
    }

    /// The frame of a page that is nobody else's and still holds this.
    fn frame_of_equal(&self, page: Page, content: u64) -> Option<Frame<Lower>> {
        let host = self.kernel(NodeId::HOST);
        let (process, hva) = (self.vm_process(page.0), self.hva(page.0, page.1));
        let frame = host.frame_behind(process, hva)?;
        let Owner::Page(..) = host.owner(frame) else { return None };
        (self.content_of(page, frame)? == content).then_some(frame)
    }

    /// A page gives up its frame for one with equal contents. Returns whether it did.
    fn merge(
        &mut self,
        policy: &mut dyn Policy,
        (vm, page): Page,
        kept: Frame<Lower>,
    ) -> Result<bool, KernelOutOfMemory> {
        let (process, hva) = (self.vm_process(vm), self.hva(vm, page));
        // A huge page that cannot be split for want of a page table stays as it is.
        let merged = self.nodes[NodeId::HOST].kernel.merge(process, hva, kept).unwrap_or(false);
        self.ksm.has_merged = true;
        self.settle(policy, NodeId::HOST, Spending::Background)?;
        Ok(merged)
    }
}
