//! States of a guest at fixed intervals of simulated time.

/// Simulated seconds between two moments at first.
const FIRST_INTERVAL: f64 = 100e-6;
/// Moments kept at most; when there are more, every second one goes and the interval doubles.
const LIMIT: usize = 192;
/// A moment.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) seconds: f64,
    /// Accesses, misses of both TLBs, cycles of walks, cycles; huge pages by kind; bytes used.
    pub(super) counts: [u64; 10],
    pub(super) faults: Vec<u64>,
    pub(super) exits: Vec<u64>,
    pub(super) fmfi: Vec<f64>,
}

/// Moments at fixed intervals.
#[derive(Debug)]
pub(super) struct Moments {
    pub(super) interval: f64,
    next: f64,
    pub(super) taken: Vec<Moment>,
}

impl Default for Moments {
    fn default() -> Self {
        Self { interval: FIRST_INTERVAL, next: 0.0, taken: Vec::new() }
    }
}

impl Moments {
    /// Whether the next moment has come.
    pub(super) fn is_due(&self, seconds: f64) -> bool {
        seconds >= self.next
    }

    /// Adds a moment; where no time has passed since the last one, in its place: estimates change at the
    /// end of a stream.
    pub(super) fn push(&mut self, moment: Moment) {
        if let Some(last) = self.taken.last_mut().filter(|last| last.seconds >= moment.seconds) {
            *last = Moment { seconds: last.seconds, ..moment };
            return;
        }
        self.next = ((moment.seconds / self.interval).floor() + 1.0) * self.interval;
        self.taken.push(moment);
        if self.taken.len() > LIMIT {
            self.interval *= 2.0;
            // What is kept is the first moment of each of the longer intervals.
            let interval = self.interval;
            let number = |moment: &Moment| (moment.seconds / interval).floor();
            self.taken.dedup_by(|later, earlier| number(later) == number(earlier));
            let last = self.taken.last().map_or(0.0, |last| last.seconds);
            self.next = ((last / interval).floor() + 1.0) * interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: f64) -> Moment {
        let (faults, exits, fmfi) = (Vec::new(), Vec::new(), Vec::new());
        Moment { seconds, counts: [0; 10], faults, exits, fmfi }
    }

    #[test]
    fn moments_are_at_fixed_intervals_however_long_it_takes() {
        let mut moments = Moments::default();
        // Looked at every 30 microseconds, for 3 seconds.
        for look in 0..100_000u32 {
            let seconds = f64::from(look) * 30e-6;
            if moments.is_due(seconds) {
                moments.push(moment(seconds));
            }
        }
        assert!((LIMIT / 2..=LIMIT).contains(&moments.taken.len()), "{}", moments.taken.len());
        for pair in moments.taken.windows(2) {
            let apart = pair[1].seconds - pair[0].seconds;
            assert!((apart - moments.interval).abs() < 61e-6, "{apart} of {}", moments.interval);
        }
    }
}
