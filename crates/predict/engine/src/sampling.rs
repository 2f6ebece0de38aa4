//! What is estimated of a sampled stream, and how far it may be off.
//!
//! Each interval of the stream is a stratum with one window at a random place in it. What was counted in
//! the window, times the instructions of the interval over those of the window, is the estimate for the
//! interval; the part that is traced whole is added as it is. How far the sum may be off is
//! [`half_width`]'s to say.

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

    /// Half the width, relative to the middle; 0 around nothing.
    pub fn relative(&self) -> f64 {
        let middle = (self.low + self.high) / 2.0;
        if middle > 0.0 { self.half() / middle } else { 0.0 }
    }
}

/// What a sampled run says besides its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
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

/// What has bounds: names in a result, and the figure of what was counted.
pub(crate) const FIGURES: [&str; 7] = [
    "accesses",
    "tlb.l1_misses",
    "tlb.l2_misses",
    "walk_refs",
    "walk_cycles",
    "counters.strata.data_memory",
    "cycles",
];

const CYCLES: usize = FIGURES.len() - 1;

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

/// The figures with bounds, of counters without what was charged.
fn figures(counters: &HardwareCounters, machine: &Machine) -> [f64; FIGURES.len()] {
    [
        counters.accesses as f64,
        counters.l1_misses as f64,
        counters.l2_misses as f64,
        counters.walk_refs as f64,
        counters.walk_cycles as f64,
        counters.data.memory as f64,
        machine.explain(counters).total(),
    ]
}

/// One interval of the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stratum {
    /// Instructions of the interval.
    instructions: f64,
    /// Figures of its window for each instruction.
    rates: [f64; FIGURES.len()],
}

/// The intervals of a stream so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Strata {
    /// What was traced whole, without what was charged.
    whole: HardwareCounters,
    /// Each single count of all intervals that are over.
    sums: Vec<f64>,
    intervals: Vec<Stratum>,
    /// What the last window counted.
    last: HardwareCounters,
    /// Instructions of intervals that ended before their window did, and are not accounted for.
    orphaned: u64,
    window_instructions: u64,
    /// Cycles of the hardware, and instructions, in what counts.
    cycles: f64,
    instructions: f64,
}

impl Strata {
    /// After a part traced whole, of which this was counted.
    pub(crate) fn new(whole: HardwareCounters, machine: &Machine) -> Self {
        let mut strata = Self { whole: without_charges(whole), ..Self::default() };
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

    /// A window is over.
    pub(crate) fn window(&mut self, counted: HardwareCounters, machine: &Machine) {
        self.last = without_charges(counted);
        self.cycles += machine.explain(&self.last).total();
        self.instructions += self.last.instructions as f64;
        self.window_instructions += self.last.instructions;
    }

    /// An interval is over, in which a window ended, or none did.
    pub(crate) fn interval(&mut self, instructions: u64, has_window: bool, machine: &Machine) {
        if !has_window || self.last.instructions == 0 {
            self.orphaned += instructions;
            return;
        }
        let all = instructions + std::mem::take(&mut self.orphaned);
        let mut rates = figures(&self.last, machine);
        rates.iter_mut().for_each(|figure| *figure /= self.last.instructions as f64);
        self.intervals.push(Stratum { instructions: all as f64, rates });
        self.add(all);
    }

    /// Adds the last window, for so many instructions.
    fn add(&mut self, instructions: u64) {
        let weight = instructions as f64 / self.last.instructions as f64;
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
            None => self.last = self.whole.clone(),
        }
        if self.last.instructions > 0 {
            self.add(orphaned);
        }
    }

    /// What was counted and estimated of intervals that are over. Instructions and charges are those
    /// of `exact`.
    pub(crate) fn totals(&self, exact: &HardwareCounters) -> HardwareCounters {
        let mut totals = self.whole.clone();
        let mut sums = self.sums.iter();
        let mut estimated = HardwareCounters::default();
        estimated.set(&mut || sums.next().map_or(0, |sum| sum.round() as u64));
        totals += &estimated;
        totals.instructions = exact.instructions;
        totals.charged = exact.charged;
        totals
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
            let Some(half) = self.half(|stratum| stratum.rates[index]) else { continue };
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
        Sampled {
            windows: self.intervals.len() as u64,
            whole_instructions: self.whole.instructions,
            window_instructions: self.window_instructions,
            skipped_instructions: skipped,
            confidence: 95,
            bounds,
            estimated,
        }
    }

    /// What a reader must know of it.
    pub(crate) fn note(&self) -> Option<String> {
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

    /// Half the width of the interval of a figure, given for each instruction of each stratum.
    fn half(&self, rate: impl Fn(&Stratum) -> f64) -> Option<f64> {
        half_width(self.intervals.iter().map(|stratum| (stratum.instructions, rate(stratum))))
    }

    /// Half the width of the interval of the time of one run over that of another on the same stream.
    /// `own` and `base` are elapsed cycles of each, and for each cycle of all CPUs.
    pub(crate) fn relative(&self, base: &Self, own: Elapsed, of_base: Elapsed) -> Option<f64> {
        if self.intervals.len() != base.intervals.len() {
            return None;
        }
        let relative = of_base.cycles / own.cycles;
        let both = self.intervals.iter().zip(&base.intervals);
        let residuals = both.map(|(own_part, base_part)| {
            let own = own_part.rates[CYCLES] * own.share;
            let base = base_part.rates[CYCLES] * of_base.share;
            (own_part.instructions, (base - relative * own))
        });
        Some(half_width(residuals)? / own.cycles)
    }
}

/// What the bounds of relations between runs are made of: each window of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    pub(crate) strata: Box<Strata>,
    pub(crate) elapsed: Elapsed,
}

/// Elapsed cycles, and those for each cycle of all CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Elapsed {
    pub(crate) cycles: f64,
    pub(crate) share: f64,
}

fn without_charges(mut counters: HardwareCounters) -> HardwareCounters {
    counters.charged = Default::default();
    counters
}
