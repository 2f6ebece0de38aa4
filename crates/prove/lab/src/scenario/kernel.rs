//! The kernels that a layer can run.

use crate::kernel::KernelVariant;
use serde::{Deserialize, Deserializer};
use std::fmt;

/// Which kernel a layer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Built by `strata lab build`: `vanilla` (or `lab`), `aligned`, `debug`.
    Lab(KernelVariant),
    /// Debian's own image for clouds, as it comes: `debian`.
    Debian,
}

impl<'de> Deserialize<'de> for Kernel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Name {
            #[serde(alias = "lab")]
            Vanilla,
            Aligned,
            Debug,
            Debian,
        }
        Ok(match Name::deserialize(deserializer)? {
            Name::Vanilla => Self::Lab(KernelVariant::Vanilla),
            Name::Aligned => Self::Lab(KernelVariant::Aligned),
            Name::Debug => Self::Lab(KernelVariant::Debug),
            Name::Debian => Self::Debian,
        })
    }
}

impl Kernel {
    /// The kernel checks itself.
    pub(crate) fn is_checked(self) -> bool {
        matches!(self, Self::Lab(variant) if variant.is_checked())
    }

    /// The kernel has code of ours.
    pub(crate) fn is_patched(self) -> bool {
        matches!(self, Self::Lab(variant) if variant.is_patched())
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lab(variant) => variant.fmt(out),
            Self::Debian => out.write_str("debian"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use crate::scenario::mistakes::{LAYER, refused};

    #[test]
    fn kernels_have_names_and_the_lab_s_is_the_vanilla_one() {
        let kernel = |name: &str| {
            let text = format!("about = 'x'\n[[layer]]\nkernel = '{name}'\nmemory = '1G'\n");
            Scenario::parse(&text, "x").unwrap().layers[0].kernel
        };
        assert_eq!(kernel("lab"), Kernel::Lab(KernelVariant::Vanilla));
        for named in KernelVariant::ALL.map(Kernel::Lab).into_iter().chain([Kernel::Debian]) {
            assert_eq!(kernel(&named.to_string()), named);
        }
        refused(&LAYER.replace("lab", "allign"), "`aligned`");
    }
}
