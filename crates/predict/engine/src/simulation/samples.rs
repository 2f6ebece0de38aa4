//! States over simulated time, for whoever draws a picture later.

use crate::report::Sample;

/// Samples kept at most; when there are more, every second one goes and the pace halves.
const LIMIT: usize = 128;

/// A thinned-out series of samples.
#[derive(Debug)]
pub(crate) struct Samples {
    taken: Vec<Sample>,
    /// Accesses between two samples.
    interval: u64,
    next: u64,
}

impl Default for Samples {
    fn default() -> Self {
        let interval = 1 << 16;
        Self { taken: Vec::new(), interval, next: interval }
    }
}

impl Samples {
    /// Whether the next sample is due after this many accesses.
    #[inline]
    pub(crate) fn is_due(&self, accesses: u64) -> bool {
        accesses >= self.next
    }

    /// Adds a sample, unless nothing happened since the last one.
    pub(crate) fn push(&mut self, sample: Sample) {
        if self.taken.last().is_some_and(|last| last.accesses == sample.accesses) {
            return;
        }
        self.next = sample.accesses + self.interval;
        self.taken.push(sample);
        if self.taken.len() > LIMIT {
            let mut index = 0;
            self.taken.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.interval *= 2;
        }
    }

    /// The series.
    pub(crate) fn into_series(self) -> Vec<Sample> {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_stays_short_ordered_and_spread() {
        let mut samples = Samples::default();
        let mut accesses = 0;
        for _ in 0..100_000 {
            accesses += 1 << 14;
            if samples.is_due(accesses) {
                samples.push(Sample { accesses, ..Sample::default() });
            }
        }
        let series = samples.into_series();
        assert!((LIMIT / 2..=LIMIT).contains(&series.len()), "{}", series.len());
        assert!(series.is_sorted_by_key(|sample| sample.accesses));
        let last = series.last().unwrap().accesses;
        assert!(last > accesses / 100 * 95, "the series reaches the end: {last} of {accesses}");
    }
}
