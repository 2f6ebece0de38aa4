//! CoPlace (PACT 2021) as xPlace 4.2 describes it: the host puts the frame behind each page of a
//! VM's memory in the real colour that table t has for the page's virtual one.
//!
//! It knows the memory of the VM that is on it. For a nested guest that is the guest hypervisor's, whose
//! colours say nothing of the guest's: there it does not work, and what it misses is counted.

use crate::colour_table::{ColourTableParameters, ColourTables};
use crate::parameters::{ParameterSet, PolicyParameters};
use crate::recolour::{coloured_vm, keeps_colours, of_vm};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, VirtualCache};
use strata_stack::{
    AlignAreas, Kernel, KernelOutOfMemory, KernelSettings, Move, NodeId, PageFault, Placement,
    PlacementCounts, Policy, Position, Stack, ThpMode,
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

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        _: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        let kernel = stack.kernel(node);
        if let (Some(colours), Some(vm), Some(page), NodeId::HOST) =
            (kernel.memory().colours(), fault.vm, fault.vm_page, node)
        {
            let wanted = self.tables.wanted(vm, colours, page);
            let frame = kernel.frame_behind(fault.space, fault.page);
            let is_other = frame.is_some_and(|frame| colours.of(frame) != wanted);
            self.tables.counts(vm).colour_was_out += u64::from(is_other);
        }
        Ok(())
    }

    fn may_move(&mut self, stack: &Stack, asked: &Move) -> bool {
        let Some((vm, colours)) = coloured_vm(stack, asked) else { return true };
        let may = keeps_colours(colours, asked, |i| {
            let page = of_vm(stack, vm, asked, i)?;
            Some(self.tables.wanted(vm, colours, page))
        });
        self.tables.counts(vm).moves_refused += u64::from(!may);
        may
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

    fn told_of_cache(&mut self, vm: NodeId, cache: VirtualCache) -> Option<String> {
        self.tables.tell(vm, cache);
        None
    }

    fn ended(&mut self, _: &mut Stack, kernels: &[NodeId]) {
        self.tables.forget(kernels);
    }

    fn placement(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        self.tables.report(stack, guest)
    }
}
