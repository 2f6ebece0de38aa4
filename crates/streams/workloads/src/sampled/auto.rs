//! Where windows lie, by what earlier ones showed.

use super::aim::{Aim, Misses, Reach};
use super::arrays::LINES_OF_PAGE;
use super::pilot::{Pilot, Shown};
use super::warming::Warming;
use std::collections::{BTreeMap, VecDeque};
use strata_addr::{Range, space::Virtual};
use strata_stream::{Access, Array, Edge, Event, Pid, Placed, Sampling, Tid, half_width};
use strata_text::number::count;

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
const AGAIN: u64 = 2_000_000_000;

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

    /// What trials have shown of each array, where it is news.
    pub fn told(&mut self) -> Vec<Event> {
        match std::mem::take(&mut self.is_news) && !self.warming.is_unknown() {
            true => (0..self.aim.reaches.len()).map(|at| self.warmed(at)).collect(),
            false => Vec::new(),
        }
    }

    /// From where on misses of an array count, and how far they are off even so: in all windows, with what each had to warm
    /// up, next to those after the longest warming.
    ///
    /// How far these are off themselves is not to be seen. Longer warming has brought
    /// less and less: no doubling of it, up to what an interval is long, would change more than the last one did.
    fn warmed(&self, at: usize) -> Event {
        let counted = |warm| self.warming.counted(at, warm, self.aim.within);
        let longest = self.warming.longest();
        let (after, _) = counted(self.warm.unwrap_or(longest));
        let seen = self.warmed.iter().map(|(warm, length)| length * counted(*warm).1);
        let seen = seen.sum::<f64>() / self.warmed.values().sum::<f64>().max(1.0);
        let length = self.placed.back().map_or(FIRST, |(placed, _)| placed.length);
        let doublings = (length as f64 / longest as f64).log2().max(1.0);
        let unseen = self.warming.last_excess(at) * doublings;
        let off = |sign: f64| (sign * seen).max(0.0) + (sign * unseen).max(0.0);
        let millionths = |off: f64| (off * 1e6).min(1e9) as u64;
        let [over, under] = [off(1.0).max(self.kept(at)), off(-1.0).max(self.stale(at))];
        let [over, under] = [over, under].map(millionths);
        let array = self.aim.reaches[at].array;
        // No line is used first more than once.
        let guessed = match array {
            Array::LastLevelCache => self.guessed.min(self.pilot.most_guessed()) as u64,
            _ => 0,
        };
        Event::Warmed { array, after, over, under, guessed }
    }

    /// How many more misses an array may have, relative to them, as what it had before a gap is there only if it was used
    /// again, and nobody knows. What a program has not used since a gap, a long trial through, it has hardly used shortly before.
    ///
    /// Of the last-level cache where more is new from one window to the next than it holds: less replaces little of it. Of
    /// a TLB where nobody looked longer.
    fn stale(&self, at: usize) -> f64 {
        let reach = &self.aim.reaches[at];
        let new = self.warming.new_each(at) * self.all();
        let is_replaced = new / self.strata.len() as f64 > reach.entries as f64;
        let may_be = if reach.is_shared() { is_replaced } else { self.is_cheap(at) };
        match may_be && self.exceeds(reach) {
            true => (new / self.misses(at) - 1.0).max(0.0),
            false => 0.0,
        }
    }

    /// How many fewer misses an array may have, relative to them, as the program may have used in gaps what windows see it
    /// use first: of a TLB where nobody looked longer.
    fn kept(&self, at: usize) -> f64 {
        match self.is_cheap(at) && self.exceeds(&self.aim.reaches[at]) {
            true => (1.0 - self.warming.known_each(at) * self.all() / self.misses(at)).max(0.0),
            false => 0.0,
        }
    }

    /// Whether an array is the second-level TLB and its misses cost too little to look longer for them.
    fn is_cheap(&self, at: usize) -> bool {
        let Reach { array, cycles, .. } = self.aim.reaches[at];
        array == Array::L2Tlb && self.misses(at) * cycles < SMALL * self.all_cycles()
    }

    /// Whether the program uses more than an array holds, as far as is told.
    fn exceeds(&self, reach: &Reach) -> bool {
        let lines = self.pilot.lines();
        let used = if reach.holds_pages() { lines / LINES_OF_PAGE } else { lines };
        used > reach.entries
    }

    // ---- intervals ----

    /// Half the width of the interval around a figure, given by misses an instruction, as far as the pilot can tell.
    fn half(&self, rate: impl Fn(&Misses) -> f64) -> Option<f64> {
        half_width(self.strata.iter().map(|(length, misses)| (*length, rate(misses))))
    }

    /// Instructions of all intervals that are over.
    fn all(&self) -> f64 {
        self.strata.iter().map(|(length, _)| length).sum()
    }

    /// Misses of an array in all intervals that are over, and one at least.
    fn misses(&self, at: usize) -> f64 {
        self.sum(|misses| misses[at]).max(1.0)
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

    /// What a reader must know of the warming.
    pub fn notes(&self) -> Vec<String> {
        let Some(warm) = self.warm else { return Vec::new() };
        let percent = |off: f64| format!("{:.1} % {}", off.abs() * 100.0, more_or_fewer(off));
        let note = match self.warming.needs(warm, &self.aim, self.tolerated) {
            Some((array, off)) if warm == self.warming.longest() => format!(
                "windows had {} instructions to warm up, and that may be too few for the {array}: with half of \
                 them it had {} misses in trials",
                count(warm),
                percent(off)
            ),
            Some((array, off)) => format!(
                "windows had {} instructions to warm up, as the {array} needs: with half of them it had {} \
                 misses in trials",
                count(warm),
                percent(off)
            ),
            None => format!(
                "windows had {} instructions to warm up, which is more than this program needs",
                count(warm)
            ),
        };
        let is_llc = |at: &usize| self.aim.reaches[*at].is_shared();
        let is_stale = (0..self.aim.reaches.len()).filter(is_llc).any(|at| self.stale(at) > 0.0);
        let stale = is_stale.then(|| {
            "between two windows the program uses more lines than the last-level cache holds: whether it has those \
             of earlier windows still is not known, and bounds of its misses reach up to where it has none"
                .to_owned()
        });
        [note].into_iter().chain(stale).collect()
    }
}

fn more_or_fewer(off: f64) -> &'static str {
    if off < 0.0 { "fewer" } else { "more" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampled::trial::{Check, New};
    use strata_addr::Gva;

    fn aim(within: f64) -> Aim {
        let lines =
            Reach { array: Array::LastLevelCache, entries: 64 << 10, ways: 16, cycles: 100.0 };
        let pages = Reach { array: Array::L2Tlb, entries: 1024, ways: 8, cycles: 50.0 };
        Aim { within, base_cpi: 0.5, reaches: vec![lines, pages] }
    }

    const SAMPLING: Sampling = Sampling {
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
    fn tried(misses: f64, copies: [[f64; 2]; 5]) -> Auto {
        let mut auto = Auto::new(SAMPLING, aim(0.02));
        let copies = copies.map(|copy| copy.to_vec()).to_vec();
        let check = Check { instructions: WINDOW, misses: vec![100.0, misses], copies };
        auto.warming.take(TRIED, vec![check], None);
        auto.is_news = true;
        auto
    }

    #[test]
    fn misses_count_from_where_their_array_is_warm() {
        let mut auto = Auto::new(SAMPLING, aim(0.02));
        assert_eq!(auto.told(), [], "no trial has shown anything");
        // One of the arrays needs no warming, the other 800 thousand at least.
        let copies = [30.0, 40.0, 50.0, 90.0, 98.0].map(|misses| [100.0, misses]);
        let mut auto = tried(100.0, copies);
        auto.warm = Some(800_000);
        auto.warmed = BTreeMap::from([(800_000, 1e6)]);
        let doublings = (FIRST as f64 / TRIED as f64).log2();
        let off = |seen: f64| ((seen + 0.02 * doublings) * 1e6) as u64;
        let array = Array::L2Tlb;
        assert_eq!(
            auto.told(),
            [
                Event::Warmed {
                    array: Array::LastLevelCache,
                    after: 50_000,
                    over: 0,
                    under: 0,
                    guessed: 0
                },
                Event::Warmed { array, after: 800_000, over: 0, under: off(0.02), guessed: 0 },
            ]
        );
        assert_eq!(auto.told(), [], "it is told once");
        // Half of the windows had 200 thousand.
        auto.warmed = BTreeMap::from([(200_000, 1e6), (800_000, 1e6)]);
        auto.is_news = true;
        let Event::Warmed { under, .. } = auto.told()[1] else { panic!() };
        assert_eq!(under, off((0.02 + 0.5) / 2.0));
    }

    #[test]
    fn what_is_too_much_after_short_warming_is_too_much_after_long() {
        // Each doubling of warming takes a tenth away.
        let copies = [5, 4, 3, 2, 1].map(|copy| [100.0 + 10.0 * f64::from(copy), 0.0]);
        let mut auto = tried(0.0, copies);
        auto.warm = Some(TRIED);
        let doublings = (FIRST as f64 / TRIED as f64).log2();
        let Event::Warmed { after, over, under, .. } = auto.warmed(0) else { panic!() };
        assert_eq!((after, over, under), (TRIED, (0.1 * doublings * 1e6) as u64, 0));
        // An array that misses nothing however long it was warmed up is warm at once.
        let Event::Warmed { after, over, under, .. } = auto.warmed(1) else { panic!() };
        assert_eq!((after, over, under), (50_000, 0, 0));
    }

    /// After a trial in which empty arrays missed so often in 800,000 instructions, of a program that has used so many pages.
    fn tried_empty(misses: [f64; 2], pages: u64) -> Auto {
        let mut auto = tried(0.0, [[100.0, 0.0]; 5]);
        let new = New { instructions: TRIED / 2, misses: misses.to_vec(), pages: 4.0 };
        auto.warming.take(TRIED, Vec::new(), Some(new));
        auto.touched(Pid(0), Range::sized(Gva::new(1 << 32), pages << 12), false);
        auto
    }

    #[test]
    fn lines_of_earlier_windows_may_be_gone_where_windows_are_far_apart() {
        let under = |pages: u64, length: f64, misses: f64| {
            let mut auto = tried_empty([8000.0, 0.0], pages);
            auto.strata = vec![(length, vec![misses, 0.0]); 4];
            let Event::Warmed { under, .. } = auto.warmed(0) else { panic!() };
            auto.warm = Some(TRIED);
            let told = auto.notes().iter().any(|note| note.contains("between two windows"));
            assert_eq!(told, under > 0);
            under
        };
        // A hundredth of instructions uses a new line: 64 Ki lines take 6.6 million. Windows had half as many misses.
        assert_eq!(under(2000, 1e7, 0.005), 1_000_000);
        assert_eq!(under(2000, 1e7, 0.01), 0);
        assert_eq!(under(2000, 6e6, 0.005), 0, "not all is replaced from one to the next");
        assert_eq!(under(500, 1e7, 0.005), 0, "all lines that there are fit");
    }

    /// In a hundred thousand instructions an empty TLB has one page not, in twice as many as it was not used since the gap.
    #[test]
    fn pages_may_have_been_used_in_gaps_or_not() {
        let off = |pages: u64, misses: f64| {
            let mut auto = tried_empty([0.0, 8.0], pages);
            auto.strata = vec![(1e7, vec![0.0, misses * 1e-5]); 4];
            let Event::Warmed { over, under, .. } = auto.warmed(1) else { panic!() };
            [over, under]
        };
        assert_eq!(off(2000, 0.8), [375_000, 250_000]);
        assert_eq!(off(2000, 2.0), [750_000, 0]);
        assert_eq!(off(2000, 0.4), [0, 1_500_000]);
        assert_eq!(off(1000, 0.8), [0, 0], "the TLB has room for all");
        assert_eq!(
            off(2000, 20.0),
            [0, 0],
            "it costs a hundredth of all cycles: trials look for it"
        );
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
