//! Stock Linux in every layer, and the upper bound.

use strata_stack::{Layer, LayerSettings, Policy, ThpMode};

/// Every layer is stock Linux with transparent huge pages set alike.
#[derive(Clone, Copy, Debug)]
pub struct Linux {
    thp: ThpMode,
}

impl Linux {
    /// Huge pages off in every layer: the baseline of the papers ("Host-B-VM-B" in Gemini,
    /// "vanilla" in xGemini V).
    pub fn base() -> Self {
        Self { thp: ThpMode::Never }
    }

    /// Huge pages wherever they fit, in every layer.
    pub fn thp() -> Self {
        Self { thp: ThpMode::Always }
    }
}

impl Policy for Linux {
    fn settings(&mut self, _: Layer, _: usize) -> LayerSettings {
        LayerSettings { thp: self.thp, align_areas: false, fragmented: true }
    }
}

/// The upper bound: memory without fragmentation, huge pages in every layer, areas padded to whole
/// huge pages. Every huge page is well aligned from its first touch.
#[derive(Clone, Copy, Debug)]
pub struct Aligned;

impl Policy for Aligned {
    fn settings(&mut self, _: Layer, _: usize) -> LayerSettings {
        LayerSettings { thp: ThpMode::Always, align_areas: true, fragmented: false }
    }
}
