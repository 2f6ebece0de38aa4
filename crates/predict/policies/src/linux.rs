//! Stock Linux in every kernel, and the upper bound.

use strata_addr::{Frame, space::Lower, space::Upper};
use strata_stack::{AlignAreas, KernelSettings, NodeId, Policy, Position, Stack, ThpMode};

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

/// Every kernel is stock Linux, and each layer has its own setting of transparent huge pages.
#[derive(Clone, Debug)]
pub struct LinuxByLayer {
    modes: Vec<ThpMode>,
}

impl LinuxByLayer {
    /// Settings of L0 and up; the last one is that of all layers above as well.
    pub fn new(modes: Vec<ThpMode>) -> Self {
        Self { modes }
    }
}

impl Policy for LinuxByLayer {
    fn settings(&mut self, at: Position) -> KernelSettings {
        let thp = self.modes.get(usize::from(at.level)).or(self.modes.last());
        let thp = thp.copied().unwrap_or(ThpMode::Never);
        KernelSettings { thp, align_areas: AlignAreas::Never, fragmented: true, coloured: false }
    }
}

/// The upper bound: memory without fragmentation, and whatever is ever touched is a huge page that is well
/// aligned, from the first touch to the end. No policy misses the TLB less.
#[derive(Clone, Copy, Debug)]
pub struct Aligned;

impl Policy for Aligned {
    fn settings(&mut self, _: Position) -> KernelSettings {
        KernelSettings {
            thp: ThpMode::Always,
            align_areas: AlignAreas::Needless,
            fragmented: false,
            coloured: false,
        }
    }

    /// A merged page would break up a huge one.
    fn may_merge(&mut self, _: &Stack, _: NodeId, _: Frame<Upper>, _: Frame<Lower>) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_has_its_own_setting_and_those_above_the_last_one_its() {
        let mut linux = LinuxByLayer::new(vec![ThpMode::Always, ThpMode::Never, ThpMode::Madvise]);
        let mut mode = |level| {
            let at = Position { node: NodeId::HOST, level, vms: 1, vm: NodeId::HOST };
            linux.settings(at).thp
        };
        let modes = [0, 1, 2, 3].map(&mut mode);
        let [always, never, madvise] = [ThpMode::Always, ThpMode::Never, ThpMode::Madvise];
        assert_eq!(modes, [always, never, madvise, madvise]);
    }
}
