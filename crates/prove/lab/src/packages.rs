//! What the lab takes from Debian: downloaded without being root, unpacked without being installed.

use crate::cache::Cache;
use crate::error::{LabError, on};
use crate::tool::Tool;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const APT_CACHE: Tool = Tool { name: "apt-cache", package: "apt" };
const APT_GET: Tool = Tool { name: "apt-get", package: "apt" };
const DPKG_DEB: Tool = Tool { name: "dpkg-deb", package: "dpkg" };

/// A package at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
}

impl Package {
    /// The newest version of a package that this machine's sources offer.
    pub(crate) fn newest(name: &str) -> Result<Self, LabError> {
        let text = APT_CACHE.output(APT_CACHE.command().args(["policy", name]), "apt-cache")?;
        let version = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "))
            .filter(|version| *version != "(none)")
            .ok_or_else(|| unknown(name))?;
        Ok(Self { name: name.into(), version: version.into() })
    }

    /// The newest of the packages whose names begin and end so, by the numbers in their names.
    pub(crate) fn newest_named(start: &str, end: &str) -> Result<Self, LabError> {
        let text = APT_CACHE.output(APT_CACHE.command().args(["pkgnames", start]), "apt-cache")?;
        let name = text
            .lines()
            .filter(|name| name.ends_with(end))
            .max_by_key(|name| numbers(name))
            .ok_or_else(|| unknown(&format!("{start}*{end}")))?;
        Self::newest(name)
    }

    /// The package's file, downloaded if it is not there yet.
    pub(crate) fn file(&self, cache: &Cache) -> Result<PathBuf, LabError> {
        let directory = cache.directory("packages")?;
        let present = || -> Option<PathBuf> {
            // apt writes `:` of a version as `%3a`.
            let start = format!("{}_{}_", self.name, self.version.replace(':', "%3a"));
            fs::read_dir(&directory).ok()?.flatten().map(|entry| entry.path()).find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(&start) && name.ends_with(".deb")
            })
        };
        if let Some(path) = present() {
            return Ok(path);
        }
        // Downloaded elsewhere first: what is in the directory is whole.
        let partial = cache.directory("packages/partial")?;
        APT_GET.output(
            APT_GET.command().current_dir(&partial).args([
                "download",
                "--quiet",
                &format!("{}={}", self.name, self.version),
            ]),
            &format!("downloading {} {}", self.name, self.version),
        )?;
        for entry in on(&partial, fs::read_dir(&partial))?.flatten() {
            on(&entry.path(), fs::rename(entry.path(), directory.join(entry.file_name())))?;
        }
        present().ok_or_else(|| unknown(&self.name))
    }
}

/// Calls `take` with the files of a package, in the order of its archive.
pub(crate) fn each_file(
    package: &Path,
    mut take: impl FnMut(&Path, &mut dyn std::io::Read) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let mut child = DPKG_DEB
        .command()
        .arg("--fsys-tarfile")
        .arg(package)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| LabError::Tool { program: "dpkg-deb", source, package: "dpkg" })?;
    let mut archive = tar::Archive::new(child.stdout.take().expect("it is piped"));
    let result = (|| {
        for entry in on(package, archive.entries())? {
            let mut entry = on(package, entry)?;
            let path = on(package, entry.path())?.into_owned();
            if entry.header().entry_type().is_file() {
                take(&path, &mut entry)?;
            }
        }
        Ok(())
    })();
    drop(archive);
    // It may not have been read to its end.
    let _ = child.wait();
    result
}

/// Copies what can be read into a file that appears when it is whole.
pub(crate) fn save(path: &Path, from: &mut dyn std::io::Read) -> Result<(), LabError> {
    let partial = path.with_extension("partial");
    let mut file = on(&partial, File::create(&partial))?;
    on(&partial, std::io::copy(from, &mut file))?;
    on(path, fs::rename(&partial, path))
}

fn unknown(name: &str) -> LabError {
    LabError::NoPackage(name.to_owned())
}

/// The numbers in a name, in order.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_compare_by_their_numbers() {
        assert!(numbers("linux-image-6.12.9+deb12-x") < numbers("linux-image-6.12.117+deb12-x"));
    }
}
