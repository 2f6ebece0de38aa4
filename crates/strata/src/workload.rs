//! The stream: a live program, a trace, or a generator.

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::prepared;
use crate::sample::{self, Parts};
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use strata_capture::{Capture, Options};
use strata_engine::OpenError;
use strata_stream::{Source, WorkloadInfo, command_line};
use strata_text::number::count;
use strata_workloads::record::Reader;
use strata_workloads::{Before, Excerpt, Format, Generator, Measured, Part, Sampled};

/// Why nothing was counted or recorded, and what to do.
pub fn nothing_left(part: Part, warmup: u64) -> String {
    let why = match (part.marked, part.skip + warmup) {
        (true, 0) => "gave no mark to begin: leave --marked out, or give marks (docs/cli.md)",
        (true, _) => {
            "gave no mark to begin, or ended before --skip and --warmup were over: lower them, or \
             leave --marked out"
        }
        (false, 0) => "holds no access: give another",
        (false, _) => "ended before --skip and --warmup were over: lower them",
    };
    format!("nothing is left: the stream {why}")
}

/// Why a stream did not begin: whoever asked for the end meanwhile is not told of anything else.
pub fn unopened(error: &OpenError, interrupt: &Interrupt) -> Failure {
    if interrupt.happened() {
        let message = format!("{} before the stream began", interrupt.reason());
        return Failure { message, status: interrupt.status() };
    }
    Failure::failed(error.to_string())
}

/// What part of the stream was taken, in words; none if it was all.
pub fn part_taken(part: Part) -> Option<String> {
    let marks = "from the program's mark to begin to its mark to end".to_owned();
    let words: Vec<String> = [
        part.marked.then_some(marks),
        (part.skip > 0).then(|| format!("without the first {} accesses", count(part.skip))),
        part.limit.map(|limit| format!("at most {} accesses", count(limit))),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!words.is_empty()).then(|| format!("a part of the stream: {}", words.join(", ")))
}

/// Where a stream comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A program and its arguments.
    Live(Vec<OsString>),
    /// A file, and its format if that was said.
    Trace(PathBuf, Option<Format>),
    /// A generator.
    Generator(String),
    /// A prepared workload: its name and its recording.
    Prepared(String, PathBuf),
}

impl Input {
    /// What `--workload` names: a generator or a prepared workload.
    ///
    /// # Errors
    /// When there is none of this name, or it is not prepared.
    pub fn named(spec: &str) -> Result<Self, Failure> {
        let Some(name) = spec.strip_prefix(prepared::PREFIX) else {
            Generator::parse(spec).map_err(|error| Failure::usage(error.to_string()))?;
            return Ok(Self::Generator(spec.to_owned()));
        };
        let recipe = prepared::find(name)?;
        Ok(match &recipe.generator {
            Some(generator) => Self::Generator(generator.clone()),
            None => Self::Prepared(name.to_owned(), prepared::recording(&recipe)?),
        })
    }

    /// Whether it is a program to be run.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// Whether it is the same when it is opened again: programs and pipes are not.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Self::Live(_) => false,
            Self::Trace(path, _) => {
                path != Path::new("-") && path.metadata().is_ok_and(|metadata| metadata.is_file())
            }
            Self::Generator(_) | Self::Prepared(..) => true,
        }
    }

    /// The words that name it on the command line, after the options.
    pub fn words(&self) -> Vec<String> {
        match self {
            Self::Live(command) => {
                let words = command.iter().map(|word| word.to_string_lossy().into_owned());
                ["--".to_owned()].into_iter().chain(words).collect()
            }
            Self::Trace(path, _) => match path.display().to_string() {
                name if name.starts_with('-') && name != "-" => vec![format!("./{name}")],
                name => vec![name],
            },
            Self::Generator(spec) => vec!["--workload".to_owned(), spec.clone()],
            Self::Prepared(name, _) => {
                vec!["--workload".to_owned(), format!("{}{name}", prepared::PREFIX)]
            }
        }
    }

    /// What is known before a live program starts.
    pub fn live_info(&self) -> Option<WorkloadInfo> {
        let Self::Live(command) = self else { return None };
        let argv: Vec<_> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let name = command_line(argv.iter().map(String::as_str));
        Some(WorkloadInfo { name, argv, kind: "live", ..WorkloadInfo::default() })
    }

    /// Opens a part of the stream; a program starts. Once `interrupted`, what a program leaves running
    /// is not waited for.
    ///
    /// # Errors
    /// When that fails.
    pub fn open(
        &self,
        part: Part,
        before: Before,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Box<dyn Source>, OpenError> {
        self.open_sampled(part, before, None, interrupted)
    }

    /// The same, of which only `parts` are seen in detail, if anything is left out.
    ///
    /// # Errors
    /// When that fails.
    pub fn open_sampled(
        &self,
        part: Part,
        before: Before,
        parts: Option<&Parts>,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Box<dyn Source>, OpenError> {
        let mut source = self.source(parts, interrupted)?;
        if parts.is_some() || !part.is_whole() {
            refuse_sampled(&source.info())?;
        }
        if let Some(Parts { sampling, aimed }) = parts.filter(|_| !self.is_live()) {
            source = Box::new(match aimed {
                Some(aimed) => Sampled::aimed(source, *sampling, aimed.clone()),
                None => Sampled::new(source, *sampling),
            });
        }
        // Recordings know their footprint; counting it again would cost for nothing.
        Ok(match source.info().footprint_bytes.is_some() && self.is_trace() {
            _ if !part.is_whole() => Box::new(Measured::new(Excerpt::new(source, part, before))),
            true => source,
            false => Box::new(Measured::new(source)),
        })
    }

    fn is_trace(&self) -> bool {
        matches!(self, Self::Trace(..) | Self::Prepared(..))
    }

    fn source(
        &self,
        parts: Option<&Parts>,
        interrupted: &Arc<AtomicBool>,
    ) -> Result<Box<dyn Source>, OpenError> {
        match self {
            Self::Live(command) => {
                let (program, arguments) = command.split_first().expect("chosen as not empty");
                let interrupted = Some(interrupted.clone());
                let sampling = parts.map(|parts| parts.sampling);
                let aimed = parts.and_then(|parts| parts.aimed.clone());
                let options = Options { interrupted, sampling, aimed, ..Options::default() };
                let capture = Capture::spawn(program, arguments, options);
                Ok(Box::new(capture.map_err(|error| OpenError(error.to_string()))?))
            }
            Self::Trace(path, format) => {
                if path == Path::new("-") && std::io::stdin().is_terminal() {
                    let why = "the standard input is a terminal; give it a trace, as with 'xzcat \
                               TRACE.xz | strata run -'";
                    return Err(OpenError(why.to_owned()));
                }
                strata_workloads::open(path, *format, interrupted).map_err(|error| {
                    if path == Path::new("-") {
                        return OpenError(error.to_string());
                    }
                    if format.is_none() && is_program(path) {
                        return OpenError(format!(
                            "'{0}' is a program, not a trace; to run it write it after --: strata \
                             run -- {0}",
                            path.display()
                        ));
                    }
                    let hint =
                        if path.exists() { "" } else { "; to run a program write it after --" };
                    OpenError(format!("{error}{hint}"))
                })
            }
            Self::Prepared(name, path) => {
                let name = format!("{}{name}", prepared::PREFIX);
                let file = File::open(path).map_err(|error| {
                    OpenError(format!("cannot read the recording of {name}: {error}"))
                })?;
                let reader = Reader::new(file, name);
                Ok(Box::new(reader.map_err(|error| OpenError(error.to_string()))?))
            }
            Self::Generator(spec) => {
                let generator =
                    Generator::parse(spec).map_err(|error| OpenError(error.to_string()))?;
                Ok(Box::new(generator))
            }
        }
    }
}

/// Refuses a recording that does not hold all of a stream where parts of it are to be taken.
///
/// # Errors
/// When it is one.
pub fn refuse_sampled(info: &WorkloadInfo) -> Result<(), OpenError> {
    refuse_sampled_where(info, "leave --sample, --skip, --limit and --marked out")
}

/// Refuses a recording that does not hold all of a stream where all of it is needed, with what to do.
///
/// # Errors
/// When it is one.
pub fn refuse_sampled_where(info: &WorkloadInfo, remedy: &str) -> Result<(), OpenError> {
    let notes = info.recorded.iter().flat_map(|outcome| &outcome.notes);
    if notes.into_iter().any(|note| note.starts_with(sample::NOTE)) {
        return Err(OpenError(format!("the recording is sampled: {remedy}")));
    }
    Ok(())
}

/// Whether a file begins as what the kernel can execute.
fn is_program(path: &Path) -> bool {
    let mut start = [0; 4];
    // A pipe would be waited for.
    let file = if path.is_file() { File::open(path) } else { return false };
    let read = file.and_then(|file| file.take(4).read(&mut start));
    read.is_ok() && (start == *b"\x7fELF" || start.starts_with(b"#!"))
}
