//! xGemini (IEEE TC 2024): the guest and the host work together, the guest hypervisor is stock.
//!
//! The guest places pages as Gemini's guest half does, with Huge Aligner. The host takes base pages for
//! the guest hypervisor's memory, one for each that is touched. It sees every write
//! of the guest hypervisor to its second stage, for that table is write-protected, and has the
//! real frame behind each *guest* page where the guest page's HPAS region has its booked place,
//! whatever the guest hypervisor's memory looks like. A region that is whole becomes a pseudo huge
//! page: one huge entry of the shadow table.

mod home;
mod nwhpc;
mod placing;
mod settings;

pub use settings::{XGeminiParameters, XGeminiSettings};

use crate::allocator::FaultHuge;
use crate::booking::Booking;
use crate::coordination::{Coordinating, Coordination, GuestRegion, after_fault};
use crate::gemini::scan_all;
use crate::leftovers::Leftovers;
use crate::worker::{AROUND, Worker};
use home::{HandedOn, Home};
use rustc_hash::FxHashMap;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
use strata_stack::{
    AlignAreas, Feedback, Kernel, KernelOutOfMemory, KernelSettings, Move, NodeId, PageFault,
    Placement, PlacementCounts, Policy, Position, Stack, ThpMode, TradeCounts,
};

/// xGemini, for any stack. Without a guest hypervisor it is Gemini with Huge Aligner and with huge
/// pages that follow touch in the guest; the host takes them as Gemini's does.
#[derive(Debug)]
pub struct XGemini {
    settings: XGeminiSettings,
    pub(crate) coordination: Coordination,
    /// What it colours page by page, if it does.
    pub(crate) leftovers: Option<Leftovers>,
    /// The worker of the kernel in `linux/`, where that is what the host is.
    pub(crate) worker: Option<Worker>,
    homes: FxHashMap<GuestRegion, Home>,
    /// The guest's region whose home a region of real memory is.
    inhabited: FxHashMap<u64, GuestRegion>,
    /// Where a guest's region could not become whole: it is not tried there again.
    spoiled: FxHashMap<GuestRegion, Frame<Lower>>,
    handed_on: Option<HandedOn>,
    booking: Booking,
    cursor: Frame<Lower>,
    next_round: f64,
    resume_at: GuestRegion,
    until: f64,
    /// There is a guest hypervisor.
    nested: bool,
    /// The host makes a range huge for this policy, which knows what is in it.
    collapsing: bool,
}

impl XGemini {
    /// xGemini.
    pub fn new(settings: XGeminiSettings) -> Self {
        Self {
            coordination: Coordination::new(settings.reused.clone(), FaultHuge::Never),
            leftovers: None,
            worker: None,
            homes: FxHashMap::default(),
            inhabited: FxHashMap::default(),
            spoiled: FxHashMap::default(),
            handed_on: None,
            booking: Booking::default(),
            cursor: Frame::new(0),
            next_round: settings.xgemini.period,
            resume_at: (NodeId::HOST, 0),
            until: settings.reused.booking.initial,
            settings,
            nested: false,
            collapsing: false,
        }
    }

    /// xGemini that colours the pages of regions that are no rows.
    pub(crate) fn with_leftovers(settings: XGeminiSettings, leftovers: Leftovers) -> Self {
        Self { leftovers: Some(leftovers), ..Self::new(settings) }
    }

    /// What the kernel in `linux/` does in its place: only the host is changed.
    pub(crate) fn with_worker(settings: XGeminiSettings, worker: Worker) -> Self {
        Self { worker: Some(worker), ..Self::new(settings) }
    }

    /// Whether Gemini's allocator places the pages of a kernel: in nested VMs only the guest's.
    fn has_allocator(&self, node: NodeId) -> bool {
        self.worker.is_none() && (!self.nested || self.coordination.is_guest(node))
    }
}

impl Coordinating for XGemini {
    fn coordination(&mut self) -> &mut Coordination {
        &mut self.coordination
    }
}

impl Policy for XGemini {
    fn settings(&mut self, at: Position) -> KernelSettings {
        self.coordination.add(at);
        if at.level == 0 {
            self.booking = Booking::among(at.vms);
        }
        let between = at.level > 0 && !at.is_guest();
        self.nested |= between;
        let thp =
            if between && !self.settings.xgemini.l1_thp { ThpMode::Never } else { ThpMode::Always };
        let mut coloured = false;
        if let Some(leftovers) = &mut self.leftovers {
            leftovers.recolouring.add(at);
            coloured = at.node == NodeId::HOST && !at.is_guest();
        }
        let stock = self.worker.is_some();
        let align_areas = if stock { AlignAreas::Never } else { AlignAreas::Always };
        KernelSettings { thp, align_areas, fragmented: true, coloured }
    }

    fn place(&mut self, node: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        let of_guest = fault.vm.is_some_and(|vm| self.coordination.is_guest(vm));
        if self.nested
            && node != NodeId::HOST
            && let (Some(guest), Some(page), true) = (fault.vm, fault.vm_page, of_guest)
        {
            self.handed_on = Some(HandedOn { guest, page, last: None });
        }
        let placement = if self.has_allocator(node) {
            self.coordination.allocator(node).place(kernel, fault)
        } else if self.worker.is_none() && node == NodeId::HOST && fault.vm.is_some() && !of_guest {
            self.place_below(kernel, fault)
        } else {
            Placement::Linux
        };
        match &mut self.leftovers {
            Some(leftovers) => leftovers.place(node, kernel, fault, placement),
            None => placement,
        }
    }

    fn wants_backs(&self) -> bool {
        self.nested || self.leftovers.is_some()
    }

    fn mapped_at_once(&self, _vm: NodeId) -> u64 {
        let around = self.nested && self.worker.as_ref().is_some_and(|of| of.settings.map_around);
        if around { AROUND } else { 1 }
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        if self.has_allocator(node) {
            after_fault(self, stack, node, fault, size)?;
        }
        if self.handed_on.is_some_and(|handed_on| Some(handed_on.guest) == fault.vm) {
            self.handed_on = None;
        }
        self.colour_mapped(stack, node, fault)
    }

    fn second_stage_written(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        if self.leftovers.is_some() {
            self.colour_leftovers(stack, vm, page, size)?;
        }
        // Only the pages of the topmost VM are guest-physical ones.
        if !self.coordination.is_guest(vm) {
            return Ok(());
        }
        if self.worker.is_some() {
            return self.worker_sees(stack, vm, page, size);
        }
        let steers = self.leftovers.is_none() && self.settings.xgemini.nema_host;
        for i in 0..if steers { size.base_pages() } else { 0 } {
            if self.steer(stack, vm, page + i)? {
                self.placed(stack, vm, page + i)?;
            }
        }
        // Of what an unsync table has new the host only learns by a fault.
        if self.settings.xgemini.fill_on_write && !stack.lets_go_unsync() {
            stack.fill_shadow(self, vm, page)?;
        }
        Ok(())
    }

    fn ended(&mut self, stack: &mut Stack, kernels: &[NodeId]) {
        self.coordination.ended(kernels);
        let homes = self.homes.keys().copied();
        let gone: Vec<GuestRegion> = homes.filter(|(guest, _)| kernels.contains(guest)).collect();
        gone.into_iter().for_each(|region| self.forget(stack, region));
        self.spoiled.retain(|(guest, _), _| !kernels.contains(guest));
        if let Some(worker) = &mut self.worker {
            worker.ended(kernels);
        }
        if let Some(leftovers) = &mut self.leftovers {
            leftovers.ended(kernels);
        }
    }

    fn may_merge(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
        frame: Frame<Lower>,
    ) -> bool {
        let leftovers = self.leftovers.as_mut();
        leftovers.is_none_or(|own| own.recolouring.may_merge(stack, vm, page, frame))
    }

    fn balloon_colours(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        let leftovers = self.leftovers.as_mut();
        leftovers.map_or_else(Vec::new, |own| own.recolouring.by_shortage(stack, guest))
    }

    fn may_move(&mut self, stack: &Stack, asked: &Move) -> bool {
        let &Move { node, space, page, size, .. } = asked;
        if node == NodeId::HOST && size == PageSize::Huge && !self.may_coalesce(stack, space, page)
        {
            return false;
        }
        let leftovers = self.leftovers.as_mut();
        leftovers.is_none_or(|own| own.recolouring.may_move(stack, asked))
    }

    fn freed_huge(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        _: Option<NodeId>,
        region: Frame<Lower>,
    ) {
        if self.has_allocator(node) {
            self.coordination.keep_freed(stack, node, region);
        }
    }

    fn memory_short(&mut self, node: NodeId, kernel: &mut Kernel) -> bool {
        if self.has_allocator(node) {
            self.coordination.give_back(node, kernel)
        } else {
            self.booking.release_all(kernel.memory_mut())
        }
    }

    fn wake(
        &mut self,
        stack: &mut Stack,
        _: NodeId,
        now: f64,
        feedback: Feedback,
    ) -> Result<(), KernelOutOfMemory> {
        self.coordination.feedback = feedback;
        if let Some(leftovers) = &mut self.leftovers {
            leftovers.note(feedback);
        }
        if self.worker.is_some() {
            if self.nested {
                self.coordination.adjust(stack, now, [NodeId::HOST]);
                self.work(stack, now)?;
            }
            return Ok(());
        }
        if !self.nested {
            let nodes = self.coordination.governed();
            self.coordination.adjust(stack, now, nodes.into_iter().rev());
            return scan_all(self, stack, now);
        }
        // The guests' bookings, and those of homes in the host's memory.
        let mut nodes = self.coordination.guests().to_vec();
        nodes.push(NodeId::HOST);
        self.coordination.adjust(stack, now, nodes);
        self.scan_guests(stack, now)?;
        if self.next_round <= now {
            self.expire_bookings(stack, now);
            let XGeminiParameters { share, period, .. } = self.settings.xgemini;
            // One NWHPC serves all VMs of the host.
            let share = share * self.coordination.part_of_host();
            let budget = self.coordination.budget(stack, share, period);
            if self.leftovers.is_some() {
                // Neither shall keep the other waiting for ever.
                let half = self.coordination.budget(stack, share / 2.0, period);
                self.measure(stack, now);
                self.create_aligned(stack, &half)?;
                self.colour_queued(stack, &budget)?;
            } else if self.settings.xgemini.nwhpc {
                self.create_aligned(stack, &budget)?;
            }
            self.next_round = now + period;
        }
        Ok(())
    }

    fn next_wake(&self, _: NodeId) -> f64 {
        if let Some(worker) = &self.worker {
            let adjust = self.coordination.next_adjust();
            return if self.nested { worker.next_round.min(adjust) } else { f64::INFINITY };
        }
        self.coordination.next_wake().min(if self.nested { self.next_round } else { f64::INFINITY })
    }

    fn placement(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        self.leftovers.as_ref()?.recolouring.report(stack, guest)
    }

    fn trade(&self, stack: &Stack, guest: NodeId) -> Option<TradeCounts> {
        let has_home = |region| self.homes.contains_key(&(guest, region));
        self.leftovers.as_ref()?.report(stack, guest, has_home)
    }

    fn told_of_cache(&mut self, _: NodeId, _: VirtualCache) -> Option<String> {
        self.leftovers.as_ref().map(|_| {
            "xgemini+xplace: a row of 512 frames has the colours of the guest's pages only where the guest \
             has those of the host: leave out the VM's own cache (vllc)"
                .to_owned()
        })
    }

    fn refuses(&self, colours: Colours) -> Option<String> {
        self.leftovers.as_ref()?.refuses(colours)
    }
}
