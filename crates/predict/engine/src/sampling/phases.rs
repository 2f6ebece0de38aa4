//! What is estimated of a stream that is sampled by phases, and how far it may be off.
//!
//! Each phase is a stratum of intervals, of which some were drawn at random and are the windows. What these
//! counted an instruction, times the instructions of the phase, is the estimate for the phase. How many
//! instructions a phase has is known from an earlier run; how many there are of all, from this one.

use super::cpus::{self, OfCpu, Seen, Share};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strata_counters::Count;
use strata_hardware::{HardwareCounters, Machine};
use strata_stream::{Stratum, stratified_half_width};
use strata_text::number::{count, percent};

/// A program that is longer or shorter by more than this share is not the one that was profiled.
const CHANGED: f64 = 0.01;

/// One phase of a sampled stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseShare {
    /// Its share of the instructions.
    pub share: f64,
    /// Its intervals, of which windows were drawn.
    pub intervals: u64,
    /// Windows that were counted.
    pub windows: u64,
}

/// The phases of a stream, and what their windows counted so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Phases {
    known: BTreeMap<u32, Phase>,
    /// The phase of the next window.
    present: u32,
    /// What each CPU did of phases, as windows tell.
    cpus: Vec<OfCpu>,
    /// Windows of all phases.
    windows: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Phase {
    intervals: u64,
    instructions: f64,
    /// Instructions of its windows, and what each CPU did of them.
    counted: f64,
    cpus: Vec<OfCpu>,
    /// Instructions of each window, and what each CPU did of it.
    drawn: Vec<(f64, Box<[Share]>)>,
}

impl Phases {
    /// The next window is of this phase.
    pub(crate) fn tell(&mut self, phase: u32, intervals: u64, instructions: u64) {
        self.present = phase;
        let known = self.known.entry(phase).or_default();
        (known.intervals, known.instructions) = (intervals, instructions as f64);
    }

    /// A window is over.
    pub(crate) fn window(&mut self, window: &[Seen], machine: &Machine) {
        let instructions = Seen::sum(window).counted.instructions as f64;
        if instructions == 0.0 {
            return;
        }
        let Some(phase) = self.known.get_mut(&self.present) else { return };
        phase.counted += instructions;
        cpus::add(&mut phase.cpus, window, 1.0);
        phase.drawn.push((instructions, cpus::shares(window, machine)));
        self.windows += 1;
        self.cpus = self.together();
    }

    /// Phases that windows have shown.
    fn seen(&self) -> impl Iterator<Item = &Phase> {
        self.known.values().filter(|phase| phase.counted > 0.0)
    }

    /// Instructions of these.
    fn seen_instructions(&self) -> f64 {
        self.seen().map(|phase| phase.instructions).sum::<f64>().max(1.0)
    }

    /// Each phase as many times as it is longer than its windows.
    fn together(&self) -> Vec<OfCpu> {
        let mut all: Vec<OfCpu> = Vec::new();
        for phase in self.seen() {
            let times = phase.instructions / phase.counted;
            all.resize(all.len().max(phase.cpus.len()), OfCpu::default());
            for (sum, cpu) in all.iter_mut().zip(&phase.cpus) {
                sum.add(cpu, times);
            }
        }
        all
    }

    fn weights(&self, retired: &[f64]) -> Vec<f64> {
        cpus::weights(&self.cpus, retired)
    }

    /// Windows that were counted.
    pub(crate) fn windows(&self) -> u64 {
        self.windows
    }

    /// What so many instructions count, of which CPUs retired about these; `None` when no window has shown anything.
    pub(crate) fn estimate(&self, instructions: u64, retired: &[f64]) -> Option<HardwareCounters> {
        if self.windows == 0 {
            return None;
        }
        let weights = self.weights(retired);
        let weighed = self.cpus.iter().zip(&weights).map(|(cpu, weight)| cpu.instructions * weight);
        let times = instructions as f64 / weighed.sum::<f64>().max(1.0);
        let mut at = 0;
        let mut estimated = HardwareCounters::default();
        estimated.set(&mut || {
            at += 1;
            (cpus::sum(&self.cpus, &weights, at - 1) * times).round() as u64
        });
        Some(estimated)
    }

    /// What one CPU did of so many instructions that it retired.
    pub(crate) fn of_cpu(&self, cpu: usize, retired: &[f64]) -> HardwareCounters {
        let known = retired.get(cpu).copied().unwrap_or(0.0);
        cpus::of_cpu(&self.cpus, &self.weights(retired), cpu, known)
    }

    /// Half the width of the interval of a sum over so many instructions of what each window has for each instruction, in
    /// the order of phases.
    pub(crate) fn half(&self, instructions: u64, rates: &[f64]) -> Option<f64> {
        if self.known.values().any(|phase| phase.counted == 0.0) {
            return None;
        }
        let scale = instructions as f64 / self.seen_instructions();
        let mut rates = rates.iter().copied();
        let strata = self.known.values().map(|phase| {
            let drawn = rates.by_ref().take(phase.drawn.len()).collect();
            Stratum { units: phase.intervals as f64, weight: phase.instructions * scale, drawn }
        });
        stratified_half_width(&strata.collect::<Vec<_>>())
    }

    /// A figure of each window for each instruction, in the order of phases, as far as shares of CPUs do not explain it.
    pub(crate) fn rates(&self, figure: usize, retired: &[f64]) -> Vec<f64> {
        let windows = self.known.values().flat_map(|phase| {
            let times = phase.instructions / phase.counted.max(1.0);
            phase.drawn.iter().map(move |(window, shares)| (window * times, &shares[..]))
        });
        cpus::residuals(windows, &self.weights(retired), |share| share.rates[figure])
    }

    /// The phases, for a result.
    pub(crate) fn shares(&self) -> Vec<PhaseShare> {
        let all = self.instructions().max(1.0);
        let share = |phase: &Phase| PhaseShare {
            share: phase.instructions / all,
            intervals: phase.intervals,
            windows: phase.drawn.len() as u64,
        };
        self.known.values().map(share).collect()
    }

    fn instructions(&self) -> f64 {
        self.known.values().map(|phase| phase.instructions).sum()
    }

    /// What a reader must know of a stream that had so many instructions.
    pub(crate) fn note(&self, instructions: u64) -> Option<String> {
        let before = self.instructions();
        let longer = (instructions as f64 - before) / before.max(1.0);
        let mut parts = Vec::new();
        if longer.abs() > CHANGED {
            parts.push(format!(
                "the stream had {} instructions, {} {} than when its phases were found, so windows may not be \
                 of the phases that they stand for",
                count(instructions),
                percent(longer.abs()),
                if longer > 0.0 { "more" } else { "fewer" },
            ));
        }
        let lacking = |phase: &&Phase| {
            (phase.drawn.len() as u64) < 2 && phase.intervals > phase.drawn.len() as u64
        };
        let lost: f64 = self.known.values().filter(lacking).map(|phase| phase.instructions).sum();
        if lost > 0.0 {
            parts.push(format!(
                "of phases with {} of the instructions too few windows were over before the stream was to say \
                 how far estimates are off",
                percent(lost / before.max(1.0))
            ));
        }
        if self.known.values().any(|phase| phase.intervals > phase.drawn.len() as u64) {
            parts.push(
                "what few intervals of a phase do, as touching new memory, its windows may all miss, and bounds \
                 do not say so"
                    .to_owned(),
            );
        }
        (!parts.is_empty()).then(|| format!("sampled by phases: {}", parts.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(instructions: u64, accesses: u64) -> Seen {
        let counted = HardwareCounters { instructions, accesses, ..HardwareCounters::default() };
        Seen { counted, faults: 0 }
    }

    fn machine() -> Machine {
        use strata_hardware::{CpuModel, Misaligned};
        Machine::new(&CpuModel::preset("zen3").unwrap(), Misaligned::Splinter)
    }

    /// Two phases: 900 instructions of some two accesses each, 100 of ten.
    fn phases() -> Phases {
        let mut phases = Phases::default();
        phases.tell(0, 9, 900);
        phases.tell(1, 1, 100);
        for (phase, accesses) in [(0, 190), (1, 1000), (0, 210)] {
            let (intervals, instructions) = if phase == 0 { (9, 900) } else { (1, 100) };
            phases.tell(phase, intervals, instructions);
            phases.window(&[counted(100, accesses)], &machine());
        }
        phases
    }

    #[test]
    fn a_phase_counts_as_much_as_it_has_instructions() {
        let phases = phases();
        let accesses = |instructions| phases.estimate(instructions, &[]).unwrap().accesses;
        assert_eq!(accesses(1000), 900 * 2 + 100 * 10);
        assert_eq!(accesses(2000), 2 * accesses(1000), "whatever the stream's length");
        assert_eq!(phases.windows(), 3);
        assert_eq!(Phases::default().estimate(1000, &[]), None);
        let shares: Vec<_> =
            phases.shares().iter().map(|p| (p.share, p.intervals, p.windows)).collect();
        assert_eq!(shares, [(0.9, 9, 2), (0.1, 1, 1)]);
        assert_eq!(phases.rates(0, &[]), [1.9, 2.1, 10.0]);
    }

    #[test]
    fn bounds_are_of_how_windows_of_a_phase_differ() {
        let phases = phases();
        let found = phases.half(1000, &phases.rates(0, &[])).unwrap();
        let stratum = Stratum { units: 9.0, weight: 900.0, drawn: vec![1.9, 2.1] };
        let expected = stratified_half_width(&[stratum]).unwrap();
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        let twice = phases.half(2000, &phases.rates(0, &[])).unwrap();
        assert!((twice / found - 2.0).abs() < 1e-9);
        assert_eq!(phases.half(1000, &[0.0; 3]), None, "no difference");
    }

    /// Threads do not do as much of windows as they do of their phase.
    #[test]
    fn cpus_count_for_as_much_as_they_retired() {
        let mut phases = Phases::default();
        phases.tell(0, 9, 900);
        for first in [40, 50, 60, 50] {
            // One accesses memory with every instruction, the other seven times as often.
            let window = [counted(first, first), counted(100 - first, 7 * (100 - first))];
            phases.window(&window, &machine());
        }
        let retired = [900.0, 100.0];
        assert_eq!(phases.estimate(1000, &retired).unwrap().accesses, 900 + 7 * 100);
        let rates = phases.rates(0, &retired);
        assert!(rates.iter().all(|rate| (rate - 1.6).abs() < 1e-9), "{rates:?}");
    }

    #[test]
    fn what_ended_early_or_was_of_another_length_is_told() {
        for length in [1000, 1009] {
            let note = phases().note(length).unwrap();
            assert!(!note.contains("when its phases were found"), "{note}");
            assert!(note.contains("its windows may all miss"), "{note}");
        }
        let note = phases().note(1020).unwrap();
        assert!(note.contains("2.0 % more than when its phases were found"), "{note}");
        let mut short = Phases::default();
        short.tell(0, 9, 900);
        short.tell(1, 1, 100);
        short.tell(0, 9, 900);
        short.window(&[counted(100, 200)], &machine());
        let note = short.note(300).unwrap();
        assert!(note.contains("fewer than when"), "{note}");
        assert!(note.contains("of the instructions too few windows"), "{note}");
        assert_eq!(short.half(300, &short.rates(0, &[])), None);
        assert_eq!(
            short.estimate(300, &[]).unwrap().accesses,
            600,
            "what was seen stands for the rest"
        );
    }
}
