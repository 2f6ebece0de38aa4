//! The papers' figures, from the files in `data`. Values are measured from the bars; those of tables are printed in
//! the papers. Averages are made of them, those of the papers' prose are named as such.

use super::conditions::{Memory, Which};
use super::measure::Measure;

/// A figure or table of one of the papers.
pub(super) struct Figure {
    pub(super) which: Which,
    /// As the paper names it.
    pub(super) name: &'static str,
    pub(super) measure: Measure,
    /// Relative to this policy; `None` for a share.
    pub(super) to: Option<&'static str>,
    /// Columns of the file, and the policies that they are.
    pub(super) systems: &'static [(&'static str, &'static str)],
    /// The states of memory that it shows.
    pub(super) memory: &'static [Memory],
    data: &'static str,
    /// What a value of the file is to be multiplied with.
    unit: f64,
}

const SYSTEMS: &[(&str, &str)] = &[("Misal", "host-huge"), ("THP", "thp"), ("Gemini", "gemini")];
const NESTED: &[(&str, &str)] = &[("DualGemini", "gemini"), ("xGemini", "xgemini")];
const FRAGMENTED: &[Memory] = &[Memory::Fragmented];

/// The figures that have bars of systems that are modelled here.
pub(super) const FIGURES: [Figure; 9] = [
    Figure {
        which: Which::Gemini,
        name: "Gemini, Fig. 8",
        measure: Measure::Throughput,
        to: Some("base"),
        systems: SYSTEMS,
        memory: &Memory::ALL,
        data: include_str!("../../data/gemini-fig08-throughput.csv"),
        unit: 0.01,
    },
    Figure {
        which: Which::Gemini,
        name: "Gemini, Fig. 9",
        measure: Measure::MeanLatency,
        to: Some("base"),
        systems: SYSTEMS,
        memory: &Memory::ALL,
        data: include_str!("../../data/gemini-fig09-mean-latency.csv"),
        unit: 0.01,
    },
    Figure {
        which: Which::Gemini,
        name: "Gemini, Fig. 10",
        measure: Measure::TailLatency,
        to: Some("base"),
        systems: SYSTEMS,
        memory: &Memory::ALL,
        data: include_str!("../../data/gemini-fig10-p99-latency.csv"),
        unit: 0.01,
    },
    Figure {
        which: Which::Gemini,
        name: "Gemini, Fig. 11",
        measure: Measure::Misses,
        to: Some("gemini"),
        systems: &[("HostB-VMB", "base"), ("Misal", "host-huge"), ("THP", "thp")],
        memory: FRAGMENTED,
        data: include_str!("../../data/gemini-fig11-tlb-misses.csv"),
        unit: 1.0,
    },
    Figure {
        which: Which::Gemini,
        name: "Gemini, Tables 1 and 3",
        measure: Measure::Aligned,
        to: None,
        systems: &[("THP", "thp"), ("Gemini", "gemini")],
        memory: FRAGMENTED,
        data: include_str!("../../data/gemini-table3-aligned.csv"),
        unit: 0.01,
    },
    Figure {
        which: Which::XGemini,
        name: "xGemini, Fig. 11",
        measure: Measure::Throughput,
        to: Some("base"),
        systems: NESTED,
        memory: &Memory::ALL,
        data: include_str!("../../data/xgemini-fig11-throughput.csv"),
        unit: 0.01,
    },
    Figure {
        which: Which::XGemini,
        name: "xGemini, Fig. 12",
        measure: Measure::Misses,
        to: Some("base"),
        systems: NESTED,
        memory: &Memory::ALL,
        data: include_str!("../../data/xgemini-fig12-tlb-misses.csv"),
        unit: 0.01,
    },
    Figure {
        which: Which::XGemini,
        name: "xGemini, Fig. 13, means",
        measure: Measure::MeanLatency,
        to: Some("base"),
        systems: NESTED,
        memory: &Memory::ALL,
        data: include_str!("../../data/xgemini-fig13-mean-latency.csv"),
        unit: 0.01,
    },
    Figure {
        which: Which::XGemini,
        name: "xGemini, Fig. 13, 99th percentiles",
        measure: Measure::TailLatency,
        to: Some("base"),
        systems: NESTED,
        memory: &Memory::ALL,
        data: include_str!("../../data/xgemini-fig13-p99-latency.csv"),
        unit: 0.01,
    },
];

/// Table 4 of Gemini: shares of huge pages that are well aligned in a reused VM.
pub(super) const REUSED: &str = include_str!("../../data/gemini-table4-reused.csv");

/// Fig. 2 of Gemini: throughput of a micro-benchmark.
pub(super) const MICROBENCHMARK: &str = include_str!("../../data/gemini-fig02-microbenchmark.csv");

/// The figures of a paper.
pub(super) fn figures(which: Which) -> impl Iterator<Item = &'static Figure> {
    FIGURES.iter().filter(move |figure| figure.which == which)
}

/// The value of a file in the row of this name and in this column.
pub(super) fn cell(data: &str, row: &str, column: &str) -> Option<f64> {
    let mut lines = data.lines().filter(|line| !line.starts_with('#'));
    let at = lines.next()?.split(',').position(|name| name == column)?;
    let mut rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
    rows.find(|cells| cells.first() == Some(&row))?.get(at)?.parse().ok()
}

impl Figure {
    /// What it shows for a program under a system.
    pub(super) fn value(&self, program: &str, memory: Memory, column: &str) -> Option<f64> {
        let row = format!("{program} ({})", memory.suffix());
        cell(self.data, &row, column).map(|value| value * self.unit)
    }

    /// The mean of all its bars of a system.
    pub(super) fn average(&self, memory: Memory, column: &str) -> Option<f64> {
        let ending = format!(" ({})", memory.suffix());
        let rows = self.data.lines().filter_map(|line| line.split(',').next());
        let programs: Vec<&str> = rows.filter_map(|row| row.strip_suffix(&ending)).collect();
        let values = programs.iter().map(|program| self.value(program, memory, column));
        let values = values.collect::<Option<Vec<f64>>>().filter(|values| !values.is_empty())?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemini::conditions::PROGRAMS;

    fn figure(name: &str) -> &'static Figure {
        FIGURES.iter().find(|figure| figure.name == name).unwrap()
    }

    #[test]
    fn figures_are_those_of_the_papers() {
        let fig8 = figure("Gemini, Fig. 8");
        let near = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{found:?}");
        };
        near(fig8.value("Redis", Memory::Fragmented, "Gemini"), 2.62);
        near(fig8.value("Redis", Memory::Clean, "THP"), 1.4);
        assert_eq!(fig8.value("Moses", Memory::Clean, "THP"), None);
        let misses = figure("xGemini, Fig. 12");
        near(misses.value("FFT", Memory::Fragmented, "xGemini"), 0.144);
        assert_eq!(cell(REUSED, "SVM (reused)", "Gemini"), Some(99.0));
        assert_eq!(cell(MICROBENCHMARK, "Small", "HostB-VMH"), Some(86.0));
    }

    /// The averages of the bars, which differ from those in the papers' prose (2.39 for all other systems in
    /// Gemini 6.2; 16.6 % more throughput in xGemini V.A, where dual Gemini's bars have 3.5).
    #[test]
    fn averages_are_those_of_the_bars() {
        let near = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|found| (found - expected).abs() < 0.006), "{found:?}");
        };
        let misses = figure("Gemini, Fig. 11");
        near(misses.average(Memory::Fragmented, "HostB-VMB"), 3.56);
        near(misses.average(Memory::Fragmented, "THP"), 2.73);
        near(misses.average(Memory::Clean, "THP").or(Some(0.0)), 0.0);
        let nested = figure("xGemini, Fig. 12");
        near(nested.average(Memory::Fragmented, "DualGemini"), 0.839);
        near(nested.average(Memory::Fragmented, "xGemini"), 0.462);
        near(figure("xGemini, Fig. 11").average(Memory::Fragmented, "DualGemini"), 1.035);
    }

    #[test]
    fn every_program_that_something_stands_for_is_in_a_figure() {
        for program in PROGRAMS {
            for which in [Which::Gemini, Which::XGemini] {
                for published in program.stands_for(which) {
                    let mut shown = figures(which).flat_map(|figure| {
                        let memory = figure.memory[0];
                        figure.systems.iter().map(move |(column, _)| (figure, memory, *column))
                    });
                    let in_it = shown.any(|(figure, memory, column)| {
                        figure.value(published, memory, column).is_some()
                    });
                    assert!(in_it, "{published}");
                }
            }
        }
    }
}
