//! What windows of a sampled stream counted, from one place of their warming on.

use super::cpus::{self, OfCpu, Seen, Share, shares};
use super::figures::Figures;
use super::regression::{Point, Slopes, slope_of};
use strata_counters::Count;
use strata_hardware::{HardwareCounters, Machine};

/// One interval of the stream.
#[derive(Clone, Debug, PartialEq)]
struct Stratum {
    /// Instructions of the interval.
    instructions: f64,
    /// Instructions of what counts of it.
    window: f64,
    /// What each CPU did of that, if it did anything.
    shares: Box<[Share]>,
}

impl Stratum {
    fn with_shares(&self) -> impl Iterator<Item = (&Self, &Share)> {
        self.shares.iter().map(move |share| (self, share))
    }
}

/// What was run whole, without what was charged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Whole {
    /// By CPU, with figures of each.
    pub(crate) cpus: Vec<(Seen, Figures)>,
    pub(crate) counted: HardwareCounters,
    pub(crate) figures: Figures,
    pub(crate) faults: u64,
}

/// What a figure is without page faults.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    /// In each window, for each instruction.
    pub(crate) rates: Vec<f64>,
    /// What a page fault adds, and the standard error of that.
    pub(crate) slope: f64,
    pub(crate) error: f64,
}

/// The windows so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    cpus: Vec<OfCpu>,
    /// What all windows counted.
    seen: HardwareCounters,
    intervals: Vec<Stratum>,
    /// What the last window counted, by CPU and in all.
    last: Vec<Seen>,
    last_sum: HardwareCounters,
    /// What each single count has to do with page faults.
    slopes: Slopes,
}

impl Counted {
    /// After a part that was run whole.
    pub(crate) fn new(whole: &Whole) -> Self {
        let mut slopes = Slopes::default();
        for (cpu, (seen, _)) in whole.cpus.iter().enumerate() {
            slopes.add(cpu, &seen.counted, seen.faults);
        }
        Self { slopes, ..Self::default() }
    }

    /// A window is over.
    pub(crate) fn window(&mut self, cpus: Vec<Seen>) {
        for (cpu, seen) in cpus.iter().enumerate() {
            self.slopes.add(cpu, &seen.counted, seen.faults);
        }
        self.last_sum = Seen::sum(&cpus).counted;
        self.last = cpus;
        self.seen += &self.last_sum;
    }

    /// What the last window counted.
    pub(crate) fn last(&self) -> &HardwareCounters {
        &self.last_sum
    }

    /// What all windows counted.
    pub(crate) fn seen(&self) -> &HardwareCounters {
        &self.seen
    }

    /// Intervals that are over and had a window.
    pub(crate) fn len(&self) -> usize {
        self.intervals.len()
    }

    /// An interval of so many instructions is over, of which the last window was.
    pub(crate) fn interval(&mut self, instructions: u64, machine: &Machine) {
        let window = self.last_sum.instructions as f64;
        let shares = shares(&self.last, machine);
        self.intervals.push(Stratum { instructions: instructions as f64, window, shares });
        self.add(instructions);
    }

    /// The stream is over: the last window stands for so many instructions more. Where there was none, the beginning
    /// has to.
    pub(crate) fn end(&mut self, instructions: u64, whole: &Whole) {
        match self.intervals.last_mut() {
            Some(last) => last.instructions += instructions as f64,
            None => {
                self.last = whole.cpus.iter().map(|(seen, _)| seen.clone()).collect();
                self.last_sum = whole.counted.clone();
            }
        }
        if self.last_sum.instructions > 0 {
            self.add(instructions);
        }
    }

    /// Adds the last window, for so many instructions.
    fn add(&mut self, instructions: u64) {
        let weight = instructions as f64 / self.last_sum.instructions as f64;
        cpus::add(&mut self.cpus, &self.last, weight);
    }

    /// By what estimates of each CPU are multiplied, if it had so many instructions in all intervals that are over.
    pub(crate) fn weights(&self, known: &[f64]) -> Vec<f64> {
        cpus::weights(&self.cpus, known)
    }

    /// What one CPU did of all intervals that are over, in which it had so many instructions.
    pub(crate) fn of_cpu(&self, cpu: usize, known: f64, weights: &[f64]) -> HardwareCounters {
        cpus::of_cpu(&self.cpus, weights, cpu, known)
    }

    /// How far a figure may be off by CPUs that few windows saw, or none.
    pub(crate) fn unseen_on(&self, figure: usize, known: &[f64]) -> f64 {
        let sums = cpus::sums(self.windows(), self.cpus.len(), |share| share.rates[figure]);
        let rates = sums.iter().filter(|[_, instructions]| *instructions > 0.0);
        let rates = rates.map(|[sum, instructions]| [sum / instructions, *instructions]);
        cpus::unseen(&self.cpus, known, &rates.collect::<Vec<_>>())
    }

    /// By how much more the first windows of CPUs that began after what was run whole add to a figure than as many others of
    /// the same CPU. What a thread brings into caches when it begins, it brings once, and windows that meet it, mostly long
    /// after, have each line stand for all that gaps have.
    pub(crate) fn at_first(&self, figure: usize, whole: &Whole, weights: &[f64]) -> f64 {
        // Of each CPU and window the figure, and instructions, of what the window stands for.
        let mut windows = vec![Vec::new(); weights.len()];
        for (stratum, share) in self.shares() {
            let of_stratum = |each: f64| stratum.instructions * each;
            windows[share.cpu].push([share.rates[figure], share.instructions].map(of_stratum));
        }
        let ran_before =
            |cpu: usize| whole.cpus.get(cpu).is_some_and(|(seen, _)| seen.counted.instructions > 0);
        let began_later = || {
            let cpus = windows.iter().zip(weights).enumerate();
            cpus.filter(|(cpu, _)| !ran_before(*cpu)).map(|(_, own)| own)
        };
        let more = |first: usize| {
            let cpus = began_later().filter(|(windows, _)| windows.len() >= 2 * first);
            cpus.map(|(windows, weight)| {
                let (first, others) = windows.split_at(first);
                let [[had, instructions], [others, of_others]] = [first, others].map(summed);
                (had - others / of_others.max(1.0) * instructions) * weight
            })
            .sum::<f64>()
        };
        FIRST_WINDOWS.map(more).into_iter().fold(0.0, f64::max)
    }

    /// Page faults that the estimate lacks, of so many; below 0 for those that it has too many.
    pub(crate) fn unseen(&self, faults: f64, weights: &[f64]) -> f64 {
        let estimated = self.cpus.iter().zip(weights).map(|(cpu, weight)| cpu.faults * weight);
        faults - estimated.sum::<f64>()
    }

    /// The estimate of all intervals that are over, with what so many page faults more add.
    pub(crate) fn corrected(&self, by: f64, weights: &[f64]) -> HardwareCounters {
        let mut seen = Vec::new();
        self.seen.visit(&mut |count| seen.push(count));
        let mut seen = seen.into_iter().enumerate();
        let mut counters = HardwareCounters::default();
        counters.set(&mut || {
            seen.next().map_or(0, |(at, seen)| {
                estimate(cpus::sum(&self.cpus, weights, at) + self.slopes.of(at) * by, seen)
            })
        });
        counters
    }

    /// Instructions of each interval.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = f64> {
        self.intervals.iter().map(|stratum| stratum.instructions)
    }

    /// Whether no window had any of a figure.
    pub(crate) fn has_none(&self, figure: usize) -> bool {
        self.shares().all(|(_, share)| share.rates[figure] == 0.0)
    }

    /// A figure of each window, for each instruction.
    pub(crate) fn rates(&self, figure: usize, weights: &[f64]) -> Vec<f64> {
        self.residuals(weights, |share: &Share| share.rates[figure])
    }

    /// A figure without what page faults have to do with it.
    pub(crate) fn fit(&self, figure: usize, whole: &Whole, weights: &[f64]) -> Fit {
        let first = whole.cpus.iter().enumerate().map(|(cpu, (seen, figures))| Point {
            cpu,
            instructions: seen.counted.instructions as f64,
            faults: seen.faults as f64,
            count: figures[figure],
        });
        let first = first.filter(|point| point.instructions > 0.0);
        let windows = self.shares().map(|(stratum, share)| Point {
            cpu: share.cpu,
            instructions: share.instructions * stratum.window,
            faults: share.faults * stratum.window,
            count: share.rates[figure] * stratum.window,
        });
        let points: Vec<Point> = first.chain(windows).collect();
        let (slope, error) = slope_of(&points);
        let rates =
            self.residuals(weights, |share: &Share| share.rates[figure] - slope * share.faults);
        Fit { rates, slope, error }
    }

    fn shares(&self) -> impl Iterator<Item = (&Stratum, &Share)> {
        let of = |stratum| Stratum::with_shares(stratum);
        self.intervals.iter().flat_map(of)
    }

    /// Something of each window for each instruction, as far as shares of CPUs do not explain it.
    fn residuals(&self, weights: &[f64], of: impl Fn(&Share) -> f64) -> Vec<f64> {
        cpus::residuals(self.windows(), weights, of)
    }

    /// Of each window how many instructions it stands for, and what each CPU did of it.
    fn windows(&self) -> impl Iterator<Item = (f64, &[Share])> + Clone {
        self.intervals.iter().map(|stratum| (stratum.instructions, &stratum.shares[..]))
    }
}

/// Windows in which a CPU may still bring into caches what it goes on to use.
const FIRST_WINDOWS: [usize; 3] = [1, 2, 4];

/// Sums of pairs.
fn summed(pairs: &[[f64; 2]]) -> [f64; 2] {
    pairs.iter().fold([0.0; 2], |sum, pair| [sum[0] + pair[0], sum[1] + pair[1]])
}

/// A count that was estimated: no less than there was in windows, which a slope may promise by chance.
fn estimate(corrected: f64, seen: u64) -> u64 {
    (corrected.round() as u64).max(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_hardware::{CpuModel, Misaligned};

    #[test]
    fn first_windows_of_cpus_that_began_later_may_be_more_than_there_is() {
        let machine = Machine::new(&CpuModel::preset("zen3").unwrap(), Misaligned::Splinter);
        let seen = |walk_cycles| {
            let counted =
                HardwareCounters { instructions: 500, walk_cycles, ..HardwareCounters::default() };
            Seen { counted, faults: 0 }
        };
        let whole = Whole { cpus: vec![(seen(0), [0.0; 11])], ..Whole::default() };
        let mut windows = Counted::new(&whole);
        // Both have more in the first window, or the first two, than in others.
        for walk_cycles in [90, 60, 20, 20, 20, 20, 20, 20] {
            windows.window(vec![seen(walk_cycles), seen(walk_cycles)]);
            windows.interval(10_000, &machine);
        }
        let weights = windows.weights(&[40_000.0, 40_000.0]);
        assert_eq!(weights, [1.0; 2]);
        // Of the second CPU, ten times 90 and 60 cycles where 20 each would be as in the other six.
        let more = windows.at_first(4, &whole, &weights);
        assert!((more - 10.0 * (70.0 + 40.0)).abs() < 1e-6, "{more}");
        let began = Whole { cpus: vec![(seen(0), [0.0; 11]); 2], ..Whole::default() };
        assert_eq!(windows.at_first(4, &began, &weights), 0.0);
    }

    #[test]
    fn an_estimate_is_no_less_than_windows_counted() {
        assert_eq!([estimate(-500.0, 0), estimate(-500.0, 7), estimate(6.4, 7)], [0, 7, 7]);
        assert_eq!([estimate(7.6, 7), estimate(0.2, 0)], [8, 0]);
    }
}
