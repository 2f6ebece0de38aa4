//! Where `/proc` and `/sys` are: the running system, or a directory laid out like it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Longest text taken from a small file of `/proc` or `/sys`, in bytes. None is near it; a
/// synthetic tree might be.
const SMALL: u64 = 1 << 20;

/// A root directory with `proc` and `sys` in it.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Tree {
    /// The tree under `root`; `/` is the running system.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether this is the running system, so that what its processor says belongs to it.
    pub fn is_running(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a file named relative to the root.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Opens a file for reading. All that is looked at is regular: a pipe in its place, in a synthetic
    /// tree, would be waited for.
    ///
    /// # Errors
    /// Those of the system, and when it is no regular file.
    pub fn open(&self, relative: &str) -> io::Result<File> {
        self.opened(relative, OpenOptions::new().read(true))
    }

    /// Opens a file for reading and writing, as [`open`](Self::open) does.
    ///
    /// # Errors
    /// Those of the system, and when it is no regular file.
    pub fn open_both(&self, relative: &str) -> io::Result<File> {
        self.opened(relative, OpenOptions::new().read(true).write(true))
    }

    fn opened(&self, relative: &str, options: &mut OpenOptions) -> io::Result<File> {
        let file = options.custom_flags(libc::O_NONBLOCK).open(self.path(relative))?;
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }

    /// A small text, without trailing white space.
    ///
    /// # Errors
    /// Those of the system.
    pub fn text(&self, relative: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.open(relative)?.take(SMALL).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    }

    /// A small text, if it can be read.
    pub fn maybe(&self, relative: &str) -> Option<String> {
        self.text(relative).ok()
    }

    /// A number in a file of its own, if it can be read.
    pub fn number(&self, relative: &str) -> Option<u64> {
        self.maybe(relative)?.trim().parse().ok()
    }

    /// Names in a directory, sorted so that results do not depend on its order; empty when it
    /// cannot be read.
    pub fn names(&self, relative: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(relative)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Small files of a directory with their contents.
    pub fn texts(&self, relative: &str) -> Vec<(String, String)> {
        let names = self.names(relative).into_iter();
        names
            .filter_map(|name| Some((name.clone(), self.maybe(&format!("{relative}/{name}"))?)))
            .collect()
    }

    /// Process ids, in order.
    ///
    /// # Errors
    /// When there is no `proc` to list.
    pub fn processes(&self) -> io::Result<Vec<u32>> {
        let mut pids: Vec<u32> = fs::read_dir(self.path("proc"))?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        pids.sort_unstable();
        Ok(pids)
    }
}
