//! A policy for each VM of a host, side by side.
//!
//! Each governs the kernels of its VM, and what the host does for that VM: host's faults for it, its
//! huge pages there, its background work. What concerns all of the host's memory concerns all of them.
//! In a guest hypervisor a guest may have a policy of its own, which then governs its kernel only: what is
//! below it is the guest hypervisor's and the host's affair.

use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
use strata_stack::{
    AlignAreas, Feedback, HugeAdvice, Kernel, KernelOutOfMemory, KernelSettings, Move, NodeId,
    PageFault, Placement, PlacementCounts, Policy, Position, Stack, ThpMode, TradeCounts,
};

/// The policies of the VMs on one host.
pub struct PerVm {
    policies: Vec<Box<dyn Policy>>,
    /// Which of them govern a VM of the host.
    of_host: Vec<usize>,
    /// Which of them governs a kernel, by its number.
    governs: Vec<usize>,
    /// Transparent huge pages that each wants of the host.
    thp_of_host: Vec<ThpMode>,
}

impl PerVm {
    /// `governs` says for each kernel of the tree, in their order, which of `policies` governs it; the
    /// host's own entry counts only where it runs programs. `of_host` are those that govern a VM of the
    /// host, or its programs; the others govern guests of guest hypervisors.
    pub fn new(policies: Vec<Box<dyn Policy>>, of_host: Vec<usize>, governs: Vec<usize>) -> Self {
        debug_assert!(governs.iter().chain(&of_host).all(|policy| *policy < policies.len()));
        Self { thp_of_host: vec![ThpMode::Never; policies.len()], policies, of_host, governs }
    }

    /// The policy for what a kernel does, for `vm` or for its own programs.
    fn of(&mut self, node: NodeId, vm: Option<NodeId>) -> &mut dyn Policy {
        let concerned = if node == NodeId::HOST { vm.unwrap_or(node) } else { node };
        self.policies[self.governs[concerned.index()]].as_mut()
    }

    /// What the host is told by all policies: huge pages if one wants them (those that do not refuse them
    /// for their VM), and fragmented memory if one allows it.
    fn host_settings(&mut self, at: Position) -> KernelSettings {
        let mut host = KernelSettings {
            thp: ThpMode::Never,
            align_areas: AlignAreas::Never,
            fragmented: false,
            coloured: false,
        };
        for policy in &self.of_host {
            let wanted = self.policies[*policy].settings(at);
            self.thp_of_host[*policy] = wanted.thp;
            host.thp = host.thp.max(wanted.thp);
            host.fragmented |= wanted.fragmented;
            host.coloured |= wanted.coloured;
            if *policy == self.governs[at.node.index()] {
                host.align_areas = wanted.align_areas;
            }
        }
        host
    }
}

impl Policy for PerVm {
    fn settings(&mut self, at: Position) -> KernelSettings {
        match at.node {
            NodeId::HOST => self.host_settings(at),
            node => self.of(node, None).settings(at),
        }
    }

    fn vm_memory(&mut self, at: Position) -> HugeAdvice {
        let own = self.thp_of_host[self.governs[at.node.index()]];
        if at.level == 1 && self.thp_of_host.iter().any(|other| *other > own) {
            return HugeAdvice::Refused;
        }
        self.of(at.node, None).vm_memory(at)
    }

    fn place(&mut self, node: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        self.of(node, fault.vm).place(node, kernel, fault)
    }

    fn wants_backs(&self) -> bool {
        self.of_host.iter().any(|policy| self.policies[*policy].wants_backs())
    }

    fn mapped_at_once(&self, vm: NodeId) -> u64 {
        self.policies[self.governs[vm.index()]].mapped_at_once(vm)
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        self.of(node, fault.vm).mapped(stack, node, fault, size)
    }

    fn second_stage_written(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        self.of(vm, None).second_stage_written(stack, vm, page, size)
    }

    fn may_move(&mut self, stack: &Stack, asked: &Move) -> bool {
        let vm = stack.above(asked.node, asked.space);
        self.of(asked.node, vm).may_move(stack, asked)
    }

    fn balloon_colours(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        self.of(guest, None).balloon_colours(stack, guest)
    }

    fn may_merge(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
        frame: Frame<Lower>,
    ) -> bool {
        self.of(vm, None).may_merge(stack, vm, page, frame)
    }

    fn freed_huge(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        vm: Option<NodeId>,
        region: Frame<Lower>,
    ) {
        self.of(node, vm).freed_huge(stack, node, vm, region);
    }

    fn ended(&mut self, stack: &mut Stack, kernels: &[NodeId]) {
        let mut told: Vec<usize> = kernels.iter().map(|node| self.governs[node.index()]).collect();
        told.sort_unstable();
        told.dedup();
        told.into_iter().for_each(|policy| self.policies[policy].ended(stack, kernels));
    }

    fn memory_short(&mut self, node: NodeId, kernel: &mut Kernel) -> bool {
        if node != NodeId::HOST {
            return self.of(node, None).memory_short(node, kernel);
        }
        // Every one of them gives back what it can.
        let mut released = false;
        for policy in &self.of_host {
            released |= self.policies[*policy].memory_short(node, kernel);
        }
        released
    }

    fn wake(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        now: f64,
        feedback: Feedback,
    ) -> Result<(), KernelOutOfMemory> {
        self.of(vm, None).wake(stack, vm, now, feedback)
    }

    fn placement(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        self.policies[self.governs[guest.index()]].placement(stack, guest)
    }

    fn trade(&self, stack: &Stack, guest: NodeId) -> Option<TradeCounts> {
        self.policies[self.governs[guest.index()]].trade(stack, guest)
    }

    fn told_of_cache(&mut self, vm: NodeId, cache: VirtualCache) -> Option<String> {
        self.of(vm, None).told_of_cache(vm, cache)
    }

    fn refuses(&self, colours: Colours) -> Option<String> {
        self.policies.iter().find_map(|policy| policy.refuses(colours))
    }

    fn next_wake(&self, vm: NodeId) -> f64 {
        self.policies[self.governs[vm.index()]].next_wake(vm)
    }
}
