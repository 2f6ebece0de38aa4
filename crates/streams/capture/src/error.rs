//! What can prevent a capture from starting.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use strata_wire::program::Refusal;

/// A program could not be started under the emulator. One line: cause and remedy.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// There is no such program.
    #[error("{0}: no such program; check the name, or give its path")]
    Missing(String),
    /// The program is a directory or the like.
    #[error("{0}: not a regular file; give the path of a program")]
    NotAFile(String),
    /// Permission to execute is missing.
    #[error("{0}: not executable; set the permission (chmod +x) or choose another program")]
    NotPermitted(String),
    /// Permission to read is missing.
    #[error("{0}: cannot be read, which the emulator needs; set the permission (chmod +r)")]
    Unreadable(String),
    /// It is neither an ELF file nor a script.
    #[error("{0}: neither an ELF program nor a script with a #! line; give the interpreter first")]
    NoProgram(String),
    /// It is a script, and what should interpret it cannot be run.
    #[error("{script}: its first line (#!) names an interpreter that cannot be run: {source}")]
    Interpreter {
        /// The script.
        script: String,
        /// What is wrong with the interpreter.
        source: Box<CaptureError>,
    },
    /// It is an ELF file of another kind.
    #[error("{0}: not an x86-64 program; only those can be captured")]
    NotX86(String),
    /// It has a set-ID bit.
    #[error("{0}: has a set-user-ID or set-group-ID bit; run strata as that user")]
    Privileged(String),
    /// The emulator is missing.
    #[error("{0}: no emulator; install package qemu-user")]
    NoEmulator(PathBuf),
    /// The plugin is missing.
    #[error("{0}: no plugin there; build it (cargo build -p strata-plugin) or set STRATA_PLUGIN")]
    NoPlugin(PathBuf),
    /// The system refused something.
    #[error("{context}: {source}; free resources and try again")]
    System {
        /// What was being done.
        context: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl CaptureError {
    pub(crate) fn missing(name: &OsStr) -> Self {
        Self::Missing(name.to_string_lossy().into_owned())
    }

    /// `culprit` is the file that cannot be run: `path`, or an interpreter.
    pub(crate) fn refused(path: &Path, culprit: &Path, reason: Refusal) -> Self {
        if culprit != path {
            let source = Box::new(Self::refused(culprit, culprit, reason));
            return Self::Interpreter { script: path.display().to_string(), source };
        }
        // A script with the line endings of another system names `/bin/sh\r`.
        let name = path.display().to_string().escape_debug().to_string();
        match reason {
            Refusal::Missing => Self::Missing(name),
            Refusal::NotAFile => Self::NotAFile(name),
            Refusal::NotPermitted => Self::NotPermitted(name),
            Refusal::Unreadable => Self::Unreadable(name),
            Refusal::NoProgram => Self::NoProgram(name),
            Refusal::NotX86 => Self::NotX86(name),
            Refusal::Privileged => Self::Privileged(name),
        }
    }
}
