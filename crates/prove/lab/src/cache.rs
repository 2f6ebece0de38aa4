//! What is built once and kept: a directory outside every repository, keyed by content.

use crate::error::{LabError, on};
use sha2::{Digest, Sha256};
use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The lab's directory of kept things.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The directory that the user's environment names: `$XDG_CACHE_HOME/strata/lab`, by default
    /// `~/.cache/strata/lab` (XDG Base Directory Specification).
    pub fn of_user() -> Result<Self, LabError> {
        let base = match env::var_os("XDG_CACHE_HOME").map(PathBuf::from) {
            Some(path) if path.is_absolute() => path,
            _ => match env::var_os("HOME").map(PathBuf::from) {
                Some(home) if home.is_absolute() => home.join(".cache"),
                _ => return Err(LabError::NoCache),
            },
        };
        Ok(Self { root: base.join("strata").join("lab") })
    }

    /// A cache in a directory of the caller's.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Where everything is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A directory in the cache, made if missing.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, LabError> {
        let path = self.root.join(name);
        on(&path, fs::create_dir_all(&path))?;
        Ok(path)
    }

    /// Keeps others from building at the same time, until the file returned is dropped.
    pub(crate) fn lock(&self) -> Result<File, LabError> {
        let path = self.directory("")?.join("lock");
        let file = on(&path, File::create(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(LabError::Busy(self.root.clone())),
            Err(fs::TryLockError::Error(source)) => Err(LabError::File { path, source }),
        }
    }

    /// Removes everything. Returns the bytes freed.
    pub fn clean(&self) -> Result<u64, LabError> {
        let bytes = size(&self.root);
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => on(&self.root, Err(error)),
            _ => Ok(bytes),
        }
    }
}

fn size(path: &Path) -> u64 {
    let Ok(data) = fs::symlink_metadata(path) else { return 0 };
    if !data.is_dir() {
        return data.len();
    }
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum()
}

/// SHA-256 of texts, each with its length so that no two lists are alike, in hexadecimal.
pub(crate) fn key<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hexadecimal(&hash.finalize())
}

/// SHA-256 of a file, in hexadecimal.
pub(crate) fn checksum(path: &Path) -> Result<String, LabError> {
    let mut hash = Sha256::new();
    let mut file = on(path, File::open(path))?;
    let mut bytes = vec![0; 1 << 20];
    loop {
        match on(path, file.read(&mut bytes))? {
            0 => break,
            read => hash.update(&bytes[..read]),
        }
    }
    Ok(hexadecimal(&hash.finalize()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_every_text_and_its_borders() {
        let of = |texts: &[&str]| key(texts.iter().map(|text| text.as_bytes()));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
    }

    #[test]
    fn a_checksum_is_the_usual_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();
        assert_eq!(
            checksum(file.path()).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn cleaning_removes_all_and_twice_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().join("lab"));
        fs::write(cache.directory("a/b").unwrap().join("file"), [0; 100]).unwrap();
        let lock = cache.lock().unwrap();
        assert!(cache.lock().unwrap_err().to_string().contains("at work"));
        drop(lock);
        assert_eq!(cache.clean().unwrap(), 100);
        assert_eq!(cache.clean().unwrap(), 0);
    }
}
