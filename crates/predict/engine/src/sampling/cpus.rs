//! What of windows each CPU did.
//!
//! Threads on different CPUs do different things, and how much each does of a window is not how much it does of what
//! the window stands for: what is seen in detail runs slower, and not for all threads alike. How many instructions each
//! CPU retired is known of gaps as well. So each CPU's counts are estimated by themselves, as a ratio to its instructions
//! (the separate ratio estimator; Cochran, Sampling Techniques, 3rd edition, section 6.10).

use super::figures::{Figures, figures};
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
pub(crate) struct Share {
    pub(crate) cpu: usize,
    /// Instructions.
    pub(crate) instructions: f64,
    /// Page faults.
    pub(crate) faults: f64,
    pub(crate) rates: Figures,
}

/// What each CPU did of a window, if it did anything.
pub(crate) fn shares(window: &[Seen], machine: &Machine) -> Box<[Share]> {
    let all = Seen::sum(window).counted.instructions as f64;
    let ran = window.iter().enumerate().filter(|(_, seen)| seen.counted.instructions > 0);
    let shares = ran.map(|(cpu, seen)| Share {
        cpu,
        instructions: seen.counted.instructions as f64 / all,
        faults: seen.faults as f64 / all,
        rates: figures(&seen.counted, machine).map(|figure| figure / all),
    });
    shares.collect()
}

/// One CPU in all windows so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OfCpu {
    /// Each single count, and its instructions and page faults, of all that windows stand for.
    pub(crate) sums: Vec<f64>,
    pub(crate) instructions: f64,
    pub(crate) faults: f64,
    /// Windows in which it ran.
    pub(crate) windows: usize,
}

impl OfCpu {
    /// Adds another, so many times.
    pub(crate) fn add(&mut self, other: &Self, times: f64) {
        self.sums.resize(self.sums.len().max(other.sums.len()), 0.0);
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, more)| *sum += more * times);
        self.instructions += other.instructions * times;
        self.faults += other.faults * times;
        self.windows += other.windows;
    }
}

/// Adds a window, so many times.
pub(crate) fn add(cpus: &mut Vec<OfCpu>, window: &[Seen], times: f64) {
    cpus.resize(cpus.len().max(window.len()), OfCpu::default());
    for (cpu, seen) in cpus.iter_mut().zip(window) {
        if seen.counted.instructions == 0 {
            continue;
        }
        cpu.windows += 1;
        cpu.instructions += seen.counted.instructions as f64 * times;
        cpu.faults += seen.faults as f64 * times;
        let mut at = 0;
        let sums = &mut cpu.sums;
        seen.counted.visit(&mut |count| {
            if at == sums.len() {
                sums.push(0.0);
            }
            sums[at] += count as f64 * times;
            at += 1;
        });
    }
}

/// By what estimates of each CPU are multiplied, so that each has as many instructions as are known of it. Those that few
/// windows saw have one number together, and those that none saw are as the rest.
pub(crate) fn weights(cpus: &[OfCpu], known: &[f64]) -> Vec<f64> {
    let is_alone = |cpu: &OfCpu| cpu.windows >= FEWEST_WINDOWS;
    if known.len() < 2 {
        return vec![1.0; cpus.len()];
    }
    let known_of = |cpu: usize| known.get(cpu).copied().unwrap_or(0.0);
    let together = |own: bool| {
        let cpus = cpus.iter().enumerate().filter(|(_, cpu)| is_alone(cpu) == own);
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
    cpus.iter().enumerate().map(weight).collect()
}

/// What one CPU counted by windows if it had so many instructions: by those that saw it where these are a few, else as all
/// CPUs together.
pub(crate) fn of_cpu(cpus: &[OfCpu], weights: &[f64], cpu: usize, known: f64) -> HardwareCounters {
    let own = cpus.get(cpu).filter(|own| own.windows >= FEWEST_WINDOWS);
    let weighed = || cpus.iter().zip(weights).map(|(cpu, weight)| cpu.instructions * weight).sum();
    let instructions: f64 = own.map_or_else(weighed, |own| own.instructions);
    let times = if instructions > 0.0 { known / instructions } else { 0.0 };
    let mut at = 0;
    let mut counters = HardwareCounters::default();
    counters.set(&mut || {
        at += 1;
        let all = || sum(cpus, weights, at - 1);
        let count = own.map_or_else(all, |own| own.sums.get(at - 1).copied().unwrap_or(0.0));
        (count * times).round() as u64
    });
    counters
}

/// How far the sum of something may be off that CPUs did which few windows saw, or none: as if each were one of those that
/// windows saw, drawn at random. `rates` are those of what windows saw, for an instruction, with their instructions.
pub(crate) fn unseen(cpus: &[OfCpu], known: &[f64], rates: &[[f64; 2]]) -> f64 {
    let is_alone = |cpu: usize| cpus.get(cpu).is_some_and(|cpu| cpu.windows >= FEWEST_WINDOWS);
    let squares = known.iter().enumerate().filter(|(cpu, _)| !is_alone(*cpu));
    let squares: f64 = squares.map(|(_, known)| known * known).sum();
    if known.len() < 2 || squares == 0.0 {
        return 0.0;
    }
    let all: f64 = rates.iter().map(|[_, instructions]| instructions).sum();
    let mean =
        rates.iter().map(|[rate, instructions]| rate * instructions).sum::<f64>() / all.max(1.0);
    let off = rates.iter().map(|[rate, instructions]| (rate - mean).powi(2) * instructions);
    (squares * off.sum::<f64>() / all.max(1.0)).sqrt()
}

/// A single count of all CPUs, each multiplied by its weight.
pub(crate) fn sum(cpus: &[OfCpu], weights: &[f64], at: usize) -> f64 {
    let of_cpu = |(cpu, weight): (&OfCpu, &f64)| cpu.sums.get(at).unwrap_or(&0.0) * weight;
    cpus.iter().zip(weights).map(of_cpu).sum()
}

/// Of each of so many CPUs the sum of something over all that windows stand for, and its instructions. Of each window how many
/// instructions it stands for, and what each CPU did of it.
pub(crate) fn sums<'a>(
    windows: impl Iterator<Item = (f64, &'a [Share])>,
    cpus: usize,
    of: impl Fn(&Share) -> f64,
) -> Vec<[f64; 2]> {
    let mut sums = vec![[0.0, 0.0]; cpus];
    for (instructions, shares) in windows {
        for share in shares {
            let sum = &mut sums[share.cpu];
            sum[0] += instructions * of(share);
            sum[1] += instructions * share.instructions;
        }
    }
    sums
}

/// Something of each window for each instruction, as far as how much each CPU did of the window does not explain it: what
/// estimates by ratios may be off by is the sum of that (Cochran, 6.4 and 6.10). Of each window how many instructions it
/// stands for, and what each CPU did of it.
pub(crate) fn residuals<'a>(
    windows: impl Iterator<Item = (f64, &'a [Share])> + Clone,
    weights: &[f64],
    of: impl Fn(&Share) -> f64,
) -> Vec<f64> {
    if weights.len() < 2 {
        return windows.map(|(_, shares)| shares.iter().map(&of).sum()).collect();
    }
    let sums = sums(windows.clone(), weights.len(), &of);
    let weighed = sums.iter().zip(weights).map(|(sum, weight)| sum.map(|part| part * weight));
    let [all, instructions] =
        weighed.fold([0.0, 0.0], |all, sum| [all[0] + sum[0], all[1] + sum[1]]);
    let mean = all / instructions;
    let off = |share: &Share| {
        let [sum, instructions] = sums[share.cpu];
        weights[share.cpu] * (of(share) - sum / instructions * share.instructions)
    };
    windows.map(|(_, shares)| mean + shares.iter().map(off).sum::<f64>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (mut cpus, mut windows) = (Vec::new(), Vec::new());
        for first in [400, 500, 600, 500] {
            let window = window(&[first, 1000 - first], &[1, 7]);
            add(&mut cpus, &window, 10.0);
            windows.push(shares(&window, &machine()));
        }
        // One CPU had nine tenths of what was not seen.
        let known = [36_000.0, 4000.0];
        let weights = weights(&cpus, &known);
        let mut place = 0;
        let one = HardwareCounters { accesses: 1, ..HardwareCounters::default() };
        let mut at = None;
        one.visit(&mut |count| {
            at = at.or((count == 1).then_some(place));
            place += 1;
        });
        let accesses = sum(&cpus, &weights, at.unwrap());
        assert!((accesses - 64_000.0).abs() < 1e-6, "{accesses}");
        // How much each did of a window explains all of it.
        let windows = windows.iter().map(|shares| (10_000.0, &shares[..]));
        let rates = residuals(windows, &weights, |share| share.rates[0]);
        assert!(rates.iter().all(|rate| (rate - 1.6).abs() < 1e-9), "{rates:?}");
        // One alone is as it was seen.
        assert_eq!(super::weights(&cpus, &known[..1]), [1.0; 2]);
    }

    #[test]
    fn what_windows_did_not_see_may_be_as_any_cpu_that_they_saw() {
        let mut cpus = Vec::new();
        (0..4).for_each(|_| add(&mut cpus, &window(&[500, 500], &[1, 3]), 10.0));
        let weights = weights(&cpus, &[20_000.0; 3]);
        let rates = [[1.0, 20_000.0], [3.0, 20_000.0]];
        assert_eq!(unseen(&cpus, &[20_000.0; 2], &rates), 0.0);
        assert_eq!(
            unseen(&cpus, &[20_000.0; 3], &rates),
            20_000.0,
            "one more, or less, an instruction"
        );
        assert_eq!(of_cpu(&cpus, &weights, 1, 2000.0).accesses, 6000);
        assert_eq!(of_cpu(&cpus, &weights, 2, 2000.0).accesses, 4000, "as the two together");
        assert_eq!(of_cpu(&[], &[], 2, 2000.0), HardwareCounters::default());
    }

    #[test]
    fn cpus_that_few_windows_saw_are_estimated_together_and_others_as_the_rest() {
        let mut cpus = Vec::new();
        for second in [100, 100, 0, 0, 0] {
            add(&mut cpus, &window(&[800, second, second / 10], &[1, 3, 5]), 1.0);
        }
        // The fourth never ran in a window.
        let found = weights(&cpus, &[8000.0, 150.0, 70.0, 8220.0]);
        let near = |(own, other): (&f64, f64)| (own - other).abs() < 1e-12;
        assert!(found.iter().zip([4.0, 2.0, 2.0]).all(near), "{found:?}");
        assert_eq!(weights(&[], &[5.0, 5.0]), [0.0; 0]);
    }
}
