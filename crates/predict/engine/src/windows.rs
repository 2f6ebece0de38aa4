//! What windows of a sampled stream counted, from one place of their warming on.

use crate::figures::{Figures, figures};
use crate::regression::{Slopes, slope_of};
use strata_counters::Count;
use strata_hardware::{HardwareCounters, Machine};

/// One interval of the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stratum {
    /// Instructions of the interval.
    instructions: f64,
    /// Instructions of what counts of it.
    window: f64,
    /// Page faults of that for each instruction.
    faults: f64,
    /// Figures of it for each instruction.
    rates: Figures,
}

/// What was run whole, without what was charged.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Whole {
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

/// The windows so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    /// Each single count of all intervals that are over.
    sums: Vec<f64>,
    /// What all windows counted.
    seen: HardwareCounters,
    intervals: Vec<Stratum>,
    /// What the last window counted, and its page faults.
    last: HardwareCounters,
    last_faults: u64,
    /// Page faults of all intervals that are over, as windows tell.
    faults: f64,
    /// What each single count has to do with page faults.
    slopes: Slopes,
}

impl Counted {
    /// After a part that was run whole.
    pub(crate) fn new(whole: &Whole) -> Self {
        let mut slopes = Slopes::default();
        slopes.add(&whole.counted, whole.faults);
        Self { slopes, ..Self::default() }
    }

    /// A window is over.
    pub(crate) fn window(&mut self, counted: HardwareCounters, faults: u64) {
        (self.last, self.last_faults) = (counted, faults);
        self.slopes.add(&self.last, faults);
        self.seen += &self.last;
    }

    /// What the last window counted.
    pub(crate) fn last(&self) -> &HardwareCounters {
        &self.last
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
        let mut rates = figures(&self.last, machine);
        let window = self.last.instructions as f64;
        rates.iter_mut().for_each(|figure| *figure /= window);
        let faults = self.last_faults as f64 / window;
        self.intervals.push(Stratum { instructions: instructions as f64, window, faults, rates });
        self.add(instructions);
    }

    /// The stream is over: the last window stands for so many instructions more. Where there was none, the beginning
    /// has to.
    pub(crate) fn end(&mut self, instructions: u64, whole: &Whole) {
        match self.intervals.last_mut() {
            Some(last) => last.instructions += instructions as f64,
            None => (self.last, self.last_faults) = (whole.counted.clone(), whole.faults),
        }
        if self.last.instructions > 0 {
            self.add(instructions);
        }
    }

    /// Adds the last window, for so many instructions.
    fn add(&mut self, instructions: u64) {
        let weight = instructions as f64 / self.last.instructions as f64;
        self.faults += self.last_faults as f64 * weight;
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

    /// Page faults that the estimate lacks, of so many; below 0 for those that it has too many.
    pub(crate) fn unseen(&self, faults: f64) -> f64 {
        faults - self.faults
    }

    /// The estimate of all intervals that are over, with what so many page faults more add.
    pub(crate) fn corrected(&self, by: f64) -> HardwareCounters {
        let mut seen = Vec::new();
        self.seen.visit(&mut |count| seen.push(count));
        let mut sums = self.sums.iter().zip(&seen).enumerate();
        let mut counters = HardwareCounters::default();
        counters.set(&mut || {
            sums.next()
                .map_or(0, |(at, (sum, seen))| estimate(sum + self.slopes.of(at) * by, *seen))
        });
        counters
    }

    /// Instructions of each interval.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = f64> {
        self.intervals.iter().map(|stratum| stratum.instructions)
    }

    /// A figure of each window, for each instruction.
    pub(crate) fn rates(&self, figure: usize) -> impl Iterator<Item = f64> {
        self.intervals.iter().map(move |stratum| stratum.rates[figure])
    }

    /// A figure without what page faults have to do with it.
    pub(crate) fn fit(&self, figure: usize, whole: &Whole) -> Fit {
        let instructions = whole.counted.instructions as f64;
        let first = [instructions, whole.faults as f64, whole.figures[figure]];
        let first = (instructions > 0.0).then_some(first);
        let windows = self.intervals.iter().map(|stratum| {
            let Stratum { window, faults, rates, .. } = stratum;
            [*window, faults * window, rates[figure] * window]
        });
        let points: Vec<_> = first.into_iter().chain(windows).collect();
        let (slope, error) = slope_of(&points);
        let rates = self.intervals.iter();
        let rates = rates.map(|stratum| stratum.rates[figure] - slope * stratum.faults).collect();
        Fit { rates, error }
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
}
