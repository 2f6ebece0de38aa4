//! What the layers are put together from.

use crate::error::LabError;
use crate::scenario::Kernel;
use std::path::{Path, PathBuf};

/// The programs and kernels of the layers.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The agent's binary.
    pub agent: PathBuf,
    /// The binary of `strata`, for `strata scan` in the layers.
    pub strata: PathBuf,
    /// The kernel that `strata lab build` made, if it did.
    pub lab: Option<LabKernel>,
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
        let lab = self.lab.as_ref().map(|lab| format!("lab: {}, {}", lab.source, lab.sha256));
        let stock =
            self.stock.as_ref().map(|stock| format!("debian: {}, {}", stock.package, stock.sha256));
        lab.into_iter().chain(stock)
    }

    pub(crate) fn kernel(&self, kernel: &Kernel) -> Result<&Path, LabError> {
        match kernel {
            Kernel::Lab => self.lab.as_ref().map(|lab| lab.image.as_path()),
            Kernel::Debian => self.stock.as_ref().map(|stock| stock.image.as_path()),
        }
        .ok_or_else(|| LabError::NotBuilt(format!("the kernel '{kernel:?}'").to_lowercase()))
    }

    pub(crate) fn stock(&self) -> Result<&StockKernel, LabError> {
        self.stock.as_ref().ok_or_else(|| LabError::NotBuilt("the kernel 'debian'".into()))
    }
}
