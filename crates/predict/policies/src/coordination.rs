//! What Gemini and xGemini share: an allocator per kernel, bookings with an adjusted time-out, the
//! comparison of two layers' huge pages, and the promotion of misaligned ones.

use crate::allocator::{Allocator, FaultHuge, fmfi};
use crate::budget::Budget;
use crate::gemini_settings::{GeminiSettings, Promoter, ScanParameters};
use crate::scanner::{Scan, main_user};
use strata_addr::{Frame, PageSize, space::Lower};
use strata_paging::Region;
use strata_stack::{
    Collapsed, Feedback, Kernel, KernelOutOfMemory, NodeId, PageFault, Policy, Position,
    PromoteError, Stack,
};

/// An HPAS region of a guest's memory.
pub(crate) type GuestRegion = (NodeId, u64);

/// The state shared by the kernels that a policy governs: the host, and those of its VM.
#[derive(Debug)]
pub struct Coordination {
    pub(crate) settings: GeminiSettings,
    guest_fault_huge: FaultHuge,
    /// By number of the kernel; none for other policies' kernels.
    allocators: Vec<Option<Allocator>>,
    guests: Vec<NodeId>,
    /// VMs that share the host.
    vms_of_host: u16,
    /// What hardware showed last.
    pub(crate) feedback: Feedback,
    next_adjust: f64,
    next_scan: f64,
}

/// A policy that coordinates layers. Operations that change a running stack are given the policy
/// itself, so that faults they cause below are placed by it too.
pub(crate) trait Coordinating: Policy + Sized {
    /// The shared state.
    fn coordination(&mut self) -> &mut Coordination;
}

impl Coordination {
    pub(crate) fn new(settings: GeminiSettings, guest_fault_huge: FaultHuge) -> Self {
        Self {
            next_adjust: settings.booking.period,
            next_scan: settings.scan.period,
            settings,
            guest_fault_huge,
            allocators: Vec::new(),
            guests: Vec::new(),
            vms_of_host: 0,
            feedback: Feedback::default(),
        }
    }

    /// Gives a kernel its allocator; kernels come in the order of their numbers, other policies' left
    /// out, the host again when all are told of anew.
    pub(crate) fn add(&mut self, at: Position) {
        if at.level == 0 {
            self.allocators.clear();
            self.guests.clear();
            self.vms_of_host = at.vms;
        }
        self.allocators.resize_with(at.node.index(), || None);
        // Hypervisors back what the kernel above has touched already: there is no touch to follow,
        // and a stock one takes huge pages where it can.
        let fault_huge = if at.is_guest() { self.guest_fault_huge } else { FaultHuge::AsLinux };
        let settings = &self.settings;
        let sharers = if at.level == 0 { at.vms } else { 1 };
        let allocator =
            Allocator::new(fault_huge, settings.allocator.clone(), &settings.booking, sharers);
        self.allocators.push(Some(allocator));
        if at.is_guest() {
            self.guests.push(at.node);
        }
    }

    pub(crate) fn allocator(&mut self, node: NodeId) -> &mut Allocator {
        self.allocators[node.index()].as_mut().expect("a policy is asked of its own kernels")
    }

    /// The kernels that the policy governs and that have not ended, the host first.
    pub(crate) fn governed(&self) -> Vec<NodeId> {
        let with_one = self.allocators.iter().zip(NodeId::all());
        with_one.filter_map(|(allocator, node)| allocator.as_ref().map(|_| node)).collect()
    }

    /// What the host may do for the VM of this policy, of all it may do for VMs: fair shares.
    pub(crate) fn part_of_host(&self) -> f64 {
        1.0 / f64::from(self.vms_of_host.max(1))
    }

    /// `share` of one CPU over `period` seconds, from now.
    pub(crate) fn budget(&self, stack: &Stack, share: f64, period: f64) -> Budget {
        let cycles = (share * period * self.feedback.frequency) as u64;
        Budget { end: stack.background_cycles() + cycles, khugepaged: None }
    }

    /// What MHPP may do in a kernel in the round that begins, within `own` where the pace is its own. What
    /// the host may do is for all its VMs.
    pub(crate) fn promotions(&self, stack: &Stack, node: NodeId, own: Budget) -> Budget {
        let ScanParameters { promoter, share, period, .. } = self.settings.scan;
        let part = if node == NodeId::HOST { self.part_of_host() } else { 1.0 };
        match promoter {
            Promoter::Khugepaged => {
                let left = stack.khugepaged_left(node);
                let rest = left - (left as f64 * part) as u64;
                Budget { end: u64::MAX, khugepaged: Some((node, rest)) }
            }
            Promoter::Own => own.and(self.budget(stack, share * part, period)),
        }
    }

    /// The kernels that run programs.
    pub(crate) fn guests(&self) -> &[NodeId] {
        &self.guests
    }

    /// Kernels have ended with their VM.
    pub(crate) fn ended(&mut self, kernels: &[NodeId]) {
        self.guests.retain(|guest| !kernels.contains(guest));
        for node in kernels {
            // The last kernels may be other policies', for which there is no room.
            if let Some(allocator) = self.allocators.get_mut(node.index()) {
                *allocator = None;
            }
        }
    }

    pub(crate) fn is_guest(&self, node: NodeId) -> bool {
        self.guests.contains(&node)
    }

    pub(crate) fn next_adjust(&self) -> f64 {
        self.next_adjust
    }

    pub(crate) fn next_wake(&self) -> f64 {
        self.next_adjust.min(self.next_scan)
    }

    /// Huge bucket (Gemini section 5): a well-aligned huge page that was freed is kept whole for a while.
    /// It was well aligned if what hardware walks below maps its region huge; any other region is worth no
    /// more than the next.
    pub(crate) fn keep_freed(&mut self, stack: &mut Stack, node: NodeId, region: Frame<Lower>) {
        if self.settings.scan.bucket && is_huge_below(stack, node, region) {
            self.allocator(node).keep(stack.kernel_mut(node), region);
        }
    }

    /// Memory is short: some of the bucket goes back, and everything booked where that does not help.
    /// Returns whether there was anything.
    pub(crate) fn give_back(&mut self, node: NodeId, kernel: &mut Kernel) -> bool {
        let some = self.settings.scan.bucket_return;
        let allocator = self.allocator(node);
        let free = kernel.memory().free_frames();
        while kernel.memory().free_frames() == free {
            if !allocator.return_some(kernel, some) {
                return allocator.release_all(kernel);
            }
        }
        true
    }

    /// Algorithm 1, bookings that end, and the bucket that empties when memory is fragmented, in the
    /// kernels of `nodes`. Each of them books its own memory, so each has its own time-out, and judges it
    /// by its own fragmentation (Gemini 4.1). Does nothing before a period is over.
    pub(crate) fn adjust(
        &mut self,
        stack: &mut Stack,
        now: f64,
        nodes: impl IntoIterator<Item = NodeId>,
    ) {
        let nodes: Vec<NodeId> = nodes.into_iter().collect();
        nodes.iter().for_each(|node| self.allocator(*node).now = now);
        if self.next_adjust > now {
            return;
        }
        self.next_adjust = now + self.settings.booking.period;
        let feedback = self.feedback;
        let ScanParameters { bucket_fmfi, bucket_return, .. } = self.settings.scan;
        for node in nodes {
            let allocator = self.allocator(node);
            let kernel = stack.kernel_mut(node);
            let booked = kernel.memory().reserved_regions() > 0;
            allocator.end_period(feedback, fmfi(kernel), booked);
            allocator.expire(kernel, now);
            if fmfi(kernel) > bucket_fmfi {
                allocator.return_some(kernel, bucket_return);
            }
        }
    }

    /// Whether a scan is due; the next one is then set.
    pub(crate) fn scan_is_due(&mut self, now: f64) -> bool {
        let due = self.next_scan <= now;
        if due {
            self.next_scan = now + self.settings.scan.period;
        }
        due
    }

    /// Type-1 for the upper layer: regions of its memory that are huge below and free here are
    /// booked, to be used first.
    pub(crate) fn tell_upper(&mut self, stack: &mut Stack, upper: NodeId, scan: &Scan) {
        let books = self.settings.booking.enabled;
        let allocator = self.allocator(upper);
        allocator.preferred.clear();
        let kernel = stack.kernel_mut(upper);
        for region in scan.lower_only() {
            let region: Frame<Lower> = Frame::new(region);
            let memory = kernel.memory();
            if region.get() + PageSize::Huge.base_pages() > memory.frames() {
                continue;
            }
            let whole = u64::from(memory.free_in_region(region)) == PageSize::Huge.base_pages();
            let kept = memory.is_reserved(region) || !books;
            if whole && (kept || allocator.book(kernel, region)) {
                allocator.preferred.insert(region.get());
            }
        }
    }

    /// A region of a kernel's memory that the kernel below backs huge and nothing uses.
    fn target_for(&mut self, stack: &Stack, node: NodeId) -> Option<Frame<Lower>> {
        let memory = stack.kernel(node).memory();
        let preferred = &mut self.allocator(node).preferred;
        while let Some(region) = preferred.pop_first() {
            let region = Frame::new(region);
            if u64::from(memory.free_in_region(region)) == PageSize::Huge.base_pages() {
                return Some(region);
            }
        }
        None
    }
}

/// Whether the table that hardware walks for a kernel's memory maps this region of it by one huge entry.
/// For the host's there is none.
fn is_huge_below(stack: &Stack, node: NodeId, region: Frame<Lower>) -> bool {
    let table = stack.hardware_second_stage(node);
    table.is_some_and(|table| matches!(table.region(region.cross()), Region::Huge(_)))
}

/// After a fault was answered: a region that is ripe becomes huge in place, and the booking of one
/// that is huge has served.
pub(crate) fn after_fault<P: Coordinating>(
    policy: &mut P,
    stack: &mut Stack,
    node: NodeId,
    fault: &PageFault,
    size: PageSize,
) -> Result<(), KernelOutOfMemory> {
    let region = fault.page.floor(PageSize::Huge);
    let allocator = policy.coordination().allocator(node);
    let Some(target) = allocator.offsets.target(fault.space, region) else { return Ok(()) };
    let ripe = size == PageSize::Base
        && allocator.is_ripe(stack.kernel(node), fault.space, region)
        && stack.collapse(policy, node, fault.space, region, Some(target))?.is_huge();
    if ripe || size == PageSize::Huge {
        policy.coordination().allocator(node).served(stack.kernel_mut(node), target);
    }
    Ok(())
}

/// Type-2 for the upper layer: base pages over huge pages of the layer below are promoted, in
/// place if they lie right, else into a region that is huge below and free here.
pub(crate) fn promote_upper<P: Coordinating>(
    policy: &mut P,
    stack: &mut Stack,
    upper: NodeId,
    scan: &Scan,
    budget: &Budget,
) -> Result<(), KernelOutOfMemory> {
    for region in scan.lower_only() {
        if budget.is_spent(stack) {
            break;
        }
        stack.charge_scan(PageSize::Huge.base_pages());
        let Some((space, page)) = main_user(stack.kernel(upper), Frame::new(region)) else {
            continue;
        };
        let in_place = stack.collapse(policy, upper, space, page, Some(Frame::new(region)))?;
        budget.note(stack, in_place);
        if in_place != Collapsed::Unchanged(PromoteError::Taken) {
            continue;
        }
        // Without such a region any huge page would only be misaligned elsewhere.
        if let Some(target) = policy.coordination().target_for(stack, upper)
            && !stack.collapse(policy, upper, space, page, Some(target))?.is_huge()
        {
            policy.coordination().allocator(upper).preferred.insert(target.get());
        }
    }
    Ok(())
}

/// Type-2 for the lower layer: what is huge above becomes huge below.
pub(crate) fn promote_lower<P: Coordinating>(
    policy: &mut P,
    stack: &mut Stack,
    upper: NodeId,
    lower: NodeId,
    scan: &Scan,
    budget: &Budget,
) -> Result<(), KernelOutOfMemory> {
    for region in scan.upper_only() {
        if budget.is_spent(stack) {
            break;
        }
        stack.charge_scan(PageSize::Huge.base_pages());
        let (process, hva) = (stack.vm_process(upper), stack.hva(upper, Frame::new(region)));
        // Memory that the layer below backs huge is best; any block will do.
        let target = policy.coordination().target_for(stack, lower);
        let outcome = stack.collapse(policy, lower, process, hva, target)?;
        budget.note(stack, outcome);
        if !outcome.is_huge()
            && let Some(target) = target
        {
            policy.coordination().allocator(lower).preferred.insert(target.get());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::Linux;
    use crate::one_kernel::{ALONE, OneKernel};
    use crate::timeout::BookingParameters;
    use crate::two_kernels::TwoKernels;

    fn coordination() -> Coordination {
        let mut coordination = Coordination::new(GeminiSettings::default(), FaultHuge::AsLinux);
        coordination.add(ALONE);
        coordination
    }

    /// Promotion copies pages on a CPU that the program uses: it stops when its share of a period is
    /// used up, and not before.
    #[test]
    fn a_budget_is_spent_when_as_many_cycles_are() {
        let mut one = OneKernel::new();
        let mut coordination = coordination();
        let scan = one.stack.costs().scan;
        coordination.feedback.frequency = (100 * scan) as f64;
        let (share, period, entries) = (0.05, 2.0, 10);
        let budget = coordination.budget(&one.stack, share, period);
        assert!(!budget.is_spent(&one.stack));
        one.stack.charge_scan(entries - 1);
        assert!(!budget.is_spent(&one.stack));
        one.stack.charge_scan(1);
        assert!(budget.is_spent(&one.stack));
        let next = coordination.budget(&one.stack, share, period);
        assert!(!next.is_spent(&one.stack), "a new period has a new share");
        assert!(next.and(budget).is_spent(&one.stack), "both must have something left");
    }

    /// The policies of VMs on one host book the same memory there: each may have its part. What a VM has
    /// for itself is booked by its own policy only, for all VMs in it.
    #[test]
    fn a_policy_may_book_its_part_of_the_host_and_all_that_may_be_booked_of_its_vm() {
        let mut two = TwoKernels::new(&mut Linux::base());
        let mut coordination = Coordination::new(GeminiSettings::default(), FaultHuge::AsLinux);
        let nodes: Vec<NodeId> = two.stack.nodes().collect();
        let booked = nodes.into_iter().map(|node| {
            coordination.add(Position { vms: 2, ..two.stack.position(node) });
            let kernel = two.stack.kernel_mut(node);
            let allocator = coordination.allocator(node);
            let regions = (0..kernel.memory().frames()).step_by(512).map(Frame::new);
            regions.filter(|region| allocator.book(kernel, *region)).count()
        });
        // Half of 48 regions, for two policies; half of 32.
        assert_eq!(booked.collect::<Vec<_>>(), [12, 16]);
    }

    /// Type-1 misaligned huge pages, huge below only: those that nothing uses here are booked, so that the
    /// next huge page goes there. In the others base pages would have to move first (Gemini section 4).
    #[test]
    fn gemini_4_what_only_the_layer_below_has_huge_is_booked_where_nothing_uses_it() {
        let mut one = OneKernel::new();
        let mut coordination = coordination();
        let [free, used, huge_here] =
            [9, 10, 11].map(|region| region * PageSize::Huge.base_pages());
        let memory = one.stack.kernel_mut(ALONE.node).memory_mut();
        assert!(memory.alloc_at(Frame::new(used), 0));
        let mut scan = Scan::default();
        scan.lower_huge.extend([free, used, huge_here, memory.frames()]);
        scan.upper_huge.insert(huge_here);
        coordination.tell_upper(&mut one.stack, ALONE.node, &scan);
        let is_booked = |stack: &Stack, region| {
            stack.kernel(ALONE.node).memory().is_reserved(Frame::new(region))
        };
        assert!(coordination.allocator(ALONE.node).preferred.iter().eq([&free]));
        assert_eq!(
            [free, used, huge_here].map(|at| is_booked(&one.stack, at)),
            [true, false, false]
        );
        // What is booked already is used first as before; what is not huge below any more is not.
        coordination.tell_upper(&mut one.stack, ALONE.node, &scan);
        assert!(coordination.allocator(ALONE.node).preferred.iter().eq([&free]));
        coordination.tell_upper(&mut one.stack, ALONE.node, &Scan::default());
        assert!(coordination.allocator(ALONE.node).preferred.is_empty());
    }

    /// A VM whose guest, and whose host, have these policies' huge pages; what a huge page's worth of its
    /// program's memory that is freed leaves behind.
    fn freed(policy: &mut Linux) -> (TwoKernels, Frame<Lower>, Coordination) {
        let mut two = TwoKernels::new(policy);
        let region = two.used_and_freed(policy);
        let mut coordination = Coordination::new(GeminiSettings::default(), FaultHuge::AsLinux);
        let nodes: Vec<NodeId> = two.stack.nodes().collect();
        nodes.iter().for_each(|node| coordination.add(two.stack.position(*node)));
        coordination.keep_freed(&mut two.stack, two.guest, region);
        (two, region, coordination)
    }

    /// Huge bucket: the region of a freed huge page is kept whole as long as a booking lasts, for the
    /// next huge page, and then given back (Gemini section 5).
    #[test]
    fn a_freed_huge_page_is_kept_whole_for_as_long_as_a_booking_lasts() {
        let (mut two, region, mut coordination) = freed(&mut Linux::thp());
        let (guest, lasts) = (two.guest, BookingParameters::default().initial);
        let kept = |stack: &Stack| stack.kernel(guest).memory().is_reserved(region);
        assert!(kept(&two.stack));
        coordination.adjust(&mut two.stack, lasts - 1.0, [guest]);
        assert!(kept(&two.stack), "its time is not up");
        assert!(coordination.allocator(guest).preferred.contains(&region.get()));
        coordination.adjust(&mut two.stack, lasts, [guest]);
        assert!(!kept(&two.stack));
        assert!(!coordination.allocator(guest).preferred.contains(&region.get()));
    }

    /// "For the well-aligned huge pages that have been freed after use": what the host does not back huge
    /// is worth no more than any other memory, and is not kept from anybody.
    #[test]
    fn gemini_5_only_well_aligned_huge_pages_are_kept() {
        let (two, region, _) = freed(&mut Linux::thp());
        assert!(two.stack.kernel(two.guest).memory().is_reserved(region));
        let (two, region, _) = freed(&mut Linux::guest_huge());
        assert!(!two.stack.kernel(two.guest).memory().is_reserved(region));
        // Nothing is below the host: no huge page of its own is well aligned by being there.
        let mut one = OneKernel::new();
        let mut coordination = coordination();
        coordination.keep_freed(&mut one.stack, ALONE.node, Frame::new(512));
        assert_eq!(one.stack.kernel(ALONE.node).memory().reserved_regions(), 0);
    }

    #[test]
    fn without_a_bucket_nothing_is_kept() {
        let (mut two, region, mut coordination) = freed(&mut Linux::thp());
        two.stack.kernel_mut(two.guest).memory_mut().release_all_regions();
        coordination.settings.scan.bucket = false;
        coordination.keep_freed(&mut two.stack, two.guest, region);
        assert!(!two.stack.kernel(two.guest).memory().is_reserved(region));
    }

    /// Regions in the bucket, and one that is booked for an area; memory is nearly all in pieces.
    fn severe() -> (OneKernel, Coordination, [Frame<Lower>; 4], Frame<Lower>) {
        let mut one = OneKernel::new();
        let mut coordination = coordination();
        let region = |i: u64| Frame::new(i * PageSize::Huge.base_pages());
        let (bucket, booked) = ([9, 10, 11, 12].map(region), region(13));
        let kernel = one.stack.kernel_mut(ALONE.node);
        let allocator = coordination.allocator(ALONE.node);
        bucket.iter().for_each(|region| allocator.keep(kernel, *region));
        assert!(allocator.booking.book(kernel.memory_mut(), booked, 1000.0, 1.0));
        for at in (0..32).map(region) {
            kernel.memory_mut().alloc_at(at, 0);
        }
        (one, coordination, bucket, booked)
    }

    /// "Gemini also returns *some* well-aligned huge pages when ... the memory fragmentation becomes
    /// severe", the oldest first. What EMA has booked for areas is none of them.
    #[test]
    fn gemini_5_severe_fragmentation_empties_a_part_of_the_bucket_and_nothing_else() {
        let (mut one, mut coordination, bucket, booked) = severe();
        let left = |stack: &Stack| {
            let memory = stack.kernel(ALONE.node).memory();
            bucket.map(|region| memory.is_reserved(region))
        };
        coordination.adjust(&mut one.stack, 1.0, [ALONE.node]);
        assert_eq!(left(&one.stack), [false, false, true, true]);
        coordination.adjust(&mut one.stack, 2.0, [ALONE.node]);
        assert_eq!(left(&one.stack), [false, false, true, true], "enough is whole now");
        for now in 3..6 {
            let memory = one.stack.kernel_mut(ALONE.node).memory_mut();
            for at in bucket {
                memory.alloc_at(at, 0);
            }
            coordination.adjust(&mut one.stack, f64::from(now), [ALONE.node]);
        }
        assert_eq!(left(&one.stack), [false; 4]);
        let memory = one.stack.kernel(ALONE.node).memory();
        assert!(memory.is_reserved(booked), "EMA's");
        assert_eq!(coordination.allocator(ALONE.node).booking.len(), 1);
    }

    /// The same "when the memory space becomes scarce"; only if that gives no frame, the rest goes, too.
    #[test]
    fn gemini_5_scarce_memory_takes_a_part_of_the_bucket_first() {
        let (mut one, mut coordination, bucket, booked) = severe();
        let kernel = one.stack.kernel_mut(ALONE.node);
        assert!(coordination.give_back(ALONE.node, kernel));
        assert_eq!(bucket.map(|at| kernel.memory().is_reserved(at)), [false, false, true, true]);
        assert!(coordination.give_back(ALONE.node, kernel));
        assert!(coordination.give_back(ALONE.node, kernel));
        assert!(kernel.memory().is_reserved(booked));
        assert!(coordination.give_back(ALONE.node, kernel));
        assert!(!kernel.memory().is_reserved(booked), "nothing else was left");
        assert!(!coordination.give_back(ALONE.node, kernel));
    }

    /// A booking is made for as long as Algorithm 1 says at that moment.
    #[test]
    fn bookings_last_from_now_on_as_long_as_the_time_out_says() {
        let mut one = OneKernel::new();
        let mut coordination = coordination();
        let initial = BookingParameters::default().initial;
        assert_eq!(coordination.allocator(ALONE.node).until(), initial);
        let kernel = one.stack.kernel_mut(ALONE.node);
        coordination.allocator(ALONE.node).keep(kernel, Frame::new(512));
        coordination.adjust(&mut one.stack, 100.0, [ALONE.node]);
        // After the first period a longer time-out is tried.
        assert_eq!(coordination.allocator(ALONE.node).until(), 100.0 + initial * 1.1);
    }

    /// Algorithm 1 weighs TLB misses against the fragmentation that bookings cause. So it has to see them:
    /// a booked region is on no free list (Gemini 4.1; FMFI as Linux shows it).
    #[test]
    fn gemini_4_1_a_time_out_whose_bookings_fragment_the_layer_is_not_kept() {
        let longer_is_kept = |books_meanwhile: bool| {
            let mut one = OneKernel::new();
            let mut coordination = coordination();
            let misses =
                |tlb_misses| Feedback { tlb_misses, accesses: 1000, ..Feedback::default() };
            let book = |coordination: &mut Coordination, stack: &mut Stack, region: u64| {
                let region = Frame::new(region * PageSize::Huge.base_pages());
                let memory = stack.kernel_mut(ALONE.node).memory_mut();
                let allocator = coordination.allocator(ALONE.node);
                assert!(allocator.booking.book(memory, region, 1000.0, 1.0));
            };
            // Something is free that is no huge page, so that there is fragmentation to see.
            let memory = one.stack.kernel_mut(ALONE.node).memory_mut();
            assert!(memory.alloc_at(Frame::new(31 * PageSize::Huge.base_pages()), 0));
            book(&mut coordination, &mut one.stack, 9);
            coordination.feedback = misses(100);
            coordination.adjust(&mut one.stack, 1.0, [ALONE.node]);
            if books_meanwhile {
                (10..20).for_each(|region| book(&mut coordination, &mut one.stack, region));
            }
            coordination.feedback = misses(50);
            coordination.adjust(&mut one.stack, 2.0, [ALONE.node]);
            let desired = coordination.allocator(ALONE.node).until() - 2.0;
            desired > BookingParameters::default().initial
        };
        assert!(longer_is_kept(false), "misses fell, and nothing got worse");
        assert!(
            !longer_is_kept(true),
            "misses fell, but a third of the memory is off the free lists"
        );
    }

    /// Every layer books its own memory: another one's fragmentation says nothing about that.
    #[test]
    fn gemini_4_1_every_layer_has_the_time_out_that_its_own_fragmentation_allows() {
        let mut two = TwoKernels::new(&mut Linux::base());
        let mut coordination = Coordination::new(GeminiSettings::default(), FaultHuge::AsLinux);
        let nodes: Vec<NodeId> = two.stack.nodes().collect();
        nodes.iter().for_each(|node| coordination.add(two.stack.position(*node)));
        let misses = |tlb_misses| Feedback { tlb_misses, accesses: 1000, ..Feedback::default() };
        for node in &nodes {
            let region = two.free_region(*node);
            let memory = two.stack.kernel_mut(*node).memory_mut();
            assert!(coordination.allocator(*node).booking.book(memory, region, 1000.0, 1.0));
        }
        coordination.feedback = misses(100);
        coordination.adjust(&mut two.stack, 1.0, nodes.clone());
        // Meanwhile somebody breaks every free region of the host into pieces.
        two.fragment(NodeId::HOST);
        coordination.feedback = misses(50);
        coordination.adjust(&mut two.stack, 2.0, nodes.clone());
        let initial = BookingParameters::default().initial;
        let lasts = nodes.iter().map(|node| coordination.allocator(*node).until() - 2.0);
        let lasts: Vec<f64> = lasts.collect();
        assert!((lasts[0] - initial).abs() < 1e-9, "the host's: {lasts:?}");
        assert!((lasts[1] - initial * 1.1).abs() < 1e-9, "the guest's: {lasts:?}");
    }
}
