//! Where windows lie, by what earlier ones showed.

mod cold;

use super::aim::{Aim, Misses};
use super::pilot::{Pilot, Shown};
use super::warming::Warming;
use std::collections::{BTreeMap, VecDeque};
use strata_addr::{Range, space::Virtual};
use strata_stream::{Access, Edge, Event, Pid, Placed, Sampling, Tid, half_width};

/// What is run whole before anything is left out, in instructions: less is quicker run whole.
const WHOLE: u64 = 20_000_000;

/// What counts of each interval, in instructions.
const WINDOW: u64 = 400_000;

/// The first intervals, in instructions.
const FIRST: u64 = 10_000_000;

/// The warming of the first trials.
const TRIED: u64 = 1_600_000;

/// The longest there is.
const MOST: u64 = 12_800_000;

/// A trial has twice as long warming as the one before if what lies before it is so many times as long.
const BEFORE: u64 = 16;

/// The next trial is as far ahead as the beginning is behind, but no farther than this.
const AGAIN: u64 = 500_000_000;

/// An interval is at least so many times as long as what is seen of it in detail.
const SHARE: u64 = 16;

/// But of what a program has done so far it is no more than this part, so that a short one has some windows.
const EARLY: u64 = 6;

/// Though even then so many times as long.
const FEWEST: u64 = 4;

/// Nor are intervals shorter than this: each switch costs some.
const LEAST: u64 = 4_000_000;

/// Windows between two changes of how long intervals are.
const STEP: u64 = 16;

/// Most that intervals grow, as all bounds are narrow enough.
const GROWTH: u64 = 1 << 10;

/// And no longer than this part of what a program has done so far: it may do something else at any time.
const CHANGES: u64 = 128;

/// Less warming may change all cycles by this share of the aim, or of how far they are off by chance; but by no more than
/// the aim.
const OF_CYCLES: f64 = 0.25;

/// Misses that cost less than this, relative to all cycles, need not be known well.
const SMALL: f64 = 0.01;

/// Chooses the intervals of a stream while it is read.
#[derive(Clone, Debug)]
pub struct Auto {
    sampling: Sampling,
    aim: Aim,
    pilot: Pilot,
    /// Intervals that were placed and are not over, and whether each has a trial.
    placed: VecDeque<(Placed, bool)>,
    /// Whether the stream is beyond its whole part.
    begun: bool,
    /// Instructions and misses of the whole part.
    whole: (u64, Misses),
    /// Windows so far: instructions of the interval, misses of each array an instruction.
    strata: Vec<(f64, Misses)>,
    /// Misses that may have been taken for hits in all intervals, as far as windows tell.
    guessed: f64,
    /// What trials have shown.
    warming: Warming,
    /// Where the next trial may be, in instructions.
    due: u64,
    /// Misses too many, or too few, that may cost this share of all cycles.
    tolerated: f64,
    /// Instructions of the intervals that are over, by the warming of their windows.
    warmed: BTreeMap<u64, f64>,
    /// How much warming is enough, once it is known.
    warm: Option<u64>,
    /// How many times as long as they must be intervals are.
    factor: u64,
    /// Windows since that changed.
    since: u64,
    /// Whether trials have shown what was not told.
    is_news: bool,
}

impl Auto {
    /// The lengths to begin with; `seed` decides where windows lie.
    pub fn sampling(seed: u64) -> Sampling {
        let (interval, window, warm, whole) = (FIRST, WINDOW, TRIED, WHOLE);
        Sampling { interval, window, warm, whole, adaptive: true, seed }
    }

    /// For a stream with these lengths, of which intervals and warming are chosen here.
    pub fn new(sampling: Sampling, aim: Aim) -> Self {
        let mut auto = Self {
            sampling,
            pilot: Pilot::new(&aim.reaches),
            whole: (0, vec![0.0; aim.reaches.len()]),
            aim,
            placed: VecDeque::new(),
            begun: false,
            strata: Vec::new(),
            guessed: 0.0,
            warming: Warming::new(TRIED, sampling.window),
            due: 0,
            tolerated: 0.0,
            warmed: BTreeMap::new(),
            warm: None,
            factor: 1,
            since: 0,
            is_news: false,
        };
        auto.place();
        auto.place();
        auto
    }

    /// The intervals that were placed and are not over, the present one first.
    pub fn placed(&self) -> impl Iterator<Item = Placed> {
        self.placed.iter().map(|(placed, _)| *placed)
    }

    /// What is seen outside of gaps.
    pub fn run(&mut self, pid: Pid, tid: Tid, instructions: u64, accesses: &[Access]) {
        self.pilot.run(pid, tid, instructions, accesses);
        if !self.begun {
            self.whole.0 += instructions;
        }
    }

    /// Pages were touched first in a gap, or begun before it.
    pub fn touched(&mut self, pid: Pid, range: Range<Virtual>, begun: bool) {
        self.pilot.touched(pid, range, begun);
    }

    /// Something happened, in a gap or outside.
    pub fn event(&mut self, event: &Event) {
        self.pilot.event(event);
    }

    /// An edge is passed. Where a window is over, gives the interval after the next one.
    pub fn edge(&mut self, edge: Edge) -> Option<Placed> {
        let (placed, is_trial) = *self.placed.front()?;
        match edge {
            Edge::Interval => {
                if !self.begun {
                    self.whole.1 = self.pilot.close().misses;
                }
                self.begun = true;
                None
            }
            Edge::Warm => {
                self.pilot.warm(placed.warm, is_trial.then_some(self.sampling.window));
                None
            }
            Edge::Window => {
                self.pilot.open();
                None
            }
            Edge::Gap => {
                let shown = self.pilot.close();
                self.placed.pop_front();
                self.learn(placed, shown);
                Some(self.place())
            }
        }
    }

    fn learn(&mut self, placed: Placed, shown: Shown) {
        if shown.instructions == 0 {
            return;
        }
        let rate = |misses: &f64| misses / shown.instructions as f64;
        *self.warmed.entry(placed.warm).or_default() += placed.length as f64;
        self.guessed += rate(&shown.guessed) * placed.length as f64;
        self.is_news = true;
        self.strata.push((placed.length as f64, shown.misses.iter().map(rate).collect()));
        let is_trial = !shown.checks.is_empty();
        if is_trial {
            self.warming.take(placed.warm, shown.checks, shown.new);
        }
        if is_trial || self.strata.len().is_multiple_of(STEP as usize) {
            self.choose();
        }
        self.since += 1;
        if self.warm.is_some() && self.since >= STEP {
            self.since = 0;
            self.factor = match self.is_met() {
                true => (self.factor * 2).min(GROWTH),
                false => (self.factor / 2).max(1),
            };
        }
    }

    // ---- warming ----

    /// How much warming a trial has that begins after so many instructions.
    fn tried(start: u64) -> u64 {
        let mut warm = TRIED;
        while warm < MOST && start >= 2 * BEFORE * warm {
            warm *= 2;
        }
        warm
    }

    /// How much warming is enough, by the trials there are.
    fn choose(&mut self) {
        if self.warming.is_unknown() {
            return;
        }
        let within = self.aim.within;
        let half = self.half_of_cycles().unwrap_or(0.0);
        self.tolerated = (OF_CYCLES * half).clamp(OF_CYCLES * within, within);
        self.warm = Some(self.warming.enough(&self.aim, self.tolerated));
    }

    // ---- intervals ----

    /// Half the width of the interval around a figure, given by misses an instruction, as far as the pilot can tell.
    fn half(&self, rate: impl Fn(&Misses) -> f64) -> Option<f64> {
        half_width(self.strata.iter().map(|(length, misses)| (*length, rate(misses))))
    }

    /// The figure in all intervals that are over.
    fn sum(&self, rate: impl Fn(&Misses) -> f64) -> f64 {
        self.strata.iter().map(|(instructions, misses)| instructions * rate(misses)).sum()
    }

    /// Cycles so far.
    fn all_cycles(&self) -> f64 {
        let (whole, before) = &self.whole;
        self.sum(|misses| self.aim.cycles(1.0, misses)) + self.aim.cycles(*whole as f64, before)
    }

    /// Half the width of the interval around all cycles, relative to them.
    fn half_of_cycles(&self) -> Option<f64> {
        Some(self.half(|misses| self.aim.cycles(1.0, misses))? / self.all_cycles())
    }

    /// Whether all bounds are as narrow as they are to be, as far as the pilot can tell.
    fn is_met(&self) -> bool {
        let Aim { reaches, within, .. } = &self.aim;
        let all = self.all_cycles();
        self.half_of_cycles().is_some_and(|half| half <= *within)
            && reaches.iter().enumerate().all(|(at, reach)| {
                let misses = self.sum(|misses| misses[at]) + self.whole.1[at];
                let half = self.half(|misses| misses[at]);
                misses * reach.cycles < SMALL * all
                    || half.is_some_and(|half| half <= within * misses)
            })
    }

    /// Places the interval after those that are placed.
    fn place(&mut self) -> Placed {
        let window = self.sampling.window;
        let (number, start) = match self.placed.back() {
            Some((last, _)) => (last.number + 1, last.start.saturating_add(last.length)),
            None => (0, self.sampling.whole),
        };
        let (warm, is_trial) = match self.warm {
            Some(warm) if start < self.due => (warm, false),
            _ => (Self::tried(start), true),
        };
        if is_trial {
            self.due = start.saturating_add(start.min(AGAIN));
        }
        let least = match self.warm {
            None => FIRST.max(4 * (warm + window)),
            Some(enough) => {
                let seen = enough + window;
                let usual = (SHARE * seen).min((start / EARLY).max(FEWEST * seen));
                let least = LEAST.max(usual);
                least.saturating_mul(self.factor).min((start / CHANGES).max(least))
            }
        };
        let length = least.max(warm + window);
        let mut placed = Placed { number, start, length, gap: 0, warm };
        placed.gap = placed.drawn(&self.sampling);
        self.placed.push_back((placed, is_trial));
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampled::Reach;
    use crate::sampled::trial::Check;
    use strata_addr::Gva;
    use strata_stream::Array;

    pub(super) fn aim(within: f64) -> Aim {
        let lines =
            Reach { array: Array::LastLevelCache, entries: 64 << 10, ways: 16, cycles: 100.0 };
        let pages = Reach { array: Array::L2Tlb, entries: 1024, ways: 8, cycles: 50.0 };
        Aim { within, base_cpi: 0.5, reaches: vec![lines, pages] }
    }

    pub(super) const SAMPLING: Sampling = Sampling {
        interval: FIRST,
        window: WINDOW,
        warm: TRIED,
        whole: 1_000_000,
        adaptive: true,
        seed: 1,
    };

    /// Goes through so many intervals of a program that uses lines at random, every tenth instruction, of which `line` makes
    /// one in an interval. Gives the intervals.
    fn intervals(auto: &mut Auto, number: usize, line: impl Fn(usize, u64) -> u64) -> Vec<Placed> {
        let mut state = 1_u64;
        let mut interval = 0;
        runs(auto, number, |placed, _| {
            interval = placed.map_or(0, |placed: Placed| placed.number as usize);
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            line(interval, state >> 33)
        })
    }

    /// Goes through so many intervals of a program that uses a line every tenth instruction, which `line` gives by the interval
    /// and the clock. Gives the intervals.
    fn runs(
        auto: &mut Auto,
        number: usize,
        mut line: impl FnMut(Option<Placed>, u64) -> u64,
    ) -> Vec<Placed> {
        let mut run = |auto: &mut Auto, placed: Option<Placed>, start: u64, instructions: u64| {
            for piece in 0..instructions / 10_000 {
                let at = |n: u64| start + piece * 10_000 + n * 10;
                let mut load = |n| Access::load(Gva::new((1 << 32) + line(placed, at(n)) * 64), 8);
                let accesses: Vec<Access> = (0..1000).map(&mut load).collect();
                auto.run(Pid(0), Tid(0), 10_000, &accesses);
            }
        };
        run(auto, None, 0, SAMPLING.whole);
        let mut all = Vec::new();
        for _ in 0..number {
            let placed = auto.placed().next().unwrap();
            all.push(placed);
            assert_eq!(auto.edge(Edge::Interval), None);
            assert_eq!(auto.edge(Edge::Warm), None);
            let start = placed.start + placed.gap;
            run(auto, Some(placed), start, placed.warm);
            assert_eq!(auto.edge(Edge::Window), None);
            run(auto, Some(placed), start + placed.warm, WINDOW);
            let next = auto.edge(Edge::Gap).expect("one is placed for each that is over");
            assert_eq!(next.number, placed.number + 2);
        }
        for pair in all.windows(2) {
            assert_eq!(pair[0].start + pair[0].length, pair[1].start, "no instruction is left out");
            assert!(pair[0].warm + WINDOW <= pair[0].length);
        }
        all
    }

    /// The intervals with the first trials, before any is over.
    const FIRST_TRIALS: usize = 2;

    #[test]
    fn what_stays_in_the_caches_needs_little_warming_and_what_does_not_needs_more() {
        let mut small = Auto::new(SAMPLING, aim(0.02));
        let placed = intervals(&mut small, 4, |_, at| at % 4);
        assert!(placed[..FIRST_TRIALS].iter().all(|placed| placed.warm == TRIED));
        assert_eq!(placed[FIRST_TRIALS].warm, 50_000);
        assert!(small.notes()[0].contains("more than this program needs"), "{:?}", small.notes());
        // What misses however long it was warmed up does after the least that is tried, too.
        let mut large = Auto::new(SAMPLING, aim(0.02));
        let placed = intervals(&mut large, 4, |_, at| at % (1 << 30));
        assert_eq!(placed[FIRST_TRIALS].warm, 50_000);
        assert!(large.notes()[0].contains("more than this program needs"), "{:?}", large.notes());
        // Each interval has new lines, more than a short warming brings.
        let mut other = Auto::new(SAMPLING, aim(0.02));
        let placed =
            intervals(&mut other, 4, |interval, at| ((interval as u64) << 20) | (at % 20_000));
        let chosen = placed[FIRST_TRIALS].warm;
        assert!(chosen > 50_000, "{chosen}");
        assert!(other.notes()[0].contains("the last-level cache"), "{:?}", other.notes());
    }

    #[test]
    fn what_a_program_comes_back_to_late_shows_in_trials_of_long_programs() {
        // Four times through 200,000 lines, two million instructions each, before it goes on to others.
        let line = |_, clock: u64| clock / 10 % 200_000 + clock / 8_000_000 * 200_000;
        let array = Array::LastLevelCache;
        let reaches = vec![Reach { array, entries: 1 << 20, ways: 16, cycles: 100.0 }];
        let mut auto = Auto::new(SAMPLING, Aim { reaches, ..aim(0.02) });
        let placed = runs(&mut auto, 16, line);
        assert_eq!(placed[FIRST_TRIALS].warm, 50_000, "1.6 million instructions show nothing");
        let last = placed.last().unwrap();
        assert!(last.start > 100_000_000 && last.warm >= 1_600_000, "{placed:?}");
        assert!(auto.notes()[0].contains("the last-level cache"), "{:?}", auto.notes());
    }

    #[test]
    fn trials_are_longer_and_rarer_the_longer_a_program_runs() {
        let mut auto = Auto::new(SAMPLING, aim(0.02));
        let placed = intervals(&mut auto, 60, |_, at| at % 4);
        let trials: Vec<&Placed> = placed.iter().filter(|placed| placed.warm >= TRIED).collect();
        for trial in &trials {
            let usual = (TRIED..=MOST).contains(&trial.warm) && trial.warm.is_multiple_of(TRIED);
            assert!(
                usual && (trial.warm == TRIED || trial.start >= BEFORE * trial.warm),
                "{trial:?}"
            );
        }
        for pair in trials[1..].windows(2) {
            assert!(pair[0].warm <= pair[1].warm && pair[1].start >= 2 * pair[0].start, "{pair:?}");
        }
        assert_eq!(trials.last().unwrap().warm, MOST, "{trials:?}");
        assert_eq!([Auto::tried(0), Auto::tried(1 << 40)], [TRIED, MOST]);
    }

    #[test]
    fn a_short_program_has_some_windows_however_long_they_are_warmed_up() {
        let mut auto = Auto::new(SAMPLING, aim(0.02));
        auto.warm = Some(MOST);
        auto.due = u64::MAX;
        let mut length_from = |start: u64| {
            let last = Placed { number: 0, start: 0, length: start, gap: 0, warm: 0 };
            auto.placed.push_back((last, false));
            auto.place().length
        };
        let seen = MOST + WINDOW;
        assert_eq!(length_from(10_000_000), FEWEST * seen);
        assert_eq!(length_from(600_000_000), 100_000_000);
        assert_eq!(length_from(10_000_000_000), SHARE * seen);
    }

    /// After a trial with 1.6 million instructions in which arrays missed so often, and their copies.
    pub(super) fn tried(misses: f64, copies: [[f64; 2]; 5]) -> Auto {
        let mut auto = Auto::new(SAMPLING, aim(0.02));
        let copies = copies.map(|copy| copy.to_vec()).to_vec();
        let check = Check { instructions: WINDOW, misses: vec![100.0, misses], copies };
        auto.warming.take(TRIED, vec![check], None);
        auto.is_news = true;
        auto
    }

    #[test]
    fn the_less_is_known_of_cycles_the_less_warming_is_enough() {
        // A miss takes a hundred cycles: of all cycles 40 misses are one in a hundred.
        let chosen = |rates: [f64; 2]| {
            let mut auto = tried(0.0, [[140.0, 0.0]; 5]);
            let rates = rates.into_iter().cycle().take(20);
            auto.strata = rates.map(|rate| (1e7, vec![rate, 0.0])).collect();
            auto.choose();
            auto.warm
        };
        assert_eq!(chosen([0.005, 0.005]), Some(TRIED));
        assert_eq!(chosen([0.001, 0.009]), Some(50_000));
    }

    #[test]
    fn intervals_grow_once_bounds_are_narrow_and_not_before() {
        // The same everywhere: known after a few windows.
        let mut even = Auto::new(SAMPLING, aim(0.02));
        let placed = intervals(&mut even, 300, |_, at| at % 4);
        let last = placed.last().unwrap();
        assert!(last.length >= 4 * placed[FIRST_TRIALS].length, "{last:?}");
        assert!(
            even.factor > 16 && last.length <= last.start / CHANGES,
            "it may do something else"
        );
        // One interval in four misses everything.
        let mut uneven = Auto::new(SAMPLING, aim(0.02));
        intervals(&mut uneven, 90, |interval, at| match interval % 4 {
            0 => at % (1 << 30),
            _ => at % 4,
        });
        assert_eq!(uneven.factor, 1);
    }
}
