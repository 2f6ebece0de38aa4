//! Debian's kernel image and the modules that a layer needs, as they come.

use crate::cache::{Cache, checksum};
use crate::error::{LabError, on};
use crate::packages::{Package, each_file, save};
use crate::parts::StockKernel;
use liblzma::read::XzDecoder;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The series of kernels the lab uses.
pub(crate) const SERIES: &str = "6.12";
/// Modules a layer may need, in the order in which they load.
const MODULES: [&str; 4] = ["irqbypass.ko", "kvm.ko", "kvm-amd.ko", "virtio_balloon.ko"];
/// Name of the image in the cache.
const IMAGE: &str = "vmlinuz";

/// The newest image that is in the cache.
pub(crate) fn cached(cache: &Cache) -> Option<StockKernel> {
    let directory = fs::read_dir(cache.root().join("stock"))
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("package").exists())
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
    if directory.join("package").exists() {
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
    if !missing.is_empty() || !directory.join(IMAGE).exists() {
        return Err(LabError::Scenario(format!(
            "{} has no {}: the lab does not know this package",
            file.display(),
            missing.join(", ")
        )));
    }
    let note = format!("{} {}\n{}\n", package.name, package.version, checksum(&file)?);
    // Written last: it says that everything else is there.
    save(&directory.join("package"), &mut note.as_bytes())?;
    // The modules are out; hundreds of others are not needed.
    on(&file, fs::remove_file(&file))?;
    read(&directory)
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
