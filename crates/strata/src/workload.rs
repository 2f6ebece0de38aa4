//! The stream: a live program, a trace, or a generator.

use crate::args;
use crate::failure::Failure;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use strata_capture::Capture;
use strata_engine::OpenError;
use strata_stream::{Source, WorkloadInfo, command_line};
use strata_workloads::{Format, Generator, Measured};

/// Where a stream comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A program and its arguments.
    Live(Vec<OsString>),
    /// A file, and its format if that was said.
    Trace(PathBuf, Option<Format>),
    /// A generator.
    Generator(String),
}

impl Input {
    /// The one input the options name.
    ///
    /// # Errors
    /// When they name none or several.
    pub fn choose(input: args::Input) -> Result<Self, Failure> {
        let format: Option<Format> = match &input.format {
            Some(name) => Some(name.parse().map_err(Failure::usage)?),
            None => None,
        };
        let chosen = match (input.trace, input.workload, input.program) {
            (Some(path), None, program) if program.is_empty() => Self::Trace(path, format),
            (None, Some(spec), program) if program.is_empty() => {
                Generator::parse(&spec).map_err(|error| Failure::usage(error.to_string()))?;
                Self::Generator(spec)
            }
            (None, None, program) if !program.is_empty() => Self::Live(program),
            (None, None, _) => {
                return Err(Failure::usage(
                    "nothing to run; give a program after --, a trace, or --workload SPEC",
                ));
            }
            (Some(_), None, _) => return Err(two("a trace and a program")),
            (None, Some(_), _) => return Err(two("--workload and a program")),
            (Some(_), Some(_), _) => return Err(two("--workload and a trace")),
        };
        if format.is_some() && !matches!(chosen, Self::Trace(..)) {
            return Err(Failure::usage("--format is for traces; leave it out"));
        }
        Ok(chosen)
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
            Self::Generator(_) => true,
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
        }
    }

    /// What is known before a live program starts.
    pub fn live_info(&self) -> Option<WorkloadInfo> {
        let Self::Live(command) = self else { return None };
        let argv: Vec<_> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let name = command_line(argv.iter().map(String::as_str));
        Some(WorkloadInfo { name, argv, kind: "live", ..WorkloadInfo::default() })
    }

    /// Opens the stream from its beginning; a program starts.
    ///
    /// # Errors
    /// When that fails.
    pub fn open(&self) -> Result<Box<dyn Source>, OpenError> {
        match self {
            Self::Live(command) => {
                let (program, arguments) = command.split_first().expect("chosen as not empty");
                let capture =
                    Capture::spawn(program, arguments, strata_capture::Options::default());
                let capture = capture.map_err(|error| OpenError(error.to_string()))?;
                Ok(Box::new(Measured::new(capture)))
            }
            Self::Trace(path, format) => {
                if path == Path::new("-") && std::io::stdin().is_terminal() {
                    let why = "the standard input is a terminal; give it a trace, as with 'xzcat \
                               TRACE.xz | strata run -'";
                    return Err(OpenError(why.to_owned()));
                }
                let trace = strata_workloads::open(path, *format).map_err(|error| {
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
                })?;
                // Recordings know their footprint; counting it again would cost for nothing.
                let counted = trace.info().footprint_bytes.is_some();
                Ok(if counted { trace } else { Box::new(Measured::new(trace)) })
            }
            Self::Generator(spec) => {
                let generator =
                    Generator::parse(spec).map_err(|error| OpenError(error.to_string()))?;
                Ok(Box::new(Measured::new(generator)))
            }
        }
    }
}

/// Whether a file begins as what the kernel can execute.
fn is_program(path: &Path) -> bool {
    let mut start = [0; 4];
    let read = File::open(path).and_then(|file| file.take(4).read(&mut start));
    read.is_ok() && (start == *b"\x7fELF" || start.starts_with(b"#!"))
}

fn two(what: &str) -> Failure {
    Failure::usage(format!("{what} are given; choose one"))
}
