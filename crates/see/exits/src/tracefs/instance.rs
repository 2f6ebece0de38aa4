//! A trace buffer of one's own: nobody else's tracing is touched, and it is gone when its owner is.

use super::event::{Decoder, Event, TRACEPOINTS};
use super::format::{Format, field};
use super::page::Page;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;
use strata_inspect::Tree;

/// Where tracefs is mounted, relative to the root.
const MOUNTS: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];

/// Names of our instances, before the number of the process.
const PREFIX: &str = "strata-";

/// Memory of the buffer for each processor, in KiB. An exit and an entry take 116 bytes (Linux 6.18),
/// so that 18,000 of them have room between two readings.
const KIB_PER_CPU: &str = "2048";

/// Opening does not wait for events (`O_NONBLOCK`), nor does reading.
const NONBLOCK: i32 = 0o4000;

/// Why nothing can be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// tracefs is nowhere.
    #[error("tracefs is not mounted: mount -t tracefs none /sys/kernel/tracing")]
    NotMounted,
    /// It may not be used.
    #[error("{} may not be used: {source}; run it as root, or with CAP_SYS_ADMIN where tracefs is locked down", path.display())]
    Denied {
        /// Where it is mounted.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The kernel has no tracepoints of KVM.
    #[error(
        "this kernel has no tracepoints of KVM: load kvm_intel or kvm_amd, or take a kernel with CONFIG_FTRACE"
    )]
    NoKvm,
    /// Something else.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// A trace buffer of this process's own that gets KVM's exits and entries.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    decoder: Decoder,
    /// A reader for each processor.
    readers: Vec<File>,
    page: Vec<u8>,
    /// Events that were overwritten before they were read, or could not be made sense of.
    pub lost: u64,
    /// Bytes read.
    pub bytes: u64,
}

impl Instance {
    /// Begins to trace.
    ///
    /// # Errors
    /// Why not; nothing is left behind then.
    pub fn start(tree: &Tree) -> Result<Self, TraceError> {
        let root = mount(tree)?;
        let instances = root.join("instances");
        remove_orphans(tree, &instances);
        let path = instances.join(format!("{PREFIX}{}", process::id()));
        fs::create_dir(&path).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(denied(&root, error)),
        })?;
        let mut instance = Self {
            path,
            decoder: Decoder::default(),
            readers: Vec::new(),
            page: Vec::new(),
            lost: 0,
            bytes: 0,
        };
        instance.set_up()?;
        Ok(instance)
    }

    fn set_up(&mut self) -> Result<(), TraceError> {
        // One clock for all processors, so that a vCPU's events can be put in order.
        self.write("trace_clock", "mono")?;
        self.write("buffer_size_kb", KIB_PER_CPU)?;
        self.page = vec![0; page_bytes(&self.path.join("../../events/header_page"))];
        let cpus = self.path.join("per_cpu");
        let mut names: Vec<PathBuf> = fs::read_dir(&cpus)
            .map_err(|source| TraceError::File { path: cpus.clone(), source })?
            .flatten()
            .map(|entry| entry.path().join("trace_pipe_raw"))
            .collect();
        names.sort();
        for path in names {
            let opened = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&path);
            self.readers.push(opened.map_err(|source| TraceError::File { path, source })?);
        }
        let mut found = Vec::new();
        for (name, _) in TRACEPOINTS {
            let format = self.path.join("events/kvm").join(name).join("format");
            let Ok(text) = fs::read_to_string(&format) else { continue };
            if Format::parse(&text).is_some_and(|format| self.decoder.add(name, &format)) {
                found.push(name);
            }
        }
        if !found.contains(&"kvm_exit") || !found.contains(&"kvm_entry") {
            return Err(TraceError::NoKvm);
        }
        found.iter().try_for_each(|name| self.write(&format!("events/kvm/{name}/enable"), "1"))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), TraceError> {
        let path = self.path.join(name);
        fs::write(&path, text).map_err(|source| TraceError::File { path, source })
    }

    /// Appends what was traced since the last time, processor by processor.
    ///
    /// # Errors
    /// When the system gives none, other than for there being none.
    pub fn read(&mut self, events: &mut Vec<Event>) -> Result<(), TraceError> {
        for reader in &mut self.readers {
            loop {
                let bytes = match reader.read(&mut self.page) {
                    Ok(0) => break,
                    Ok(bytes) => bytes,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(source) => {
                        return Err(TraceError::File { path: self.path.clone(), source });
                    }
                };
                self.bytes += bytes as u64;
                match Page::parse(&self.page[..bytes]) {
                    Some(page) => {
                        self.lost += page.missed;
                        events.extend(page.filter_map(|record| self.decoder.decode(record)));
                    }
                    None => self.lost += 1,
                }
            }
        }
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // An instance with open readers cannot be removed.
        self.readers.clear();
        // Nobody can be told of errors here; the next one removes what is left.
        let _ = fs::write(self.path.join("events/enable"), "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// Where tracefs is.
fn mount(tree: &Tree) -> Result<PathBuf, TraceError> {
    let mut wrong = TraceError::NotMounted;
    for path in MOUNTS.map(|mount| tree.path(mount)) {
        match fs::read_dir(path.join("events")) {
            Ok(_) if path.join("events/kvm/kvm_exit").exists() => return Ok(path),
            Ok(_) => wrong = TraceError::NoKvm,
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                wrong = TraceError::Denied { path, source };
            }
            Err(_) => {}
        }
    }
    Err(wrong)
}

fn denied(path: &Path, source: io::Error) -> TraceError {
    TraceError::Denied { path: path.to_owned(), source }
}

/// Removes the instances of processes of this program that were killed.
fn remove_orphans(tree: &Tree, instances: &Path) {
    let Ok(entries) = fs::read_dir(instances) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if owner.is_some_and(|owner| !tree.path(&format!("proc/{owner}")).exists()) {
            let _ = fs::write(entry.path().join("events/enable"), "0");
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Bytes of a page of the buffer, which is no page of memory where the kernel was told so.
fn page_bytes(header_page: &Path) -> usize {
    const USUAL: usize = 4096;
    let text = fs::read_to_string(header_page).unwrap_or_default();
    let data = text.lines().filter_map(field).find(|(name, _)| name == "data");
    data.map_or(USUAL, |(_, data)| (data.offset + data.size).clamp(USUAL, 1 << 20))
}
