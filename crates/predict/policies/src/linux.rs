//! Stock Linux in every kernel, and the upper bound.

use strata_stack::{AlignAreas, KernelSettings, Policy, Position, ThpMode};

/// Every kernel is stock Linux; transparent huge pages are set for guests and for all hypervisors.
#[derive(Clone, Copy, Debug)]
pub struct Linux {
    guest: ThpMode,
    hypervisors: ThpMode,
}

impl Linux {
    /// Huge pages off in every layer: the baseline of the papers ("Host-B-VM-B" in Gemini,
    /// "vanilla" in xGemini V).
    pub fn base() -> Self {
        Self { guest: ThpMode::Never, hypervisors: ThpMode::Never }
    }

    /// Huge pages wherever they fit, in every layer.
    pub fn thp() -> Self {
        Self { guest: ThpMode::Always, hypervisors: ThpMode::Always }
    }

    /// Huge pages in the guest only: all of them misaligned ("Host-B-VM-H" in Gemini Fig. 2).
    pub fn guest_huge() -> Self {
        Self { guest: ThpMode::Always, hypervisors: ThpMode::Never }
    }

    /// Huge pages in the hypervisors only: all of them misaligned ("Host-H-VM-B" in Gemini Fig. 2,
    /// "Misalignment" in its other figures).
    pub fn host_huge() -> Self {
        Self { guest: ThpMode::Never, hypervisors: ThpMode::Always }
    }
}

impl Policy for Linux {
    fn settings(&mut self, at: Position) -> KernelSettings {
        let thp = if at.is_guest() { self.guest } else { self.hypervisors };
        KernelSettings { thp, align_areas: AlignAreas::Never, fragmented: true, coloured: false }
    }
}

/// The upper bound: memory without fragmentation, huge pages in every layer, areas padded to whole
/// huge pages. Every huge page is well aligned from its first touch.
#[derive(Clone, Copy, Debug)]
pub struct Aligned;

impl Policy for Aligned {
    fn settings(&mut self, _: Position) -> KernelSettings {
        KernelSettings {
            thp: ThpMode::Always,
            align_areas: AlignAreas::Large,
            fragmented: false,
            coloured: false,
        }
    }
}
