//! Gemini (EuroSys'23), and dual Gemini for nested stacks (xGemini III.B, V).
//!
//! Between every two neighbouring layers works one Gemini: the scanner compares their huge pages,
//! the upper layer prefers memory that the lower one backs huge, the lower one makes huge what the
//! upper one has huge. In a nested stack the guest hypervisor is the lower half of one and the
//! upper half of the other, so it must be modified; that is what xGemini avoids.

use crate::allocator::FaultHuge;
use crate::coordination::{Coordinating, Coordination, after_fault, promote_lower, promote_upper};
use crate::gemini_settings::GeminiSettings;
use crate::scanner::Scan;
use strata_addr::{Frame, PageSize, space::Lower};
use strata_stack::{
    AlignAreas, Feedback, Kernel, KernelOutOfMemory, KernelSettings, NodeId, PageFault, Placement,
    Policy, Position, Stack, ThpMode,
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
) -> Result<(), KernelOutOfMemory> {
    if !policy.coordination().scan_is_due(now) {
        return Ok(());
    }
    let settings = policy.coordination().settings.scan.clone();
    let own = policy.coordination().budget(stack, settings.share, settings.period);
    // From the bottom up: a guest's huge page is worth most over an aligned one.
    for upper in policy.coordination().governed() {
        let Some(lower) = stack.below(upper) else { continue };
        let scan = Scan::of(stack, upper, lower);
        stack.charge_scan(scan.entries);
        policy.coordination().tell_upper(stack, upper, &scan);
        let budget = policy.coordination().promotions(stack, upper, own);
        promote_upper(policy, stack, upper, &scan, &budget)?;
        let budget = policy.coordination().promotions(stack, lower, own);
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
    ) -> Result<(), KernelOutOfMemory> {
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
    ) -> Result<(), KernelOutOfMemory> {
        self.coordination.feedback = feedback;
        let nodes = self.coordination.governed();
        self.coordination.adjust(stack, now, nodes.into_iter().rev());
        scan_all(self, stack, now)
    }

    fn next_wake(&self, _: NodeId) -> f64 {
        self.coordination.next_wake()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemini_settings::Promoter;
    use crate::two_kernels::TwoKernels;

    /// A VM whose program has base pages, 20 regions of them, and whose host has huge ones below them.
    fn misaligned(settings: GeminiSettings) -> (TwoKernels, Gemini) {
        let mut policy = Gemini::new(settings);
        let mut two = TwoKernels::new(&mut policy);
        two.misalign(20);
        (two, policy)
    }

    fn promoted(two: &TwoKernels) -> u64 {
        two.stack.kernel(two.guest).counters().promotions
    }

    /// "Gemini tries to use the existing system component for page coalescing": it is told what to promote
    /// first, and promotes no more than it would.
    #[test]
    fn gemini_3_misaligned_huge_pages_are_promoted_first_and_at_khugepageds_pace() {
        let (mut two, mut policy) = misaligned(GeminiSettings::default());
        let feedback = Feedback { frequency: 1e9, ..Feedback::default() };
        let mut at = |two: &mut TwoKernels, now| {
            two.stack.wake(&mut policy, two.guest, f64::from(now), feedback).unwrap();
            promoted(two)
        };
        // khugepaged looks at 4096 pages every 10 s: 8 regions.
        let found: Vec<u64> = (1..=9).map(|now| at(&mut two, now)).collect();
        assert_eq!(found, [8; 9], "what it may look at next time is used already");
        assert_eq!(at(&mut two, 10), 8, "it wakes up");
        let found: Vec<u64> = (11..=20).map(|now| at(&mut two, now)).collect();
        assert_eq!(found, [16; 10]);
        assert_eq!(at(&mut two, 21), 20);
    }

    #[test]
    fn with_a_pace_of_its_own_promotion_is_bounded_by_its_share_of_a_cpu() {
        let mut settings = GeminiSettings::default();
        settings.scan.promoter = Promoter::Own;
        let (mut two, mut policy) = misaligned(settings);
        let feedback = Feedback { frequency: 1e9, ..Feedback::default() };
        two.stack.wake(&mut policy, two.guest, 1.0, feedback).unwrap();
        assert_eq!(promoted(&two), 20);
    }

    /// "For the well-aligned huge pages that have been freed after use" the bucket keeps their regions, and gives
    /// them back "when the memory space becomes scarce".
    #[test]
    fn gemini_5_the_bucket_fills_as_programs_free_and_empties_as_memory_is_short() {
        let mut policy = Gemini::new(GeminiSettings::default());
        let mut two = TwoKernels::new(&mut policy);
        let region = two.used_and_freed(&mut policy);
        let (guest, is_kept) = (two.guest, |two: &TwoKernels| {
            two.stack.kernel(two.guest).memory().is_reserved(region)
        });
        assert!(is_kept(&two));
        assert!(policy.memory_short(guest, two.stack.kernel_mut(guest)));
        assert!(!is_kept(&two));
        assert!(!policy.memory_short(guest, two.stack.kernel_mut(guest)), "there is no more");
    }

    #[test]
    fn it_is_woken_when_the_first_of_its_periods_is_over() {
        for (scan, booking) in [(5.0, 2.0), (3.0, 7.0)] {
            let mut settings = GeminiSettings::default();
            (settings.scan.period, settings.booking.period) = (scan, booking);
            let (mut two, mut policy) = misaligned(settings);
            let feedback = Feedback { frequency: 1e9, ..Feedback::default() };
            assert_eq!(policy.next_wake(two.guest), scan.min(booking));
            two.stack.wake(&mut policy, two.guest, 10.0, feedback).unwrap();
            assert_eq!(policy.next_wake(two.guest), 10.0 + scan.min(booking));
        }
    }
}
