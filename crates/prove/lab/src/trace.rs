//! True accesses of the innermost program, and the page tables of the same moment.

use crate::error::{LabError, on};
use crate::intel::with_hole;
use crate::machine::{Hardware, Ram};
use crate::make::Make;
use crate::recording::{Amount, Done, Job, Listener, RecordingError};
use nix::sys::statvfs::statvfs;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use strata_tables::capture::ShadowCheck;
use strata_tables::ram::Layout;
use strata_tables::truth;
use tempfile::TempPath;

/// Where memory that is a file is fastest.
const SHARED_MEMORY: &str = "/dev/shm";
/// Translated code of a traced machine, in MiB: more than it ever needs, for the emulator does not
/// survive dropping code that a plugin watches.
const CODE_MIB: u32 = 1024;

/// What to record of the program in the innermost layer.
#[derive(Clone, Debug)]
pub struct Trace {
    /// QEMU's plugin, which AMD's machine needs; Intel's emulator has it compiled in.
    pub plugin: Option<PathBuf>,
    /// The recording to write.
    pub recording: PathBuf,
    /// The file of page tables to write.
    pub tables: PathBuf,
    /// Accesses to leave out first.
    pub skip: u64,
    /// Accesses to record at most.
    pub limit: u64,
}

/// What was recorded.
#[derive(Clone, Debug, Serialize)]
pub struct TraceReport {
    /// The recording.
    pub recording: PathBuf,
    /// The page tables.
    pub tables: PathBuf,
    /// Accesses recorded, each checked against the tables.
    pub accesses: u64,
    /// Accesses that the tables translate to another HPA than the emulator reported, or not at all.
    pub mismatched: u64,
    /// Accesses to pages that were elsewhere later in the recording: tables of its last moment
    /// cannot have them.
    pub changed: u64,
    /// L0's shadow table against L1's table and L0's taken together, where there are three layers.
    pub shadow: Option<ShadowCheck>,
    /// Huge pages of the program by its page table.
    pub huge_pages: u64,
    /// Of these, the ones that the table hardware walks maps huge too.
    pub well_aligned: u64,
    /// Seconds the machine stood still for the tables.
    pub still_seconds: f64,
}

/// A recording under way.
#[derive(Debug)]
pub(crate) struct Tracing {
    thread: JoinHandle<Result<Done, RecordingError>>,
    stop: Arc<AtomicBool>,
    trace: Trace,
    /// The machine's memory; the file goes with this.
    _memory: TempPath,
}

impl Tracing {
    /// Prepares the machine and listens.
    pub(crate) fn start(
        trace: &Trace,
        make: Make,
        hardware: &mut Hardware,
        (layers, command): (usize, Vec<String>),
        directory: &Path,
    ) -> Result<Self, LabError> {
        if hardware.cpus != 1 {
            return Err(LabError::TraceOfCpus(hardware.cpus));
        }
        let memory = memory_file(hardware.bytes, directory)?;
        let socket = directory.join("plugin.socket");
        let listener = on(&socket, Listener::bind(&socket))?;
        let amount = Amount { windows: Vec::new(), skip: trace.skip, limit: Some(trace.limit) };
        hardware.memory.ram = Ram::File(memory.to_path_buf());
        let layout = match make {
            Make::Amd => {
                let plugin = trace.plugin.as_deref().ok_or(LabError::NoPlugin)?;
                let plugin = listener.plugin_argument(plugin, &amount);
                hardware.code_mib = CODE_MIB;
                hardware.more.extend(["-plugin".into(), plugin]);
                Layout::pc(hardware.bytes)
            }
            Make::Intel => {
                hardware.environment = listener.environment(&amount);
                Layout::flat(with_hole(hardware.bytes))
            }
        };
        let job = Job {
            ram: memory.to_path_buf(),
            layout,
            layers: layers as u8,
            command,
            recording: trace.recording.clone(),
            tables: trace.tables.clone(),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || listener.record(&job, &flag));
        Ok(Self { thread, stop, trace: trace.clone(), _memory: memory })
    }

    /// Whether everything is recorded, or nothing will be.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// What was recorded, once it is.
    pub(crate) fn finish(self) -> Result<TraceReport, LabError> {
        self.stop.store(true, Relaxed);
        let done = match self.thread.join() {
            Ok(done) => done?,
            Err(_) => return Err(LabError::TraceReader),
        };
        let regions = truth::regions(&done.capture);
        let check = &done.capture.check;
        Ok(TraceReport {
            recording: self.trace.recording,
            tables: self.trace.tables,
            accesses: check.accesses,
            mismatched: check.mismatched,
            changed: check.changed,
            shadow: done.capture.composition,
            huge_pages: regions.len() as u64,
            well_aligned: regions.iter().filter(|region| region.is_well_aligned()).count() as u64,
            still_seconds: done.still.as_secs_f64(),
        })
    }
}

/// An empty file for the machine's memory: in shared memory if there is room, else beside the logs.
fn memory_file(bytes: u64, directory: &Path) -> Result<TempPath, LabError> {
    let shared = Path::new(SHARED_MEMORY);
    let place = if free(shared) > bytes { shared } else { directory };
    on(place, fs::create_dir_all(place))?;
    let file = tempfile::Builder::new().prefix("strata-machine-").tempfile_in(place);
    Ok(on(place, file)?.into_temp_path())
}

/// Bytes that a file system has free; 0 if it cannot be asked.
pub(crate) fn free(path: &Path) -> u64 {
    statvfs(path).map_or(0, |data| data.blocks_available() * data.fragment_size())
}
