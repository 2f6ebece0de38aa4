//! The consumer: turns what arrives through the wire into a stream.
//!
//! | file | subject |
//! | --- | --- |
//! | `accesses` | slots: what threads did to memory |
//! | `messages` | what happens besides accesses |
//! | `ends` | ends of processes that cannot tell of theirs, and of the program |

mod accesses;
mod ends;
mod messages;

use crate::CaptureError;
use crate::edges::Edges;
use crate::launch::{self, Launch, Options, Supervisor};
use crate::processes::Processes;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use strata_phases::{Profile, Profiled};
use strata_stream::{Batch, Fill, Pid, Source, SourceError, Tid, WorkloadInfo, command_line};
use strata_wire::{Drain, Wire};
use strata_workloads::{Chooser, Touches};

/// First and longest sleep while nothing arrives; after the longest, the caller gets an empty batch
/// and with it a chance to do something else.
const SLEEP: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(32)];
/// How often processes are checked for having ended silently.
const CHECK: Duration = Duration::from_millis(200);
/// Notes of programs kept; there is no use in thousands.
const NOTES: usize = 100;

/// A program that runs under the emulator, and the stream of what it does.
///
/// [`Source::fill`] returns an empty batch from time to time while the program waits for something,
/// so that the caller can look at its own affairs. Dropping the capture ends the program. An
/// interrupt from the terminal reaches the program as it reaches the caller; when the program ends
/// by it, so does the stream, with everything done before.
#[derive(Debug)]
pub struct Capture {
    wire: Arc<Wire>,
    /// Producers open the wire through this process's descriptor.
    _file: File,
    supervisor: Supervisor,
    argv: Vec<String>,
    drain: Drain,
    /// How much of each slot was delivered, by index: a cut delivers a part ahead.
    progress: Vec<Progress>,
    processes: Processes,
    /// What was touched, if the stream is sampled.
    touches: Option<Touches>,
    /// What puts the edges in order, if the stream is sampled.
    edges: Option<Edges>,
    /// What places the intervals, if their places are not drawn.
    chooser: Option<Chooser>,
    /// What was counted, where only that is wanted.
    profile: Option<Profile>,
    /// Whether the stream is in a gap.
    in_gap: bool,
    /// Who ran first since the last gap, once there was one.
    first: Option<Option<Tid>>,
    /// Processes found dead, whose committed slots are still in `drain`.
    dying: Vec<Pid>,
    /// Processes that ended before what a slot tells of, and did not tell of it; looked for where that matters.
    unheard: Option<Vec<Pid>>,
    checked: Instant,
    begun: bool,
    ended: bool,
    /// The program goes on without being observed.
    detached: bool,
    inferred: u64,
    stray: u64,
    notes: Vec<String>,
    /// Once set, what the program leaves running is not waited for.
    interrupted: Option<Arc<AtomicBool>>,
    /// When the program was found to have left something running.
    outlived: Option<Instant>,
    /// What was told at once, and how much of it.
    warnings: Vec<String>,
    told: usize,
}

/// How much of a slot was delivered.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// In which use of the slot.
    taking: u64,
    accesses: usize,
    instructions: u64,
}

impl Capture {
    /// Starts `program` with `args`, searched in `PATH` as a shell does.
    ///
    /// # Errors
    /// When the program, the emulator or the plugin is missing or unfit, before anything started;
    /// or when the system refuses to start it.
    pub fn spawn(
        program: &OsStr,
        args: &[OsString],
        options: Options,
    ) -> Result<Self, CaptureError> {
        let (wire, file) = Wire::create().map_err(|source| CaptureError::System {
            context: "making memory for the capture",
            source,
        })?;
        let touches = options.sampling.map(|sampling| {
            wire.sample(&sampling);
            Touches::default()
        });
        let edges = options.sampling.as_ref().map(Edges::new);
        let adaptive = options.sampling.filter(|sampling| sampling.adaptive);
        let aimed = adaptive.zip(options.aimed.clone());
        let chooser = aimed.map(|(sampling, aimed)| Chooser::new(sampling, aimed));
        chooser.iter().flat_map(Chooser::placed).for_each(|placed| wire.place(placed));
        let profile = options.counting.map(|interval| {
            wire.count(interval);
            Profile::new(interval)
        });
        let wire = Arc::new(wire);
        let interrupted = options.interrupted.clone();
        let launch = Launch::prepare(program, args, options, &file)?;
        let supervisor = launch.start(wire.clone())?;
        let words = [program].into_iter().chain(args.iter().map(OsString::as_os_str));
        let argv = words.map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Self {
            wire,
            _file: file,
            supervisor,
            argv,
            drain: Drain::default(),
            progress: Vec::new(),
            processes: Processes::default(),
            touches,
            edges,
            chooser,
            profile,
            in_gap: false,
            first: None,
            dying: Vec::new(),
            unheard: None,
            checked: Instant::now(),
            begun: false,
            ended: false,
            detached: false,
            inferred: 0,
            stray: 0,
            notes: Vec::new(),
            interrupted,
            outlived: None,
            warnings: Vec::new(),
            told: 0,
        })
    }

    /// How the program ended, signals included, once it has. Its descendants may still run.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.supervisor.status()
    }

    /// Reads the rest of the stream without looking at it, and returns how the program ended.
    ///
    /// # Errors
    /// As [`Source::fill`].
    pub fn wait(&mut self) -> Result<Option<ExitStatus>, SourceError> {
        let mut batch = Batch::new();
        while self.fill(&mut batch)? == Fill::More {}
        Ok(self.status())
    }

    /// What was counted ([`Options::counting`]), once the stream is over.
    pub fn profiled(&mut self) -> Option<Profiled> {
        let profile = self.profile.take()?;
        Some(profile.end(self.wire.take_blocks().into_iter()))
    }
}

impl Source for Capture {
    fn info(&self) -> WorkloadInfo {
        let mut notes = self.notes.clone();
        notes.extend(self.chooser.iter().flat_map(Chooser::notes));
        let mut count = |number: u64, text: &str| {
            if number > 0 {
                notes.push(format!("{number} {text}"));
            }
        };
        count(self.inferred, "pages were used that no system call had mapped; mappings inferred");
        count(self.wire.lost(), "accesses lost: more threads than the capture can hold");
        count(self.stray, "accesses left out: made by processes that had already ended");
        if self.detached {
            notes.push("the rest of the program ran unobserved".to_owned());
        }
        WorkloadInfo {
            name: command_line(self.argv.iter().map(String::as_str)),
            argv: self.argv.clone(),
            kind: "live",
            notes,
            exit_status: self.supervisor.known_status().and_then(exit_code),
            ..WorkloadInfo::default()
        }
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.detached && !self.await_end() {
            return Ok(Fill::More);
        }
        let mut sleep = SLEEP[0];
        while !self.ended {
            while let Some(index) = self.drain.pop() {
                self.deliver(index, batch);
                if batch.is_full() {
                    return Ok(Fill::More);
                }
            }
            if self.dying.is_empty() && self.checked.elapsed() >= CHECK {
                self.check();
            } else if self.dying.is_empty() {
                self.wire.drain(&mut self.drain);
            }
            if !self.drain.is_empty() {
                continue;
            }
            if !batch.is_empty() {
                return Ok(Fill::More);
            }
            if self.idle(&mut sleep, batch)? {
                break;
            }
            if sleep > SLEEP[1] {
                return Ok(Fill::More);
            }
        }
        self.supervisor.status();
        Ok(Fill::End)
    }

    fn detach(&mut self) -> bool {
        self.detached = true;
        self.wire.detach();
        true
    }

    fn news(&mut self) -> Vec<String> {
        let news = self.warnings[self.told..].to_vec();
        self.told = self.warnings.len();
        news
    }
}

/// Adds a text that is not there yet, while there are few.
fn add(text: String, list: &mut Vec<String>) {
    if list.len() < NOTES && !list.contains(&text) {
        list.push(text);
    }
}

/// The code, or 128 + the number of the signal that killed it, as shells have it.
fn exit_code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

impl Drop for Capture {
    fn drop(&mut self) {
        // What a program let go leaves behind is its own affair.
        if !(self.detached && self.ended) {
            self.wire.close();
            self.processes.identities().into_iter().for_each(launch::kill);
        }
        self.supervisor.kill();
    }
}
