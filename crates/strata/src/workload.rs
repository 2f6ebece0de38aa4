//! The stream: a live program, a trace, or a generator.

use crate::args;
use crate::failure::Failure;
use crate::number::count;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use strata_capture::{Capture, Options};
use strata_engine::OpenError;
use strata_stream::{Source, WorkloadInfo, command_line};
use strata_workloads::{Before, Excerpt, Format, Generator, Measured, Part};

/// What part of the stream the options ask for.
pub fn part(input: &args::Input) -> Part {
    let marked = input.marked.unwrap_or(false);
    Part { marked, skip: input.skip.unwrap_or(0), limit: input.limit }
}

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
        let source = self.source(interrupted)?;
        // Recordings know their footprint; counting it again would cost for nothing.
        Ok(match source.info().footprint_bytes.is_some() && self.is_trace() {
            _ if !part.is_whole() => Box::new(Measured::new(Excerpt::new(source, part, before))),
            true => source,
            false => Box::new(Measured::new(source)),
        })
    }

    fn is_trace(&self) -> bool {
        matches!(self, Self::Trace(..))
    }

    fn source(&self, interrupted: &Arc<AtomicBool>) -> Result<Box<dyn Source>, OpenError> {
        match self {
            Self::Live(command) => {
                let (program, arguments) = command.split_first().expect("chosen as not empty");
                let interrupted = Some(interrupted.clone());
                let options = Options { interrupted, ..Options::default() };
                let capture = Capture::spawn(program, arguments, options);
                Ok(Box::new(capture.map_err(|error| OpenError(error.to_string()))?))
            }
            Self::Trace(path, format) => {
                if path == Path::new("-") && std::io::stdin().is_terminal() {
                    let why = "the standard input is a terminal; give it a trace, as with 'xzcat \
                               TRACE.xz | strata run -'";
                    return Err(OpenError(why.to_owned()));
                }
                strata_workloads::open(path, *format).map_err(|error| {
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
            Self::Generator(spec) => {
                let generator =
                    Generator::parse(spec).map_err(|error| OpenError(error.to_string()))?;
                Ok(Box::new(generator))
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
