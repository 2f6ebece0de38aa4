//! xPlace (section 5): the host keeps the colours of a *nested* guest's memory apart, with an unmodified
//! guest hypervisor between.
//!
//! The guest hypervisor's second stage is write-protected, so the host sees each change of it. It then
//! knows the guest's page, follows it down to the frame behind, and replaces the frame if its colour is not
//! the one that table t has for the page's virtual colour. Where no guest hypervisor is between, the host
//! places as CoPlace does.

use crate::colour_table::{ColourTableParameters, ColourTables};
use crate::coplace::settings;
use crate::parameters::{ParameterSet, PolicyParameters};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::Colour;
use strata_stack::{
    Exhausted, Kernel, KernelSettings, NodeId, PageFault, Placement, PlacementCounts, Policy,
    Position, Stack,
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
    parameters: XPlaceParameters,
    tables: ColourTables,
    guests: Vec<NodeId>,
    /// The colour for a page of a VM's memory that is about to be backed.
    wish: Option<(NodeId, Frame<Upper>, Colour<Lower>)>,
}

impl XPlace {
    /// The sets of parameters that it reads.
    pub const SETS: &[ParameterSet] =
        &[ParameterSet::of::<ColourTableParameters>(), ParameterSet::of::<XPlaceParameters>()];

    /// xPlace.
    pub fn new(parameters: &PolicyParameters) -> Self {
        let tables = ColourTables::new(parameters.get());
        Self { parameters: parameters.get(), tables, guests: Vec::new(), wish: None }
    }

    /// Puts the frame behind a guest's page in the colour that table t has for it, if every hypervisor
    /// between guest and host maps the page.
    fn check(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        // Down to the host's own VM: that is what the host can place.
        let (mut at, mut vm) = (page, guest);
        while let Some(below) = stack.below(vm).filter(|below| *below != NodeId::HOST) {
            match stack.second_stage(vm).translate(at.addr()) {
                Some(backing) => at = backing.page().cross(),
                None => return Ok(()),
            }
            vm = below;
        }
        let host = stack.kernel(NodeId::HOST);
        let Some(colours) = host.memory().colours() else { return Ok(()) };
        let wanted = self.tables.wanted(guest, colours, page);
        self.tables.counts(guest).checks += 1;
        let (process, hva) = (stack.vm_process(vm), stack.hva(vm, at));
        match host.frame_behind(process, hva) {
            None => self.wish = Some((vm, at, wanted)),
            Some(frame) if colours.of(frame) == wanted => return Ok(()),
            Some(_) => {
                let copies = self.parameters.copy;
                let moved = stack.recolour(self, NodeId::HOST, (process, hva), wanted, copies)?;
                let counts = self.tables.counts(guest);
                counts.replaced += u64::from(moved);
                counts.colour_was_out += u64::from(!moved);
            }
        }
        // Without a frame it gets one now; a frame that was replaced took its entry with it.
        stack.back(self, vm, at)?;
        self.wish = None;
        Ok(())
    }
}

impl Policy for XPlace {
    fn settings(&mut self, at: Position) -> KernelSettings {
        if at.is_guest() && !self.guests.contains(&at.node) {
            self.guests.push(at.node);
        }
        settings(at)
    }

    fn place(&mut self, node: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        let Some(colours) = kernel.memory().colours() else { return Placement::Linux };
        let (Some(vm), Some(page), NodeId::HOST) = (fault.vm, fault.vm_page, node) else {
            return Placement::Linux;
        };
        match self.wish {
            Some((of, at, colour)) if (of, at) == (vm, page) => Placement::BaseOf(colour),
            _ => match fault.backs {
                Some((guest, page)) => Placement::BaseOf(self.tables.wanted(guest, colours, page)),
                // What a guest hypervisor will use it for is not known yet.
                None => Placement::Linux,
            },
        }
    }

    fn second_stage_written(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), Exhausted> {
        for i in 0..size.base_pages() {
            // Between several guest hypervisors it may be a page of one of them.
            if let Some((guest, page)) = stack.backs(vm, page + i) {
                self.check(stack, guest, page)?;
            }
        }
        Ok(())
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
        let guest = stack.backs(vm, page);
        guest.is_none_or(|(guest, page)| self.tables.suits(stack, guest, page, frame))
    }

    fn ended(&mut self, _: &mut Stack, kernels: &[NodeId]) {
        self.tables.forget(kernels);
        self.guests.retain(|guest| !kernels.contains(guest));
    }

    fn placement(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        self.tables.report(stack, guest)
    }
}
