//! Files that are written whole or not at all.
//!
//! What is written goes to a temporary file beside the wanted one, which takes its name when all
//! of it is on the disk. Whatever happens before, the name stays as it was.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Permissions of a new file that anybody may read, before the umask.
pub const PUBLIC: u32 = 0o666;

/// Permissions of a new file for its owner alone.
pub const PRIVATE: u32 = 0o600;

/// A file that is being written. Dropped before it is [finished](Self::finish), it leaves nothing
/// behind.
///
/// Devices and pipes cannot be replaced: what is written reaches them at once.
#[derive(Debug)]
pub struct OutFile {
    place: Place,
    written: u64,
}

#[derive(Debug)]
enum Place {
    /// A file that takes this name at the end.
    Temporary(NamedTempFile, PathBuf),
    /// A device or pipe.
    Direct(File),
}

impl OutFile {
    /// Begins the file that will be at `path`. If there is one it will be replaced and pass on its
    /// permissions, a new one gets what the umask leaves of `mode`. A link stays one: what it
    /// points at is replaced.
    ///
    /// # Errors
    /// When nothing can be written there; they do not name the temporary file, which says nothing
    /// to anybody.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let known = fs::metadata(&path).ok();
        if known.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(ErrorKind::IsADirectory.into());
        }
        let place = if is_special(&path) {
            Place::Direct(OpenOptions::new().write(true).open(&path)?)
        } else {
            let mut prefix = OsString::from(".");
            prefix.push(path.file_name().ok_or(ErrorKind::InvalidFilename)?);
            let mut builder = Builder::new();
            builder.prefix(&prefix).suffix(".partial").permissions(Permissions::from_mode(mode));
            let file = builder.tempfile_in(directory(&path)).map_err(without_path)?;
            if let Some(known) = known {
                file.as_file().set_permissions(known.permissions())?;
            }
            Place::Temporary(file, path)
        };
        Ok(Self { place, written: 0 })
    }

    /// Finds out, before hours of work, whether a file can be written at `path`.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(path: &Path) -> io::Result<()> {
        // Whoever opens a pipe and goes ends it for its reader.
        let pipe = fs::metadata(path).is_ok_and(|known| known.file_type().is_fifo());
        if pipe { Ok(()) } else { Self::create(path, PRIVATE).map(drop) }
    }

    /// Puts the file in place, and gives its bytes.
    ///
    /// # Errors
    /// When that fails; nothing is at the name then but what was there before.
    pub fn finish(self) -> io::Result<u64> {
        if let Place::Temporary(file, path) = self.place {
            // Some file systems notice only now that there is no room.
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)?;
        }
        Ok(self.written)
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.place {
            // Not through its own `Write`, whose errors name the temporary file.
            Place::Temporary(file, _) => file.as_file_mut(),
            Place::Direct(file) => file,
        };
        let written = file.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether this is a device or pipe, which can only be written to.
pub fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|known| !known.is_file() && !known.is_dir())
}

/// The directory a file is in.
pub fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The system's error behind one that names a temporary file.
fn without_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    match text.split_once(" at path \"") {
        Some((cause, _)) => io::Error::new(error.kind(), cause.to_owned()),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<u64> {
        let mut file = OutFile::create(path, mode)?;
        file.write_all(bytes)?;
        file.finish()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn names(directory: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_or_stays_as_it_was() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("x");
        fs::write(&path, "old and longer").unwrap();
        OutFile::check(&path).unwrap();
        let mut file = OutFile::create(&path, PUBLIC).unwrap();
        file.write_all(b"half").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old and longer");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old and longer");
        assert_eq!(write(&path, b"new", PUBLIC).unwrap(), 3);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(room.path()), ["x"]);
    }

    #[test]
    fn permissions_are_kept_and_new_files_obey_the_umask() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        fs::write(at("plain"), "").unwrap();
        write(&at("public"), b"", PUBLIC).unwrap();
        assert_eq!(mode(&at("public")), mode(&at("plain")));
        write(&at("private"), b"", PRIVATE).unwrap();
        assert_eq!(mode(&at("private")), PRIVATE);
        for kept in [0o640, 0o666, 0o400] {
            fs::set_permissions(at("public"), Permissions::from_mode(kept)).unwrap();
            write(&at("public"), b"", PUBLIC).unwrap();
            assert_eq!(mode(&at("public")), kept);
        }
    }

    #[test]
    fn a_link_stays_a_link() {
        let room = tempfile::tempdir().unwrap();
        let (file, link) = (room.path().join("file"), room.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"new", PUBLIC).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn what_cannot_be_written_is_told_in_the_system_s_words() {
        let missing = OutFile::check(Path::new("/nonexistent/x")).unwrap_err();
        assert_eq!(missing.to_string(), "No such file or directory (os error 2)");
        assert_eq!(OutFile::check(Path::new("/")).unwrap_err().kind(), ErrorKind::IsADirectory);
        OutFile::check(Path::new("/dev/full")).unwrap();
        let full = write(Path::new("/dev/full"), b"x", PUBLIC).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
    }
}
