//! CoPlace (PACT 2021) as xPlace 4.2 describes it: the host puts the frame behind each page of a
//! VM's memory in the real colour that table t has for the page's virtual one.
//!
//! It knows the memory of the VM that is on it. For a nested guest that is the guest hypervisor's, whose
//! colours say nothing of the guest's: there it does not work, and what it misses is counted.

use crate::colour_table::{ColourTableParameters, ColourTables};
use crate::parameters::{ParameterSet, PolicyParameters};
use strata_addr::{Frame, space::Lower, space::Upper};
use strata_colours::Colour;
use strata_stack::{
    AlignAreas, Kernel, KernelSettings, NodeId, PageFault, Placement, PlacementCounts, Policy,
    Position, Stack, ThpMode,
};

/// CoPlace.
#[derive(Debug)]
pub struct CoPlace {
    tables: ColourTables,
}

impl CoPlace {
    /// The sets of parameters that it reads.
    pub const SETS: &[ParameterSet] = &[ParameterSet::of::<ColourTableParameters>()];

    /// CoPlace.
    pub fn new(parameters: &PolicyParameters) -> Self {
        Self { tables: ColourTables::new(parameters.get()) }
    }
}

/// Base pages in all layers, with a host that tells colours apart.
pub(crate) fn settings(at: Position) -> KernelSettings {
    KernelSettings {
        thp: ThpMode::Never,
        align_areas: AlignAreas::Never,
        fragmented: true,
        coloured: at.node == NodeId::HOST && !at.is_guest(),
    }
}

impl Policy for CoPlace {
    fn settings(&mut self, at: Position) -> KernelSettings {
        settings(at)
    }

    fn place(&mut self, node: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        let Some(colours) = kernel.memory().colours() else { return Placement::Linux };
        match (fault.vm, fault.vm_page) {
            (Some(vm), Some(page)) if node == NodeId::HOST => {
                Placement::BaseOf(self.tables.wanted(vm, colours, page))
            }
            _ => Placement::Linux,
        }
    }

    fn balloon_colours(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        self.tables.by_shortage(stack, guest)
    }

    fn may_merge(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
        frame: Frame<Lower>,
    ) -> bool {
        self.tables.suits(stack, vm, page, frame)
    }

    fn ended(&mut self, _: &mut Stack, kernels: &[NodeId]) {
        self.tables.forget(kernels);
    }

    fn placement(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        self.tables.report(stack, guest)
    }
}
