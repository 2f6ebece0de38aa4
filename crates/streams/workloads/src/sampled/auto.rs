//! Where windows lie, by what earlier ones showed.

use super::pilot::{COPIES, Misses, Pilot, Reach, Shown};
use std::collections::VecDeque;
use strata_addr::{Range, space::Virtual};
use strata_stream::{Access, Array, Edge, Event, Pid, Placed, Sampling, Tid, half_width};
use strata_text::number::count;

/// What is run whole before anything is left out, in instructions: less is quicker run whole.
const WHOLE: u64 = 20_000_000;

/// What counts of each interval, in instructions.
const WINDOW: u64 = 400_000;

/// The first intervals, in instructions.
const FIRST: u64 = 10_000_000;

/// The longest warming that is tried at first.
const TRIED: u64 = 1_600_000;

/// The longest that is ever tried.
const MOST: u64 = 12_800_000;

/// Trials with one longest warming before it is known how much is enough.
const TRIALS: usize = 4;

/// Intervals from one trial to the next, once it is known.
const AGAIN: u64 = 16;

/// An interval is at least so many times as long as what is seen of it in detail.
const SHARE: u64 = 12;

/// Nor are intervals shorter than this: each switch costs some.
const LEAST: u64 = 4_000_000;

/// Windows between two changes of how long intervals are.
const STEP: u64 = 16;

/// Most that intervals grow, as all bounds are narrow enough.
const LONGEST: u64 = 1 << 10;

/// Less warming may change misses by this share of the aim, relative to them.
const TOLERANCE: f64 = 0.5;

/// Or all cycles by this share of it.
const OF_CYCLES: f64 = 0.25;

/// Misses that cost less than this, relative to all cycles, need not be known well.
const SMALL: f64 = 0.01;

/// What `auto` is to reach, and for which CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Aim {
    /// Half the width of the widest interval, relative to what it is around.
    pub within: f64,
    /// Cycles of an instruction that misses nothing.
    pub base_cpi: f64,
    /// The arrays of the CPU, the largest first.
    pub reaches: Vec<Reach>,
}

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
    /// Trials with the present longest warming.
    trials: Vec<Shown>,
    longest: u64,
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
            trials: Vec::new(),
            longest: TRIED,
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
                self.pilot.warm(placed.warm, is_trial);
                None
            }
            Edge::Window => {
                self.pilot.open();
                None
            }
            Edge::Gap => {
                let shown = self.pilot.close();
                self.placed.pop_front();
                self.learn(placed, is_trial, shown);
                Some(self.place())
            }
        }
    }

    fn learn(&mut self, placed: Placed, is_trial: bool, shown: Shown) {
        if shown.instructions == 0 {
            return;
        }
        let rate = |misses: &f64| misses / shown.instructions as f64;
        self.guessed += rate(&shown.guessed) * placed.length as f64;
        self.is_news = true;
        self.strata.push((placed.length as f64, shown.misses.iter().map(rate).collect()));
        if is_trial && placed.warm == self.longest {
            self.trials.push(shown);
            if self.trials.len() >= TRIALS {
                self.choose();
            }
        }
        self.since += 1;
        if self.warm.is_some() && self.since >= STEP {
            self.since = 0;
            self.factor = match self.is_met() {
                true => (self.factor * 2).min(LONGEST),
                false => (self.factor / 2).max(1),
            };
        }
    }

    // ---- warming ----

    /// How much warming is enough, by the trials there are.
    fn choose(&mut self) {
        let enough = (0..COPIES).take_while(|copy| self.spared(*copy).is_none());
        match enough.count() as u32 {
            // Half of it is not as good: more than all of it may be better.
            0 if self.longest < MOST => {
                self.longest *= 2;
                self.trials.clear();
                self.warm = None;
            }
            halvings => self.warm = Some(self.longest >> halvings),
        }
        // What a program does later is not what it did at first.
        if self.trials.len() >= 4 * TRIALS {
            self.trials.drain(..TRIALS);
        }
    }

    /// The first array whose misses tell that a copy was not warmed up enough, and by how much they are off.
    fn spared(&self, copy: usize) -> Option<(&'static str, f64)> {
        let Aim { within, reaches, .. } = &self.aim;
        let of = |figure: &dyn Fn(&Shown) -> f64| self.trials.iter().map(figure).sum::<f64>();
        let cycles = of(&|shown| self.cycles(shown.instructions as f64, &shown.misses));
        reaches.iter().enumerate().find_map(|(at, reach)| {
            let all = of(&|shown| shown.misses[at]);
            let less = of(&|shown| shown.copies.get(copy).map_or(0.0, |misses| misses[at]));
            let off = (less - all).abs();
            let fits = off <= TOLERANCE * within * all
                || off * reach.cycles <= OF_CYCLES * within * cycles;
            (!fits).then_some((reach.array.name(), (less - all) / all.max(1.0)))
        })
    }

    /// What instructions that miss so often take, roughly.
    fn cycles(&self, instructions: f64, misses: &Misses) -> f64 {
        let each = self.aim.reaches.iter().zip(misses);
        self.aim.base_cpi * instructions + each.map(|(r, misses)| r.cycles * misses).sum::<f64>()
    }

    /// What trials have shown of each array, where it is news.
    pub fn told(&mut self) -> Vec<Event> {
        match std::mem::take(&mut self.is_news) && !self.trials.is_empty() {
            true => (0..self.aim.reaches.len()).map(|at| self.warmed(at)).collect(),
            false => Vec::new(),
        }
    }

    /// From where on misses of an array count, and how far they are off even so.
    ///
    /// That is as soon as what counts has at most half as many misses too many, or too few, as is asked for, next to
    /// those after the longest warming. How far these are off themselves is not to be seen. Longer warming has brought
    /// less and less: no doubling of it, up to what an interval is long, would change more than the last one did.
    fn warmed(&self, at: usize) -> Event {
        let warm = self.warm.unwrap_or(self.longest);
        let started = |copy: usize| self.longest >> (copy + 1);
        let is_enough =
            |copy: &usize| self.mean_excess(at, *copy, warm).abs() <= TOLERANCE * self.aim.within;
        let first = (0..COPIES).rev().filter(|copy| started(*copy) < warm).find(is_enough);
        let (after, seen) = match first {
            Some(copy) => (started(copy), self.mean_excess(at, copy, warm)),
            None => (
                warm,
                (0..COPIES)
                    .find(|copy| started(*copy) == warm)
                    .map_or(0.0, |copy| self.excess(at, copy)),
            ),
        };
        let length = self.placed.back().map_or(FIRST, |(placed, _)| placed.length);
        let unseen = self.excess(at, 0) * (length as f64 / self.longest as f64).log2().max(1.0);
        let millionths = |sign: f64| {
            let off = (sign * seen).max(0.0) + (sign * unseen).max(0.0);
            (off * 1e6).min(1e9) as u64
        };
        let array = self.aim.reaches[at].array;
        // No line is used first more than once.
        let guessed = match array {
            Array::LastLevelCache => self.guessed.min(self.pilot.most_guessed()) as u64,
            _ => 0,
        };
        Event::Warmed { array, after, over: millionths(1.0), under: millionths(-1.0), guessed }
    }

    /// How many more misses an array has in trials with what a copy had to warm up, relative to them.
    fn excess(&self, at: usize, copy: usize) -> f64 {
        let of = |figure: &dyn Fn(&Shown) -> f64| self.trials.iter().map(figure).sum::<f64>();
        let all = of(&|shown| shown.misses[at]);
        let less = of(&|shown| shown.copies.get(copy).map_or(0.0, |misses| misses[at]));
        if less == all { 0.0 } else { (less - all) / all.max(1.0) }
    }

    /// The same of all that follows what the copy had, in windows with that much warming.
    fn mean_excess(&self, at: usize, copy: usize, warm: u64) -> f64 {
        let end = warm + self.sampling.window;
        let begin = self.longest >> (copy + 1);
        let parts = (0..=copy).rev().map(|copy| {
            let [from, to] =
                [self.longest >> (copy + 1), self.longest >> copy].map(|at| at.min(end));
            (to - from) as f64 * self.excess(at, copy)
        });
        parts.sum::<f64>() / (end - begin) as f64
    }

    // ---- intervals ----

    /// Whether all bounds are as narrow as they are to be, as far as the pilot can tell.
    fn is_met(&self) -> bool {
        let sum = |rate: &dyn Fn(&Misses) -> f64| -> f64 {
            self.strata.iter().map(|(instructions, misses)| instructions * rate(misses)).sum()
        };
        let half = |rate: &dyn Fn(&Misses) -> f64| {
            half_width(self.strata.iter().map(|(length, misses)| (*length, rate(misses))))
        };
        let Aim { reaches, within, .. } = &self.aim;
        let cost = |misses: &Misses| self.cycles(1.0, misses);
        let (whole, before) = &self.whole;
        let all = sum(&cost) + self.cycles(*whole as f64, before);
        let known = |half: Option<f64>, all: f64| half.is_some_and(|half| half <= within * all);
        known(half(&cost), all)
            && reaches.iter().enumerate().all(|(at, reach)| {
                let misses = sum(&|misses| misses[at]) + before[at];
                misses * reach.cycles < SMALL * all || known(half(&|misses| misses[at]), misses)
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
            None => (self.longest, true),
            Some(_) if number.is_multiple_of(AGAIN) => (self.longest, true),
            Some(warm) => (warm, false),
        };
        let length = match self.warm {
            None => FIRST.max(4 * (warm + window)),
            Some(enough) => {
                let least = LEAST.max(SHARE * (enough + window)).saturating_mul(self.factor);
                least.max(warm + window)
            }
        };
        let mut placed = Placed { number, start, length, gap: 0, warm };
        placed.gap = placed.drawn(&self.sampling);
        self.placed.push_back((placed, is_trial));
        placed
    }

    /// What a reader must know of the warming.
    pub fn notes(&self) -> Vec<String> {
        let Some(warm) = self.warm else { return Vec::new() };
        let halvings = (self.longest / warm).trailing_zeros() as usize;
        let percent = |off: f64| format!("{:.1} % {}", off.abs() * 100.0, more_or_fewer(off));
        // Of half of the least that is tried nothing is known.
        let note = match self.spared(halvings).filter(|_| halvings < COPIES) {
            Some((array, off)) if halvings == 0 => format!(
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
        vec![note]
    }
}

fn more_or_fewer(off: f64) -> &'static str {
    if off < 0.0 { "fewer" } else { "more" }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// Goes through intervals of a program that uses lines at random, of `lines(interval)` lines, every
    /// tenth instruction. Gives the intervals.
    fn intervals(auto: &mut Auto, number: usize, lines: impl Fn(usize) -> u64) -> Vec<Placed> {
        let mut state = 1_u64;
        let mut run = |auto: &mut Auto, instructions: u64, lines: u64| {
            for _ in 0..instructions / 10_000 {
                let mut at = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    Gva::new((1 << 32) + (state >> 33) % lines * 64)
                };
                let accesses: Vec<Access> = (0..1000).map(|_| Access::load(at(), 8)).collect();
                auto.run(Pid(0), Tid(0), 10_000, &accesses);
            }
        };
        run(auto, 1_000_000, lines(0));
        let mut all = Vec::new();
        for interval in 0..number {
            let placed = auto.placed().next().unwrap();
            all.push(placed);
            assert_eq!(auto.edge(Edge::Interval), None);
            assert_eq!(auto.edge(Edge::Warm), None);
            run(auto, placed.warm, lines(interval));
            assert_eq!(auto.edge(Edge::Window), None);
            run(auto, WINDOW, lines(interval));
            let next = auto.edge(Edge::Gap).expect("one is placed for each that is over");
            assert_eq!(next.number, placed.number + 2);
        }
        for pair in all.windows(2) {
            assert_eq!(pair[0].start + pair[0].length, pair[1].start, "no instruction is left out");
            assert!(pair[0].warm + WINDOW <= pair[0].length);
        }
        all
    }

    #[test]
    fn what_stays_in_the_caches_needs_little_warming_and_what_does_not_needs_more() {
        let mut small = Auto::new(SAMPLING, aim(0.02));
        let placed = intervals(&mut small, TRIALS + 3, |_| 4);
        assert!(placed[..TRIALS].iter().all(|placed| placed.warm == TRIED));
        assert_eq!(placed[TRIALS + 2].warm, TRIED >> COPIES);
        assert!(small.notes()[0].contains("more than this program needs"), "{:?}", small.notes());
        // What misses however long it was warmed up does after the least that is tried, too.
        let mut large = Auto::new(SAMPLING, aim(0.02));
        let placed = intervals(&mut large, TRIALS + 3, |_| 1 << 30);
        assert_eq!(placed[TRIALS + 2].warm, TRIED >> COPIES);
        assert!(large.notes()[0].contains("more than this program needs"), "{:?}", large.notes());
        // Each interval has new lines, more than a short warming brings.
        let mut other = Auto::new(SAMPLING, aim(0.02));
        let mut state = 0;
        let mut sizes = Vec::new();
        for _ in 0..100 {
            state += 1;
            sizes.push(20_000 + state % 2);
        }
        let placed = intervals(&mut other, TRIALS + 3, |interval| sizes[interval]);
        let chosen = placed[TRIALS + 2].warm;
        assert!(chosen > TRIED >> COPIES, "{chosen}");
        assert!(other.notes()[0].contains("as the last-level cache needs"), "{:?}", other.notes());
    }

    #[test]
    fn misses_count_from_where_their_array_is_warm() {
        let mut auto = Auto::new(SAMPLING, aim(0.02));
        assert_eq!(auto.told(), [], "no trial has shown anything");
        // Trials with 1.6 million instructions: one of the arrays needs no warming, the other 800 thousand at least.
        let copies = [98.0, 90.0, 50.0, 40.0, 30.0];
        let copies = copies.map(|misses| vec![100.0, misses]).to_vec();
        let shown = Shown { instructions: WINDOW, misses: vec![100.0; 2], copies, guessed: 0.0 };
        auto.trials = vec![shown];
        (auto.warm, auto.is_news) = (Some(800_000), true);
        let doublings = (FIRST as f64 / TRIED as f64).log2();
        let under = ((0.02 + 0.02 * doublings) * 1e6) as u64;
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
                Event::Warmed { array: Array::L2Tlb, after: 800_000, over: 0, under, guessed: 0 },
            ]
        );
        assert_eq!(auto.told(), [], "it is told once");
    }

    #[test]
    fn what_is_too_much_after_short_warming_is_too_much_after_long() {
        let mut auto = Auto::new(SAMPLING, aim(0.02));
        // Each doubling of warming takes a tenth away.
        let copies = (1..=COPIES).map(|copy| vec![100.0 + 10.0 * copy as f64, 0.0]).collect();
        let shown = Shown { instructions: WINDOW, misses: vec![100.0, 0.0], copies, guessed: 0.0 };
        (auto.trials, auto.warm) = (vec![shown], Some(TRIED));
        let doublings = (FIRST as f64 / TRIED as f64).log2();
        let Event::Warmed { after, over, under, .. } = auto.warmed(0) else { panic!() };
        assert_eq!((after, over, under), (TRIED, (0.1 * doublings * 1e6) as u64, 0));
        // An array that misses nothing however long it was warmed up is warm at once.
        let Event::Warmed { after, over, under, .. } = auto.warmed(1) else { panic!() };
        assert_eq!((after, over, under), (TRIED >> COPIES, 0, 0));
    }

    #[test]
    fn intervals_grow_once_bounds_are_narrow_and_not_before() {
        // The same everywhere: known after a few windows.
        let mut even = Auto::new(SAMPLING, aim(0.02));
        let placed = intervals(&mut even, 90, |_| 4);
        let last = placed.last().unwrap().length;
        assert!(last >= 8 * placed[TRIALS + 2].length, "{last}");
        // One interval in four misses everything.
        let mut uneven = Auto::new(SAMPLING, aim(0.02));
        let placed =
            intervals(&mut uneven, 90, |interval| if interval % 4 == 0 { 1 << 30 } else { 4 });
        let longest = placed.iter().skip(2 * TRIALS).map(|placed| placed.length).max().unwrap();
        assert!(longest <= FIRST.max(SHARE * (MOST + WINDOW)), "{longest}");
        assert_eq!(uneven.factor, 1);
    }
}
