//! What can go wrong in the lab, told in one line: cause and remedy.

use crate::copy_error::CopyError;
use crate::recording::RecordingError;
use crate::scenario::Flaw;
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
    /// What a scenario names as a kernel is none.
    #[error("{} is no bzImage, which a kernel of one's own must be; 'make bzImage' makes it, as arch/x86/boot/bzImage", .0.display())]
    NotAKernel(PathBuf),
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
    /// The emulator of Intel processors was not built.
    #[error("the emulator of Intel processors is not built; run '{command}' first")]
    NoEmulator {
        /// What builds it.
        command: String,
    },
    /// A scenario makes no sense.
    #[error("scenario {name}: {flaw}")]
    Scenario {
        /// Its name, or its file.
        name: String,
        /// What makes none, and what would.
        flaw: Flaw,
    },
    /// No scenario has this name.
    #[error("no scenario is called '{name}'; there are {}, or give a file ending in .toml", known.join(", "))]
    UnknownScenario {
        /// The name.
        name: String,
        /// Those that come with Strata.
        known: Vec<&'static str>,
    },
    /// A layer was named that the scenario does not have.
    #[error("there is no L{layer}: the scenario's layers are 0 to {last}")]
    NoLayer {
        /// Its number.
        layer: u8,
        /// The innermost layer.
        last: usize,
    },
    /// A guest's kernel parameters are longer than its kernel reads.
    #[error(
        "one more guest of L{layer} needs {needed} characters of kernel parameters, and its kernel takes {taken}: give its program fewer words"
    )]
    LongParameters {
        /// The layer that runs it.
        layer: usize,
        /// Characters it would have.
        needed: usize,
        /// Characters a kernel reads.
        taken: usize,
    },
    /// Several CPUs cannot be traced.
    #[error(
        "a trace needs an L0 with one CPU, so that the moment of its tables is one for all: give it cpus = 1 instead of {0}"
    )]
    TraceOfCpus(u8),
    /// What signs Debian's releases is missing.
    #[error("{} is missing, with which Debian's source is verified: install it with: apt-get install debian-archive-keyring", .0.display())]
    NoKeyring(PathBuf),
    /// The source of the emulator is nowhere.
    #[error(
        "Debian's {release} has no source archive of {package} where this computer's packages come from: run 'apt-get update' as root, or add a mirror that has {release} to the sources of apt"
    )]
    NoSource {
        /// The source package.
        package: &'static str,
        /// The release.
        release: &'static str,
    },
    /// A program is not on this computer.
    #[error("there is no program {}: give a path or install it", .0.display())]
    NoProgram(PathBuf),
    /// A program is to run in a layer that does not have it.
    #[error("{program} is to run in L{layer}, which has no such program: give that layer programs = [\"{program}\"]{}", if *installed { "" } else { ", and install it on this computer" })]
    NotInLayer {
        /// The program.
        program: String,
        /// The layer.
        layer: usize,
        /// This computer has it.
        installed: bool,
    },
    /// A file of this computer cannot be copied into a layer.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// No environment variable says where to build.
    #[error(
        "neither XDG_CACHE_HOME nor HOME names a directory from / on: there is nowhere to build; set one of them"
    )]
    NoCache,
    /// Another process builds.
    #[error("another 'strata lab build' is at work in {}: wait for it", .0.display())]
    Busy(PathBuf),
    /// No package source has a package.
    #[error(
        "no package source of this machine has {0}: run 'apt-get update' as root, or add Debian 12's security archive to the sources"
    )]
    NoPackage(String),
    /// A package is not made as the lab expects.
    #[error("{} has no {missing}: the lab does not know this package; have apt offer an older one (apt_preferences(5))", package.display())]
    Contents {
        /// The package's file.
        package: PathBuf,
        /// What it lacks.
        missing: String,
    },
    /// A part of a kernel's configuration is missing among its files.
    #[error("the kernel's files lack config/{}: name a directory that has it in STRATA_LINUX", .0.display())]
    NoConfiguration(PathBuf),
    /// A program that the lab runs failed.
    #[error("{what} failed: {reason}")]
    Failed {
        /// What it was to do.
        what: String,
        /// Its last words.
        reason: String,
    },
    /// A program or plugin that belongs to this one is not beside it.
    #[error("{name} is missing in {}: build all with 'make build'", directory.display())]
    NoCompanion {
        /// Its name.
        name: String,
        /// Where this program is.
        directory: PathBuf,
    },
    /// Nothing says where the plugin is.
    #[error("recording on AMD's machine takes QEMU's plugin; Trace::plugin says where it is")]
    NoPlugin,
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
    Trace(#[from] RecordingError),
    /// The thread that records accesses and tables panicked.
    #[error("nothing was traced: the reader of the plugin failed")]
    TraceReader,
    /// The snapshots of the layers could not be joined.
    #[error("the snapshots cannot be joined: {0}")]
    Join(#[from] strata_inspect::Error),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl LabError {
    /// Whether what was asked for cannot be, wherever it is asked.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Scenario { .. }
            | Self::UnknownScenario { .. }
            | Self::NoLayer { .. }
            | Self::LongParameters { .. }
            | Self::TraceOfCpus(_)
            | Self::NoProgram(_)
            | Self::NotAKernel(_)
            | Self::NotInLayer { .. }
            | Self::Copy(_) => true,
            Self::File { .. }
            | Self::Tool { .. }
            | Self::Build { .. }
            | Self::Hook { .. }
            | Self::NotBuilt { .. }
            | Self::NoEmulator { .. }
            | Self::NoKeyring(_)
            | Self::NoSource { .. }
            | Self::NoCache
            | Self::Busy(_)
            | Self::NoPackage(_)
            | Self::Contents { .. }
            | Self::NoConfiguration(_)
            | Self::Failed { .. }
            | Self::NoCompanion { .. }
            | Self::NoPlugin
            | Self::Layer { .. }
            | Self::Stalled(_)
            | Self::Refused { .. }
            | Self::Trace(_)
            | Self::TraceReader
            | Self::Join(_)
            | Self::Interrupted => false,
        }
    }
}

/// Attaches the file to what the system says of it.
pub(crate) fn on<T>(path: &Path, result: io::Result<T>) -> Result<T, LabError> {
    result.map_err(|source| LabError::File { path: path.to_owned(), source })
}
