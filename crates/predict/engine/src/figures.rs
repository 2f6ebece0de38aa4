//! Figures of a sampled stream that have bounds.

use strata_hardware::{HardwareCounters, Machine};

/// What has bounds: names in a result, and the figure of what was counted.
pub(crate) const FIGURES: [&str; 7] = [
    "accesses",
    "tlb.l1_misses",
    "tlb.l2_misses",
    "walk_refs",
    "walk_cycles",
    "counters.strata.data_memory",
    "cycles",
];

/// A value for each of them.
pub(crate) type Figures = [f64; FIGURES.len()];

/// The place of accesses among them.
pub(crate) const ACCESSES: usize = 0;

/// The place of cycles among them.
pub(crate) const CYCLES: usize = FIGURES.len() - 1;

/// The figures with bounds, of counters without what was charged.
pub(crate) fn figures(counters: &HardwareCounters, machine: &Machine) -> Figures {
    [
        counters.accesses as f64,
        counters.l1_misses as f64,
        counters.l2_misses as f64,
        counters.walk_refs as f64,
        counters.walk_cycles as f64,
        counters.data.memory as f64,
        machine.explain(counters).total(),
    ]
}
