//! xGemini (IEEE TC 2024): the guest and the host work together, the guest hypervisor is stock.
//!
//! The guest places pages as Gemini's guest half does, with Huge Aligner. The host takes base pages for
//! the guest hypervisor's memory, one for each that is touched. It sees every write
//! of the guest hypervisor to its second stage, for that table is write-protected, and has the
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
use crate::worker::Worker;
use rustc_hash::FxHashMap;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
use strata_frames::Memory;
use strata_paging::{Format, Region, X86};
use strata_stack::{
    AlignAreas, AlignerParameters, Feedback, Kernel, KernelOutOfMemory, KernelSettings, Move,
    NodeId, PageFault, Placement, PlacementCounts, Policy, Position, SpaceId, Stack, ThpMode,
    TradeCounts,
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
        /// not fault a second time (xGemini IV.C: the trap updates the shadow EPT). Without effect where
        /// writes do not trap, `nested.second_stage_writes=unsync`.
        fill_on_write: bool = true, "xgemini.fill_on_write", "";
        /// To replace a frame by the one at its offset costs a copy. xGemini IV.C: "it does not involve
        /// data copying"; that holds as long as the guest hypervisor has not written to the page, and
        /// it zeroes pages before it maps them. What changes places with another page is copied always.
        copy: bool = true, "xgemini.copy", "";
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

/// A violation of a nested guest that the host has handed on and that its hypervisor has not answered yet.
#[derive(Clone, Copy, Debug)]
struct HandedOn {
    guest: NodeId,
    /// The page of the guest's memory that it wanted.
    page: Frame<Upper>,
    /// The page of its own memory that the guest hypervisor touched last since, as one of a huge page.
    last: Option<Frame<Upper>>,
}

impl HandedOn {
    /// The page of the guest's memory that a page of the guest hypervisor's will back which it touches for
    /// the first time now. One by one from the start of a region they are those of a huge page; else
    /// it is the page that the guest wanted. A guess: page tables are touched on the way, too.
    fn guess(&mut self, touched: Frame<Upper>) -> Frame<Upper> {
        let index = touched.index_in(PageSize::Huge);
        let goes_on = self.last.map_or(index == 0, |last| index > 0 && touched == last + 1);
        if !goes_on {
            return self.page;
        }
        self.last = Some(touched);
        self.page.floor(PageSize::Huge) + index
    }
}

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

    /// Whether a guest's region has a place.
    pub(crate) fn has_home(&self, region: GuestRegion) -> bool {
        self.homes.contains_key(&region)
    }

    /// This free region of the host's memory is the place of a guest's region, if it can be booked.
    pub(crate) fn home_at(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
        at: Frame<Lower>,
    ) {
        let memory = stack.kernel_mut(NodeId::HOST).memory_mut();
        if self.booking.book(memory, at, self.until, self.settings.reused.booking.cap) {
            self.home_in(memory, guest, page, Some(at));
        }
    }

    /// A region is a row: nothing needs to be booked for it.
    pub(crate) fn end_booking(&mut self, stack: &mut Stack, region: GuestRegion) {
        if let Some(home) = self.homes.get(&region) {
            self.booking.end(stack.kernel_mut(NodeId::HOST).memory_mut(), home.at);
        }
    }

    /// A region cannot become a row where it was to be one.
    pub(crate) fn give_up(&mut self, stack: &mut Stack, region: GuestRegion) {
        if let Some(home) = self.homes.get(&region) {
            self.spoiled.insert(region, home.at);
        }
        self.forget(stack, region);
    }

    /// Bookings last as long as Algorithm 1 says, and those whose time is up go back.
    pub(crate) fn expire_bookings(&mut self, stack: &mut Stack, now: f64) {
        self.until = self.coordination.allocator(NodeId::HOST).until();
        self.expire(stack, now);
    }

    /// The place of a guest's region, booked now if it has none.
    pub(crate) fn home(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Option<Frame<Lower>> {
        let lies_right = match self.homes.get(&(guest, page.floor(PageSize::Huge).get())) {
            Some(home) => return Some(home.at),
            None => self.lies_right(stack, guest, page),
        };
        let memory = stack.kernel_mut(NodeId::HOST).memory_mut();
        self.home_in(memory, guest, page, lies_right)
    }

    /// The same in the host's memory alone; a region without a place gets the one wanted, or one that is
    /// free.
    fn home_in(
        &mut self,
        memory: &mut Memory,
        guest: NodeId,
        page: Frame<Upper>,
        wanted: Option<Frame<Lower>>,
    ) -> Option<Frame<Lower>> {
        let region = (guest, page.floor(PageSize::Huge).get());
        if let Some(home) = self.homes.get(&region) {
            return Some(home.at);
        }
        let at = wanted.or_else(|| {
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
            && !self.inhabited.contains_key(&region.get())
            && self.spoiled.get(&(guest, page.floor(PageSize::Huge).get())) != Some(&region))
        .then_some(region)
    }

    /// NEMA, host part, where the host backs a page of a guest hypervisor's memory that was never touched:
    /// a base page, at the offset of the guest's page that it will back, as far as the host knows that
    /// (xGemini IV.C). The paper has the guest hypervisor write its table first. It zeroes the page
    /// before, so the host goes by the violation that it has handed on.
    fn place_below(&mut self, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        let guess = || {
            let touched = fault.vm_page?;
            self.handed_on.as_mut().map(|handed_on| (handed_on.guest, handed_on.guess(touched)))
        };
        let Some((guest, page)) = fault.backs.or_else(guess) else { return Placement::Base };
        let region = (guest, page.floor(PageSize::Huge).get());
        if self.leftovers.as_ref().is_some_and(|leftovers| leftovers.is_coloured(region)) {
            return Placement::Base;
        }
        match self.home_in(kernel.memory_mut(), guest, page, None) {
            Some(home) => Placement::BaseAt(home + page.index_in(PageSize::Huge)),
            None => Placement::Base,
        }
    }

    /// Whether the host's own coalescer may make a range of a guest hypervisor's memory huge: all of it must
    /// be in use, or a huge page would be allocated where less is touched, and nothing of it in a row of
    /// a guest's, or that row would be torn apart.
    fn may_coalesce(&self, stack: &Stack, space: SpaceId, page: Frame<Upper>) -> bool {
        let host = stack.kernel(NodeId::HOST);
        let Some(vm) = stack.above(NodeId::HOST, space) else { return true };
        let whole = self.worker.is_none();
        if self.collapsing || !self.nested || self.coordination.is_guest(vm) {
            return true;
        }
        let table = host.space(space).map(|space| space.table().region(page.floor(PageSize::Huge)));
        let Some(Region::Base { entries, .. }) = table else { return true };
        let in_a_row = |bits: &u64| {
            let region = Frame::<Lower>::new(X86::frame(*bits)).floor(PageSize::Huge);
            self.inhabited.contains_key(&region.get())
        };
        let may = |bits: &u64| match X86::is_present(*bits) {
            true => !in_a_row(bits),
            false => !whole,
        };
        entries.iter().all(may)
    }

    /// NEMA, host part: puts the frame behind a guest's page at its region's offset, at once: where the
    /// guest hypervisor's memory has another page there, the two change places (xGemini I: the host's
    /// table is changed accordingly). Returns whether it is there.
    pub(crate) fn steer(
        &mut self,
        stack: &mut Stack,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<bool, KernelOutOfMemory> {
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
        let copies = self.settings.xgemini.copy;
        let there = stack.put(self, NodeId::HOST, (process, hva), wanted, copies)?;
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
    ) -> Result<(), KernelOutOfMemory> {
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
    fn scan_guests(&mut self, stack: &mut Stack, now: f64) -> Result<(), KernelOutOfMemory> {
        if !self.coordination.scan_is_due(now) {
            return Ok(());
        }
        let settings = self.coordination.settings.scan.clone();
        let budget = self.coordination.budget(stack, settings.share, settings.period);
        for guest in self.coordination.guests().to_vec() {
            let scan = Scan::of_shadow(stack, guest);
            let budget = self.coordination.promotions(stack, guest, budget);
            stack.charge_scan(scan.entries);
            self.coordination.tell_upper(stack, guest, &scan);
            promote_upper(self, stack, guest, &scan, &budget)?;
        }
        Ok(())
    }

    /// NWHPC: guest huge pages whose shadow entries are not huge are completed and promoted, from
    /// where the last round stopped, within the budget.
    fn create_aligned(
        &mut self,
        stack: &mut Stack,
        budget: &Budget,
    ) -> Result<(), KernelOutOfMemory> {
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
    ) -> Result<(), KernelOutOfMemory> {
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
                self.give_up(stack, region);
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
    ) -> Result<bool, KernelOutOfMemory> {
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
        self.collapsing = true;
        let collapsed = stack.collapse(self, NodeId::HOST, process, hva, None);
        self.collapsing = false;
        let done = collapsed?.is_huge();
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
        for i in 0..if self.leftovers.is_none() { size.base_pages() } else { 0 } {
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
            } else {
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
