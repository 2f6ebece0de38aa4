//! Simulated time. Every CPU has a clock of its own cycles; what the stream orders is respected.

use super::cores::Cores;
use std::collections::BTreeMap;
use strata_hardware::{Charge, CpuId, Machine};

/// The clock of a guest, over those of the CPUs that it runs on.
///
/// A CPU's clock is its cycles plus the time it was idle. The stream is in the order of real time,
/// so what comes after the end of a thread happens after it: a thread that begins or goes on later
/// is not earlier than that. This makes children that run one after the other add up and threads
/// that run side by side not. Waits other than for the end of a thread are not known.
#[derive(Debug)]
pub(crate) struct Clock {
    frequency: f64,
    scale: f64,
    /// The latest end of a thread.
    floor: u64,
    last: CpuId,
    now: u64,
    /// Where counting began.
    start: u64,
    /// Cycles of gaps in a sampled stream that have passed on CPUs.
    gaps: BTreeMap<CpuId, u64>,
    /// Parts of cycles of background work not charged yet, by kind.
    rest: [f64; Charge::ALL.len()],
}

impl Clock {
    /// A clock on CPUs with this frequency in Hz, of a guest that runs on `first` to begin with, from
    /// `start` on, in cycles. Background work sees time pass `scale` times as fast.
    pub(crate) fn new(frequency: f64, scale: f64, first: CpuId, start: u64) -> Self {
        let rest = Default::default();
        let gaps = BTreeMap::new();
        Self { frequency, scale, floor: start, last: first, now: start, start, gaps, rest }
    }

    /// A thread begins on a CPU: not before the thread that ran last, nor before any end.
    pub(crate) fn start(&self, cpu: CpuId, cores: &mut Cores, machine: &Machine) {
        let parent = if self.last == cpu { 0 } else { cores.reading(self.last, machine) };
        cores.wait_until(cpu, machine, self.floor.max(parent));
    }

    /// A thread goes on.
    pub(crate) fn resume(&mut self, cpu: CpuId, cores: &mut Cores, machine: &Machine) {
        self.last = cpu;
        self.catch_up(cpu, cores, machine);
    }

    /// A CPU waits for what a thread that goes on on it would wait for.
    pub(crate) fn catch_up(&self, cpu: CpuId, cores: &mut Cores, machine: &Machine) {
        cores.wait_until(cpu, machine, self.floor);
    }

    /// A thread ended.
    pub(crate) fn end(&mut self, cpu: CpuId, cores: &Cores, machine: &Machine) {
        self.floor = self.floor.max(cores.reading(cpu, machine));
    }

    /// A gap in a sampled stream takes so many cycles of a CPU.
    pub(crate) fn pass_gap(
        &mut self,
        cpu: CpuId,
        cycles: u64,
        cores: &mut Cores,
        machine: &Machine,
    ) {
        let until = cores.reading(cpu, machine).saturating_add(cycles);
        cores.wait_until(cpu, machine, until);
        let gaps = self.gaps.entry(cpu).or_default();
        *gaps = gaps.saturating_add(cycles);
    }

    /// Cycles of gaps that have passed on a CPU.
    pub(crate) fn gaps(&self, cpu: CpuId) -> u64 {
        self.gaps.get(&cpu).copied().unwrap_or(0)
    }

    /// Cycles were spent on a CPU.
    pub(crate) fn advance(&mut self, cpu: CpuId, cores: &Cores, machine: &Machine) {
        self.now = self.now.max(cores.reading(cpu, machine));
    }

    /// Counting begins now, on all of these CPUs at once: one that is behind waits.
    pub(crate) fn reset(&mut self, cpus: &[CpuId], cores: &mut Cores, machine: &Machine) {
        cpus.iter().for_each(|cpu| self.advance(*cpu, cores, machine));
        self.start = self.now;
        cpus.iter().for_each(|cpu| cores.wait_until(*cpu, machine, self.start));
    }

    /// The CPU that ran last.
    pub(crate) fn last(&self) -> CpuId {
        self.last
    }

    /// Simulated seconds, as background work sees them.
    pub(crate) fn now(&self) -> f64 {
        self.now as f64 / self.frequency * self.scale
    }

    /// Simulated seconds on one of the CPUs, which may be further by now.
    pub(crate) fn on(&self, cpu: CpuId, cores: &Cores, machine: &Machine) -> f64 {
        self.now.max(cores.reading(cpu, machine)) as f64 / self.frequency * self.scale
    }

    /// Cycles since the host was started.
    pub(crate) fn cycles(&self) -> u64 {
        self.now
    }

    /// Cycles from where counting began to the latest of the clocks of these CPUs.
    pub(crate) fn elapsed(
        &self,
        cpus: impl IntoIterator<Item = CpuId>,
        cores: &Cores,
        machine: &Machine,
    ) -> u64 {
        let latest = cpus.into_iter().map(|cpu| cores.reading(cpu, machine));
        latest.max().unwrap_or(0).max(self.now).saturating_sub(self.start)
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
            let mut clock = Clock::new(1e9, scale, CpuId(0), 0);
            // As often as time is fast: every second of background time 1003 cycles.
            let rounds = (1000.0 * scale) as u64;
            let charged: u64 = (0..rounds).map(|_| clock.weigh(Charge::Background, 1003)).sum();
            assert!(charged.abs_diff(1_003_000) <= 1, "{scale}: {charged}");
        }
    }

    #[test]
    fn nothing_is_lost_at_the_scale_of_the_truth() {
        let mut clock = Clock::new(1e9, 1.0, CpuId(0), 0);
        assert_eq!([7, 0, 9].map(|cycles| clock.weigh(Charge::Exit, cycles)), [7, 0, 9]);
    }
}
