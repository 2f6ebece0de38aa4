//! What can go wrong, each in one line with its remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Why a snapshot could not be taken, written, read or joined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {error}{}", .path.display(), advice(.error))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A snapshot could not be written.
    #[error("cannot write {}: {error}; nothing was left behind", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file is something else.
    #[error("{} is no snapshot; make one with 'strata scan -o FILE'", .0.display())]
    Foreign(PathBuf),
    /// A later version wrote the file.
    #[error("{} has snapshot format {found}, this program reads up to {known}; use a newer strata",
        .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The last version known here.
        known: u32,
    },
    /// The file was cut or changed.
    #[error("{} is damaged ({what}); copy it again, or scan again", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// The snapshots do not belong together, or cannot be told apart.
    #[error("{0}")]
    Join(String),
    /// There is no /proc to read.
    #[error("{} holds no readable proc/self or proc/stat; mount /proc first", .0.display())]
    NoProc(PathBuf),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; check the path",
        io::ErrorKind::PermissionDenied => "; run as root",
        _ => "",
    }
}

impl Error {
    /// A failure to read `path`.
    pub fn read(path: &Path, error: io::Error) -> Self {
        Self::Read { path: path.to_owned(), error }
    }

    /// A failure to write `path`.
    pub fn write(path: &Path, error: io::Error) -> Self {
        Self::Write { path: path.to_owned(), error }
    }
}
