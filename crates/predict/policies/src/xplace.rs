//! xPlace (section 5): the host keeps the colours of a *nested* guest's memory apart, with an unmodified
//! guest hypervisor between: see `recolour.rs`. Where no guest hypervisor is between, the host places
//! as CoPlace does.

use crate::colour_table::ColourTableParameters;
use crate::coplace::settings;
use crate::parameters::{ParameterSet, PolicyParameters};
use crate::recolour::{Recolouring, Recolours, check};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, VirtualCache};
use strata_stack::{
    Kernel, KernelOutOfMemory, KernelSettings, Move, NodeId, PageFault, Placement, PlacementCounts,
    Policy, Position, Stack,
};

strata_params::parameters! {
    /// xPlace.
    pub struct XPlaceParameters {
        /// A replaced frame is copied: the guest hypervisor has zeroed or filled it before it maps it. Off:
        /// it costs no copy, as xPlace 5.2 has it ("free pages containing no valid data").
        copy: bool = true, "xplace.copy", "";
    }
}

/// xPlace.
#[derive(Debug)]
pub struct XPlace {
    recolouring: Recolouring,
}

impl XPlace {
    /// The sets of parameters that it reads.
    pub const SETS: &[ParameterSet] =
        &[ParameterSet::of::<ColourTableParameters>(), ParameterSet::of::<XPlaceParameters>()];

    /// xPlace.
    pub fn new(parameters: &PolicyParameters) -> Self {
        let XPlaceParameters { copy } = parameters.get();
        Self { recolouring: Recolouring::new(parameters.get(), copy) }
    }
}

impl Recolours for XPlace {
    fn recolouring(&mut self) -> &mut Recolouring {
        &mut self.recolouring
    }
}

impl Policy for XPlace {
    fn settings(&mut self, at: Position) -> KernelSettings {
        self.recolouring.add(at);
        settings(at)
    }

    fn place(&mut self, _: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        let wanted = self.recolouring.of_fault(kernel, fault);
        wanted.map_or(Placement::Linux, |(_, colour)| Placement::BaseOf(colour))
    }

    fn wants_backs(&self) -> bool {
        true
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        _: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        let wrong = self.recolouring.wrong_of_fault(stack.kernel(node), fault);
        if let Some((guest, _)) = wrong {
            // There was none of its colour.
            self.recolouring.note_replaced(guest, false);
        }
        Ok(())
    }

    fn second_stage_written(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        for i in 0..size.base_pages() {
            // Between several guest hypervisors it may be a page of one of them.
            if let Some((guest, page)) = self.recolouring.backs(stack, vm, page + i) {
                check(self, stack, guest, page)?;
            }
        }
        Ok(())
    }

    fn may_move(&mut self, stack: &Stack, asked: &Move) -> bool {
        self.recolouring.may_move(stack, asked)
    }

    fn balloon_colours(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        self.recolouring.by_shortage(stack, guest)
    }

    fn may_merge(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
        frame: Frame<Lower>,
    ) -> bool {
        self.recolouring.may_merge(stack, vm, page, frame)
    }

    fn told_of_cache(&mut self, vm: NodeId, cache: VirtualCache) -> Option<String> {
        self.recolouring.tell(vm, cache);
        None
    }

    fn ended(&mut self, _: &mut Stack, kernels: &[NodeId]) {
        self.recolouring.ended(kernels);
    }

    fn placement(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        self.recolouring.report(stack, guest)
    }
}
