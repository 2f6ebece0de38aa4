//! The kernels that a layer can run.

use crate::kernel::KernelVariant;
use serde::de::IntoDeserializer;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::{Path, PathBuf};

/// Which kernel a layer runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Built by `strata lab build`: `vanilla` (or `lab`), `aligned`, `debug`.
    Lab(KernelVariant),
    /// Debian's own image for clouds, as it comes: `debian`.
    Debian,
    /// An image (`bzImage`) of one's own: where it is, such as `/boot/my-kernel`. What the lab needs of it
    /// must be built in.
    File(PathBuf),
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
        let text = String::deserialize(deserializer)?;
        if Path::new(&text).is_absolute() {
            return Ok(Self::File(text.into()));
        }
        Ok(match Name::deserialize(text.as_str().into_deserializer())? {
            Name::Vanilla => Self::Lab(KernelVariant::Vanilla),
            Name::Aligned => Self::Lab(KernelVariant::Aligned),
            Name::Debug => Self::Lab(KernelVariant::Debug),
            Name::Debian => Self::Debian,
        })
    }
}

impl Kernel {
    /// The kernel checks itself.
    pub(crate) fn is_checked(&self) -> bool {
        matches!(self, Self::Lab(variant) if variant.is_checked())
    }

    /// The kernel has code of ours.
    pub fn is_patched(&self) -> bool {
        matches!(self, Self::Lab(variant) if variant.is_patched())
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lab(variant) => variant.fmt(out),
            Self::Debian => out.write_str("debian"),
            Self::File(path) => path.display().fmt(out),
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
            Scenario::parse(&text, "x").unwrap().layers[0].kernel.clone()
        };
        assert_eq!(kernel("lab"), Kernel::Lab(KernelVariant::Vanilla));
        for named in KernelVariant::ALL.map(Kernel::Lab).into_iter().chain([Kernel::Debian]) {
            assert_eq!(kernel(&named.to_string()), named);
        }
        assert_eq!(kernel("/boot/mine"), Kernel::File("/boot/mine".into()));
        refused(&LAYER.replace("lab", "allign"), "`aligned`");
    }
}
