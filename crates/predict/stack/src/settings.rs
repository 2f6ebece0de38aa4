//! How a policy has a kernel set up.

use crate::thp::ThpMode;

/// Which areas the guest hands out as whole HPAS regions (xGemini IV.B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlignAreas {
    /// None, as Linux.
    #[default]
    Never,
    /// Heaps, and areas of a huge page or more.
    Large,
    /// All.
    Always,
}

/// How a kernel is set up under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSettings {
    /// Transparent huge pages.
    pub thp: ThpMode,
    /// Areas handed out as whole HPAS regions; only a guest's setting counts.
    pub align_areas: AlignAreas,
    /// The kernel's memory is as fragmented as the user asked. Off only for the upper bound.
    pub fragmented: bool,
    /// The kernel's memory tells cache colours apart, because the policy asks for frames by colour.
    pub coloured: bool,
}
