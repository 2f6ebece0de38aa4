//! What sampling is to reach, and what a CPU has that must be warm for it.

use strata_stream::Array;

/// An array of the modelled CPU that warming must fill.
#[derive(Clone, Debug, PartialEq)]
pub struct Reach {
    /// Which one.
    pub array: Array,
    /// Pages or lines that it holds.
    pub entries: u64,
    /// Its ways.
    pub ways: u32,
    /// Cycles that a miss costs, roughly: misses that cost nothing need no warming.
    pub cycles: f64,
}

impl Reach {
    /// Whether it holds pages, and not lines.
    pub(super) fn holds_pages(&self) -> bool {
        matches!(self.array, Array::L1Tlb | Array::L2Tlb)
    }

    /// Whether all CPUs have one together.
    pub(super) fn is_shared(&self) -> bool {
        self.array == Array::LastLevelCache
    }
}

/// Misses of each array in a window.
pub(super) type Misses = Vec<f64>;

/// What `auto` is to reach, and for which CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Aim {
    /// Half the width of the widest interval, relative to what it is around.
    pub within: f64,
    /// Cycles of an instruction that misses nothing.
    pub base_cpi: f64,
    /// The arrays of the CPU, the largest first.
    pub reaches: Vec<Reach>,
}

impl Aim {
    /// What instructions that miss so often take, roughly.
    pub(super) fn cycles(&self, instructions: f64, misses: &Misses) -> f64 {
        let each = self.reaches.iter().zip(misses);
        self.base_cpi * instructions + each.map(|(r, misses)| r.cycles * misses).sum::<f64>()
    }
}
