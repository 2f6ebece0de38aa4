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

mod bounds;
mod cpus;
mod figures;
mod once;
mod phases;
mod regression;
mod sampled;
mod warmth;
mod windows;

pub(crate) use bounds::Elapsed;
pub use bounds::Windows;
pub(crate) use cpus::Seen;
pub use phases::PhaseShare;
pub use sampled::{Bounds, Choice, Sampled};
pub(crate) use warmth::STARTS;

use figures::{CYCLES, figures, parts};
use once::Once;
use phases::Phases;
use strata_hardware::{HardwareCounters, Machine};
use strata_stream::{Array, FEWEST_WINDOWS, half_width};
use warmth::{Part, WINDOW, Warmth, composed};
use windows::{Counted, Whole};

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
    /// Translations that each CPU may have loaded in gaps, as others use them.
    unused: Vec<u64>,
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

    /// The stream is over. Others have used so many translations that each CPU has not, as far as was seen.
    pub(crate) fn end(&mut self, unused: Vec<u64>) {
        self.unused = unused;
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

    /// The windows from where a part of the counters begins to count.
    fn of(&self, part: Part) -> &Counted {
        &self.counted[self.warmth.start(part)]
    }
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

    pub(super) fn machine() -> Machine {
        Machine::new(&CpuModel::preset("zen3").unwrap(), Misaligned::Splinter)
    }

    /// What is estimated of twenty intervals of 10,000 instructions, of each of which a window saw 1000. Page faults are a
    /// hundred each; of each window its walk cycles and page faults.
    fn estimated(windows: impl Iterator<Item = (u64, u64)>) -> u64 {
        let (strata, exact) = strata(windows, 100);
        strata.totals(&exact).walk_cycles
    }

    /// The same, with so many page faults in each interval.
    pub(super) fn strata(
        windows: impl Iterator<Item = (u64, u64)>,
        faults_each: u64,
    ) -> (Strata, HardwareCounters) {
        let walks = |(walk_cycles, faults)| {
            let counted =
                HardwareCounters { instructions: 1000, walk_cycles, ..Default::default() };
            Seen { counted, faults }
        };
        after(walks((0, 0)), windows.map(walks), faults_each)
    }

    /// After a part that was run whole, twenty or so intervals of 10,000 instructions, each with a window and so many page faults.
    pub(super) fn after(
        whole: Seen,
        windows: impl Iterator<Item = Seen>,
        faults_each: u64,
    ) -> (Strata, HardwareCounters) {
        let machine = machine();
        let mut strata = Strata::new(vec![whole.clone()], &machine);
        let mut retired = whole.counted.instructions;
        for (number, window) in (1..).zip(windows) {
            strata.window(STARTS.map(|_| vec![window.clone()]).to_vec(), &machine);
            retired += 10_000;
            strata.interval(&[retired], true, whole.faults + faults_each * number, &machine);
        }
        (strata, HardwareCounters { instructions: retired, ..Default::default() })
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
}
