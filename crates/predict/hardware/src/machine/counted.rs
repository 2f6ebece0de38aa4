//! What was counted, on each CPU and in the caches that all share.

use super::{LastLevel, Machine};
use crate::access::CpuId;
use crate::counters::{Charge, HardwareCounters};
use crate::cycles::Cycles;
use crate::llc::{LlcUse, Owner};

impl Machine {
    /// Books cycles that software costs this CPU.
    pub fn charge(&mut self, cpu: CpuId, kind: Charge, cycles: u64) {
        self.cpus[cpu.0 as usize].counters.charged[kind as usize] += cycles;
    }

    /// Books retired instructions.
    #[inline]
    pub fn retire(&mut self, cpu: CpuId, instructions: u64) {
        self.cpus[cpu.0 as usize].counters.instructions += instructions;
    }

    /// What was counted on a CPU since the last reset.
    pub fn counters(&self, cpu: CpuId) -> &HardwareCounters {
        &self.cpus[cpu.0 as usize].counters
    }

    /// Translations that other CPUs have used and this one has not, of address spaces that it has used, or of all if it has
    /// used none: what it would load if it used what they do. 0 where a CPU has used more than its second-level TLB holds.
    pub fn unused_translations(&self, cpu: CpuId) -> u64 {
        self.cpus[cpu.0 as usize].first_uses.unused(self.cpus.iter().map(|cpu| &cpu.first_uses))
    }

    /// What was counted on all CPUs since the last reset.
    pub fn totals(&self) -> HardwareCounters {
        let mut totals = HardwareCounters::default();
        for cpu in &self.cpus {
            totals += &cpu.counters;
        }
        totals
    }

    /// What was counted on a CPU since the last reset, which this is: TLBs, caches and the clock stay.
    pub fn take_counters(&mut self, cpu: CpuId) -> HardwareCounters {
        let cpu = &mut self.cpus[cpu.0 as usize];
        cpu.earlier += self.account.cycles(&cpu.counters).total();
        std::mem::take(&mut cpu.counters)
    }

    /// Sets every counter to 0 and keeps the state of TLBs and caches: the end of a warm-up.
    pub fn reset_counters(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.take_counters(CpuId(cpu as u32));
        }
    }

    /// Cycles that explain these counters, by what they went to.
    pub fn explain(&self, counters: &HardwareCounters) -> Cycles {
        self.account.cycles(counters)
    }

    /// Cycles of a CPU since the last reset, by what they went to.
    pub fn breakdown(&self, cpu: CpuId) -> Cycles {
        self.account.cycles(self.counters(cpu))
    }

    /// Cycles of all CPUs since the last reset, by what they went to.
    pub fn total_breakdown(&self) -> Cycles {
        self.account.cycles(&self.totals())
    }

    /// Cycles of a CPU since the last reset.
    pub fn cycles(&self, cpu: CpuId) -> u64 {
        self.breakdown(cpu).total() as u64
    }

    /// Cycles of a CPU since it was added: its clock, which a reset does not turn back.
    pub fn clock(&self, cpu: CpuId) -> u64 {
        (self.cpus[cpu.0 as usize].earlier + self.breakdown(cpu).total()) as u64
    }

    /// What an owner did in the last-level cache since the last reset, and what it has there; `None` unless it
    /// is modelled in detail.
    ///
    /// # Panics
    /// When no CPU was ever assigned to the owner.
    pub fn llc_use(&self, owner: Owner) -> Option<LlcUse<'_>> {
        match &self.llc {
            LastLevel::Plain(_) => None,
            LastLevel::Detailed(llc) => Some(llc.use_of(owner)),
        }
    }

    /// The same of the cache at the memory; `None` where there is none.
    ///
    /// # Panics
    /// As [`Machine::llc_use`].
    pub fn l4_use(&self, owner: Owner) -> Option<LlcUse<'_>> {
        Some(self.l4.as_ref()?.use_of(owner))
    }

    /// Counts anew what an owner does in the last-level cache and in one at the memory, which keep their
    /// lines.
    ///
    /// # Panics
    /// As [`Machine::llc_use`].
    pub fn reset_llc_counters(&mut self, owner: Owner) {
        if let LastLevel::Detailed(llc) = &mut self.llc {
            llc.reset_counters(owner);
        }
        if let Some(l4) = &mut self.l4 {
            l4.reset_counters(owner);
        }
    }
}
