//! From the plugin's connection to the two files: the recording and the tables.
//!
//! Bind a [`Listener`], start the machine with [`Listener::plugin_argument`], then call
//! [`Listener::record`] on a thread of its own: it returns when the machine was frozen, its tables
//! were taken and checked, and the machine goes on; or when the machine ended before.

use rustc_hash::{FxHashSet, FxHasher};
use std::ffi::OsString;
use std::hash::{Hash, Hasher};
use std::io::{self, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use strata_addr::{Gva, PageSize, Range, space::Virtual};
use strata_stream::{Backing, Batch, Event, Pid, Protection, SourceError, Tid};
use strata_tables::capture::Capture;
use strata_tables::file::{self, FileError};
use strata_tables::observed::Observed;
use strata_tables::ram::{Layout, RamFile};
use strata_tables::search::{NotFound, Roots, search};
use strata_wire::machine::{Frozen, GOODBYE, Placed, Told, VERSION};
use strata_workloads::record::{Outcome, Writer};

/// The pages that prove a root: those accessed last, so that nothing changed since.
const PROOFS: usize = 512;

/// Where programs that do not choose their addresses have their memory when the kernel does not
/// randomise it (`ADDR_NO_RANDOMIZE`) and places mappings upwards (`ADDR_COMPAT_LAYOUT`), as
/// Linux does on x86-64 (`arch/x86/mm/mmap.c`, `arch/x86/include/asm/elf.h`): the program and its
/// heap, mappings, the stack. The first is that of programs made for these machines.
///
/// All other programs of all layers are placed at random, somewhere in the 16 GiB below the end of
/// the program's stack and in the 1 TiB above the program. So these windows are no larger than they
/// must be, a stack that of `_STK_LIM`: one of them in such a window is taken for the program.
pub const WINDOWS: [(u64, u64); 4] = [
    (0x6000_0000_0000, 0x6100_0000_0000),
    (0x5555_5555_4000, 0x5555_9555_4000),
    (0x2aaa_aaaa_a000, 0x2ac0_0000_0000),
    (0x7fff_ff7f_f000, 0x7fff_ffff_f000),
];

/// What is recorded.
#[derive(Clone, Debug, Default)]
pub struct Amount {
    /// Windows of the program's addresses; empty for [`WINDOWS`].
    pub windows: Vec<Range<Virtual>>,
    /// Accesses to leave out after the program's start marker.
    pub skip: u64,
    /// Accesses to record at most; the machine freezes then.
    pub limit: Option<u64>,
}

impl Amount {
    /// The windows as the emulators' plugins read them.
    fn window_texts(&self) -> Vec<String> {
        let own = self.windows.iter().map(|window| (window.start.get(), window.end.get()));
        let windows = if self.windows.is_empty() { WINDOWS.to_vec() } else { own.collect() };
        windows.into_iter().map(|(start, end)| format!("{start:x}-{end:x}")).collect()
    }
}

/// What a recording is made of besides what the plugin tells.
#[derive(Clone, Debug)]
pub struct Job {
    /// The file of the machine's RAM.
    pub ram: PathBuf,
    /// Where that RAM lies.
    pub layout: Layout,
    /// Layers of the stack whose innermost runs the program: 1 to 3.
    pub layers: u8,
    /// The program and its arguments, for the recording.
    pub command: Vec<String>,
    /// The recording to write.
    pub recording: PathBuf,
    /// The tables file to write.
    pub tables: PathBuf,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Done {
    /// The tables, with the check of every access.
    pub capture: Capture,
    /// Where the roots were.
    pub roots: Roots,
    /// Why the machine froze.
    pub frozen: Frozen,
    /// How long it stood still.
    pub still: Duration,
    /// Instructions of user code while accesses were recorded, of whichever layer.
    pub instructions: u64,
}

/// Why nothing was captured. One line: cause and remedy.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The socket failed, or the other end is not the plugin.
    #[error("the machine's plugin: {0}")]
    Socket(#[from] io::Error),
    /// Asked to stop.
    #[error("stopped before the machine connected")]
    Stopped,
    /// Another version.
    #[error("the machine's plugin speaks version {0} of the protocol, not {VERSION}; rebuild it")]
    Version(u32),
    /// The machine ended first.
    #[error("the machine ended before the recording did, after {accesses} accesses{hint}")]
    Ended {
        /// Accesses seen.
        accesses: u64,
        /// What may be wrong.
        hint: &'static str,
    },
    /// The RAM file cannot be used.
    #[error("the machine's RAM '{0}': {1}")]
    Ram(String, io::Error),
    /// No tables.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The recording could not be written.
    #[error(transparent)]
    Recording(#[from] SourceError),
    /// The tables could not be written.
    #[error("cannot write tables {0}")]
    Tables(#[from] FileError),
}

/// Waits for a machine's plugin. The socket's file goes when it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Listener {
    /// A new socket. Commas in `path` cannot be given to the emulator.
    ///
    /// # Errors
    /// When it cannot be made, as when something has that name, or it is longer than 107 bytes.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: UnixListener::bind(path)?, path: path.to_path_buf() })
    }

    /// The value of the emulator's option `-plugin`.
    pub fn plugin_argument(&self, plugin: &Path, amount: &Amount) -> String {
        let mut text = format!("{},socket={}", plugin.display(), self.path.display());
        for window in amount.window_texts() {
            text.push_str(&format!(",window={window}"));
        }
        if let Some(limit) = amount.limit {
            text.push_str(&format!(",limit={limit}"));
        }
        if amount.skip > 0 {
            text.push_str(&format!(",skip={}", amount.skip));
        }
        text
    }

    /// What Bochs with the lab's instrumentation finds in its environment instead.
    pub fn environment(&self, amount: &Amount) -> Vec<(&'static str, OsString)> {
        let mut all = vec![
            ("BOCHS_TRACE_SOCKET", self.path.clone().into_os_string()),
            ("BOCHS_TRACE_WINDOWS", amount.window_texts().join(",").into()),
            ("BOCHS_TRACE_SKIP", amount.skip.to_string().into()),
        ];
        all.extend(amount.limit.map(|limit| ("BOCHS_TRACE_LIMIT", limit.to_string().into())));
        all
    }

    /// Records what the machine tells, takes its tables when it freezes, and lets it go on.
    /// `stop` ends the wait for the machine's connection; later the machine's end does.
    ///
    /// # Errors
    /// When the machine ends first, the tables cannot be found, or the files not be written; no
    /// file is left then.
    pub fn record(&self, job: &Job, stop: &AtomicBool) -> Result<Done, RecordingError> {
        let machine = self.accept(stop)?;
        let mut source = BufReader::with_capacity(1 << 16, machine.try_clone()?);
        let mut log = Log::new(job.layout, Writer::create(&job.recording)?);
        loop {
            match Told::read(&mut source)? {
                Some(Told::Hello(VERSION)) => {}
                Some(Told::Hello(other)) => return Err(RecordingError::Version(other)),
                Some(Told::Armed) => log.armed = true,
                Some(Told::Started) => log.started = true,
                Some(Told::Accesses { instructions, accesses }) => {
                    log.push(instructions, &accesses)?;
                }
                Some(Told::Frozen(frozen)) => return finish(job, machine, log, frozen),
                None => return Err(log.ended()),
            }
        }
    }

    fn accept(&self, stop: &AtomicBool) -> Result<UnixStream, RecordingError> {
        self.socket.set_nonblocking(true)?;
        loop {
            match self.socket.accept() {
                Ok((machine, _)) => {
                    machine.set_nonblocking(false)?;
                    return Ok(machine);
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
                Err(_) if stop.load(Relaxed) => return Err(RecordingError::Stopped),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// What was told so far.
struct Log {
    layout: Layout,
    writer: Writer,
    batch: Batch,
    seen: Observed,
    /// Units of 2 MiB that a mapping was written for.
    mapped: FxHashSet<Gva>,
    vcpus: FxHashSet<u16>,
    armed: bool,
    started: bool,
    accesses: u64,
    instructions: u64,
}

const PID: Pid = Pid(0);

impl Log {
    fn new(layout: Layout, writer: Writer) -> Self {
        let mut batch = Batch::new();
        batch.event(Event::ProcessStart { pid: PID });
        Self {
            layout,
            writer,
            batch,
            seen: Observed::default(),
            mapped: FxHashSet::default(),
            vcpus: FxHashSet::default(),
            armed: false,
            started: false,
            accesses: 0,
            instructions: 0,
        }
    }

    /// Adds accesses; each thread and each mapping is told of before its first.
    fn push(&mut self, instructions: u64, accesses: &[Placed]) -> Result<(), SourceError> {
        for placed in accesses {
            let tid = Tid(placed.vcpu.into());
            if self.vcpus.insert(placed.vcpu) {
                self.batch.event(Event::ThreadStart { pid: PID, tid });
            }
            let first = placed.access.addr();
            for addr in [first, first + u64::from(placed.access.size() - 1)] {
                let start = addr.floor(PageSize::Huge);
                if self.mapped.insert(start) {
                    self.batch.event(Event::Map {
                        pid: PID,
                        range: Range::sized(start, PageSize::Huge.bytes()),
                        backing: Backing::Anonymous,
                        protection: Protection::READ_WRITE,
                        fixed: false,
                    });
                }
            }
            let hpa = placed.ram.and_then(|offset| self.layout.hpa(offset));
            self.seen.add(placed.access, hpa);
        }
        let mut instructions = instructions;
        self.instructions += instructions;
        self.accesses += accesses.len() as u64;
        for run in accesses.chunk_by(|a, b| a.vcpu == b.vcpu) {
            // Told for all vCPUs together; there is one as a rule.
            let retired = std::mem::take(&mut instructions);
            self.batch.run(Tid(run[0].vcpu.into()), retired, |out| {
                out.extend(run.iter().map(|placed| placed.access));
            });
        }
        self.writer.push(&self.batch)?;
        self.batch.clear();
        Ok(())
    }

    fn ended(&self) -> RecordingError {
        let hint = match (self.armed, self.started) {
            (false, _) => "; the program never asked to be watched",
            (true, false) => "; the program never reached its start marker",
            (true, true) => "; the program never reached its stop marker, nor the limit",
        };
        RecordingError::Ended { accesses: self.accesses, hint }
    }
}

/// The machine stands still.
fn finish(
    job: &Job,
    mut machine: UnixStream,
    log: Log,
    frozen: Frozen,
) -> Result<Done, RecordingError> {
    let since = Instant::now();
    let taken = RamFile::open(&job.ram, job.layout)
        .map_err(|error| RecordingError::Ram(job.ram.display().to_string(), error))
        .and_then(|ram| {
            let roots = search(&ram, &log.seen.latest(PROOFS))?;
            Ok((Capture::take(&ram, roots, job.layers), roots))
        });
    // Whatever came of it, the machine goes on; one that is gone needs no answer.
    let _ = machine.write_all(&[GOODBYE]);
    drop(machine);
    let still = since.elapsed();
    let (mut capture, roots) = taken?;
    capture.prove(&log.seen);
    capture.id = identity(&capture);
    let mut notes = vec![
        "recorded in an emulated machine: accesses of user code in the program's windows; \
         instructions are those of user code in every layer"
            .to_owned(),
        "every 2 MiB touched counts as one private anonymous mapping".to_owned(),
    ];
    if frozen == Frozen::Limit {
        notes.push(format!(
            "the recording ends at its limit of {} accesses, the program went on",
            log.accesses
        ));
    }
    let outcome = Outcome {
        command: job.command.clone(),
        exit_status: None,
        partial: None,
        notes,
        tables: Some(capture.id),
    };
    file::write(&job.tables, &capture)?;
    if let Err(error) = log.writer.finish(outcome) {
        let _ = std::fs::remove_file(&job.tables);
        return Err(error.into());
    }
    Ok(Done { capture, roots, frozen, still, instructions: log.instructions })
}

/// A number for a capture that no other has: of this moment and of what was captured.
fn identity(capture: &Capture) -> u64 {
    let mut hash = FxHasher::default();
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().hash(&mut hash);
    std::process::id().hash(&mut hash);
    capture.guest.root.hash(&mut hash);
    capture.second.iter().for_each(|table| table.root.hash(&mut hash));
    capture.check.accesses.hash(&mut hash);
    hash.finish().max(1)
}
