//! Debian's kernel image and the modules that a layer needs, as they come.

use crate::cache::{Cache, checksum};
use crate::error::{LabError, on};
use crate::packages::{Package, each_file, save};
use liblzma::read::XzDecoder;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The series of kernels the lab uses.
pub(crate) const SERIES: &str = "6.12";
/// Modules a layer may need, in the order in which they load.
const MODULES: [&str; 11] = [
    "irqbypass.ko",
    "kvm.ko",
    "kvm-amd.ko",
    "kvm-intel.ko",
    "virtio_balloon.ko",
    "vsock.ko",
    "vmw_vsock_virtio_transport_common.ko",
    "vmw_vsock_virtio_transport.ko",
    "vhost_iotlb.ko",
    "vhost.ko",
    "vhost_vsock.ko",
];
/// Name of the image in the cache.
const IMAGE: &str = "vmlinuz";

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

/// The newest image that is in the cache.
pub(crate) fn cached(cache: &Cache) -> Option<StockKernel> {
    let directory = fs::read_dir(cache.root().join("stock"))
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_whole(path))
        .max_by_key(|path| {
            fs::metadata(path.join("package")).and_then(|data| data.modified()).ok()
        })?;
    read(&directory).ok()
}

/// Gets the newest image that this machine's package sources offer.
pub(crate) fn get(cache: &Cache, tell: &mut dyn FnMut(&str)) -> Result<StockKernel, LabError> {
    let package =
        Package::newest_named(&format!("linux-image-{SERIES}."), "-cloud-amd64-unsigned")?;
    let directory = cache.directory(&format!("stock/{}_{}", package.name, package.version))?;
    if is_whole(&directory) {
        return read(&directory);
    }
    tell(&format!("getting {} {}", package.name, package.version));
    let file = package.file(cache)?;
    let mut missing: Vec<&str> = MODULES.into();
    each_file(&file, |path, bytes| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("vmlinuz-") {
            save(&directory.join(IMAGE), bytes)?;
        }
        let module = name.trim_end_matches(".xz");
        if let Some(index) = missing.iter().position(|wanted| *wanted == module) {
            let path = directory.join(missing.swap_remove(index));
            if name.ends_with(".xz") {
                save(&path, &mut XzDecoder::new(bytes))?;
            } else {
                save(&path, bytes)?;
            }
        }
        Ok(())
    })?;
    if !directory.join(IMAGE).exists() {
        missing.push(IMAGE);
    }
    if !missing.is_empty() {
        return Err(LabError::Contents { package: file, missing: missing.join(", ") });
    }
    let note = format!("{} {}\n{}\n", package.name, package.version, checksum(&file)?);
    // Written last: it says that everything else is there.
    save(&directory.join("package"), &mut note.as_bytes())?;
    // The modules are out; hundreds of others are not needed.
    on(&file, fs::remove_file(&file))?;
    read(&directory)
}

/// Whether everything is there. What an earlier version of this program left may lack a module.
fn is_whole(directory: &Path) -> bool {
    directory.join("package").exists() && MODULES.iter().all(|name| directory.join(name).exists())
}

fn read(directory: &Path) -> Result<StockKernel, LabError> {
    let note = directory.join("package");
    let mut text = String::new();
    on(&note, fs::File::open(&note).and_then(|mut file| file.read_to_string(&mut text)))?;
    let mut lines = text.lines();
    let modules: Vec<PathBuf> = MODULES.iter().map(|name| directory.join(name)).collect();
    Ok(StockKernel {
        image: directory.join(IMAGE),
        modules,
        package: lines.next().unwrap_or_default().into(),
        sha256: lines.next().unwrap_or_default().into(),
    })
}
