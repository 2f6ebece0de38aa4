//! What windows of a sampled stream counted, from one place of their warming on.
//!
//! Threads on different CPUs do different things, and how much each does of a window is not how much it does of the
//! interval: what is seen in detail runs slower, and not for all threads alike. How many instructions each CPU retired
//! is known of gaps as well. So each CPU's counts are estimated by themselves, as a ratio to its instructions (the
//! separate ratio estimator; Cochran, Sampling Techniques, 3rd edition, section 6.10).

use crate::figures::{Figures, figures};
use crate::regression::{Point, Slopes, slope_of};
use strata_counters::Count;
use strata_hardware::{HardwareCounters, Machine};
use strata_stream::FEWEST_WINDOWS;

/// What was counted on one CPU, with its page faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) counted: HardwareCounters,
    pub(crate) faults: u64,
}

impl Seen {
    /// What was counted on all of them.
    pub(crate) fn sum(cpus: &[Self]) -> Self {
        cpus.iter().fold(Self::default(), |mut sum, cpu| {
            sum.counted += &cpu.counted;
            sum.faults += cpu.faults;
            sum
        })
    }
}

/// What one CPU did of a window, for each instruction of all CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Share {
    cpu: usize,
    /// Instructions.
    instructions: f64,
    /// Page faults.
    faults: f64,
    rates: Figures,
}

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
    /// The standard error of what a page fault adds.
    pub(crate) error: f64,
}

/// One CPU in all windows so far.
#[derive(Clone, Debug, Default, PartialEq)]
struct OfCpu {
    /// Each single count of all intervals that are over, as windows tell.
    sums: Vec<f64>,
    /// Its instructions and page faults of them.
    instructions: f64,
    faults: f64,
    /// Windows in which it ran.
    windows: usize,
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
        let ran = self.last.iter().enumerate().filter(|(_, seen)| seen.counted.instructions > 0);
        let shares = ran.map(|(cpu, seen)| Share {
            cpu,
            instructions: seen.counted.instructions as f64 / window,
            faults: seen.faults as f64 / window,
            rates: figures(&seen.counted, machine).map(|figure| figure / window),
        });
        let shares = shares.collect();
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
        self.cpus.resize(self.cpus.len().max(self.last.len()), OfCpu::default());
        for (cpu, seen) in self.cpus.iter_mut().zip(&self.last) {
            if seen.counted.instructions == 0 {
                continue;
            }
            cpu.windows += 1;
            cpu.instructions += seen.counted.instructions as f64 * weight;
            cpu.faults += seen.faults as f64 * weight;
            let mut at = 0;
            let sums = &mut cpu.sums;
            seen.counted.visit(&mut |count| {
                if at == sums.len() {
                    sums.push(0.0);
                }
                sums[at] += count as f64 * weight;
                at += 1;
            });
        }
    }

    /// By what estimates of each CPU are multiplied, so that each has as many instructions as it had in all intervals
    /// that are over. Those that few windows saw have one number together, and those that none saw are as the rest.
    pub(crate) fn weights(&self, known: &[f64]) -> Vec<f64> {
        let is_alone = |cpu: &OfCpu| cpu.windows >= FEWEST_WINDOWS;
        if known.len() < 2 {
            return vec![1.0; self.cpus.len()];
        }
        let known_of = |cpu: usize| known.get(cpu).copied().unwrap_or(0.0);
        let together = |own: bool| {
            let cpus = self.cpus.iter().enumerate().filter(|(_, cpu)| is_alone(cpu) == own);
            let pairs = cpus.map(|(at, cpu)| [cpu.instructions, known_of(at)]);
            pairs.fold([0.0, 0.0], |sum, pair| [sum[0] + pair[0], sum[1] + pair[1]])
        };
        let [alone, [estimated, rest]] = [together(true), together(false)];
        let of_rest = if estimated > 0.0 { rest / estimated } else { 1.0 };
        let covered = alone[1] + if estimated > 0.0 { rest } else { 0.0 };
        let all: f64 = known.iter().sum();
        let unseen = if covered > 0.0 { all / covered } else { 1.0 };
        let weight = |(at, cpu): (usize, &OfCpu)| match is_alone(cpu) {
            true => known_of(at) / cpu.instructions * unseen,
            false => of_rest * unseen,
        };
        self.cpus.iter().enumerate().map(weight).collect()
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
                let cpus = self.cpus.iter().zip(weights);
                let of_cpu =
                    |(cpu, weight): (&OfCpu, &f64)| cpu.sums.get(at).unwrap_or(&0.0) * weight;
                estimate(cpus.map(of_cpu).sum::<f64>() + self.slopes.of(at) * by, seen)
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
        self.residuals(weights, |share| share.rates[figure])
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
        let rates = self.residuals(weights, |share| share.rates[figure] - slope * share.faults);
        Fit { rates, error }
    }

    fn shares(&self) -> impl Iterator<Item = (&Stratum, &Share)> {
        let of = |stratum| Stratum::with_shares(stratum);
        self.intervals.iter().flat_map(of)
    }

    /// Something of each window for each instruction, as far as how much each CPU did of the window does not explain
    /// it: what estimates by ratios may be off by is the sum of that (Cochran, 6.4 and 6.10).
    fn residuals(&self, weights: &[f64], of: impl Fn(&Share) -> f64) -> Vec<f64> {
        if weights.len() < 2 {
            let rate = |stratum: &Stratum| stratum.shares.iter().map(&of).sum();
            return self.intervals.iter().map(rate).collect();
        }
        // Of each CPU the sum over all intervals, as windows tell, and instructions.
        let mut sums = vec![[0.0, 0.0]; weights.len()];
        for (stratum, share) in self.shares() {
            let sum = &mut sums[share.cpu];
            sum[0] += stratum.instructions * of(share);
            sum[1] += stratum.instructions * share.instructions;
        }
        let weighed = sums.iter().zip(weights).map(|(sum, weight)| sum.map(|part| part * weight));
        let [all, instructions] =
            weighed.fold([0.0, 0.0], |all, sum| [all[0] + sum[0], all[1] + sum[1]]);
        let mean = all / instructions;
        let off = |share: &Share| {
            let [sum, instructions] = sums[share.cpu];
            weights[share.cpu] * (of(share) - sum / instructions * share.instructions)
        };
        let rate = |stratum: &Stratum| mean + stratum.shares.iter().map(off).sum::<f64>();
        self.intervals.iter().map(rate).collect()
    }
}

/// A count that was estimated: no less than there was in windows, which a slope may promise by chance.
fn estimate(corrected: f64, seen: u64) -> u64 {
    (corrected.round() as u64).max(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_is_no_less_than_windows_counted() {
        assert_eq!([estimate(-500.0, 0), estimate(-500.0, 7), estimate(6.4, 7)], [0, 7, 7]);
        assert_eq!([estimate(7.6, 7), estimate(0.2, 0)], [8, 0]);
    }

    /// A window of so many instructions of each CPU, of which each has this many accesses.
    fn window(instructions: &[u64], each: &[u64]) -> Vec<Seen> {
        let cpus = instructions.iter().zip(each).map(|(instructions, each)| Seen {
            counted: HardwareCounters {
                instructions: *instructions,
                accesses: instructions * each,
                ..HardwareCounters::default()
            },
            faults: 0,
        });
        cpus.collect()
    }

    fn machine() -> Machine {
        use strata_hardware::{CpuModel, Misaligned};
        Machine::new(&CpuModel::preset("zen3").unwrap(), Misaligned::Splinter)
    }

    #[test]
    fn each_cpu_is_as_much_of_the_estimate_as_it_was_of_the_intervals() {
        let mut counted = Counted::default();
        for first in [400, 500, 600, 500] {
            counted.window(window(&[first, 1000 - first], &[1, 7]));
            counted.interval(10_000, &machine());
        }
        // One CPU had nine tenths of what was not seen.
        let known = [36_000.0, 4000.0];
        let weights = counted.weights(&known);
        assert_eq!(counted.corrected(0.0, &weights).accesses, 36_000 + 7 * 4000);
        // How much each did of a window explains all of it.
        let rates =
            counted.residuals(&weights, |share| share.instructions + 6.0 * share.instructions);
        assert!(rates.windows(2).all(|pair| (pair[0] - pair[1]).abs() < 1e-9), "{rates:?}");
        // One alone is as it was seen.
        assert_eq!(counted.weights(&known[..1]), [1.0; 2]);
    }

    #[test]
    fn cpus_that_few_windows_saw_are_estimated_together_and_others_as_the_rest() {
        let mut counted = Counted::default();
        for second in [100, 100, 0, 0, 0] {
            counted.window(window(&[800, second, second / 10], &[1, 3, 5]));
            counted.interval(800 + second + second / 10, &machine());
        }
        // The fourth never ran in a window.
        let weights = counted.weights(&[8000.0, 150.0, 70.0, 8220.0]);
        let expected = [2.0 * 2.0, 2.0, 2.0];
        assert!(
            weights.iter().zip(expected).all(|(own, other)| (own - other).abs() < 1e-12),
            "{weights:?}"
        );
        assert_eq!(Counted::default().weights(&[5.0, 5.0]), [0.0; 0]);
    }
}
