//! Where results go: standard output, standard error, or files written whole or not at all.

use crate::failure::Failure;
use crate::terminal;
use nix::libc;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use strata_files::{OutFile, PUBLIC, directory, is_special};

/// Exit status when nobody reads any more: 128 + SIGPIPE, as a shell reports it.
const PIPE_CLOSED: u8 = 141;

/// A place for a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file.
    File(PathBuf),
}

impl Target {
    /// The place a user names; `-` is standard output.
    pub fn named(path: &Path) -> Self {
        if path == Path::new("-") { Self::Stdout } else { Self::File(path.to_owned()) }
    }

    /// Finds out early whether the place can be written, before hours of work.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Stdout => check_open(libc::STDOUT_FILENO),
            Self::Stderr => check_open(libc::STDERR_FILENO),
            Self::File(path) => OutFile::check(path).map_err(|error| cannot_write(path, &error)),
        }
    }

    /// Writes text with ANSI styles, which are left out where nobody would see them.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn styled(&self, text: &str) -> Result<(), Failure> {
        match self {
            Self::Stdout => to_stdout(text.as_bytes()),
            Self::Stderr => {
                self.check().and_then(|()| to_stream(anstream::stderr(), text.as_bytes()))
            }
            Self::File(_) => self.plain(anstream::adapter::strip_str(text).to_string().as_bytes()),
        }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// When they cannot be written; a file then is as it was before.
    pub fn plain(&self, bytes: &[u8]) -> Result<(), Failure> {
        if !matches!(self, Self::File(_)) {
            self.check()?;
        }
        match self {
            Self::Stdout => to_stream(io::stdout(), bytes),
            Self::Stderr => to_stream(io::stderr(), bytes),
            Self::File(path) => replace(path, bytes).map_err(|error| cannot_write(path, &error)),
        }
    }

    /// Columns there are for text.
    pub fn width(&self) -> usize {
        let (terminal, fd) = match self {
            Self::Stdout => (io::stdout().is_terminal(), libc::STDOUT_FILENO),
            Self::Stderr => (io::stderr().is_terminal(), libc::STDERR_FILENO),
            Self::File(_) => return terminal::DEFAULT_WIDTH,
        };
        let size = if terminal { terminal::size(fd) } else { None };
        size.map_or(terminal::DEFAULT_WIDTH, |(_, columns)| columns.into())
    }
}

/// Writes to standard output, with ANSI styles where it is a terminal.
///
/// # Errors
/// When it cannot be written.
pub fn to_stdout(text: &[u8]) -> Result<(), Failure> {
    check_open(libc::STDOUT_FILENO)?;
    to_stream(anstream::stdout(), text)
}

/// The standard streams that were closed when the program started, one bit each.
static CLOSED: AtomicU32 = AtomicU32::new(0);

/// Says that a standard stream was closed when the program started. It is opened on `/dev/null` before
/// `main`, so that no file takes its number, and what is written to it would be lost in silence.
pub fn was_closed(stream: i32) {
    CLOSED.fetch_or(1 << stream, Relaxed);
}

fn check_open(stream: i32) -> Result<(), Failure> {
    if CLOSED.load(Relaxed) & 1 << stream == 0 {
        return Ok(());
    }
    let name = if stream == libc::STDOUT_FILENO { "output" } else { "error" };
    Err(Failure::failed(format!("standard {name} is closed; leave it open, or write to a file")))
}

fn to_stream(mut stream: impl Write, bytes: &[u8]) -> Result<(), Failure> {
    let written = stream.write_all(bytes).and_then(|()| stream.flush());
    written.map_err(|error| match error.kind() {
        // The reader has seen enough; that is no failure to speak of.
        ErrorKind::BrokenPipe => Failure { message: String::new(), status: PIPE_CLOSED },
        _ => Failure::failed(format!("cannot write the result: {error}; free some space")),
    })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OutFile::create(path, PUBLIC)?;
    file.write_all(bytes)?;
    file.finish().map(drop)
}

/// Refuses results in the place of what they come from, or of each other. `outputs` and `inputs`
/// are called as the user knows them.
///
/// # Errors
/// When two of them are one file, whatever they are called.
pub fn apart(outputs: &[(&str, &Target)], inputs: &[(&str, &Path)]) -> Result<(), Failure> {
    let files: Vec<(&str, Identity)> = outputs
        .iter()
        .filter_map(|(name, target)| match target {
            Target::File(path) if !is_special(path) => Some((*name, identity(path)?)),
            _ => None,
        })
        .collect();
    for (index, (name, file)) in files.iter().enumerate() {
        if let Some((other, _)) = files[..index].iter().find(|(_, other)| other == file) {
            return Err(Failure::usage(format!(
                "{other} and {name} name the same file; give them two"
            )));
        }
        if let Some((other, path)) =
            inputs.iter().find(|(_, path)| identity(path).as_ref() == Some(file))
        {
            return Err(Failure::usage(format!(
                "{name} would replace {other} {}; name another file",
                path.display()
            )));
        }
    }
    Ok(())
}

/// What makes a file this one, whatever leads to it.
#[derive(PartialEq, Eq)]
enum Identity {
    /// It is there: its device and inode.
    Present(u64, u64),
    /// It will be there.
    Absent(PathBuf),
}

fn identity(path: &Path) -> Option<Identity> {
    if let Ok(metadata) = fs::metadata(path) {
        return Some(Identity::Present(metadata.dev(), metadata.ino()));
    }
    let directory = fs::canonicalize(directory(path)).ok()?;
    Some(Identity::Absent(directory.join(path.file_name()?)))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        ErrorKind::StorageFull => "free some space or write elsewhere",
        ErrorKind::NotFound => "create the directory first",
        ErrorKind::PermissionDenied => "write where you may",
        _ => "choose another file",
    };
    Failure::failed(format!("cannot write {}: {error}; {remedy}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_colours() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let target = Target::named(&path);
        target.plain(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        target.styled("\x1b[1mbold\x1b[0m").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "bold");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told_before_and_after() {
        let missing = Target::named(Path::new("/nonexistent/out.json"));
        let message = missing.check().unwrap_err().message;
        let expected = "cannot write /nonexistent/out.json: No such file or directory \
                        (os error 2); create the directory first";
        assert_eq!(message, expected);
        assert!(Target::named(Path::new("/")).check().is_err());
        let full = Target::named(Path::new("/dev/full"));
        full.check().unwrap();
        let message = full.plain(b"x").unwrap_err().message;
        assert!(message.contains("free some space"), "{message}");
    }

    #[test]
    fn a_dash_is_standard_output() {
        assert_eq!(Target::named(Path::new("-")), Target::Stdout);
    }
}
