//! For tests: a kernel on bare hardware with one process that has one area.

use crate::linux::Linux;
use strata_addr::{Frame, Gva, PageSize, Range, space::Upper};
use strata_stack::{
    AlignerParameters, BalloonParameters, ColouredParameters, Costs, ExitCosts, KsmParameters,
    MemoryParameters, NodeId, PageFault, Paging, Position, SpaceId, Stack, StackConfig,
    ThpParameters, Virtualization,
};
use strata_stream::{Backing, Event, Pid, Protection};

/// Kernels of which each runs on the one before, of so many MiB, the host first, as everything begins.
pub(crate) fn chain(memory: &[u64]) -> StackConfig {
    let kernels: Vec<_> = memory.iter().map(|mib| (mib << 20, 0.0)).collect();
    StackConfig {
        kernels: StackConfig::chain(&kernels, 1),
        levels: 4,
        reused: false,
        paging: Paging::Nested,
        costs: Costs::default(),
        exits: ExitCosts::default(),
        virtualization: Virtualization::default(),
        thp: ThpParameters::default(),
        start: MemoryParameters::default(),
        aligner: AlignerParameters::default(),
        colours: None,
        coloured: ColouredParameters::default(),
        balloon: BalloonParameters::default(),
        ksm: KsmParameters::default(),
    }
}

/// Where the kernel is: alone.
pub(crate) const ALONE: Position =
    Position { node: NodeId::HOST, level: 0, vms: 0, vm: NodeId::HOST };

const PID: Pid = Pid(1);
const AREA: u64 = 1 << 40;

/// Bytes of the area.
const BYTES: u64 = 16 << 20;

/// The kernel, of 64 MiB, and the process's space.
pub(crate) struct OneKernel {
    pub(crate) stack: Stack,
    pub(crate) space: SpaceId,
}

impl OneKernel {
    pub(crate) fn new() -> Self {
        let config = chain(&[64]);
        let mut stack = Stack::build(&config, &mut Linux::base(), &|| false).unwrap();
        let range = Range::sized(Gva::new(AREA), BYTES);
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        for event in [
            Event::ProcessStart { pid: PID },
            Event::Map { pid: PID, range, backing, protection, fixed: true },
        ] {
            stack.event(&mut Linux::base(), NodeId::HOST, &event).unwrap();
        }
        let space = stack.process_space(NodeId::HOST, PID).unwrap();
        Self { stack, space }
    }

    /// Gives so many pages from the start of the area back.
    pub(crate) fn unmap(&mut self, pages: u64) {
        let range = Range::sized(Gva::new(AREA), pages * PageSize::Base.bytes());
        let event = Event::Unmap { pid: PID, range };
        self.stack.event(&mut Linux::base(), NodeId::HOST, &event).unwrap();
    }

    /// The first page of the area's `region`th HPAS region.
    pub(crate) fn page(&self, region: u64) -> Frame<Upper> {
        Frame::new((AREA >> PageSize::BASE_SHIFT) + region * PageSize::Huge.base_pages())
    }

    /// A fault there, which may be answered with a huge page.
    pub(crate) fn fault(&self, region: u64) -> PageFault {
        let page = self.page(region);
        let vmas = self.stack.kernel(NodeId::HOST).space(self.space).unwrap().vmas();
        let vma = *vmas.find(page.addr()).unwrap();
        PageFault {
            space: self.space,
            vm: None,
            vm_page: None,
            backs: None,
            page,
            vma,
            store: true,
            huge_possible: true,
        }
    }
}
