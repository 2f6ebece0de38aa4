//! Gemini (EuroSys'23), and dual Gemini for nested stacks (xGemini III.B, V).
//!
//! Between every two neighbouring layers works one Gemini: the scanner compares their huge pages,
//! the upper layer prefers memory that the lower one backs huge, the lower one makes huge what the
//! upper one has huge. In a nested stack the guest hypervisor is the lower half of one and the
//! upper half of the other, so it must be modified; that is what xGemini avoids.

use crate::allocator::FaultHuge;
use crate::coordination::{
    Coordinating, Coordination, GeminiSettings, after_fault, promote_lower, promote_upper,
};
use crate::scanner::Scan;
use strata_addr::{Frame, PageSize, space::Lower};
use strata_stack::{
    AlignAreas, Exhausted, Feedback, Kernel, KernelSettings, NodeId, PageFault, Placement, Policy,
    Position, Stack, ThpMode,
};

/// Gemini between all neighbouring layers.
#[derive(Debug)]
pub struct Gemini {
    coordination: Coordination,
}

impl Gemini {
    /// Gemini as published.
    pub fn new(settings: GeminiSettings) -> Self {
        Self { coordination: Coordination::new(settings, FaultHuge::AsLinux) }
    }
}

impl Coordinating for Gemini {
    fn coordination(&mut self) -> &mut Coordination {
        &mut self.coordination
    }
}

/// One round of MHPS and MHPP between all neighbours, if it is due.
pub(crate) fn scan_all<P: Coordinating>(
    policy: &mut P,
    stack: &mut Stack,
    now: f64,
) -> Result<(), Exhausted> {
    if !policy.coordination().scan_is_due(now) {
        return Ok(());
    }
    let settings = policy.coordination().settings.scan.clone();
    let budget = policy.coordination().budget(stack, settings.share, settings.period);
    // From the bottom up: a guest's huge page is worth most over an aligned one.
    for upper in policy.coordination().governed() {
        let Some(lower) = stack.below(upper) else { continue };
        let scan = Scan::of(stack, upper, lower);
        stack.charge_scan(scan.entries);
        policy.coordination().tell_upper(stack, upper, &scan);
        promote_upper(policy, stack, upper, &scan, &budget)?;
        // What the host may spend is for all its VMs.
        let of_host = settings.share * policy.coordination().part_of_host();
        let of_host = policy.coordination().budget(stack, of_host, settings.period);
        let budget = if lower == NodeId::HOST { budget.and(of_host) } else { budget };
        promote_lower(policy, stack, upper, lower, &scan, &budget)?;
    }
    Ok(())
}

impl Policy for Gemini {
    fn settings(&mut self, at: Position) -> KernelSettings {
        self.coordination.add(at);
        KernelSettings {
            thp: ThpMode::Always,
            align_areas: AlignAreas::Never,
            fragmented: true,
            coloured: false,
        }
    }

    fn place(&mut self, node: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        self.coordination.allocator(node).place(kernel, fault)
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        size: PageSize,
    ) -> Result<(), Exhausted> {
        after_fault(self, stack, node, fault, size)
    }

    fn ended(&mut self, _: &mut Stack, kernels: &[NodeId]) {
        self.coordination.ended(kernels);
    }

    fn freed_huge(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        _: Option<NodeId>,
        region: Frame<Lower>,
    ) {
        self.coordination.keep_freed(stack, node, region);
    }

    fn memory_short(&mut self, node: NodeId, kernel: &mut Kernel) -> bool {
        self.coordination.give_back(node, kernel)
    }

    fn wake(
        &mut self,
        stack: &mut Stack,
        _: NodeId,
        now: f64,
        feedback: Feedback,
    ) -> Result<(), Exhausted> {
        self.coordination.feedback = feedback;
        let nodes = self.coordination.governed();
        self.coordination.adjust(stack, now, nodes.into_iter().rev());
        scan_all(self, stack, now)
    }

    fn next_wake(&self, _: NodeId) -> f64 {
        self.coordination.next_wake()
    }
}
