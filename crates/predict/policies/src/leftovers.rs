//! What xGemini leaves over, for the policy that colours it: what is known of each region, and whether a row
//! or colours pay.

use crate::colour_table::ColourTableParameters;
use crate::coordination::GuestRegion;
use crate::parameters::PolicyParameters;
use crate::recolour::Recolouring;
use crate::xplace::XPlaceParameters;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use strata_addr::{Addr, Frame, PageSize, Range, space::Lower, space::Upper};
use strata_colours::Colours;
use strata_paging::Region;
use strata_stack::{Feedback, Kernel, NodeId, PageFault, Placement, SpaceId, Stack, TradeCounts};

strata_params::parameters! {
    /// The choice between rows and colours. No paper has it: all defaults are ours. `?`
    pub struct LeftoverParameters {
        /// How long a region is expected to be used as it was lately: what moving it must pay back
        /// within. `?`
        horizon: f64 = 10.0, "xgemini_xplace.horizon", "s";
        /// Entries of the guest's page tables whose accessed bits a round looks at most, from where the
        /// last one stopped. `?`
        scan: u64 = 65536, "xgemini_xplace.scan_entries", "entries";
        /// Where the score of a region's reuse saturates: rounds in which it was found accessed, less
        /// those in which it was not. `?`
        most_reuse: u64 = 8, "xgemini_xplace.most_reuse", "rounds";
    }
}

pub(crate) const REGION: u64 = PageSize::Huge.base_pages();

/// What a comparison found, in cycles over the horizon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    /// Of a row: it saves walks, and conflicts as colours do.
    pub row: f64,
    /// Of colours.
    pub colours: f64,
}

impl Estimate {
    fn prefers_row(self) -> bool {
        self.row >= self.colours
    }
}

/// What moving a region, or parts of it, would gain and cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Case {
    /// Share of all reuse that is in the region.
    pub share: f64,
    /// Cycles a second in walks, and in accesses that only memory could serve.
    pub walks: f64,
    pub memory: f64,
    /// Pages in frames of other colours than theirs, and pages that a row would move.
    pub wrong: u64,
    pub away: u64,
    /// Cycles to move a page.
    pub move_page: f64,
    /// Seconds that it has to pay back.
    pub horizon: f64,
}

impl Case {
    /// As if rows left no walks, and each access that only memory could serve to a page of a wrong colour
    /// were a conflict: upper bounds, both. A row has the right colours, too.
    pub fn estimate(self) -> Estimate {
        let used = self.share * self.horizon;
        let by_colours = used * self.memory * self.wrong as f64 / REGION as f64;
        let by_row = used * self.walks + by_colours;
        Estimate {
            row: by_row - self.away as f64 * self.move_page,
            colours: by_colours - self.wrong as f64 * self.move_page,
        }
    }
}

/// What hardware showed of the guests over a round.
#[derive(Clone, Copy, Debug, Default)]
struct Pressure {
    walk_cycles: f64,
    memory_cycles: f64,
    since: f64,
}

/// What xGemini has besides where it colours what it leaves over.
#[derive(Debug)]
pub(crate) struct Leftovers {
    pub recolouring: Recolouring,
    parameters: LeftoverParameters,
    seed: u64,
    /// Reuse of regions, where there is any.
    scores: BTreeMap<GuestRegion, u64>,
    reuse: u64,
    /// Where the next scan of accessed bits begins.
    cursor: (usize, SpaceId, Addr<Upper>),
    /// Of the round that is under way, and cycles a second of the last one.
    pressure: Pressure,
    rates: (f64, f64),
    /// What was chosen by comparison, and its estimated gain.
    chosen: FxHashMap<GuestRegion, (bool, f64)>,
    /// Regions whose pages are to be looked at.
    pub queue: BTreeSet<GuestRegion>,
}

impl Leftovers {
    pub fn new(parameters: &PolicyParameters) -> Self {
        let XPlaceParameters { copy } = parameters.get();
        let table: ColourTableParameters = parameters.get();
        Self {
            seed: table.seed,
            recolouring: Recolouring::new(table, copy),
            parameters: parameters.get(),
            scores: BTreeMap::new(),
            reuse: 0,
            cursor: (0, SpaceId(0), Addr::new(0)),
            pressure: Pressure::default(),
            rates: (0.0, 0.0),
            chosen: FxHashMap::default(),
            queue: BTreeSet::new(),
        }
    }

    pub fn refuses(&self, colours: Colours) -> Option<String> {
        let count = colours.count();
        if self.seed != 0 {
            return Some(format!(
                "xgemini+xplace: a row of 512 frames has the colours of the guest's pages only where \
                 every virtual colour has the real one with its number: leave colours.table_seed at 0 \
                 (it is {})",
                self.seed
            ));
        }
        (!REGION.is_multiple_of(u64::from(count))).then(|| {
            format!(
                "xgemini+xplace: {count} cache colours do not divide the 512 frames of a huge page, so \
                 that rows would not keep them: choose a last-level cache with a power of two of them, \
                 512 at most"
            )
        })
    }

    /// Where the host puts a page for which xGemini has this place. Nobody knows what a guest hypervisor will
    /// use its memory for; by the colours of its own frames its huge pages are right for the guest.
    pub fn place(
        &mut self,
        node: NodeId,
        kernel: &Kernel,
        fault: &PageFault,
        placement: Placement,
    ) -> Placement {
        let (Some(colours), Some(page), NodeId::HOST) =
            (kernel.memory().colours(), fault.vm_page, node)
        else {
            return placement;
        };
        let known = self.recolouring.of_fault(kernel, fault).map(|(_, colour)| colour);
        let colour = known.unwrap_or(colours.of(page).cross());
        // In a region like the one that it is a fault in, a huge page has all colours right or none.
        let huge = fault.huge_possible && colours.of(fault.page).cross() == colour;
        let memory = kernel.memory();
        let is_whole = |at| u64::from(memory.free_in_region(at)) == REGION;
        match placement {
            // Where nobody knows, it is in the row of the page that it is expected to be.
            Placement::BaseAt(frame) if known.is_none() || colours.of(frame) == colour => placement,
            Placement::Linux if huge && memory.free_regions() > 0 => placement,
            Placement::HugeAt(at) if huge && (is_whole(at) || memory.free_regions() > 0) => {
                placement
            }
            _ => Placement::BaseOf(colour),
        }
    }

    /// Whether the region is coloured by choice: its pages are not to be put in a row.
    pub fn is_coloured(&self, region: GuestRegion) -> bool {
        matches!(self.chosen.get(&region), Some((false, _)))
    }

    /// The pages of a region are to be looked at.
    pub fn enqueue(&mut self, region: GuestRegion) {
        self.queue.insert(region);
    }

    /// Hardware was asked.
    pub fn note(&mut self, feedback: Feedback) {
        self.pressure.walk_cycles += feedback.walk_cycles;
        self.pressure.memory_cycles += feedback.memory_cycles;
    }

    /// A round begins: what hardware showed in the last one is what it is judged by.
    pub fn begin_round(&mut self, now: f64) {
        let Pressure { walk_cycles, memory_cycles, since } = self.pressure;
        let seconds = now - since;
        if seconds > 0.0 {
            self.rates = (walk_cycles / seconds, memory_cycles / seconds);
        }
        self.pressure = Pressure { since: now, ..Pressure::default() };
    }

    fn score(&mut self, region: GuestRegion, accessed: bool) {
        let score = self.scores.entry(region).or_default();
        let before = *score;
        *score = if accessed {
            (before + 1).min(self.parameters.most_reuse)
        } else {
            before.saturating_sub(1)
        };
        self.reuse = self.reuse + *score - before;
        if *score == 0 {
            self.scores.remove(&region);
        }
    }

    /// Finds out which regions the guests have used since this was last done, and clears what says so.
    pub fn measure_reuse(&mut self, stack: &mut Stack, guests: &[NodeId]) {
        let mut found: BTreeMap<GuestRegion, bool> = BTreeMap::new();
        let mut rest = self.parameters.scan;
        let (mut at, mut space, mut from) = self.cursor;
        let mut looked_at = 0;
        while rest > 0 && looked_at <= guests.len() {
            let Some(guest) = guests.get(at) else {
                (at, space, from) = (0, SpaceId(0), Addr::new(0));
                looked_at += 1;
                continue;
            };
            let spaces = stack.kernel(*guest).spaces().map(|(id, _)| id);
            let Some(id) = spaces.filter(|id| *id >= space).min() else {
                (at, space, from) = (at + 1, SpaceId(0), Addr::new(0));
                looked_at += 1;
                continue;
            };
            if id != space {
                (space, from) = (id, Addr::new(0));
            }
            let table = stack.kernel_mut(*guest).space_mut(id).expect("it is alive").table_mut();
            let part = Range::new(from, table.everything().end);
            let pages: Vec<_> = table.mapped(part).take(rest as usize).collect();
            rest -= pages.len() as u64;
            match pages.last() {
                Some((page, mapping)) if rest == 0 => {
                    from = (*page + mapping.size.base_pages()).addr();
                }
                _ => (space, from) = (SpaceId(id.0 + 1), Addr::new(0)),
            }
            for (page, mapping) in pages {
                let accessed = mapping.accessed && table.test_and_clear_accessed(page.addr());
                let region = mapping.frame.floor(PageSize::Huge).get();
                *found.entry((*guest, region)).or_default() |= accessed;
            }
        }
        self.cursor = (at, space, from);
        stack.charge_scan(self.parameters.scan - rest);
        found.into_iter().for_each(|(region, accessed)| self.score(region, accessed));
    }

    /// Compares what a row and what colours would gain in a region, for pages as they are now; `home` is
    /// the row's place, if it has one. `None` without a measurement.
    fn compare(
        &self,
        stack: &Stack,
        (guest, region): GuestRegion,
        home: Option<Frame<Lower>>,
    ) -> Option<Estimate> {
        let colours = stack.kernel(NodeId::HOST).memory().colours()?;
        let (walks, memory) = self.rates;
        if self.reuse == 0 || walks + memory == 0.0 {
            return None;
        }
        let (mut wrong, mut away) = (0, 0);
        for i in 0..REGION {
            let page: Frame<Upper> = Frame::new(region + i);
            let behind = stack.compose(guest, page).map(|composed| composed.frame);
            away += u64::from(behind.is_none() || behind != home.map(|home| home + i));
            wrong += u64::from(
                behind.is_some_and(|behind| colours.of(behind) != colours.of(page).cross()),
            );
        }
        let score = self.scores.get(&(guest, region)).copied().unwrap_or(0);
        let costs = stack.costs();
        let case = Case {
            share: score as f64 / self.reuse as f64,
            walks,
            memory,
            wrong,
            away,
            move_page: (costs.copy + costs.migrate) as f64,
            horizon: self.parameters.horizon,
        };
        Some(case.estimate())
    }

    /// Whether a region is to be a row, at the price of moving its pages.
    pub fn prefers_row(
        &mut self,
        stack: &mut Stack,
        region: GuestRegion,
        home: Option<Frame<Lower>>,
    ) -> bool {
        stack.charge_scan(REGION);
        let Some(estimate) = self.compare(stack, region, home) else {
            self.chosen.remove(&region);
            return true;
        };
        let row = estimate.prefers_row();
        let gain = if row { estimate.row } else { estimate.colours };
        self.chosen.insert(region, (row, gain));
        row
    }

    /// A region could not be made the row that it was to be.
    pub fn could_not(&mut self, region: GuestRegion) {
        self.chosen.remove(&region);
        self.enqueue(region);
    }

    pub fn ended(&mut self, kernels: &[NodeId]) {
        self.recolouring.ended(kernels);
        self.chosen.retain(|(guest, _), _| !kernels.contains(guest));
        self.queue.retain(|(guest, _)| !kernels.contains(guest));
        self.scores.retain(|(guest, _), _| !kernels.contains(guest));
        self.reuse = self.scores.values().sum();
    }

    /// What was chosen for a guest; `has_home` says which regions have a place as a row.
    pub fn report(
        &self,
        stack: &Stack,
        guest: NodeId,
        has_home: impl Fn(u64) -> bool,
    ) -> Option<TradeCounts> {
        let table = stack.hardware_second_stage(guest)?;
        let mut regions = BTreeSet::new();
        let second = stack.second_stage(guest);
        for (page, mapping) in second.mapped(second.everything()) {
            let starts = (0..mapping.size.base_pages()).step_by(REGION as usize);
            regions.extend(starts.map(|start| (page + start).floor(PageSize::Huge)));
        }
        let mut counts = TradeCounts::default();
        let mut gains = (0.0, 0.0);
        for region in regions {
            let row = matches!(table.region(region), Region::Huge(_));
            let filling = !row && has_home(region.get());
            counts.rows += u64::from(row);
            counts.filling += u64::from(filling);
            counts.coloured += u64::from(!row && !filling);
            match self.chosen.get(&(guest, region.get())) {
                Some((true, gain)) if row => gains.0 += gain,
                Some((false, gain)) if !row => gains.1 += gain,
                _ => {}
            }
        }
        (counts.row_gain, counts.colour_gain) = (gains.0.max(0.0) as u64, gains.1.max(0.0) as u64);
        Some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case {
        share: 0.01,
        walks: 1e8,
        memory: 1e8,
        wrong: 512,
        away: 512,
        move_page: 2000.0,
        horizon: 10.0,
    };

    /// A row has the right colours, too: what it saves in walks must pay for the pages that only a row moves.
    #[test]
    fn a_row_pays_where_walks_saved_are_more_than_pages_moved() {
        assert!(CASE.estimate().prefers_row(), "all pages must move anyway");
        let coloured = Case { wrong: 0, ..CASE };
        let of_move = 512.0 * coloured.move_page;
        let saved = coloured.share * coloured.horizon * coloured.walks;
        assert_eq!(coloured.estimate(), Estimate { row: saved - of_move, colours: 0.0 });
        assert!(coloured.estimate().prefers_row());
        let rarely_used = Case { share: 0.001, walks: 1e7, ..coloured };
        assert!(!rarely_used.estimate().prefers_row());
        assert!(Case { away: 0, ..rarely_used }.estimate().prefers_row(), "it is there already");
    }

    #[test]
    fn reuse_saturates_and_is_forgotten() {
        let parameters = PolicyParameters::default();
        let mut leftovers = Leftovers::new(&parameters);
        let most = leftovers.parameters.most_reuse;
        let (hot, cold) = ((NodeId::HOST, 0), (NodeId::HOST, 512));
        leftovers.score(cold, true);
        (0..2 * most).for_each(|_| leftovers.score(hot, true));
        assert_eq!((leftovers.scores[&hot], leftovers.reuse), (most, most + 1));
        leftovers.score(cold, false);
        assert_eq!((leftovers.scores.get(&cold), leftovers.reuse), (None, most));
    }

    /// What a row would save is cycles in each second to come: a round that was longer shows no more of them.
    #[test]
    fn a_round_is_judged_by_what_hardware_showed_in_a_second_of_the_last_one() {
        let mut leftovers = Leftovers::new(&PolicyParameters::default());
        leftovers.begin_round(10.0);
        for _ in 0..2 {
            leftovers.note(Feedback {
                walk_cycles: 6e6,
                memory_cycles: 2e6,
                ..Feedback::default()
            });
        }
        leftovers.begin_round(14.0);
        assert_eq!(leftovers.rates, (3e6, 1e6));
        leftovers.begin_round(15.0);
        assert_eq!(leftovers.rates, (0.0, 0.0), "nothing was shown since");
    }

    /// A VM that comes later in the place of one that ended starts anew, and the others go on as they did.
    #[test]
    fn what_is_known_of_a_vm_is_forgotten_with_it_and_nothing_else() {
        let mut leftovers = Leftovers::new(&PolicyParameters::default());
        let mut guests = NodeId::all().skip(1).map(|guest| (guest, 512));
        let [ended, other] = [guests.next().unwrap(), guests.next().unwrap()];
        for region in [ended, other] {
            leftovers.score(region, true);
            leftovers.chosen.insert(region, (false, 1.0));
            leftovers.enqueue(region);
        }
        leftovers.ended(&[ended.0]);
        assert_eq!([ended, other].map(|region| leftovers.is_coloured(region)), [false, true]);
        assert!(leftovers.queue.iter().eq([&other]));
        assert!(leftovers.scores.keys().eq([&other]) && leftovers.reuse == 1);
    }

    #[test]
    fn tables_and_colours_that_rows_would_not_keep_are_refused() {
        use strata_colours::{CacheIndex, SliceHash};
        use strata_params::Parameters;
        let colours = |sets| {
            let index = CacheIndex { line_bytes: 64, sets, slices: 1, hash: SliceHash::None };
            Colours::new(&index).unwrap()
        };
        let mut parameters = PolicyParameters::default();
        let refused = |parameters: &PolicyParameters, sets| {
            Leftovers::new(parameters).refuses(colours(sets)).unwrap_or_default()
        };
        for fits in [64, 1024, 512 * 64] {
            assert_eq!(refused(&parameters, fits), "");
        }
        for other in [48 * 64, 1024 * 64] {
            assert!(refused(&parameters, other).contains("do not divide"));
        }
        parameters.set("colours.table_seed", "3").unwrap();
        assert!(refused(&parameters, 1024).contains("colours.table_seed"));
    }
}
