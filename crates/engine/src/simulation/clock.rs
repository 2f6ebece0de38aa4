//! Simulated time. Every CPU has a clock of its own cycles; what the stream orders is respected.

use strata_hardware::{CpuId, Machine};

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
}

impl Clock {
    /// Clocks of CPUs with this frequency in Hz. Background work sees time pass `scale` times as
    /// fast.
    pub(crate) fn new(frequency: f64, scale: f64) -> Self {
        let last = CpuId(0);
        Self { frequency, scale, idle: Vec::new(), floor: 0, last, now: 0, start: 0 }
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

    /// Counting begins now.
    pub(crate) fn reset(&mut self, machine: &Machine) {
        for cpu in 0..machine.cpus() {
            self.advance(CpuId(cpu as u32), machine);
        }
        self.start = self.now;
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

    /// Cycles per second.
    pub(crate) fn frequency(&self) -> f64 {
        self.frequency
    }
}
