//! xGemini (IEEE TC 2024): the guest and the host work together, the guest hypervisor is stock.
//!
//! The guest places pages as Gemini's guest half does, with Huge Aligner. The host sees every write
//! of the guest hypervisor to its second stage, for that table is write-protected, and puts the
//! real frame behind each *guest* page where the guest page's HPAS region has its booked place,
//! whatever the guest hypervisor's memory looks like. A region that is whole becomes a pseudo huge
//! page: one huge entry of the shadow table.

use crate::allocator::FaultHuge;
use crate::booking::Booking;
use crate::coordination::{
    Budget, Coordinating, Coordination, GeminiSettings, after_fault, promote_upper,
};
use crate::gemini::scan_all;
use crate::scanner::Scan;
use rustc_hash::FxHashMap;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_paging::Region;
use strata_stack::{
    AlignAreas, Exhausted, Feedback, Kernel, Layer, LayerSettings, PageFault, Placement, Policy,
    Stack, ThpMode, VM,
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
    coordination: Coordination,
    /// By guest-physical region.
    homes: FxHashMap<u64, Home>,
    /// The guest-physical region whose home a region of real memory is.
    inhabited: FxHashMap<u64, u64>,
    booking: Booking,
    cursor: Frame<Lower>,
    next_round: f64,
    resume_at: u64,
    until: f64,
    nested: bool,
}

impl XGemini {
    /// xGemini.
    pub fn new(settings: XGeminiSettings) -> Self {
        Self {
            coordination: Coordination::new(settings.reused.clone(), FaultHuge::Never),
            homes: FxHashMap::default(),
            inhabited: FxHashMap::default(),
            booking: Booking::default(),
            cursor: Frame::new(0),
            next_round: settings.xgemini.period,
            resume_at: 0,
            until: settings.reused.booking.initial,
            settings,
            nested: false,
        }
    }

    /// The place of a guest-physical region, booked now if it has none.
    fn home(&mut self, stack: &mut Stack, page: Frame<Upper>) -> Option<Frame<Lower>> {
        let region = page.floor(PageSize::Huge);
        if let Some(home) = self.homes.get(&region.get()) {
            return Some(home.at);
        }
        let host = stack.bottom();
        let at = self.lies_right(stack, page).or_else(|| {
            let memory = stack.kernel_mut(host).memory_mut();
            let run = memory.next_fit(self.cursor, 1)?;
            self.cursor = run.start + PageSize::Huge.base_pages();
            let cap = self.settings.reused.booking.cap;
            self.booking.book(memory, run.start, self.until, cap).then_some(run.start)
        })?;
        self.homes.insert(region.get(), Home { at, placed: 0 });
        // Whoever was to live in a region that is free again has nothing there.
        if let Some(before) = self.inhabited.insert(at.get(), region.get()) {
            self.homes.remove(&before);
        }
        Some(at)
    }

    /// The region where the page's frame is already, when it is at the page's own offset there and
    /// nothing else has that home: contiguous memory needs no moving.
    fn lies_right(&self, stack: &Stack, page: Frame<Upper>) -> Option<Frame<Lower>> {
        let frame = stack.compose(page)?.frame;
        let region = frame.floor(PageSize::Huge);
        (frame.index_in(PageSize::Huge) == page.index_in(PageSize::Huge)
            && !self.inhabited.contains_key(&region.get()))
        .then_some(region)
    }

    /// NEMA, host part: puts the frame behind a guest page at its region's offset. Returns whether
    /// it is there.
    fn steer(&mut self, stack: &mut Stack, page: Frame<Upper>) -> Result<bool, Exhausted> {
        let Some(home) = self.home(stack, page) else { return Ok(false) };
        let wanted = home + page.index_in(PageSize::Huge);
        // Follow the page down to the host's own guest: that is what the host can move.
        let mut at = page;
        for layer in 1..stack.bottom() {
            match stack.second_stage(layer).translate(at.addr()) {
                Some(below) => at = below.page().cross(),
                None => return Ok(false),
            }
        }
        let hva = stack.hva(stack.bottom(), at);
        stack.back(self, stack.bottom(), at)?;
        let host = stack.bottom();
        let there = stack.migrate(self, host, VM, hva, wanted)?;
        // The move took the old entry out of the host's second stage.
        stack.back(self, host, at)?;
        Ok(there)
    }

    /// One page of a region came to its place.
    fn placed(&mut self, stack: &mut Stack, page: Frame<Upper>) -> Result<(), Exhausted> {
        let region = page.floor(PageSize::Huge);
        let Some(home) = self.homes.get_mut(&region.get()) else { return Ok(()) };
        home.placed += 1;
        let at = home.at;
        if u64::from(home.placed) >= PageSize::Huge.base_pages()
            && stack.promote_shadow(self, region)?
        {
            let host = stack.bottom();
            self.booking.end(stack.kernel_mut(host).memory_mut(), at);
        }
        Ok(())
    }

    /// The guest's half of scanner and promoter, with the shadow table in place of the layer below.
    fn scan_guest(
        &mut self,
        stack: &mut Stack,
        now: f64,
        feedback: Feedback,
    ) -> Result<(), Exhausted> {
        if !self.coordination.scan_is_due(now) {
            return Ok(());
        }
        let settings = self.coordination.settings.scan.clone();
        let budget = Budget::new(stack, settings.share, settings.period, feedback);
        let scan = Scan::of_shadow(stack);
        stack.charge_scan(scan.entries);
        self.coordination.tell_upper(stack, 0, &scan);
        promote_upper(self, stack, 0, &scan, &budget)
    }

    /// NWHPC: guest huge pages whose shadow entries are not huge are completed and promoted, from
    /// where the last round stopped, within the budget.
    fn create_aligned(&mut self, stack: &mut Stack, budget: &Budget) -> Result<(), Exhausted> {
        let mut huge = Vec::new();
        let mut entries = 0;
        for (_, space) in stack.kernel(0).spaces() {
            entries += space.table().table_pages() as u64;
            space.table().for_each_huge(|_, mapping| huge.push(mapping.frame.get()));
        }
        stack.charge_scan(entries);
        huge.sort_unstable();
        let from = huge.partition_point(|region| *region < self.resume_at);
        huge.rotate_left(from);
        for region in huge {
            if budget.is_spent(stack) {
                self.resume_at = region;
                return Ok(());
            }
            self.complete(stack, Frame::new(region))?;
        }
        self.resume_at = 0;
        Ok(())
    }

    /// Makes one guest huge page well aligned, if the guest hypervisor backs all of it.
    fn complete(&mut self, stack: &mut Stack, region: Frame<Upper>) -> Result<(), Exhausted> {
        let shadow = stack.hardware_second_stage().expect("nested stacks have a shadow table");
        if matches!(shadow.region(region), Region::Huge(_)) {
            return Ok(());
        }
        stack.charge_scan(PageSize::Huge.base_pages());
        if stack.promote_shadow(self, region)? {
            return Ok(());
        }
        if self.collapse_below(stack, region)? {
            stack.promote_shadow(self, region)?;
            return Ok(());
        }
        for i in 0..PageSize::Huge.base_pages() {
            let page = region + i;
            if stack.second_stage(1).mapping(page.addr()).is_none() {
                // The guest hypervisor has nothing there; the guest will fault when it needs it.
                return Ok(());
            }
            if !self.steer(stack, page)? {
                self.forget(stack, region);
                return Ok(());
            }
        }
        stack.promote_shadow(self, region)?;
        Ok(())
    }

    /// Where every guest hypervisor maps the region huge, the host's own huge page is missing:
    /// collapses the host's range. Returns whether that is so and was done.
    fn collapse_below(
        &mut self,
        stack: &mut Stack,
        region: Frame<Upper>,
    ) -> Result<bool, Exhausted> {
        let mut at = region;
        for layer in 1..stack.bottom() {
            match stack.second_stage(layer).region(at) {
                Region::Huge(mapping) => {
                    at = (mapping.frame + at.index_in(mapping.size)).cross();
                }
                _ => return Ok(false),
            }
        }
        let host = stack.bottom();
        let hva = stack.hva(host, at);
        let done = stack.collapse(self, host, VM, hva, None)?.is_ok();
        if done {
            stack.fill_shadow(self, region)?;
        }
        Ok(done)
    }

    /// Bookings whose time is up go back; who had nothing there yet will be given another place.
    fn expire(&mut self, stack: &mut Stack, now: f64) {
        let host = stack.bottom();
        for region in self.booking.expire(stack.kernel_mut(host).memory_mut(), now) {
            if let Some(guest) = self.inhabited.get(&region.get()).copied()
                && self.homes.get(&guest).is_some_and(|home| home.placed == 0)
            {
                self.homes.remove(&guest);
                self.inhabited.remove(&region.get());
            }
        }
    }

    /// A region's place cannot be had: another one is chosen when it is next looked at.
    fn forget(&mut self, stack: &mut Stack, region: Frame<Upper>) {
        if let Some(home) = self.homes.remove(&region.get()) {
            self.inhabited.remove(&home.at.get());
            let host = stack.bottom();
            self.booking.end(stack.kernel_mut(host).memory_mut(), home.at);
        }
    }
}

impl Coordinating for XGemini {
    fn coordination(&mut self) -> &mut Coordination {
        &mut self.coordination
    }
}

impl Policy for XGemini {
    fn settings(&mut self, layer: Layer, layers: usize) -> LayerSettings {
        self.nested = layers > 2;
        let between = layer > 0 && layer + 1 < layers;
        let thp =
            if between && !self.settings.xgemini.l1_thp { ThpMode::Never } else { ThpMode::Always };
        LayerSettings { thp, align_areas: AlignAreas::Always, fragmented: true }
    }

    fn place(&mut self, layer: Layer, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        if layer == 0 || !self.nested {
            self.coordination.allocator(layer).place(kernel, fault)
        } else {
            Placement::Linux
        }
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        layer: Layer,
        fault: &PageFault,
        size: PageSize,
    ) -> Result<(), Exhausted> {
        if layer == 0 || !self.nested {
            return after_fault(self, stack, layer, fault, size);
        }
        Ok(())
    }

    fn second_stage_written(
        &mut self,
        stack: &mut Stack,
        layer: Layer,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), Exhausted> {
        // Only the topmost guest hypervisor's pages are guest-physical ones.
        if layer != 1 || !self.nested {
            return Ok(());
        }
        if size == PageSize::Base && self.steer(stack, page)? {
            self.placed(stack, page)?;
        }
        if self.settings.xgemini.fill_on_write {
            stack.fill_shadow(self, page)?;
        }
        Ok(())
    }

    fn freed_huge(&mut self, layer: Layer, kernel: &mut Kernel, region: Frame<Lower>) {
        if layer == 0 || !self.nested {
            self.coordination.keep_freed(layer, kernel, region);
        }
    }

    fn memory_short(&mut self, layer: Layer, kernel: &mut Kernel) -> bool {
        if layer == 0 || !self.nested {
            self.coordination.allocator(layer).release_all(kernel)
        } else {
            self.booking.release_all(kernel.memory_mut())
        }
    }

    fn wake(&mut self, stack: &mut Stack, now: f64, feedback: Feedback) -> Result<(), Exhausted> {
        if !self.nested {
            let layers = 0..stack.depth();
            self.coordination.adjust(stack, now, feedback, layers);
            return scan_all(self, stack, now, feedback);
        }
        self.coordination.adjust(stack, now, feedback, 0..1);
        self.scan_guest(stack, now, feedback)?;
        if self.next_round <= now {
            self.until = self.coordination.until();
            self.expire(stack, now);
            let XGeminiParameters { share, period, .. } = self.settings.xgemini;
            let budget = Budget::new(stack, share, period, feedback);
            self.create_aligned(stack, &budget)?;
            self.next_round = now + period;
        }
        Ok(())
    }

    fn next_wake(&self) -> f64 {
        self.coordination.next_wake().min(if self.nested { self.next_round } else { f64::INFINITY })
    }
}
