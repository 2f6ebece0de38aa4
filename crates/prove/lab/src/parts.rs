//! What the layers are put together from.

use crate::error::{LabError, on};
use crate::intel::Bochs;
use crate::kernel::{KernelVariant, LabKernel};
use crate::make::Make;
use crate::scenario::Kernel;
use crate::stock::StockKernel;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// The programs and kernels of the layers.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The agent's binary.
    pub agent: PathBuf,
    /// The binary of `strata`, for `strata scan` in the layers.
    pub strata: PathBuf,
    /// The machine that the kernels are for.
    pub make: Make,
    /// The kernels that `strata lab build` made.
    pub lab: BTreeMap<KernelVariant, LabKernel>,
    /// Debian's image, if it is there.
    pub stock: Option<StockKernel>,
    /// The emulator of Intel processors, if it was built and the machine has these.
    pub bochs: Option<Bochs>,
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

    /// The emulator, if the lab built one: one line.
    pub fn emulator(&self) -> Option<String> {
        self.bochs.as_ref().map(|bochs| format!("{}, {}", bochs.source, bochs.sha256))
    }

    pub(crate) fn kernel<'a>(&'a self, kernel: &'a Kernel) -> Result<&'a Path, LabError> {
        match kernel {
            Kernel::Lab(variant) => self.lab(*variant).map(|lab| lab.image.as_path()),
            Kernel::Debian => self.stock().map(|stock| stock.image.as_path()),
            Kernel::File(path) => own_image(path).map(|()| path.as_path()),
        }
    }

    pub(crate) fn lab(&self, variant: KernelVariant) -> Result<&LabKernel, LabError> {
        self.lab.get(&variant).ok_or_else(|| {
            let more = match variant {
                KernelVariant::Vanilla => String::new(),
                variant => format!(" --kernel {variant}"),
            };
            LabError::NotBuilt {
                kernel: variant.to_string(),
                command: format!("strata lab build{}{more}", self.make.option()),
            }
        })
    }

    pub(crate) fn bochs(&self) -> Result<&Bochs, LabError> {
        self.bochs.as_ref().ok_or_else(|| LabError::NoEmulator {
            command: format!("strata lab build{}", Make::Intel.option()),
        })
    }

    pub(crate) fn stock(&self) -> Result<&StockKernel, LabError> {
        self.stock.as_ref().ok_or_else(|| LabError::NotBuilt {
            kernel: "debian".into(),
            command: format!("strata lab build{}", self.make.option()),
        })
    }
}

/// Where an x86 image has its magic number, and which it is (Documentation/arch/x86/boot.rst, "The Real-Mode
/// Kernel Header").
const MAGIC_AT: u64 = 0x202;
const MAGIC: [u8; 4] = *b"HdrS";

/// Refuses what is no image of a kernel, before anything boots.
fn own_image(path: &Path) -> Result<(), LabError> {
    let mut magic = [0; MAGIC.len()];
    let mut file = on(path, File::open(path))?;
    on(path, file.seek(SeekFrom::Start(MAGIC_AT)))?;
    match file.read_exact(&mut magic) {
        Ok(()) if magic == MAGIC => Ok(()),
        _ => Err(LabError::NotAKernel(path.to_owned())),
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
            make: Make::Amd,
            lab: BTreeMap::new(),
            stock: None,
            bochs: None,
        };
        let says = |kernel: Kernel| none.kernel(&kernel).unwrap_err().to_string();
        let debug = says(Kernel::Lab(KernelVariant::Debug));
        assert_eq!(
            debug,
            "the kernel 'debug' is not built; run 'strata lab build --kernel debug' first"
        );
        assert!(says(Kernel::Lab(KernelVariant::Vanilla)).contains("run 'strata lab build' first"));
        assert!(says(Kernel::Debian).contains("'debian' is not built; run 'strata lab build'"));
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("vmlinux");
        std::fs::write(&own, [0x7f; 4096]).unwrap();
        assert!(says(Kernel::File(own.clone())).contains("is no bzImage"));
        let mut image = vec![0; 0x202];
        image.extend(MAGIC);
        std::fs::write(&own, image).unwrap();
        assert_eq!(none.kernel(&Kernel::File(own.clone())).unwrap(), own);
        assert!(says(Kernel::File("/nowhere/bzImage".into())).contains("/nowhere/bzImage"));
        let intel = Parts { make: Make::Intel, ..none };
        let debug = intel.kernel(&Kernel::Lab(KernelVariant::Debug)).unwrap_err().to_string();
        assert!(debug.contains("run 'strata lab build --machine intel --kernel debug'"), "{debug}");
    }
}
