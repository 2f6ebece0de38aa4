//! How a policy has a kernel set up.

use crate::thp::ThpMode;

/// Which areas the guest hands out as whole HPAS regions (xGemini IV.B), and whether it needs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlignAreas {
    /// None, as Linux.
    #[default]
    Never,
    /// All.
    Always,
    /// None, for none needs it: whatever is touched is a huge page, whether or not areas cover it, and stays
    /// one. No kernel can do this; it is what the upper bound is made of.
    Needless,
}

/// How a kernel is set up under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSettings {
    /// Transparent huge pages.
    pub thp: ThpMode,
    /// Areas handed out as whole HPAS regions; a guest's setting, and that of the memory of its VM.
    pub align_areas: AlignAreas,
    /// The kernel's memory is as fragmented as the user asked. Off only for the upper bound.
    pub fragmented: bool,
    /// The kernel's memory tells cache colours apart, because the policy asks for frames by colour.
    pub coloured: bool,
}
