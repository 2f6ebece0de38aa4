//! What the layers are put together from.

use crate::error::LabError;
use crate::kernel::Variant;
use crate::scenario::Kernel;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The programs and kernels of the layers.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The agent's binary.
    pub agent: PathBuf,
    /// The binary of `strata`, for `strata scan` in the layers.
    pub strata: PathBuf,
    /// The kernels that `strata lab build` made.
    pub lab: BTreeMap<Variant, LabKernel>,
    /// Debian's image, if it is there.
    pub stock: Option<StockKernel>,
}

/// The kernel built from Debian's source.
#[derive(Clone, Debug)]
pub struct LabKernel {
    /// The image.
    pub image: PathBuf,
    /// Name and version of the package with the source, as Debian names it.
    pub source: String,
    /// SHA-256 of the image, in hexadecimal.
    pub sha256: String,
}

/// Debian's kernel image.
#[derive(Clone, Debug)]
pub struct StockKernel {
    /// The image.
    pub image: PathBuf,
    /// Modules the lab uses, uncompressed, in the order in which they load.
    pub modules: Vec<PathBuf>,
    /// Name and version of its package.
    pub package: String,
    /// SHA-256 of the package, in hexadecimal.
    pub sha256: String,
}

impl Parts {
    /// The kernels that are there, one line each.
    pub fn kernels(&self) -> impl Iterator<Item = String> {
        let lab = self.lab.iter();
        let lab = lab.map(|(variant, lab)| format!("{variant}: {}, {}", lab.source, lab.sha256));
        let stock =
            self.stock.as_ref().map(|stock| format!("debian: {}, {}", stock.package, stock.sha256));
        lab.chain(stock)
    }

    pub(crate) fn kernel(&self, kernel: Kernel) -> Result<&Path, LabError> {
        match kernel {
            Kernel::Lab(variant) => self.lab(variant).map(|lab| lab.image.as_path()),
            Kernel::Debian => self.stock().map(|stock| stock.image.as_path()),
        }
    }

    pub(crate) fn lab(&self, variant: Variant) -> Result<&LabKernel, LabError> {
        self.lab.get(&variant).ok_or_else(|| {
            let more = match variant {
                Variant::Vanilla => String::new(),
                variant => format!(" --kernel {variant}"),
            };
            LabError::NotBuilt {
                kernel: variant.to_string(),
                command: format!("strata lab build{more}"),
            }
        })
    }

    pub(crate) fn stock(&self) -> Result<&StockKernel, LabError> {
        self.stock.as_ref().ok_or_else(|| LabError::NotBuilt {
            kernel: "debian".into(),
            command: "strata lab build".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_is_missing_is_named_with_what_builds_it() {
        let none = Parts {
            agent: PathBuf::new(),
            strata: PathBuf::new(),
            lab: BTreeMap::new(),
            stock: None,
        };
        let says = |kernel| none.kernel(kernel).unwrap_err().to_string();
        let debug = says(Kernel::Lab(Variant::Debug));
        assert_eq!(
            debug,
            "the kernel 'debug' is not built; run 'strata lab build --kernel debug' first"
        );
        assert!(says(Kernel::Lab(Variant::Vanilla)).contains("run 'strata lab build' first"));
        assert!(says(Kernel::Debian).contains("'debian' is not built; run 'strata lab build'"));
    }
}
