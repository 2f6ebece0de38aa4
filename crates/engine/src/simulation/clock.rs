//! Simulated time. Every CPU has a clock of its own cycles; what the stream orders is respected.

use strata_hardware::{Charge, CpuId, Machine};

/// The clocks of the CPUs.
///
/// A CPU's clock is its cycles plus the time it was idle. The stream is in the order of real time,
/// so what comes after the end of a thread happens after it: a thread that begins or goes on later
/// is not earlier than that. This makes children that run one after the other add up and threads
/// that run side by side not. Waits other than for the end of a thread are not known.
#[derive(Debug)]
pub(crate) struct Clock {
    frequency: f64,
    scale: f64,
    /// Cycles a CPU was idle, by CPU.
    idle: Vec<u64>,
    /// The latest end of a thread.
    floor: u64,
    last: CpuId,
    now: u64,
    /// Where counting began.
    start: u64,
    /// Parts of cycles of background work not charged yet, by kind.
    rest: [f64; Charge::ALL.len()],
}

impl Clock {
    /// Clocks of CPUs with this frequency in Hz. Background work sees time pass `scale` times as
    /// fast.
    pub(crate) fn new(frequency: f64, scale: f64) -> Self {
        let last = CpuId(0);
        let rest = Default::default();
        Self { frequency, scale, idle: Vec::new(), floor: 0, last, now: 0, start: 0, rest }
    }

    fn reading(&self, cpu: CpuId, machine: &Machine) -> u64 {
        machine.clock(cpu) + self.idle.get(cpu.0 as usize).copied().unwrap_or(0)
    }

    fn wait_until(&mut self, cpu: CpuId, machine: &Machine, time: u64) {
        let index = cpu.0 as usize;
        if self.idle.len() <= index {
            self.idle.resize(index + 1, 0);
        }
        self.idle[index] += time.saturating_sub(self.reading(cpu, machine));
    }

    /// A thread begins on a CPU: not before the thread that ran last, nor before any end.
    pub(crate) fn start(&mut self, cpu: CpuId, machine: &Machine) {
        let parent = if self.last == cpu { 0 } else { self.reading(self.last, machine) };
        self.wait_until(cpu, machine, self.floor.max(parent));
    }

    /// A thread goes on.
    pub(crate) fn resume(&mut self, cpu: CpuId, machine: &Machine) {
        self.last = cpu;
        self.wait_until(cpu, machine, self.floor);
    }

    /// A thread ended.
    pub(crate) fn end(&mut self, cpu: CpuId, machine: &Machine) {
        self.floor = self.floor.max(self.reading(cpu, machine));
    }

    /// Cycles were spent on a CPU.
    pub(crate) fn advance(&mut self, cpu: CpuId, machine: &Machine) {
        self.now = self.now.max(self.reading(cpu, machine));
    }

    /// Counting begins now, on all CPUs at once: one that is behind waits.
    pub(crate) fn reset(&mut self, machine: &Machine) {
        let cpus = (0..machine.cpus()).map(|cpu| CpuId(cpu as u32));
        cpus.clone().for_each(|cpu| self.advance(cpu, machine));
        self.start = self.now;
        cpus.for_each(|cpu| self.wait_until(cpu, machine, self.start));
    }

    /// The CPU that ran last.
    pub(crate) fn last(&self) -> CpuId {
        self.last
    }

    /// Simulated seconds, as background work sees them.
    pub(crate) fn now(&self) -> f64 {
        self.now as f64 / self.frequency * self.scale
    }

    /// Cycles from where counting began to the latest of all clocks.
    pub(crate) fn elapsed(&self, machine: &Machine) -> u64 {
        let latest = (0..machine.cpus()).map(|cpu| self.reading(CpuId(cpu as u32), machine));
        latest.max().unwrap_or(0).saturating_sub(self.start)
    }

    /// What a CPU is charged for background work that took `cycles`. Time passes `scale` times as
    /// fast for it, so that much more of it falls into the program's time than belongs there: it
    /// weighs that much less.
    pub(crate) fn weigh(&mut self, kind: Charge, cycles: u64) -> u64 {
        let rest = &mut self.rest[kind as usize];
        *rest += cycles as f64 / self.scale;
        let whole = rest.floor();
        *rest -= whole;
        whole as u64
    }

    /// Cycles per second.
    pub(crate) fn frequency(&self) -> f64 {
        self.frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_work_weighs_the_same_whatever_the_scale() {
        for scale in [0.5, 1.0, 3.0, 100.0] {
            let mut clock = Clock::new(1e9, scale);
            // As often as time is fast: every second of background time 1003 cycles.
            let rounds = (1000.0 * scale) as u64;
            let charged: u64 = (0..rounds).map(|_| clock.weigh(Charge::Background, 1003)).sum();
            assert!(charged.abs_diff(1_003_000) <= 1, "{scale}: {charged}");
        }
    }

    #[test]
    fn nothing_is_lost_at_the_scale_of_the_truth() {
        let mut clock = Clock::new(1e9, 1.0);
        assert_eq!([7, 0, 9].map(|cycles| clock.weigh(Charge::Exit, cycles)), [7, 0, 9]);
    }
}
