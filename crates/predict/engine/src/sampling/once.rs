//! What CPUs load into their TLBs once and keep.
//!
//! A thread that uses memory which others touched loads each translation once, as long as its TLB holds all that it uses.
//! Windows meet such a load whenever the translation is used in one for the first time, mostly as it was loaded in a gap
//! that nobody saw. So it is no sample of what gaps have: it counts once. It may be one, though, of a program that goes on
//! to other memory all the time; then windows meet as many of them as is their share of the stream.

use super::cpus::Seen;
use super::figures::{Figures, figures};
use super::warmth::walks_of;
use strata_counters::Count;
use strata_hardware::{HardwareCounters, Machine};

/// Such loads of each CPU in all windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Once(Vec<Loads>);

/// Those of one CPU.
#[derive(Clone, Debug, Default, PartialEq)]
struct Loads {
    /// Instructions of the CPU in windows.
    seen: u64,
    /// The loads, with their walks.
    counted: HardwareCounters,
    figures: Figures,
    /// The same if their walks find all that they read in the second-level cache.
    cheapest: Figures,
}

impl Once {
    /// Takes what was loaded once out of what a window counted.
    pub(crate) fn take(&mut self, window: &mut [Seen], machine: &Machine) {
        self.0.resize(self.0.len().max(window.len()), Loads::default());
        for (own, Seen { counted, .. }) in self.0.iter_mut().zip(window) {
            own.seen += counted.instructions;
            if counted.first_loads == 0 {
                continue;
            }
            let share = counted.first_loads as f64 / counted.l2_misses as f64;
            let loads = times(walks_of(counted), share);
            *counted -= &loads;
            own.counted += &loads;
            own.figures = figures(&own.counted, machine);
            let hits = own.counted.walk_refs * u64::from(machine.model().cache.l2.cycles);
            let walk_cycles = own.counted.walk_cycles.min(hits);
            let cheapest = HardwareCounters { walk_cycles, ..own.counted.clone() };
            own.cheapest = figures(&cheapest, machine);
        }
    }

    /// All of them.
    pub(crate) fn sum(&self) -> HardwareCounters {
        self.0.iter().fold(HardwareCounters::default(), |mut sum, own| {
            sum += &own.counted;
            sum
        })
    }

    /// Those of one CPU.
    pub(crate) fn of_cpu(&self, cpu: usize) -> HardwareCounters {
        self.0.get(cpu).map(|own| own.counted.clone()).unwrap_or_default()
    }

    /// Instructions of a CPU in windows.
    pub(crate) fn seen(&self, cpu: usize) -> f64 {
        self.0.get(cpu).map_or(0.0, |own| own.seen as f64)
    }

    /// A figure of all of them.
    pub(crate) fn figure(&self, figure: usize) -> f64 {
        self.0.iter().map(|own| own.figures[figure]).sum()
    }

    /// How much less of a figure there is if walks found page tables in the caches. Windows see them read what gaps had read.
    pub(crate) fn if_warm(&self, figure: usize) -> f64 {
        self.0.iter().map(|own| own.figures[figure] - own.cheapest[figure]).sum()
    }

    /// A figure of all of them if windows met each as often as they meet anything. Of each CPU how many instructions it retired.
    pub(crate) fn if_sampled(&self, figure: usize, retired: &[f64]) -> f64 {
        let all = |(own, retired): (&Loads, &f64)| {
            own.figures[figure] * (retired / own.seen.max(1) as f64).max(1.0)
        };
        self.0.iter().zip(retired).map(all).sum()
    }
}

/// Each count so many times.
fn times(counters: HardwareCounters, times: f64) -> HardwareCounters {
    let mut counts = Vec::new();
    counters.visit(&mut |count| counts.push(count));
    let mut counts = counts.into_iter();
    let mut scaled = HardwareCounters::default();
    scaled.set(&mut || (counts.next().unwrap_or(0) as f64 * times).round() as u64);
    scaled
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_hardware::{CpuModel, Misaligned};

    #[test]
    fn loads_of_each_cpu_count_once_and_may_stand_for_as_many_as_it_ran_in_gaps() {
        let machine = Machine::new(&CpuModel::preset("zen3").unwrap(), Misaligned::Splinter);
        let seen = |l2_misses, first_loads| Seen {
            counted: HardwareCounters {
                instructions: 1000,
                accesses: 300,
                l1_misses: 50,
                l2_misses,
                first_loads,
                walks: l2_misses,
                walk_refs: 4 * l2_misses,
                walk_cycles: 500 * l2_misses,
                faulted_walks: 2,
                ..HardwareCounters::default()
            },
            faults: 2,
        };
        let mut window = [seen(20, 5), seen(8, 0)];
        let mut once = Once::default();
        once.take(&mut window, &machine);
        let [first, second] = window.map(|seen| seen.counted);
        assert_eq!((first.l2_misses, first.walks, first.walk_refs), (15, 15, 60));
        assert_eq!((first.accesses, first.l1_misses, first.faulted_walks), (300, 50, 2));
        assert_eq!(second, seen(8, 0).counted);
        assert_eq!((once.sum().l2_misses, once.sum().walk_refs), (5, 20));
        assert_eq!((once.of_cpu(0).walks, once.of_cpu(1).walks), (5, 0));
        // The first CPU ran ten times as long as windows saw, and figure 2 is misses.
        assert_eq!(once.if_sampled(2, &[10_000.0, 50_000.0]), 50.0);
        once.take(&mut [seen(20, 5), seen(8, 4)], &machine);
        assert_eq!(once.if_sampled(2, &[10_000.0, 50_000.0]), 10.0 * 5.0 + 4.0 * 25.0);
        assert_eq!(once.figure(2), 14.0);
        // Figure 4 is walk cycles.
        let hit = f64::from(machine.model().cache.l2.cycles);
        assert_eq!((once.if_warm(2), once.if_warm(4)), (0.0, 14.0 * (500.0 - 4.0 * hit)));
    }
}
