//! The policy of `docs/adding-a-policy.md`: what is between the marks is what the document shows.

// [file]
use strata_addr::PageSize;
use strata_paging::Region;
use strata_stack::{
    AlignAreas, Kernel, KernelOutOfMemory, KernelSettings, NodeId, PageFault, Placement, Policy,
    Position, Stack, ThpMode,
};

strata_params::parameters! {
    /// What decides when a region becomes a huge page.
    pub struct UtilizationParameters {
        /// Share of a region's base pages that must be present. Ingens (OSDI 2016, section 5).
        threshold: f64 = 0.9, "utilization.threshold", "share";
    }
}

/// Promotes an HPAS region once most of it is in use, in every layer on its own, as Ingens does
/// (OSDI 2016, section 5).
#[derive(Debug)]
pub struct Utilization {
    parameters: UtilizationParameters,
}

impl Utilization {
    /// With these parameters.
    pub fn new(parameters: UtilizationParameters) -> Self {
        Self { parameters }
    }
}

impl Policy for Utilization {
    fn settings(&mut self, _at: Position) -> KernelSettings {
        KernelSettings {
            thp: ThpMode::Always,
            align_areas: AlignAreas::Never,
            fragmented: true,
            coloured: false,
        }
    }

    fn place(&mut self, _node: NodeId, _kernel: &mut Kernel, _fault: &PageFault) -> Placement {
        Placement::Base
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        _size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        let region = fault.page.floor(PageSize::Huge);
        let space = stack.kernel(node).space(fault.space).expect("it has just faulted");
        let enough = self.parameters.threshold * PageSize::Huge.base_pages() as f64;
        if let Region::Base { present, .. } = space.table().region(region)
            && f64::from(present) >= enough
        {
            // Why a region stays as it is would be in the result; here it may simply stay so.
            stack.collapse(self, node, fault.space, region, None)?;
        }
        Ok(())
    }
}
// [/file]
