//! What a result says of what was estimated.

use super::phases::PhaseShare;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bounds of a figure that was estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// The figure of the whole stream is not below this, with the confidence of
    /// [`Sampled::confidence`].
    pub low: f64,
    /// Nor above this.
    pub high: f64,
}

impl Bounds {
    /// So wide to both sides, and by what it may be too high, and too low, besides.
    pub(super) fn around(value: f64, half: f64, [over, under]: [f64; 2]) -> Self {
        Self { low: (value - half - over).max(0.0), high: value + half + under }
    }

    pub(super) fn plus(self, exact: f64) -> Self {
        Self { low: self.low + exact, high: self.high + exact }
    }

    pub(super) fn times(self, factor: f64) -> Self {
        Self { low: self.low * factor, high: self.high * factor }
    }

    /// Half the width.
    pub fn half(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// How far the figure may be off, relative to the value that the bounds are around; 0 around nothing.
    pub fn relative(&self, value: f64) -> f64 {
        if value > 0.0 { (self.high - value).max(value - self.low) / value } else { 0.0 }
    }
}

/// Whose windows stand for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// Each interval of the stream has a window of its own.
    #[default]
    Intervals,
    /// Each phase of the stream has windows.
    Phases,
}

/// What a sampled run says besides its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// What windows stand for.
    #[serde(default)]
    pub choice: Choice,
    /// The phases of the stream, if they do for phases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseShare>,
    /// Windows that count.
    pub windows: u64,
    /// Instructions at the beginning, traced whole: what they did counts as it is.
    pub whole_instructions: u64,
    /// Instructions in windows.
    pub window_instructions: u64,
    /// Instructions of which no access was seen.
    pub skipped_instructions: u64,
    /// How often in 100 runs with other seeds the bounds hold the figure of the whole stream.
    pub confidence: u32,
    /// The bounds of figures, by their names in the result.
    pub bounds: BTreeMap<String, Bounds>,
    /// Fields of the result that are estimated; all others are exact, as far as the order of touches in
    /// gaps does not matter to them.
    pub estimated: Vec<String>,
}

/// What is estimated and has no bounds of its own, or those of another figure.
pub(super) const OTHERS: [&str; 21] = [
    "tlb.fills",
    "walks",
    "walk_positions",
    "elapsed_cycles",
    "elapsed_seconds",
    "cycles_by_kind.execution",
    "cycles_by_kind.data",
    "cycles_by_kind.walks",
    "bill",
    "memory.touched_bytes",
    "relative_throughput",
    "counters of hardware",
    "cpus",
    "l4",
    "samples",
    "series.seconds",
    "series.accesses",
    "series.l1_misses",
    "series.l2_misses",
    "series.walk_cycles",
    "series.cycles",
];
