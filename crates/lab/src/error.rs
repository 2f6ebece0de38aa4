//! What can go wrong in the lab, told in one line: cause and remedy.

use std::io;
use std::path::{Path, PathBuf};

/// Why the lab cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A program that the lab needs is missing or cannot be started.
    #[error("cannot start {program}: {source}; install it with: apt-get install {package}")]
    Tool {
        /// The program.
        program: &'static str,
        /// What the system says.
        source: io::Error,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A step of the build failed.
    #[error("{what} failed: {reason}; the whole output is in {}", log.display())]
    Build {
        /// The step.
        what: String,
        /// Its last words.
        reason: String,
        /// Where everything it said is.
        log: PathBuf,
    },
    /// A hook of ours is not for this source.
    #[error("the hook {hook} does not apply to {file} of {version}: {reason}; the whole output is in {}; mend the hook in a copy of linux/ and name that in STRATA_LINUX, or have apt offer the version the hooks were made for", log.display())]
    Hook {
        /// The patch.
        hook: String,
        /// The kernel's file.
        file: String,
        /// The package with the source, and its version.
        version: String,
        /// What is wrong.
        reason: String,
        /// Where everything that was said is.
        log: PathBuf,
    },
    /// A kernel is needed that was not built.
    #[error("the kernel '{kernel}' is not built; run '{command}' first")]
    NotBuilt {
        /// Which.
        kernel: String,
        /// What builds it.
        command: String,
    },
    /// A scenario makes no sense.
    #[error("{0}")]
    Scenario(String),
    /// A layer panicked, hung, or ended where it should not.
    #[error("{layer}: {what}{last}; the whole log is in {}", log.display())]
    Layer {
        /// L0, L1 or L2, or the machine.
        layer: String,
        /// What happened, in which phase.
        what: String,
        /// The last lines of its console, ready to print.
        last: String,
        /// The log of its console.
        log: PathBuf,
    },
    /// A layer came to a standstill while it booted, which happens now and then under emulation:
    /// another attempt may succeed.
    #[error("{0}")]
    Stalled(Box<LabError>),
    /// A layer's agent could not do what it was told.
    #[error("L{layer} cannot {what}: {reason}")]
    Refused {
        /// The layer.
        layer: u8,
        /// What it was told.
        what: String,
        /// Why not.
        reason: String,
    },
    /// Accesses and tables could not be recorded.
    #[error("nothing was traced: {0}")]
    Trace(String),
    /// The snapshots of the layers could not be joined.
    #[error("the snapshots cannot be joined: {0}")]
    Join(String),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Attaches the file to what the system says of it.
pub(crate) fn on<T>(path: &Path, result: io::Result<T>) -> Result<T, LabError> {
    result.map_err(|source| LabError::File { path: path.to_owned(), source })
}
