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

use crate::cpus::Seen;
use crate::figures::{
    CYCLES, FIGURES, Figures, L2_MISSES, LLC_MISSES, figures, is_misses, is_walk_cycles, parts,
};
use crate::once::Once;
use crate::phases::{PhaseShare, Phases};
use crate::warmth::{Part, STARTS, WINDOW, Warmth, composed};
use crate::windows::{Counted, Whole};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strata_hardware::{HardwareCounters, Machine};
use strata_stream::{Array, FEWEST_WINDOWS, half_width};

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
    /// So wide to both sides, and by what it may be too high, and too low, besides.
    fn around(value: f64, half: f64, [over, under]: [f64; 2]) -> Self {
        Self { low: (value - half - over).max(0.0), high: value + half + under }
    }

    fn plus(self, exact: f64) -> Self {
        Self { low: self.low + exact, high: self.high + exact }
    }

    fn times(self, factor: f64) -> Self {
        Self { low: self.low * factor, high: self.high * factor }
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
const OTHERS: [&str; 21] = [
    "tlb.fills",
    "walks",
    "walk_positions",
    "elapsed_cycles",
    "elapsed_seconds",
    "cycles_by_kind.execution",
    "cycles_by_kind.data",
    "cycles_by_kind.walks",
    "bill",
    "memory.touched_bytes",
    "relative_throughput",
    "counters of hardware",
    "cpus",
    "l4",
    "samples",
    "series.seconds",
    "series.accesses",
    "series.l1_misses",
    "series.l2_misses",
    "series.walk_cycles",
    "series.cycles",
];

/// The intervals of a stream so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Strata {
    whole: Whole,
    /// What windows counted from each of [`STARTS`] on.
    counted: Vec<Counted>,
    /// What they counted besides that happens once.
    once: Vec<Once>,
    /// From which of them each part counts.
    warmth: Warmth,
    /// Page faults of all intervals that are over.
    faults: f64,
    /// Instructions of each CPU in all intervals that are over.
    retired: Vec<f64>,
    /// Instructions of intervals that ended before their window did, and are not accounted for.
    orphaned: u64,
    /// Cycles of the hardware, and instructions, in what was run whole, and in windows on each CPU.
    before: [f64; 2],
    pace: Vec<[f64; 2]>,
    /// What is known by phases, if the stream is sampled so.
    phases: Option<Box<Phases>>,
}

impl Strata {
    /// After a part traced whole, of which this was counted.
    pub(crate) fn new(cpus: Vec<Seen>, machine: &Machine) -> Self {
        let cpus = uncharged(cpus);
        let Seen { counted, faults } = Seen::sum(&cpus);
        let with_figures = |seen: Seen| {
            let figures = figures(&seen.counted, machine);
            (seen, figures)
        };
        let cpus = cpus.into_iter().map(with_figures).collect();
        let whole = Whole { cpus, figures: figures(&counted, machine), counted, faults };
        Self {
            counted: STARTS.iter().map(|_| Counted::new(&whole)).collect(),
            once: vec![Once::default(); STARTS.len()],
            before: pace(&whole.counted, machine),
            whole,
            ..Self::default()
        }
    }

    /// Cycles of the hardware for an instruction on a CPU, as far as is known: as in windows there, where these saw enough
    /// of it, or on all.
    pub(crate) fn cycles_per_instruction(&self, cpu: usize, machine: &Machine) -> f64 {
        let add = |sum: [f64; 2], own: &[f64; 2]| [sum[0] + own[0], sum[1] + own[1]];
        let of_windows = self.pace.iter().fold([0.0; 2], add);
        let own = self.pace.get(cpu).copied().unwrap_or_default();
        let of_all = add(of_windows, &self.before);
        let rates = [own, of_windows, of_all].into_iter();
        let mut rates = rates.filter(|[_, instructions]| *instructions >= ENOUGH);
        rates.next().map_or(machine.model().core.base_cpi, |[cycles, all]| cycles / all)
    }

    /// The stream is sampled by phases: the next window is of this one.
    pub(crate) fn phase(&mut self, phase: u32, intervals: u64, instructions: u64) {
        self.phases.get_or_insert_default().tell(phase, intervals, instructions);
    }

    /// Trials showed this of an array.
    pub(crate) fn warmed(&mut self, array: Array, after: u64, off: [u64; 3]) {
        self.warmth.tell(array, after, off);
    }

    /// A window is over: what was counted on each CPU from each of [`STARTS`] on.
    pub(crate) fn window(&mut self, counted: Vec<Vec<Seen>>, machine: &Machine) {
        for (start, (windows, cpus)) in self.counted.iter_mut().zip(counted).enumerate() {
            let mut cpus = uncharged(cpus);
            self.once[start].take(&mut cpus, machine);
            if start == WINDOW {
                self.pace.resize(self.pace.len().max(cpus.len()), [0.0; 2]);
                for (sum, cpu) in self.pace.iter_mut().zip(&cpus) {
                    let [cycles, instructions] = pace(&cpu.counted, machine);
                    *sum = [sum[0] + cycles, sum[1] + instructions];
                }
                if let Some(phases) = &mut self.phases {
                    phases.window(&cpus, machine);
                }
            }
            windows.window(cpus);
        }
    }

    /// An interval is over, in which a window ended, or none did. `retired` are all instructions of each CPU so far,
    /// `faults` all page faults.
    pub(crate) fn interval(
        &mut self,
        retired: &[u64],
        has_window: bool,
        faults: u64,
        machine: &Machine,
    ) {
        self.faults = faults.saturating_sub(self.whole.faults) as f64;
        let before: f64 = self.retired.iter().sum();
        let whole = |cpu| {
            let seen: Option<&(Seen, _)> = self.whole.cpus.get(cpu);
            seen.map_or(0, |(seen, _)| seen.counted.instructions)
        };
        let beyond = |(cpu, all): (usize, &u64)| all.saturating_sub(whole(cpu)) as f64;
        self.retired = retired.iter().enumerate().map(beyond).collect();
        let instructions = (self.retired.iter().sum::<f64>() - before) as u64;
        if self.phases.is_some() {
            return;
        }
        if !has_window || self.counted[WINDOW].last().instructions == 0 {
            self.orphaned += instructions;
            return;
        }
        let all = instructions + std::mem::take(&mut self.orphaned);
        self.counted.iter_mut().for_each(|windows| windows.interval(all, machine));
    }

    /// The stream is over.
    pub(crate) fn end(&mut self) {
        let orphaned = std::mem::take(&mut self.orphaned);
        if orphaned > 0 {
            self.counted.iter_mut().for_each(|windows| windows.end(orphaned, &self.whole));
        }
    }

    /// What was counted and estimated of intervals that are over. Instructions and charges are those
    /// of `exact`.
    pub(crate) fn totals(&self, exact: &HardwareCounters) -> HardwareCounters {
        let mut totals = self.whole.counted.clone();
        totals += &match &self.phases {
            Some(phases) => {
                let beyond = self.beyond_whole(exact.instructions);
                let mut estimate = phases.estimate(beyond, &self.retired).unwrap_or_default();
                estimate += &self.once().sum();
                estimate
            }
            None => composed(|part| self.estimate(part)),
        };
        totals.instructions = exact.instructions;
        totals.charged = exact.charged;
        totals
    }

    /// The estimate that a part of the counters is taken from.
    fn estimate(&self, part: Part) -> HardwareCounters {
        let start = self.warmth.start(part);
        let by = if self.is_corrected(part) { self.unseen_faults(start) } else { 0.0 };
        let mut estimate = self.counted[start].corrected(by, &self.weights(start));
        if part == Part::Walks {
            estimate += &self.once().sum();
        }
        estimate
    }

    /// What is loaded into TLBs once, since the ends of gaps: what warms a window up loads most of it.
    fn once(&self) -> &Once {
        &self.once[0]
    }

    /// How much less of a figure there may be, as page tables are not in the caches yet where windows see what counts once.
    fn less_than_once(&self, figure: usize) -> f64 {
        let of_walks = parts(figure).iter().filter(|(part, _)| *part == Part::Walks);
        of_walks.map(|(_, at)| self.once().if_warm(*at)).sum()
    }

    /// How much more of a figure there may be if what counts once is there as often as windows met it.
    fn more_than_once(&self, figure: usize) -> f64 {
        let of_window = &self.once[self.warmth.start(Part::Walks)];
        let of_walks = parts(figure).iter().filter(|(part, _)| *part == Part::Walks);
        let more = |(_, at): &(Part, usize)| {
            of_window.if_sampled(*at, &self.retired) - self.once().figure(*at)
        };
        of_walks.map(more).sum::<f64>().max(0.0)
    }

    /// Whether the estimate of a part is corrected by the page faults that it lacks: unless what one adds is known far
    /// less well than how windows differ without that.
    fn is_corrected(&self, part: Part) -> bool {
        // How often a program accesses memory is not for page faults to say, which policies have more or fewer of.
        let cost = parts(CYCLES).iter().find(|(of, _)| *of == part);
        let Some((_, at)) = cost else { return false };
        let start = self.warmth.start(part);
        let (windows, weights) = (&self.counted[start], self.weights(start));
        let doubt = windows.fit(*at, &self.whole, &weights).error * self.unseen_faults(start).abs();
        let without = half_width(windows.lengths().zip(windows.rates(*at, &weights)));
        without.is_none_or(|without| 2.0 * doubt <= HOPELESS * without)
    }

    /// What one CPU did, without what page faults correct.
    pub(crate) fn of_cpu(&self, cpu: usize) -> HardwareCounters {
        let known = self.retired.get(cpu).copied().unwrap_or(0.0);
        let whole = self.whole.cpus.get(cpu).map(|(seen, _)| seen.counted.clone());
        let mut own = whole.unwrap_or_default();
        own += &match &self.phases {
            Some(phases) => {
                let mut own = phases.of_cpu(cpu, &self.retired);
                own += &self.once().of_cpu(cpu);
                own
            }
            None => composed(|part| {
                let start = self.warmth.start(part);
                let mut own = self.counted[start].of_cpu(cpu, known, &self.weights(start));
                if part == Part::Walks {
                    own += &self.once().of_cpu(cpu);
                }
                own
            }),
        };
        own
    }

    /// By what estimates of each CPU from a start are multiplied.
    fn weights(&self, start: usize) -> Vec<f64> {
        self.counted[start].weights(&self.retired)
    }

    /// Of so many instructions those after what was run whole.
    fn beyond_whole(&self, instructions: u64) -> u64 {
        instructions.saturating_sub(self.whole.counted.instructions)
    }

    /// The windows, as they are without what warms them up.
    fn windows(&self) -> &Counted {
        &self.counted[WINDOW]
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
            let Some(half) = self.half(index, totals.instructions) else {
                let unmet = self.unmet(index, &values, totals.instructions);
                bounds.extend(unmet.map(|unmet| {
                    let more = unmet + self.more_than_once(index);
                    let off = [self.less_than_once(index), more];
                    ((*name).to_owned(), Bounds::around(values[index], 0.0, off))
                }));
                continue;
            };
            let exact = if index == CYCLES { charged as f64 } else { 0.0 };
            let around = self.around(index, &values, half).plus(exact);
            bounds.insert((*name).to_owned(), around);
            // When one of several threads ends is as the emulator has it, which in gaps is faster, and not evenly.
            if index == CYCLES && self.retired.len() < 2 {
                bounds.insert("elapsed_cycles".to_owned(), around.times(elapsed));
            }
        }
        let others = OTHERS.iter().chain(&FIGURES).map(|name| (*name).to_owned());
        let mut estimated: Vec<String> = others.collect();
        estimated.sort();
        let phases = self.phases.as_deref();
        Sampled {
            choice: if phases.is_some() { Choice::Phases } else { Choice::Intervals },
            phases: phases.map(Phases::shares).unwrap_or_default(),
            windows: phases.map_or(self.windows().len() as u64, Phases::windows),
            whole_instructions: self.whole.counted.instructions,
            window_instructions: self.windows().seen().instructions,
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
        match self.windows().len() {
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

    /// Page faults that estimates from a start lack; below 0 for those that they have too many.
    fn unseen_faults(&self, start: usize) -> f64 {
        let windows = &self.counted[start];
        match windows.len() < FEWEST_WINDOWS {
            true => 0.0,
            false => windows.unseen(self.faults, &self.weights(start)),
        }
    }

    /// Half the width of the interval of a figure, as far as chance goes.
    fn half(&self, figure: usize, instructions: u64) -> Option<f64> {
        if let Some(phases) = &self.phases {
            let rates = phases.rates(figure, &self.retired);
            return phases.half(self.beyond_whole(instructions), &rates);
        }
        let (fit, doubt) = self.fit(figure);
        if parts(figure).iter().all(|(part, at)| self.of(*part).has_none(*at)) {
            return None;
        }
        let chance = half_width(self.windows().lengths().zip(fit))?;
        let unseen =
            parts(figure).iter().map(|(part, at)| self.of(*part).unseen_on(*at, &self.retired));
        // The slope is known from the same windows, and not for sure.
        Some(chance.hypot(2.0 * doubt).hypot(2.0 * unseen.sum::<f64>()))
    }

    /// How many misses there may be, 95 of 100 times, where windows met none: three in as many instructions as they had
    /// (the rule of three; Hanley and Lippman-Hand, Journal of the American Medical Association 249, 1983).
    /// Of what walks are made of, as much as those of so many misses are at what others cost.
    fn unmet(&self, figure: usize, values: &Figures, instructions: u64) -> Option<f64> {
        let [(part, _)] = parts(figure) else { return None };
        let misses = if *part == Part::Walks { L2_MISSES } else { figure };
        let each = if misses == figure { 1.0 } else { values[figure] / values[misses] };
        let is_known = is_misses(misses) && each.is_finite();
        if self.phases.is_some() || self.windows().len() < FEWEST_WINDOWS || !is_known {
            return None;
        }
        let seen = self.of(*part).seen().instructions as f64;
        Some(3.0 * self.beyond_whole(instructions) as f64 / seen * each)
    }

    /// The bounds of a figure: chance, and what arrays were too cold for, to that side.
    fn around(&self, figure: usize, values: &Figures, half: f64) -> Bounds {
        let once = [self.less_than_once(figure), self.more_than_once(figure)];
        if self.phases.is_some() {
            return Bounds::around(values[figure], half, once);
        }
        let off = parts(figure).iter().fold(once, |[over, under], (part, at)| {
            let estimated = (values[*at] - self.whole.figures[*at]).max(0.0);
            let each = values[*at] / values[LLC_MISSES].max(1.0);
            let mut off = self.warmth.off(*part);
            if is_walk_cycles(*at) {
                off.under += self.warmth.under_page_tables(values[LLC_MISSES]);
            }
            [
                over + off.over * estimated + self.at_first(*part, *at),
                under + off.under * estimated + off.guessed * each,
            ]
        });
        Bounds::around(values[figure], half, off)
    }

    /// By how much a figure may be too high as threads that began in gaps had brought into caches what windows see them bring.
    fn at_first(&self, part: Part, figure: usize) -> f64 {
        if matches!(part, Part::Program | Part::FirstTlb) {
            return 0.0;
        }
        self.of(part).at_first(figure, &self.whole, &self.weights(self.warmth.start(part)))
    }

    /// How far the cycles may be off besides by chance: by how well it is known what page faults add, and by what
    /// arrays were too cold for.
    pub(crate) fn doubts(&self, totals: &HardwareCounters, machine: &Machine) -> [f64; 2] {
        if self.phases.is_some() || self.windows().len() < FEWEST_WINDOWS {
            return [0.0; 2];
        }
        let values = figures(&without_charges(totals.clone()), machine);
        let cold = self.around(CYCLES, &values, 0.0);
        let cold = (cold.high - values[CYCLES]).max(values[CYCLES] - cold.low);
        [2.0 * self.fit(CYCLES).1, cold]
    }

    /// The windows from where a part of the counters begins to count.
    fn of(&self, part: Part) -> &Counted {
        &self.counted[self.warmth.start(part)]
    }

    /// A figure of each window for each instruction, without what page faults have to do with it; and how uncertain that
    /// leaves what page faults add to its sum.
    fn fit(&self, figure: usize) -> (Vec<f64>, f64) {
        let mut rates = vec![0.0; self.windows().len()];
        let mut doubt = 0.0;
        for (part, at) in parts(figure) {
            let weights = self.weights(self.warmth.start(*part));
            let plain = self.of(*part).rates(*at, &weights);
            if *part == Part::Program {
                rates.iter_mut().zip(plain).for_each(|(sum, rate)| *sum += rate);
                continue;
            }
            let fit = self.of(*part).fit(*at, &self.whole, &weights);
            let unseen = self.unseen_faults(self.warmth.start(*part)).abs();
            let own = if self.is_corrected(*part) {
                doubt += fit.error * unseen;
                fit.rates
            } else {
                // What a page fault may add is not known, and by how much that is off neither: hardly by more than
                // what was not corrected, and as much as windows differ by.
                let without = half_width(self.windows().lengths().zip(plain.iter().copied()));
                doubt += ((fit.slope * unseen).abs() + without.unwrap_or(0.0)) / 2.0;
                plain
            };
            rates.iter_mut().zip(own).for_each(|(sum, rate)| *sum += rate);
        }
        (rates, doubt)
    }

    /// Half the width of the interval of the time of one run over that of another on the same stream.
    /// `own` and `base` are elapsed cycles of each, and for each cycle of all CPUs.
    pub(crate) fn relative(&self, base: &Self, own: Elapsed, of_base: Elapsed) -> Option<f64> {
        // It is as uncertain as when threads end next to others.
        if self.retired.len() > 1 {
            return None;
        }
        if let (Some(phases), Some(of_phases)) = (&self.phases, &base.phases) {
            let rates = phases.rates(CYCLES, &self.retired);
            let of_base_rates = of_phases.rates(CYCLES, &base.retired);
            return relative_by_phases(phases, [&rates, &of_base_rates], own, of_base);
        }
        if self.windows().len() != base.windows().len() {
            return None;
        }
        let relative = of_base.cycles / own.cycles;
        let (own_rates, base_rates) = (self.fit(CYCLES).0, base.fit(CYCLES).0);
        let differences = own_rates.iter().zip(&base_rates).map(|(own_rate, base_rate)| {
            base_rate * of_base.share - relative * own_rate * own.share
        });
        let chance = half_width(self.windows().lengths().zip(differences))?;
        let off = chance.hypot(of_base.doubt).hypot(relative * own.doubt);
        // What arrays were too cold for errs to the same side in both.
        Some((off + of_base.cold.max(relative * own.cold)) / own.cycles)
    }
}

/// The same of streams that are sampled by phases.
fn relative_by_phases(
    phases: &Phases,
    [own_rates, base_rates]: [&[f64]; 2],
    own: Elapsed,
    of_base: Elapsed,
) -> Option<f64> {
    let relative = of_base.cycles / own.cycles;
    if own_rates.len() != base_rates.len() {
        return None;
    }
    let pairs = own_rates.iter().zip(base_rates);
    let differences = pairs
        .map(|(own_rate, base_rate)| base_rate * of_base.share - relative * own_rate * own.share);
    let half = phases.half(own.instructions, &differences.collect::<Vec<_>>());
    Some(half? / own.cycles)
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
    /// How far it may be off by page faults, and by cold arrays.
    pub(crate) doubt: f64,
    pub(crate) cold: f64,
}

/// How many times as uncertain an estimate may become by what page faults correct.
const HOPELESS: f64 = 10.0;

/// Instructions that tell how fast a CPU is.
const ENOUGH: f64 = 10_000.0;

/// Cycles of the hardware, and instructions.
fn pace(counted: &HardwareCounters, machine: &Machine) -> [f64; 2] {
    [machine.explain(counted).total(), counted.instructions as f64]
}

/// What was counted on each CPU, without what was charged.
fn uncharged(cpus: Vec<Seen>) -> Vec<Seen> {
    let without = |seen: Seen| Seen { counted: without_charges(seen.counted), ..seen };
    cpus.into_iter().map(without).collect()
}

fn without_charges(mut counters: HardwareCounters) -> HardwareCounters {
    counters.charged = Default::default();
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_hardware::{CpuModel, Misaligned};

    fn machine() -> Machine {
        Machine::new(&CpuModel::preset("zen3").unwrap(), Misaligned::Splinter)
    }

    /// What is estimated of twenty intervals of 10,000 instructions, of each of which a window saw 1000. Page faults are a
    /// hundred each; of each window its walk cycles and page faults.
    fn estimated(windows: impl Iterator<Item = (u64, u64)>) -> u64 {
        let (strata, exact) = strata(windows, 100);
        strata.totals(&exact).walk_cycles
    }

    /// The same, with so many page faults in each interval.
    fn strata(
        windows: impl Iterator<Item = (u64, u64)>,
        faults_each: u64,
    ) -> (Strata, HardwareCounters) {
        let machine = machine();
        let seen = |walk_cycles, faults| {
            let counted =
                HardwareCounters { instructions: 1000, walk_cycles, ..Default::default() };
            vec![Seen { counted, faults }]
        };
        let mut strata = Strata::new(seen(0, 0), &machine);
        let mut retired = 1000;
        for (number, (walk_cycles, faults)) in (1..).zip(windows) {
            strata.window(STARTS.map(|_| seen(walk_cycles, faults)).to_vec(), &machine);
            retired += 10_000;
            strata.interval(&[retired], true, faults_each * number, &machine);
        }
        (strata, HardwareCounters { instructions: retired, ..Default::default() })
    }

    #[test]
    fn bounds_are_of_chance_alone_where_there_is_no_page_fault() {
        let walks = |window: u64| 1000 + window % 2 * 500;
        let (strata, exact) = strata((0..20).map(|window| (walks(window), 0)), 0);
        let rates = (0..20).map(|window| (10_000.0, walks(window) as f64 / 1000.0));
        let (found, chance) = (strata.half(4, exact.instructions), half_width(rates));
        assert!((found.unwrap() / chance.unwrap() - 1.0).abs() < 1e-9, "{found:?} {chance:?}");
    }

    #[test]
    fn page_faults_correct_what_they_are_known_to_add_to() {
        // Each adds 50 cycles, and windows have from 0 to 9 where all of an interval are 100.
        let corrected = estimated((0..20).map(|window| (50 * (window % 10), window % 10)));
        assert_eq!(corrected, 20 * 100 * 50);
        // The only window with one is one of the four with walks. That says nothing of what it adds.
        let once = |window| if window % 5 == 0 { 50_000 } else { 0 };
        let by_chance = estimated((0..20).map(|window| (once(window), u64::from(window == 5))));
        assert_eq!(by_chance, 4 * 50_000 * 10);
    }

    #[test]
    fn walks_may_take_longer_where_lines_of_caches_may_be_gone() {
        let (mut strata, exact) = strata((0..20).map(|window| (1000 + window % 2 * 500, 0)), 0);
        Array::ALL.into_iter().for_each(|array| strata.warmed(array, 0, [0; 3]));
        let totals = strata.totals(&exact);
        let bounds =
            |strata: &Strata, name| strata.describe(&totals, 1.0, 0, &machine()).bounds[name];
        let before = ["walk_cycles", "cycles"].map(|name| bounds(&strata, name));
        strata.warmed(Array::LastLevelCache, 0, [400_000, 500_000, 0]);
        let after = ["walk_cycles", "cycles"].map(|name| bounds(&strata, name));
        let more = after[0].high - before[0].high;
        assert!((more / (totals.walk_cycles as f64 / 2.0) - 1.0).abs() < 1e-9, "{more}");
        assert!(after[1].high > before[1].high, "{after:?}");
        assert_eq!(after.map(|bounds| bounds.low), before.map(|bounds| bounds.low));
    }
}
