//! How long a booking lasts: Algorithm 1 of Gemini (section 4.1).

use strata_stack::Feedback;

strata_params::parameters! {
    /// Booking. Gemini 4.1 gives the algorithm but neither starting value nor period.
    pub struct BookingParameters {
        /// Regions are booked for areas before they are used. Off, to see what it brings: a region that
        /// is chosen may go to somebody else. The huge bucket keeps what it has all the same.
        enabled: bool = true, "booking.enabled", "";
        /// Time-out of a booking at the start (T_init).
        initial: f64 = 5.0, "booking.initial", "s";
        /// Time between two adjustments (P).
        period: f64 = 1.0, "booking.period", "s";
        /// Most that may be booked at once, as a share of the layer's memory.
        cap: f64 = 0.5, "booking.cap", "share";
    }
}

/// What is measured over one period.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// TLB misses per access: the rate, so that periods with more work do not look worse.
    misses: f64,
    fmfi: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Measuring with the desired time-out, a longer one is tried next.
    BeforeLonger,
    /// Measuring with 1.1 times the desired time-out.
    Longer,
    /// Measuring with the desired time-out, a shorter one is tried next.
    BeforeShorter,
    /// Measuring with 0.9 times the desired time-out.
    Shorter,
}

/// Algorithm 1: tries a longer and a shorter time-out in turn, and keeps one that made TLB misses
/// fall while fragmentation did not rise.
#[derive(Clone, Debug)]
pub struct Timeout {
    desired: f64,
    phase: Phase,
    reference: Option<Sample>,
}

impl Timeout {
    /// Starts with this time-out, in seconds.
    pub fn new(initial: f64) -> Self {
        Self { desired: initial, phase: Phase::BeforeLonger, reference: None }
    }

    /// The time-out in force, in seconds.
    pub fn effective(&self) -> f64 {
        match self.phase {
            Phase::BeforeLonger | Phase::BeforeShorter => self.desired,
            Phase::Longer => self.desired * 1.1,
            Phase::Shorter => self.desired * 0.9,
        }
    }

    /// One period is over; `feedback` and `fmfi` are of that period.
    pub fn adjust(&mut self, feedback: Feedback, fmfi: f64) {
        let misses = feedback.tlb_misses as f64 / feedback.accesses.max(1) as f64;
        let sample = Sample { misses, fmfi };
        let better = self
            .reference
            .is_some_and(|before| sample.misses < before.misses && sample.fmfi <= before.fmfi);
        self.phase = match self.phase {
            Phase::BeforeLonger => Phase::Longer,
            Phase::BeforeShorter => Phase::Shorter,
            Phase::Longer | Phase::Shorter if better => {
                self.desired = self.effective();
                Phase::BeforeLonger
            }
            Phase::Longer => Phase::BeforeShorter,
            Phase::Shorter => Phase::BeforeLonger,
        };
        self.reference = Some(sample);
    }

    /// A period is over in which nothing was booked: it is no reference for the next one.
    pub fn skip(&mut self) {
        self.reference = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feedback(tlb_misses: u64) -> Feedback {
        Feedback { tlb_misses, accesses: 1000, frequency: 1e9, ..Feedback::default() }
    }

    #[test]
    fn a_time_out_that_helps_is_kept() {
        let mut timeout = Timeout::new(10.0);
        timeout.adjust(feedback(100), 0.5);
        assert_eq!(timeout.effective(), 11.0);
        timeout.adjust(feedback(90), 0.5);
        assert_eq!(timeout.effective(), 11.0, "kept as the desired one");
        timeout.adjust(feedback(90), 0.5);
        timeout.adjust(feedback(90), 0.5);
        assert_eq!(timeout.effective(), 11.0, "12.1 did not help: measured again");
        timeout.adjust(feedback(90), 0.5);
        assert!((timeout.effective() - 9.9).abs() < 1e-9);
        timeout.adjust(feedback(80), 0.6);
        assert_eq!(timeout.effective(), 11.0, "fewer misses, but more fragmentation");
    }

    #[test]
    fn nothing_changes_when_nothing_helps() {
        let mut timeout = Timeout::new(5.0);
        for _ in 0..40 {
            timeout.adjust(feedback(10), 0.1);
        }
        assert_eq!(timeout.desired, 5.0);
    }
}
