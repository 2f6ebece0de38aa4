//! Why a file of this computer cannot be copied into a layer.

use std::path::PathBuf;

/// What is wrong with the file, and what helps.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Nothing that a kernel could start.
    #[error("{} is neither a program for Linux nor a script that names its interpreter after #!", .0.display())]
    NotAProgram(PathBuf),
    /// A script whose interpreter is missing.
    #[error("{} is a script for {}, which is not on this computer: install it", script.display(), interpreter.display())]
    NoInterpreter {
        /// The script.
        script: PathBuf,
        /// What it names.
        interpreter: PathBuf,
    },
    /// A script whose interpreter is one, too.
    #[error("{} is a script for {}, which is a script itself: name a program after #!", script.display(), interpreter.display())]
    InterpretedByScript {
        /// The script.
        script: PathBuf,
        /// What it names.
        interpreter: PathBuf,
    },
    /// A device, a pipe, a socket.
    #[error("{} is neither a file nor a directory: it cannot be copied", .0.display())]
    Special(PathBuf),
    /// A program whose library is missing.
    #[error("{} needs the library {library}, which is not on this machine: install it", program.display())]
    NoLibrary {
        /// The program, or a library.
        program: PathBuf,
        /// What it is linked with.
        library: String,
    },
    /// A file that every layer has its own of.
    #[error("{} cannot be copied: every layer has a {own} of its own", path.display())]
    OwnOfLayer {
        /// The file.
        path: PathBuf,
        /// Such as `/proc`.
        own: &'static str,
    },
}
