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
        /// The host puts the frame behind a guest's page at the page's offset when the page is first
        /// backed or mapped (the host's part of NEMA, xGemini IV.C). Off: to see what it brings.
        nema_host: bool = true, "xgemini.nema_host", "";
        /// Guest huge pages that are not aligned are completed and promoted now and then (NWHPC,
        /// xGemini IV.D). Off: to see what it brings.
        nwhpc: bool = true, "xgemini.nwhpc", "";
        /// A region that the guest hypervisor maps with base pages may be huge in the shadow table
        /// (pseudo huge pages, xGemini I). Off, to see what it brings: only what is huge in every
        /// hypervisor's table is.
        pseudo_huge: bool = true, "xgemini.pseudo_huge", "";
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
