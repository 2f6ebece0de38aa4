//! Figures of a sampled stream that have bounds.

use super::warmth::Part;
use strata_hardware::{ByLevel, HardwareCounters, Machine};

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

/// What cycles that depend on arrays are made of: each has a figure after those with names.
const COSTS: usize = 4;

/// A value for each of them.
pub(crate) type Figures = [f64; FIGURES.len() + COSTS];

/// The place of cycles among them.
pub(crate) const CYCLES: usize = FIGURES.len() - 1;

/// The place of misses of the second-level TLB among them.
pub(crate) const L2_MISSES: usize = 2;

/// The place of references of walks among them.
pub(crate) const WALK_REFS: usize = 3;

/// The place of misses of the last-level cache among them.
pub(crate) const LLC_MISSES: usize = 5;

/// Whether a figure is of the cycles of walks.
pub(crate) fn is_walk_cycles(figure: usize) -> bool {
    [4, 8].contains(&figure)
}

/// Whether a figure counts misses, one by one.
pub(crate) fn is_misses(figure: usize) -> bool {
    [1, L2_MISSES, LLC_MISSES].contains(&figure)
}

/// What a figure is made of: figures, and the part of the counters that each depends on. Cycles that instructions
/// take by themselves are left out, as they are known.
pub(crate) fn parts(figure: usize) -> &'static [(Part, usize)] {
    const { assert!(FIGURES.len() == 7 && CYCLES == 6) };
    match figure {
        0 => &[(Part::Program, 0)],
        1 => &[(Part::FirstTlb, 1)],
        2 => &[(Part::Walks, 2)],
        3 => &[(Part::Walks, 3)],
        4 => &[(Part::Walks, 4)],
        5 => &[(Part::LastCache, 5)],
        _ => &[(Part::FirstTlb, 7), (Part::Walks, 8), (Part::Caches, 9), (Part::LastCache, 10)],
    }
}

/// The figures of counters without what was charged.
pub(crate) fn figures(counters: &HardwareCounters, machine: &Machine) -> Figures {
    let cost = |counters: HardwareCounters| machine.explain(&counters).total();
    let of_data = |data: ByLevel, l4_data: u64| {
        cost(HardwareCounters { data, l4_data, ..HardwareCounters::default() })
    };
    let HardwareCounters { l1_misses, walk_cycles, faulted_walk_cycles, data, l4_data, .. } =
        *counters;
    let none = ByLevel::default();
    // What the last level does not have is more than what it would have been for the last level to have it.
    let last = of_data(ByLevel { memory: data.memory, ..none }, l4_data)
        - of_data(ByLevel { l3: data.memory, ..none }, 0);
    let inner = of_data(ByLevel { l2: data.l2, l3: data.l3 + data.memory, ..none }, 0);
    [
        counters.accesses as f64,
        l1_misses as f64,
        counters.l2_misses as f64,
        counters.walk_refs as f64,
        walk_cycles as f64,
        data.memory as f64,
        cost(counters.clone()),
        cost(HardwareCounters { l1_misses, ..HardwareCounters::default() }),
        cost(HardwareCounters { walk_cycles, faulted_walk_cycles, ..HardwareCounters::default() }),
        inner,
        last,
    ]
}
