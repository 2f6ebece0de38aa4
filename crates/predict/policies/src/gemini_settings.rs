//! What a user can set of Gemini, and of what xGemini reuses.

use crate::allocator::AllocatorParameters;
use crate::parameters::{ParameterSet, PolicyParameters};
use crate::timeout::BookingParameters;
use strata_params::{ParameterError, Value};

strata_params::parameters! {
    /// Scanner, promoter and huge bucket.
    pub struct ScanParameters {
        /// Time between two scans (MHPS). Gemini section 4 says "periodically".
        period: f64 = 1.0, "gemini.scan_period", "s";
        /// At whose pace misaligned huge pages are promoted (MHPP): `khugepaged`'s, which looks at them
        /// before any others (Gemini section 3: "the existing system component for page coalescing"), or
        /// its `own`, which is faster.
        promoter: Promoter = Promoter::Khugepaged, "gemini.promoter", "";
        /// Share of one CPU that promotion may use at its own pace, averaged over a period. `?`
        share: f64 = 0.05, "gemini.promote_share", "share";
        /// Freed huge pages that were well aligned are kept whole for a while (huge bucket, Gemini
        /// section 5). Off: to see what it brings.
        bucket: bool = true, "gemini.bucket", "";
        /// FMFI above which the huge bucket gives some of its regions back, once a period of
        /// Algorithm 1 (Gemini section 5: "severe"). `?`
        bucket_fmfi: f64 = 0.95, "gemini.bucket_fmfi", "share";
        /// Share of the huge bucket that is "some": what it gives back at once, above that FMFI or when
        /// memory is short (Gemini section 5). `?`
        bucket_return: f64 = 0.5, "gemini.bucket_return", "share";
    }
}

/// At whose pace MHPP promotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promoter {
    /// khugepaged's, of each kernel.
    #[default]
    Khugepaged,
    /// Its own: a share of one CPU.
    Own,
}

impl Promoter {
    const ALL: [Self; 2] = [Self::Khugepaged, Self::Own];

    const fn name(self) -> &'static str {
        match self {
            Self::Khugepaged => "khugepaged",
            Self::Own => "own",
        }
    }
}

impl Value for Promoter {
    fn parse(name: &str, text: &str, _: &str) -> Result<Self, ParameterError> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| ParameterError::Invalid {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "khugepaged or own",
        })
    }

    fn print(&self) -> String {
        self.name().to_owned()
    }
}

/// Everything a user can set of Gemini, and of what xGemini reuses.
#[derive(Clone, Debug, Default)]
pub struct GeminiSettings {
    /// Scanner, promoter, bucket.
    pub scan: ScanParameters,
    /// Allocator.
    pub allocator: AllocatorParameters,
    /// Booking.
    pub booking: BookingParameters,
}

impl GeminiSettings {
    /// The sets of parameters that it consists of.
    pub const SETS: &[ParameterSet] = &[
        ParameterSet::of::<ScanParameters>(),
        ParameterSet::of::<AllocatorParameters>(),
        ParameterSet::of::<BookingParameters>(),
    ];
}

impl From<&PolicyParameters> for GeminiSettings {
    fn from(parameters: &PolicyParameters) -> Self {
        Self { scan: parameters.get(), allocator: parameters.get(), booking: parameters.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promoter_is_found_by_its_name_and_printed_with_it() {
        for (promoter, name) in [(Promoter::Khugepaged, "khugepaged"), (Promoter::Own, "own")] {
            assert_eq!(Promoter::parse("gemini.promoter", name, "").unwrap(), promoter);
            assert_eq!(promoter.print(), name);
        }
        let error = Promoter::parse("gemini.promoter", "", "").unwrap_err();
        assert!(error.to_string().contains("khugepaged or own"), "{error}");
    }
}
