//! What a user can set of xGemini.

use crate::allocator::AllocatorParameters;
use crate::gemini_settings::{GeminiSettings, ScanParameters};
use crate::parameters::{ParameterSet, PolicyParameters};
use crate::timeout::BookingParameters;
use strata_stack::AlignerParameters;

strata_params::parameters! {
    /// xGemini's host half.
    pub struct XGeminiParameters {
        /// Time between two rounds of NWHPC. xGemini IV.D says "periodically".
        period: f64 = 1.0, "xgemini.period", "s";
        /// Share of one CPU that NWHPC may use, averaged over a period.
        share: f64 = 0.05, "xgemini.share", "share";
        /// Transparent huge pages of the unmodified guest hypervisor: stock kernels have `always`.
        l1_thp: bool = true, "xgemini.l1_thp", "";
        /// The host fills the shadow table on the guest hypervisor's write, so that the guest does
        /// not fault a second time (xGemini IV.C: the trap updates the shadow EPT). Without effect where
        /// writes do not trap, `nested.second_stage_writes=unsync`.
        fill_on_write: bool = true, "xgemini.fill_on_write", "";
        /// To replace a frame by the one at its offset costs a copy. xGemini IV.C: "it does not involve
        /// data copying"; that holds as long as the guest hypervisor has not written to the page, and
        /// it zeroes pages before it maps them. What changes places with another page is copied always.
        copy: bool = true, "xgemini.copy", "";
    }
}

/// Everything a user can set of xGemini.
#[derive(Clone, Debug, Default)]
pub struct XGeminiSettings {
    /// Host half.
    pub xgemini: XGeminiParameters,
    /// What is reused of Gemini.
    pub reused: GeminiSettings,
}

impl XGeminiSettings {
    /// The sets of parameters that it consists of, and that of the guest's Huge Aligner.
    pub const SETS: &[ParameterSet] = &[
        ParameterSet::of::<ScanParameters>(),
        ParameterSet::of::<AllocatorParameters>(),
        ParameterSet::of::<BookingParameters>(),
        ParameterSet::of::<XGeminiParameters>(),
        ParameterSet::of::<AlignerParameters>(),
    ];
}

impl From<&PolicyParameters> for XGeminiSettings {
    fn from(parameters: &PolicyParameters) -> Self {
        Self { xgemini: parameters.get(), reused: parameters.into() }
    }
}
