//! What is estimated of a sampled stream, and how far it may be off.
//!
//! Each interval of the stream is a stratum with one window at a random place in it. What was counted in
//! the window, times the instructions of the interval over those of the window, is the estimate for the
//! interval; the part that is traced whole is added as it is. How far the sum may be off is
//! [`half_width`]'s to say.
//!
//! A stream that is sampled by phases is [`Phases`]'s to estimate. Of any other:
//!
//! Page faults of all intervals are known, so it is known by how many the estimate of page faults from
//! windows is off. What is touched first misses in all caches, so other counts are off with it: each is
//! corrected by so many page faults times what a page fault adds to it in windows (the regression estimator,
//! Cochran, Sampling Techniques, 3rd edition, chapter 7). Its interval is that of what page faults do not explain.

use crate::figures::{ACCESSES, CYCLES, FIGURES, Figures, figures};
use crate::phases::{PhaseShare, Phases};
use crate::regression::{Slopes, slope_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strata_counters::Count;
use strata_hardware::{HardwareCounters, Machine};
use strata_stream::{FEWEST_WINDOWS, half_width};

/// Bounds of a figure that was estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// The figure of the whole stream is not below this, with the confidence of
    /// [`Sampled::confidence`].
    pub low: f64,
    /// Nor above this.
    pub high: f64,
}

impl Bounds {
    fn around(value: f64, half: f64) -> Self {
        Self { low: (value - half).max(0.0), high: value + half }
    }

    /// Half the width.
    pub fn half(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// How far the figure may be off, relative to the value that the bounds are around; 0 around nothing.
    pub fn relative(&self, value: f64) -> f64 {
        if value > 0.0 { (self.high - value).max(value - self.low) / value } else { 0.0 }
    }
}

/// Whose windows stand for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// Each interval of the stream has a window of its own.
    #[default]
    Intervals,
    /// Each phase of the stream has windows.
    Phases,
}

/// What a sampled run says besides its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// What windows stand for.
    #[serde(default)]
    pub choice: Choice,
    /// The phases of the stream, if they do for phases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseShare>,
    /// Windows that count.
    pub windows: u64,
    /// Instructions at the beginning, traced whole: what they did counts as it is.
    pub whole_instructions: u64,
    /// Instructions in windows.
    pub window_instructions: u64,
    /// Instructions of which no access was seen.
    pub skipped_instructions: u64,
    /// How often in 100 runs with other seeds the bounds hold the figure of the whole stream.
    pub confidence: u32,
    /// The bounds of figures, by their names in the result.
    pub bounds: BTreeMap<String, Bounds>,
    /// Fields of the result that are estimated; all others are exact, as far as the order of touches in
    /// gaps does not matter to them.
    pub estimated: Vec<String>,
}

/// What is estimated and has no bounds of its own, or those of another figure.
const OTHERS: [&str; 13] = [
    "tlb.fills",
    "walks",
    "walk_positions",
    "elapsed_cycles",
    "elapsed_seconds",
    "cycles_by_kind.execution",
    "cycles_by_kind.data",
    "cycles_by_kind.walks",
    "bill",
    "relative_throughput",
    "counters of hardware",
    "cpus",
    "samples",
];

/// One interval of the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stratum {
    /// Instructions of the interval.
    instructions: f64,
    /// Instructions of its window.
    window: f64,
    /// Page faults of its window for each instruction.
    faults: f64,
    /// Figures of its window for each instruction.
    rates: Figures,
}

/// The intervals of a stream so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Strata {
    /// What was traced whole, without what was charged.
    whole: HardwareCounters,
    /// Figures and page faults of it.
    whole_figures: Figures,
    whole_faults: u64,
    /// Each single count of all intervals that are over.
    sums: Vec<f64>,
    /// What all windows counted.
    seen: HardwareCounters,
    intervals: Vec<Stratum>,
    /// What the last window counted, and its page faults.
    last: HardwareCounters,
    last_faults: u64,
    /// Page faults of all intervals that are over, as windows tell, and as they were.
    faults: [f64; 2],
    /// What each single count has to do with page faults.
    slopes: Slopes,
    /// Instructions of intervals that ended before their window did, and are not accounted for.
    orphaned: u64,
    /// Cycles of the hardware, and instructions, in what counts.
    cycles: f64,
    instructions: f64,
    /// What is known by phases, if the stream is sampled so.
    phases: Option<Box<Phases>>,
}

impl Strata {
    /// After a part traced whole, of which this was counted.
    pub(crate) fn new(whole: HardwareCounters, faults: u64, machine: &Machine) -> Self {
        let mut strata =
            Self { whole: without_charges(whole), whole_faults: faults, ..Self::default() };
        strata.slopes.add(&strata.whole, faults);
        strata.whole_figures = figures(&strata.whole, machine);
        strata.cycles = machine.explain(&strata.whole).total();
        strata.instructions = strata.whole.instructions as f64;
        strata
    }

    /// Cycles of the hardware for an instruction, as far as is known.
    pub(crate) fn cycles_per_instruction(&self, machine: &Machine) -> f64 {
        match self.instructions {
            0.0 => machine.model().core.base_cpi,
            all => self.cycles / all,
        }
    }

    /// The stream is sampled by phases: the next window is of this one.
    pub(crate) fn phase(&mut self, phase: u32, intervals: u64, instructions: u64) {
        self.phases.get_or_insert_default().tell(phase, intervals, instructions);
    }

    /// A window is over.
    pub(crate) fn window(&mut self, counted: HardwareCounters, faults: u64, machine: &Machine) {
        self.last = without_charges(counted);
        self.last_faults = faults;
        self.slopes.add(&self.last, faults);
        self.seen += &self.last;
        self.cycles += machine.explain(&self.last).total();
        self.instructions += self.last.instructions as f64;
        if let Some(phases) = &mut self.phases {
            phases.window(&self.last, figures(&self.last, machine));
        }
    }

    /// An interval is over, in which a window ended, or none did. `faults` are all so far.
    pub(crate) fn interval(
        &mut self,
        instructions: u64,
        has_window: bool,
        faults: u64,
        machine: &Machine,
    ) {
        if self.phases.is_some() {
            return;
        }
        self.faults[1] = faults.saturating_sub(self.whole_faults) as f64;
        if !has_window || self.last.instructions == 0 {
            self.orphaned += instructions;
            return;
        }
        let all = instructions + std::mem::take(&mut self.orphaned);
        let mut rates = figures(&self.last, machine);
        let window = self.last.instructions as f64;
        rates.iter_mut().for_each(|figure| *figure /= window);
        let faults = self.last_faults as f64 / window;
        self.intervals.push(Stratum { instructions: all as f64, window, faults, rates });
        self.add(all);
    }

    /// Adds the last window, for so many instructions.
    fn add(&mut self, instructions: u64) {
        let weight = instructions as f64 / self.last.instructions as f64;
        self.faults[0] += self.last_faults as f64 * weight;
        let mut at = 0;
        let sums = &mut self.sums;
        self.last.visit(&mut |count| {
            if at == sums.len() {
                sums.push(0.0);
            }
            sums[at] += count as f64 * weight;
            at += 1;
        });
    }

    /// The stream is over.
    pub(crate) fn end(&mut self) {
        let orphaned = std::mem::take(&mut self.orphaned);
        if orphaned == 0 {
            return;
        }
        match self.intervals.last_mut() {
            Some(last) => last.instructions += orphaned as f64,
            // No window at all: the beginning has to stand for the rest.
            None => (self.last, self.last_faults) = (self.whole.clone(), self.whole_faults),
        }
        if self.last.instructions > 0 {
            self.add(orphaned);
        }
    }

    /// What was counted and estimated of intervals that are over. Instructions and charges are those
    /// of `exact`.
    pub(crate) fn totals(&self, exact: &HardwareCounters) -> HardwareCounters {
        let mut totals = self.whole.clone();
        if let Some(phases) = &self.phases {
            let seen = phases.estimate(self.beyond_whole(exact.instructions));
            totals += &seen.unwrap_or_default();
            totals.instructions = exact.instructions;
            totals.charged = exact.charged;
            return totals;
        }
        let unseen = self.unseen_faults();
        let mut seen = Vec::new();
        self.seen.visit(&mut |count| seen.push(count));
        let corrected = |by: f64| {
            let mut sums = self.sums.iter().zip(&seen).enumerate();
            let mut counters = HardwareCounters::default();
            counters.set(&mut || {
                sums.next()
                    .map_or(0, |(at, (sum, seen))| estimate(sum + self.slopes.of(at) * by, *seen))
            });
            counters
        };
        let mut estimated = corrected(unseen);
        // How often a program accesses memory is not for page faults to say, which policies have more or fewer of.
        let HardwareCounters { accesses, loads, stores, page_crossings, .. } = corrected(0.0);
        estimated = HardwareCounters { accesses, loads, stores, page_crossings, ..estimated };
        totals += &estimated;
        totals.instructions = exact.instructions;
        totals.charged = exact.charged;
        totals
    }

    /// Of so many instructions those after what was run whole.
    fn beyond_whole(&self, instructions: u64) -> u64 {
        instructions.saturating_sub(self.whole.instructions)
    }

    /// What is to be said of a run whose elapsed cycles are that many for each cycle of all CPUs.
    pub(crate) fn describe(
        &self,
        totals: &HardwareCounters,
        elapsed: f64,
        skipped: u64,
        machine: &Machine,
    ) -> Sampled {
        let values = figures(&without_charges(totals.clone()), machine);
        let charged: u64 = totals.charged.iter().sum();
        let mut bounds = BTreeMap::new();
        for (index, name) in FIGURES.iter().enumerate() {
            let Some(half) = self.half(index, totals.instructions) else { continue };
            let exact = if index == CYCLES { charged as f64 } else { 0.0 };
            let around = Bounds::around(values[index] + exact, half);
            bounds.insert((*name).to_owned(), around);
            if index == CYCLES {
                let value = (values[index] + exact) * elapsed;
                bounds.insert("elapsed_cycles".to_owned(), Bounds::around(value, half * elapsed));
            }
        }
        let others = OTHERS.iter().chain(&FIGURES).map(|name| (*name).to_owned());
        let mut estimated: Vec<String> = others.collect();
        estimated.sort();
        let phases = self.phases.as_deref();
        Sampled {
            choice: if phases.is_some() { Choice::Phases } else { Choice::Intervals },
            phases: phases.map(Phases::shares).unwrap_or_default(),
            windows: phases.map_or(self.intervals.len() as u64, Phases::windows),
            whole_instructions: self.whole.instructions,
            window_instructions: self.seen.instructions,
            skipped_instructions: skipped,
            confidence: 95,
            bounds,
            estimated,
        }
    }

    /// What a reader must know of it.
    pub(crate) fn note(&self, instructions: u64) -> Option<String> {
        if let Some(phases) = &self.phases {
            return phases.note(instructions);
        }
        match self.intervals.len() {
            0 => Some(
                "sampled, but no window was over before the stream was: its beginning stands for the \
                 rest; take shorter intervals, or run it whole"
                    .to_owned(),
            ),
            few if few < FEWEST_WINDOWS => Some(format!(
                "sampled with {few} windows, too few to say how far estimates are off: take shorter \
                 intervals, or run it whole"
            )),
            _ => None,
        }
    }

    /// Page faults that the estimates of windows lack; below 0 for those that they have too many.
    fn unseen_faults(&self) -> f64 {
        let [told, all] = self.faults;
        if self.intervals.len() < FEWEST_WINDOWS { 0.0 } else { all - told }
    }

    /// Half the width of the interval of a figure.
    fn half(&self, figure: usize, instructions: u64) -> Option<f64> {
        if let Some(phases) = &self.phases {
            return phases.half(self.beyond_whole(instructions), |_, rates| rates[figure]);
        }
        if self.intervals.iter().all(|stratum| stratum.rates[figure] == 0.0) {
            return None;
        }
        let fit = if figure == ACCESSES { self.uncorrected(figure) } else { self.fit(figure) };
        let lengths = self.intervals.iter().map(|stratum| stratum.instructions);
        let chance = half_width(lengths.zip(fit.rates.iter().copied()))?;
        // The slope is known from the same windows, and not for sure.
        Some(chance.hypot(2.0 * fit.error * self.unseen_faults()))
    }

    /// A figure that page faults have nothing to do with.
    fn uncorrected(&self, figure: usize) -> Fit {
        let rates = self.intervals.iter().map(|stratum| stratum.rates[figure]).collect();
        Fit { rates, error: 0.0 }
    }

    /// Instructions, page faults and a figure of each part that was seen.
    fn points(&self, figure: usize) -> Vec<[f64; 3]> {
        let instructions = self.whole.instructions as f64;
        let whole = [instructions, self.whole_faults as f64, self.whole_figures[figure]];
        let first = (instructions > 0.0).then_some(whole);
        let windows = self.intervals.iter().map(|stratum| {
            let Stratum { window, faults, rates, .. } = stratum;
            [*window, faults * window, rates[figure] * window]
        });
        first.into_iter().chain(windows).collect()
    }

    /// A figure without what page faults have to do with it.
    fn fit(&self, figure: usize) -> Fit {
        let (slope, error) = slope_of(&self.points(figure));
        let rates = self.intervals.iter();
        let rates = rates.map(|stratum| stratum.rates[figure] - slope * stratum.faults).collect();
        Fit { rates, error }
    }

    /// Half the width of the interval of the time of one run over that of another on the same stream.
    /// `own` and `base` are elapsed cycles of each, and for each cycle of all CPUs.
    pub(crate) fn relative(&self, base: &Self, own: Elapsed, of_base: Elapsed) -> Option<f64> {
        if let (Some(phases), Some(of_phases)) = (&self.phases, &base.phases) {
            return relative_by_phases(phases, of_phases, own, of_base);
        }
        if self.intervals.len() != base.intervals.len() {
            return None;
        }
        let relative = of_base.cycles / own.cycles;
        let (own_fit, base_fit) = (self.fit(CYCLES), base.fit(CYCLES));
        let rates = own_fit.rates.iter().zip(&base_fit.rates);
        let residuals = self.intervals.iter().zip(rates).map(|(stratum, (own_rate, base_rate))| {
            let difference = base_rate * of_base.share - relative * own_rate * own.share;
            (stratum.instructions, difference)
        });
        Some(half_width(residuals)? / own.cycles)
    }
}

/// The same of streams that are sampled by phases.
fn relative_by_phases(
    phases: &Phases,
    base: &Phases,
    own: Elapsed,
    of_base: Elapsed,
) -> Option<f64> {
    let relative = of_base.cycles / own.cycles;
    let of_base_rates = base.rates(CYCLES);
    if of_base_rates.len() as u64 != phases.windows() {
        return None;
    }
    let half = phases.half(own.instructions, |window, rates| {
        of_base_rates[window] * of_base.share - relative * rates[CYCLES] * own.share
    });
    Some(half? / own.cycles)
}

/// What a figure is without page faults.
#[derive(Clone, Debug)]
struct Fit {
    /// In each window, for each instruction.
    rates: Vec<f64>,
    /// The standard error of what a page fault adds.
    error: f64,
}

/// A count that was estimated: no less than there was in windows, which a slope may promise by chance.
fn estimate(corrected: f64, seen: u64) -> u64 {
    (corrected.round() as u64).max(seen)
}

/// What the bounds of relations between runs are made of: each window of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    pub(crate) strata: Box<Strata>,
    pub(crate) elapsed: Elapsed,
}

/// Elapsed cycles, and those for each cycle of all CPUs; and the instructions that were estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Elapsed {
    pub(crate) instructions: u64,
    pub(crate) cycles: f64,
    pub(crate) share: f64,
}

fn without_charges(mut counters: HardwareCounters) -> HardwareCounters {
    counters.charged = Default::default();
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_no_less_than_windows_counted() {
        assert_eq!([estimate(-500.0, 0), estimate(-500.0, 7), estimate(6.4, 7)], [0, 7, 7]);
        assert_eq!([estimate(7.6, 7), estimate(0.2, 0)], [8, 0]);
    }
}
