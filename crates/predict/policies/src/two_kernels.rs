//! For tests: a host and the kernel of a VM on it.

use crate::one_kernel::chain;
use strata_addr::{Frame, Gva, PageSize, Range, space::Lower, space::Upper};
use strata_stack::{Kernel, KernelSettings, NodeId, PageFault, Placement, Policy, Position, Stack};
use strata_stream::{Backing, Event, Pid, Protection};

/// Where the program has its memory.
const AREA: u64 = 1 << 30;

/// The first region of the VM's memory that has base pages of it.
const FIRST: u64 = 4;

/// Base pages for programs, and what Linux would take for VMs.
struct HostHuge;

impl Policy for HostHuge {
    fn settings(&mut self, _: Position) -> KernelSettings {
        unreachable!("the kernels are there")
    }

    fn place(&mut self, _: NodeId, _: &mut Kernel, fault: &PageFault) -> Placement {
        if fault.vm.is_some() {
            return Placement::Linux;
        }
        // In place for huge pages, above the VM's first regions.
        let index = fault.page.get() - (AREA >> PageSize::BASE_SHIFT);
        Placement::BaseAt(Frame::new(FIRST * PageSize::Huge.base_pages() + index))
    }
}

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
        let (pid, range) = (Pid(1), Range::sized(Gva::new(AREA), PageSize::Huge.bytes()));
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

    /// A program in the VM touches so many regions of its memory, of which the VM's kernel makes base pages
    /// and the host huge ones.
    pub(crate) fn misalign(&mut self, regions: u64) {
        let policy = &mut HostHuge;
        let bytes = regions * PageSize::Huge.bytes();
        let (pid, range) = (Pid(1), Range::sized(Gva::new(AREA), bytes));
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        for event in [
            Event::ProcessStart { pid },
            Event::Map { pid, range, backing, protection, fixed: true },
        ] {
            self.stack.event(policy, self.guest, &event).unwrap();
        }
        // Page tables go elsewhere.
        let memory = self.stack.kernel_mut(self.guest).memory_mut();
        for region in FIRST..FIRST + regions {
            assert!(memory.reserve_region(Frame::new(region * PageSize::Huge.base_pages())));
        }
        let space = self.stack.process_space(self.guest, pid).unwrap();
        let first: Frame<Upper> = range.start.page().cross();
        for page in 0..range.bytes() / PageSize::Base.bytes() {
            self.stack.guest_fault(policy, self.guest, space, first + page, true).unwrap();
        }
        self.stack.kernel_mut(self.guest).memory_mut().release_all_regions();
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
