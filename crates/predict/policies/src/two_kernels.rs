//! For tests: a host and the kernel of a VM on it.

use crate::one_kernel::chain;
use strata_addr::{Frame, Gva, PageSize, Range, space::Lower};
use strata_stack::{NodeId, Policy, Stack};
use strata_stream::{Backing, Event, Pid, Protection};

/// The host, of 96 MiB, and the VM's kernel, of 64 MiB.
pub(crate) struct TwoKernels {
    pub(crate) stack: Stack,
    pub(crate) guest: NodeId,
}

impl TwoKernels {
    pub(crate) fn new(policy: &mut dyn Policy) -> Self {
        let stack = Stack::build(&chain(&[96, 64]), policy, &|| false).unwrap();
        let guest = stack.guests().next().unwrap();
        Self { stack, guest }
    }

    /// A program in the VM has a huge page's worth of memory, touches the first page, and gives all of it
    /// back. Returns the region of the VM's memory that the page was in.
    pub(crate) fn used_and_freed(&mut self, policy: &mut dyn Policy) -> Frame<Lower> {
        let (pid, range) = (Pid(1), Range::sized(Gva::new(1 << 30), PageSize::Huge.bytes()));
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        for event in [
            Event::ProcessStart { pid },
            Event::Map { pid, range, backing, protection, fixed: true },
        ] {
            self.stack.event(policy, self.guest, &event).unwrap();
        }
        let space = self.stack.process_space(self.guest, pid).unwrap();
        let page = range.start.page().cross();
        self.stack.guest_fault(policy, self.guest, space, page, true).unwrap();
        let frame = self.stack.kernel(self.guest).frame_behind(space, page).unwrap();
        self.stack.event(policy, self.guest, &Event::Unmap { pid, range }).unwrap();
        frame.floor(PageSize::Huge)
    }

    /// The last region of a kernel's memory that nothing uses.
    pub(crate) fn free_region(&self, node: NodeId) -> Frame<Lower> {
        let memory = self.stack.kernel(node).memory();
        let regions = (0..memory.frames() / PageSize::Huge.base_pages()).rev();
        let mut regions = regions.map(|region| Frame::new(region * PageSize::Huge.base_pages()));
        regions.find(|region| memory.is_free(*region, PageSize::Huge.order())).unwrap()
    }

    /// Somebody takes one frame of every second free region of a kernel's memory.
    pub(crate) fn fragment(&mut self, node: NodeId) {
        let memory = self.stack.kernel_mut(node).memory_mut();
        for region in (0..memory.frames() / PageSize::Huge.base_pages()).step_by(2) {
            let region = Frame::new(region * PageSize::Huge.base_pages());
            if memory.is_free(region, PageSize::Huge.order()) {
                assert!(memory.alloc_at(region, 0));
            }
        }
    }
}
