//! xGemini (IEEE TC 2024): the guest and the host work together, the guest hypervisor is stock.
//!
//! The guest places pages as Gemini's guest half does, with Huge Aligner. The host sees every write
//! of the guest hypervisor to its second stage, for that table is write-protected, and puts the
//! real frame behind each *guest* page where the guest page's HPAS region has its booked place,
//! whatever the guest hypervisor's memory looks like. A region that is whole becomes a pseudo huge
//! page: one huge entry of the shadow table.

use crate::allocator::{AllocatorParameters, FaultHuge};
use crate::booking::Booking;
use crate::coordination::{
    Budget, Coordinating, Coordination, GeminiSettings, GuestRegion, ScanParameters, after_fault,
    promote_upper,
};
use crate::gemini::scan_all;
use crate::leftovers::Leftovers;
use crate::parameters::{ParameterSet, PolicyParameters};
use crate::scanner::Scan;
use crate::timeout::BookingParameters;
use rustc_hash::FxHashMap;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
use strata_paging::Region;
use strata_stack::{
    AlignAreas, AlignerParameters, Exhausted, Feedback, Kernel, KernelSettings, Move, NodeId,
    PageFault, Placement, PlacementCounts, Policy, Position, Stack, ThpMode, TradeCounts,
};

strata_params::parameters! {
    /// xGemini's host half.
    pub struct XGeminiParameters {
        /// Time between two rounds of NWHPC. xGemini IV.D says "periodically".
        period: f64 = 1.0, "xgemini.period", "s";
        /// Share of one CPU that NWHPC may use, averaged over a period.
        share: f64 = 0.05, "xgemini.share", "share";
        /// Transparent huge pages of the unmodified guest hypervisor: stock kernels have `always`.
        l1_thp: bool = true, "xgemini.l1_thp", "";
        /// The host fills the shadow table on the guest hypervisor's write, so that the guest does
        /// not fault a second time (xGemini IV.C: the trap updates the shadow EPT).
        fill_on_write: bool = true, "xgemini.fill_on_write", "";
    }
}

/// Everything a user can set of xGemini.
#[derive(Clone, Debug, Default)]
pub struct XGeminiSettings {
    /// Host half.
    pub xgemini: XGeminiParameters,
    /// What is reused of Gemini.
    pub reused: GeminiSettings,
}

impl XGeminiSettings {
    /// The sets of parameters that it consists of, and that of the guest's Huge Aligner.
    pub const SETS: &[ParameterSet] = &[
        ParameterSet::of::<ScanParameters>(),
        ParameterSet::of::<AllocatorParameters>(),
        ParameterSet::of::<BookingParameters>(),
        ParameterSet::of::<XGeminiParameters>(),
        ParameterSet::of::<AlignerParameters>(),
    ];
}

impl From<&PolicyParameters> for XGeminiSettings {
    fn from(parameters: &PolicyParameters) -> Self {
        Self { xgemini: parameters.get(), reused: parameters.into() }
    }
}

/// Where the host puts one HPAS region of guest-physical memory.
#[derive(Clone, Copy, Debug)]
struct Home {
    /// HostOffset, as the region of real memory.
    at: Frame<Lower>,
    /// Pages put there so far: when all are, the region is tried for a pseudo huge page.
    placed: u32,
}

/// xGemini, for any stack. Without a guest hypervisor it is Gemini with Huge Aligner and with huge
/// pages that follow touch in the guest; the host takes them as Gemini's does.
#[derive(Debug)]
pub struct XGemini {
    settings: XGeminiSettings,
    pub(crate) coordination: Coordination,
    /// What it colours page by page, if it does.
    pub(crate) leftovers: Option<Leftovers>,
    homes: FxHashMap<GuestRegion, Home>,
    /// The guest's region whose home a region of real memory is.
    inhabited: FxHashMap<u64, GuestRegion>,
    booking: Booking,
    cursor: Frame<Lower>,
    next_round: f64,
    resume_at: GuestRegion,
    until: f64,
    /// There is a guest hypervisor.
    nested: bool,
}

impl XGemini {
    /// xGemini.
    pub fn new(settings: XGeminiSettings) -> Self {
        Self {
            coordination: Coordination::new(settings.reused.clone(), FaultHuge::Never),
            leftovers: None,
            homes: FxHashMap::default(),
            inhabited: FxHashMap::default(),
            booking: Booking::default(),
            cursor: Frame::new(0),
            next_round: settings.xgemini.period,
            resume_at: (NodeId::HOST, 0),
            until: settings.reused.booking.initial,
            settings,
            nested: false,
        }
    }

    /// xGemini that colours the pages of regions that are no rows.
    pub(crate) fn with_leftovers(settings: XGeminiSettings, leftovers: Leftovers) -> Self {
        Self { leftovers: Some(leftovers), ..Self::new(settings) }
    }

    /// The place of a guest's region, booked now if it has none.
    fn home(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Option<Frame<Lower>> {
        let region = (guest, page.floor(PageSize::Huge).get());
        if let Some(home) = self.homes.get(&region) {
            return Some(home.at);
        }
        let at = self.lies_right(stack, guest, page).or_else(|| {
            let memory = stack.kernel_mut(NodeId::HOST).memory_mut();
            let run = memory.next_fit(self.cursor, 1)?;
            self.cursor = run.start + PageSize::Huge.base_pages();
            let cap = self.settings.reused.booking.cap;
            self.booking.book(memory, run.start, self.until, cap).then_some(run.start)
        })?;
        self.homes.insert(region, Home { at, placed: 0 });
        // Whoever was to live in a region that is free again has nothing there.
        if let Some(before) = self.inhabited.insert(at.get(), region) {
            self.homes.remove(&before);
            self.left_over(before);
        }
        Some(at)
    }

    /// The region where the page's frame is already, when it is at the page's own offset there and
    /// nothing else has that home: contiguous memory needs no moving.
    fn lies_right(&self, stack: &Stack, guest: NodeId, page: Frame<Upper>) -> Option<Frame<Lower>> {
        let frame = stack.compose(guest, page)?.frame;
        let region = frame.floor(PageSize::Huge);
        (frame.index_in(PageSize::Huge) == page.index_in(PageSize::Huge)
            && !self.inhabited.contains_key(&region.get()))
        .then_some(region)
    }

    /// NEMA, host part: puts the frame behind a guest's page at its region's offset. Returns whether
    /// it is there.
    pub(crate) fn steer(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<bool, Exhausted> {
        let Some(home) = self.home(stack, guest, page) else { return Ok(false) };
        let wanted = home + page.index_in(PageSize::Huge);
        // Follow the page down to the host's own guest: that is what the host can move.
        let (mut at, mut vm) = (page, guest);
        while let Some(below) = stack.below(vm).filter(|below| *below != NodeId::HOST) {
            match stack.second_stage(vm).translate(at.addr()) {
                Some(backing) => at = backing.page().cross(),
                None => return Ok(false),
            }
            vm = below;
        }
        let (process, hva) = (stack.vm_process(vm), stack.hva(vm, at));
        stack.back(self, vm, at)?;
        let there = stack.migrate(self, NodeId::HOST, process, hva, wanted)?;
        // The move took the old entry out of the host's second stage.
        stack.back(self, vm, at)?;
        Ok(there)
    }

    /// One page of a region came to its place.
    pub(crate) fn placed(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        let region = page.floor(PageSize::Huge);
        let Some(home) = self.homes.get_mut(&(guest, region.get())) else { return Ok(()) };
        home.placed += 1;
        let at = home.at;
        if u64::from(home.placed) >= PageSize::Huge.base_pages()
            && stack.promote_shadow(self, guest, region)?
        {
            self.booking.end(stack.kernel_mut(NodeId::HOST).memory_mut(), at);
        }
        Ok(())
    }

    /// The guests' half of scanner and promoter, with the shadow table in place of the kernel below.
    fn scan_guests(&mut self, stack: &mut Stack, now: f64) -> Result<(), Exhausted> {
        if !self.coordination.scan_is_due(now) {
            return Ok(());
        }
        let settings = self.coordination.settings.scan.clone();
        let budget = self.coordination.budget(stack, settings.share, settings.period);
        for guest in self.coordination.guests().to_vec() {
            let scan = Scan::of_shadow(stack, guest);
            stack.charge_scan(scan.entries);
            self.coordination.tell_upper(stack, guest, &scan);
            promote_upper(self, stack, guest, &scan, &budget)?;
        }
        Ok(())
    }

    /// NWHPC: guest huge pages whose shadow entries are not huge are completed and promoted, from
    /// where the last round stopped, within the budget.
    fn create_aligned(&mut self, stack: &mut Stack, budget: &Budget) -> Result<(), Exhausted> {
        let mut huge: Vec<GuestRegion> = Vec::new();
        let mut entries = 0;
        for guest in self.coordination.guests() {
            for (_, space) in stack.kernel(*guest).spaces() {
                entries += space.table().table_pages() as u64;
                space.table().for_each_huge(|_, mapping| huge.push((*guest, mapping.frame.get())));
            }
        }
        stack.charge_scan(entries);
        huge.sort_unstable();
        let from = huge.partition_point(|region| *region < self.resume_at);
        huge.rotate_left(from);
        for (guest, region) in huge {
            if budget.is_spent(stack) {
                self.resume_at = (guest, region);
                return Ok(());
            }
            self.complete(stack, guest, Frame::new(region))?;
        }
        self.resume_at = (NodeId::HOST, 0);
        Ok(())
    }

    /// Makes one guest huge page well aligned, if the guest hypervisor backs all of it.
    fn complete(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        region: Frame<Upper>,
    ) -> Result<(), Exhausted> {
        let shadow = stack.hardware_second_stage(guest).expect("a nested guest has a shadow table");
        if matches!(shadow.region(region), Region::Huge(_)) {
            return Ok(());
        }
        stack.charge_scan(PageSize::Huge.base_pages());
        if stack.promote_shadow(self, guest, region)? {
            return Ok(());
        }
        if !self.pays(stack, (guest, region.get())) {
            return Ok(());
        }
        if self.collapse_below(stack, guest, region)? {
            stack.promote_shadow(self, guest, region)?;
            return Ok(());
        }
        for i in 0..PageSize::Huge.base_pages() {
            let page = region + i;
            if stack.second_stage(guest).mapping(page.addr()).is_none() {
                // The guest hypervisor has nothing there; the guest will fault when it needs it.
                return Ok(());
            }
            if !self.steer(stack, guest, page)? {
                let region = (guest, region.get());
                self.forget(stack, region);
                if let Some(leftovers) = &mut self.leftovers {
                    leftovers.could_not(region);
                }
                return Ok(());
            }
        }
        stack.promote_shadow(self, guest, region)?;
        Ok(())
    }

    /// Whether moving all pages of a region into a row is worth it; where there are no colours to compare it
    /// with it always is. If not, its pages are left over.
    fn pays(&mut self, stack: &mut Stack, region: GuestRegion) -> bool {
        let home = self.homes.get(&region).map(|home| home.at);
        let Some(leftovers) = &mut self.leftovers else { return true };
        let row = leftovers.prefers_row(stack, region, home);
        if !row {
            self.forget(stack, region);
        }
        row
    }

    /// A region has no place as a row any more: its pages are to be coloured.
    fn left_over(&mut self, region: GuestRegion) {
        if let Some(leftovers) = &mut self.leftovers {
            leftovers.enqueue(region);
        }
    }

    /// Where every guest hypervisor maps the region huge, the host's own huge page is missing:
    /// collapses the host's range. Returns whether that is so and was done.
    pub(crate) fn collapse_below(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        region: Frame<Upper>,
    ) -> Result<bool, Exhausted> {
        let (mut at, mut vm) = (region, guest);
        while let Some(below) = stack.below(vm).filter(|below| *below != NodeId::HOST) {
            match stack.second_stage(vm).region(at) {
                Region::Huge(mapping) => {
                    at = (mapping.frame + at.index_in(mapping.size)).cross();
                }
                _ => return Ok(false),
            }
            vm = below;
        }
        let (process, hva) = (stack.vm_process(vm), stack.hva(vm, at));
        let done = stack.collapse(self, NodeId::HOST, process, hva, None)?.is_huge();
        if done {
            stack.fill_shadow(self, guest, region)?;
        }
        Ok(done)
    }

    /// Bookings whose time is up go back; who had nothing there yet will be given another place.
    fn expire(&mut self, stack: &mut Stack, now: f64) {
        for region in self.booking.expire(stack.kernel_mut(NodeId::HOST).memory_mut(), now) {
            if let Some(guest) = self.inhabited.get(&region.get()).copied()
                && self.homes.get(&guest).is_some_and(|home| home.placed == 0)
            {
                self.homes.remove(&guest);
                self.inhabited.remove(&region.get());
                self.left_over(guest);
            }
        }
    }

    /// A region's place cannot be had: another one is chosen when it is next looked at.
    fn forget(&mut self, stack: &mut Stack, region: GuestRegion) {
        if let Some(home) = self.homes.remove(&region) {
            self.inhabited.remove(&home.at.get());
            self.booking.end(stack.kernel_mut(NodeId::HOST).memory_mut(), home.at);
            self.left_over(region);
        }
    }

    /// Whether Gemini's allocator places the pages of a kernel: in nested VMs only the guest's.
    fn has_allocator(&self, node: NodeId) -> bool {
        !self.nested || self.coordination.is_guest(node)
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
        KernelSettings { thp, align_areas: AlignAreas::Always, fragmented: true, coloured }
    }

    fn place(&mut self, node: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        let placement = if self.has_allocator(node) {
            self.coordination.allocator(node).place(kernel, fault)
        } else {
            Placement::Linux
        };
        match &mut self.leftovers {
            Some(leftovers) => leftovers.place(node, kernel, fault, placement),
            None => placement,
        }
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        size: PageSize,
    ) -> Result<(), Exhausted> {
        if self.has_allocator(node) {
            after_fault(self, stack, node, fault, size)?;
        }
        self.colour_mapped(stack, node, fault)
    }

    fn second_stage_written(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), Exhausted> {
        if self.leftovers.is_some() {
            self.colour_leftovers(stack, vm, page, size)?;
        }
        // Only the pages of the topmost VM are guest-physical ones.
        if !self.coordination.is_guest(vm) {
            return Ok(());
        }
        if self.leftovers.is_none() && size == PageSize::Base && self.steer(stack, vm, page)? {
            self.placed(stack, vm, page)?;
        }
        if self.settings.xgemini.fill_on_write {
            stack.fill_shadow(self, vm, page)?;
        }
        Ok(())
    }

    fn ended(&mut self, stack: &mut Stack, kernels: &[NodeId]) {
        self.coordination.ended(kernels);
        let homes = self.homes.keys().copied();
        let gone: Vec<GuestRegion> = homes.filter(|(guest, _)| kernels.contains(guest)).collect();
        gone.into_iter().for_each(|region| self.forget(stack, region));
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
        let leftovers = self.leftovers.as_mut();
        leftovers.is_none_or(|own| own.recolouring.may_move(stack, asked))
    }

    fn freed_huge(
        &mut self,
        node: NodeId,
        _: Option<NodeId>,
        kernel: &mut Kernel,
        region: Frame<Lower>,
    ) {
        if self.has_allocator(node) {
            self.coordination.keep_freed(node, kernel, region);
        }
    }

    fn memory_short(&mut self, node: NodeId, kernel: &mut Kernel) -> bool {
        if self.has_allocator(node) {
            self.coordination.allocator(node).release_all(kernel)
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
    ) -> Result<(), Exhausted> {
        self.coordination.feedback = feedback;
        if let Some(leftovers) = &mut self.leftovers {
            leftovers.note(feedback);
        }
        if !self.nested {
            let nodes = self.coordination.governed();
            self.coordination.adjust(stack, now, nodes.into_iter().rev());
            return scan_all(self, stack, now);
        }
        let guests = self.coordination.guests().to_vec();
        self.coordination.adjust(stack, now, guests);
        self.scan_guests(stack, now)?;
        if self.next_round <= now {
            self.until = self.coordination.until();
            self.expire(stack, now);
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
            } else {
                self.create_aligned(stack, &budget)?;
            }
            self.next_round = now + period;
        }
        Ok(())
    }

    fn next_wake(&self, _: NodeId) -> f64 {
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
