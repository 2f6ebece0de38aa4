//! How often something happens to a guest besides its use of memory, and what is known of it so far.

use rustc_hash::FxHashMap;
use strata_hardware::CpuId;
use strata_params::{ParameterError, Value};
use strata_stack::Happening;
use strata_stream::Call;

/// How often something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rate {
    /// Whenever the program does it, as far as its stream says so.
    #[default]
    Program,
    /// So many times in each second that a CPU works, evenly.
    Hertz(f64),
}

impl Value for Rate {
    fn parse(name: &str, text: &str, _: &str) -> Result<Self, ParameterError> {
        let rate = match text {
            "program" => Some(Self::Program),
            "none" => Some(Self::Hertz(0.0)),
            text => text
                .parse()
                .ok()
                .filter(|hertz: &f64| hertz.is_finite() && *hertz >= 0.0)
                .map(Self::Hertz),
        };
        rate.ok_or_else(|| ParameterError::Invalid {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "program, none or a number of times a second",
        })
    }

    fn print(&self) -> String {
        match self {
            Self::Program => "program".to_owned(),
            Self::Hertz(hertz) => hertz.to_string(),
        }
    }
}

strata_params::parameters! {
    /// What happens to guests besides their use of memory.
    pub struct RateParameters {
        /// Ticks a second of the timer of each kernel, on each CPU while it works; 0 for none. Distributions
        /// build Linux with 250 (Ubuntu, Debian) or 1000 (`CONFIG_HZ`).
        tick: f64 = 0.0, "rate.tick", "Hz";
        /// Requests a second of each CPU to devices that software plays: a number, `none`, or `program`,
        /// those that system calls of the program lead to.
        io: Rate = Rate::Program, "rate.io", "Hz";
        /// How often a second each CPU has nothing to do until it is woken: a number, `none`, or `program`,
        /// whenever a system call of the program waits.
        halt: Rate = Rate::Program, "rate.halt", "Hz";
        /// Interrupts a second that each CPU sends to another: a number, `none`, or `program`, whenever a
        /// system call of the program wakes a thread.
        ipi: Rate = Rate::Program, "rate.ipi", "Hz";
        /// How often a device is told of one request: 1 for virtio's, 26 for an IDE disk as Linux 2.6.28
        /// drives it (`drivers/ata/libata-sff.c`).
        accesses: u64 = 1, "rate.device_accesses", "exits";
        /// Timers of guests and of hypervisors in VMs are L0's affair, whoever is below them (DVH, ASPLOS'20,
        /// section 3).
        direct_timers: bool = false, "nested.direct_timers", "";
    }
}

impl RateParameters {
    /// What happens by time alone, and how often a second.
    pub(super) fn by_time(&self) -> [(Happening, f64); 4] {
        let hertz = |rate| match rate {
            Rate::Hertz(hertz) => hertz,
            Rate::Program => 0.0,
        };
        [
            (Happening::Tick, self.tick),
            (Happening::Request, hertz(self.io)),
            (Happening::Halt, hertz(self.halt)),
            (Happening::Ipi, hertz(self.ipi)),
        ]
    }

    /// Whether anything comes so many times in a second.
    pub(super) fn has_clock(&self) -> bool {
        self.by_time().iter().any(|(_, hertz)| *hertz > 0.0)
    }

    /// What of a CPU's time goes to what happens by time alone, where each thing takes `cycles` of a second of
    /// so many.
    pub(super) fn share_of_time(&self, cycles: impl Fn(Happening) -> u64, frequency: f64) -> f64 {
        self.by_time()
            .into_iter()
            .map(|(what, hertz)| hertz * cycles(what) as f64 / frequency)
            .sum()
    }

    /// What follows from a system call of the program.
    pub(super) fn by_call(&self, call: Call) -> Option<Happening> {
        let counts = |rate| rate == Rate::Program;
        let (request, halt) = (counts(self.io), counts(self.halt));
        match call {
            Call::Request if request => Some(Happening::Request),
            Call::AwaitedRequest if request && halt => Some(Happening::AwaitedRequest),
            Call::AwaitedRequest if request => Some(Happening::Request),
            Call::AwaitedRequest | Call::Wait if halt => Some(Happening::Halt),
            Call::Wake if counts(self.ipi) => Some(Happening::Ipi),
            _ => None,
        }
    }
}

/// What has happened to a guest.
#[derive(Debug, Default)]
pub(super) struct Happened {
    /// How often, in the order of [`Happening::ALL`].
    pub(super) counts: [u64; Happening::ALL.len()],
    /// Cycles that each CPU had worked when it was last looked at, and what is left of each thing that
    /// happens by time: parts of one.
    cpus: FxHashMap<CpuId, (u64, [f64; 4])>,
}

impl Happened {
    /// What is due on a CPU that has now worked for so many cycles, of which those before `since` were not this
    /// guest's, in the order of [`RateParameters::by_time`]; `rates` are times a cycle.
    pub(super) fn due(&mut self, cpu: CpuId, worked: u64, since: u64, rates: [f64; 4]) -> [u64; 4] {
        let (before, rests) = self.cpus.entry(cpu).or_insert((since, [0.0; 4]));
        let passed = worked.saturating_sub((*before).max(since)) as f64;
        *before = worked;
        let mut due = [0; 4];
        for ((due, rest), rate) in due.iter_mut().zip(rests).zip(rates) {
            *rest += passed * rate;
            *due = rest.floor() as u64;
            *rest -= rest.floor();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_params::Parameters;

    #[test]
    fn rates_are_numbers_none_or_the_programs() {
        let mut rates = RateParameters::default();
        for (text, rate) in
            [("program", Rate::Program), ("none", Rate::Hertz(0.0)), ("2.5", Rate::Hertz(2.5))]
        {
            rates.set("rate.io", text).unwrap();
            assert_eq!(rates.io, rate);
            assert_eq!(Rate::parse("", &rate.print(), ""), Ok(rate));
        }
        for wrong in ["", "-1", "often", "inf", "NaN"] {
            let error = rates.set("rate.io", wrong).unwrap_err().to_string();
            assert!(error.contains("expected program, none or a number"), "{error}");
        }
    }

    #[test]
    fn a_rate_takes_the_place_of_what_the_program_does() {
        let rates = |request: &str, halt: &str| {
            let mut rates = RateParameters::default();
            rates.set("rate.io", request).unwrap();
            rates.set("rate.halt", halt).unwrap();
            [Call::Request, Call::AwaitedRequest, Call::Wait, Call::Wake]
                .map(|call| rates.by_call(call))
        };
        use Happening::*;
        let wake = Some(Ipi);
        assert_eq!(
            rates("program", "program"),
            [Some(Request), Some(AwaitedRequest), Some(Halt), wake]
        );
        assert_eq!(rates("program", "5"), [Some(Request), Some(Request), None, wake]);
        assert_eq!(rates("5", "program"), [None, Some(Halt), Some(Halt), wake]);
        assert_eq!(rates("none", "none"), [None, None, None, wake]);
    }

    proptest! {
        #[test]
        fn over_time_as_many_are_due_as_the_rate_says_however_it_is_looked_at(
            steps in prop::collection::vec(0u64..100_000, 1..50),
            rate in 0.0..0.01f64,
        ) {
            let mut happened = Happened::default();
            let (mut worked, mut due) = (7, 0);
            for step in &steps {
                worked += step;
                due += happened.due(CpuId(0), worked, 7, [rate, 0.0, 0.0, 0.0])[0];
            }
            let expected = (worked - 7) as f64 * rate;
            prop_assert!((expected - due as f64).abs() < 1.0 + 1e-6, "{} {}", expected, due);
        }
    }

    #[test]
    fn what_others_did_on_a_core_is_not_counted() {
        let mut happened = Happened::default();
        let once = [0.1, 0.0, 0.0, 0.0];
        assert_eq!(happened.due(CpuId(0), 100, 0, once)[0], 10);
        assert_eq!(happened.due(CpuId(0), 1000, 950, once)[0], 5);
    }
}
