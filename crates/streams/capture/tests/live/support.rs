//! Building the test programs, running them under capture, looking at what came.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use strata_addr::Gva;
use strata_capture::{Capture, Options};
use strata_stream::{Access, Batch, Event, Fill, Sampling, Source, Step, Tid, WorkloadInfo};

/// How a program is linked.
#[derive(Clone, Copy, Debug)]
pub enum Linked {
    /// Position-independent, with an interpreter.
    Pie,
    /// At a fixed address, with an interpreter.
    Fixed,
    /// At a fixed address, without an interpreter.
    Static,
    /// Position-independent, without an interpreter.
    StaticPie,
}

/// A test program and a room for what it reports.
pub struct Program {
    pub path: PathBuf,
    room: tempfile::TempDir,
}

impl Program {
    pub fn build(name: &str, linked: Linked) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join(name);
        let flags: &[&str] = match linked {
            Linked::Pie => &["-pie", "-fPIE"],
            Linked::Fixed => &["-no-pie", "-fno-pie"],
            Linked::Static => &["-static", "-no-pie", "-fno-pie"],
            Linked::StaticPie => &["-static-pie", "-fPIE"],
        };
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
            .arg(&path)
            .arg(source.join(name).with_extension("c"))
            .args(flags)
            .status()
            .expect("cc runs");
        assert!(status.success());
        Self { path, room }
    }

    pub fn report_path(&self) -> PathBuf {
        self.room.path().join("report")
    }

    pub fn arguments(&self, more: &[&str]) -> Vec<OsString> {
        let mut arguments = vec![self.report_path().into_os_string()];
        arguments.extend(more.iter().map(OsString::from));
        arguments
    }

    pub fn spawn(&self, more: &[&str]) -> Capture {
        let program = self.path.as_os_str();
        Capture::spawn(program, &self.arguments(more), Options::default()).unwrap()
    }

    /// Runs it to its end, sampled.
    pub fn sample(&self, more: &[&str], sampling: Sampling) -> Record {
        Record::take(self.spawn_sampled(more, sampling))
    }

    pub fn spawn_sampled(&self, more: &[&str], sampling: Sampling) -> Capture {
        let options = Options { sampling: Some(sampling), ..Options::default() };
        let program = self.path.as_os_str();
        Capture::spawn(program, &self.arguments(more), options).unwrap()
    }

    /// Runs it to its end.
    pub fn run(&self, more: &[&str]) -> Record {
        Record::take(self.spawn(more))
    }

    pub fn report(&self) -> String {
        std::fs::read_to_string(self.report_path()).unwrap_or_default()
    }

    /// The address reported under this key, the last if there are several.
    pub fn reported(&self, key: &str) -> Option<u64> {
        let report = self.report();
        let line = report.lines().rev().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        u64::from_str_radix(line?, 16).ok()
    }

    /// The page at the address reported under this key.
    pub fn page(&self, key: &str) -> std::ops::Range<u64> {
        let start = self.reported(key).unwrap_or_else(|| panic!("{key} was reported"));
        start..start + 4096
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry {
    Access(Tid, Access),
    Event(Event),
}

/// All of a stream.
pub struct Record {
    pub entries: Vec<Entry>,
    pub instructions: HashMap<Tid, u64>,
    pub info: WorkloadInfo,
}

impl Record {
    pub fn take(mut source: impl Source) -> Self {
        let (mut entries, mut instructions) = (Vec::new(), HashMap::new());
        let mut batch = Batch::new();
        loop {
            let fill = source.fill(&mut batch).unwrap();
            append(&batch, &mut entries, &mut instructions);
            if fill == Fill::End {
                break;
            }
        }
        let record = Self { entries, instructions, info: source.info() };
        record.obeys_the_contract();
        record
    }

    /// Whether page faults in gaps could be watched, as they can be where the kernel lets the user
    /// (`kernel.perf_event_paranoid`).
    pub fn is_watched(&self) -> bool {
        self.notes().len() == self.info.notes.len()
    }

    /// What a reader must know, but for page faults that could not be watched.
    pub fn notes(&self) -> Vec<&str> {
        let notes = self.info.notes.iter().map(String::as_str);
        notes.filter(|note| !note.contains("page faults between windows")).collect()
    }

    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.entries.iter().filter_map(|entry| match entry {
            Entry::Event(event) => Some(*event),
            Entry::Access(..) => None,
        })
    }

    /// Accesses in a range of addresses, by whom.
    pub fn within(&self, range: std::ops::Range<u64>) -> Vec<(Tid, Access)> {
        let inside = |entry: &Entry| match *entry {
            Entry::Access(tid, access) if range.contains(&access.addr().get()) => {
                Some((tid, access))
            }
            _ => None,
        };
        self.entries.iter().filter_map(inside).collect()
    }

    /// Processes and threads begin before they act and do not act after their end.
    fn obeys_the_contract(&self) {
        let (mut processes, mut threads) = (HashMap::new(), HashMap::new());
        for entry in &self.entries {
            match *entry {
                Entry::Access(tid, access) => {
                    let pid = threads.get(&tid).expect("a live thread accesses memory");
                    assert!(processes.contains_key(pid), "{access:?} by a live process");
                }
                Entry::Event(event) => match event {
                    Event::ProcessStart { pid } | Event::Fork { child: pid, .. } => {
                        assert!(processes.insert(pid, ()).is_none());
                    }
                    Event::ProcessExit { pid } => {
                        assert!(processes.remove(&pid).is_some());
                        threads.retain(|_, owner| *owner != pid);
                    }
                    Event::ThreadStart { pid, tid } => {
                        assert!(processes.contains_key(&pid));
                        assert!(threads.insert(tid, pid).is_none());
                    }
                    Event::ThreadExit { tid } => assert!(threads.remove(&tid).is_some()),
                    Event::Exec { pid }
                    | Event::Map { pid, .. }
                    | Event::Unmap { pid, .. }
                    | Event::Remap { pid, .. }
                    | Event::Protect { pid, .. }
                    | Event::Advise { pid, .. } => assert!(processes.contains_key(&pid)),
                    Event::Request { tid, .. }
                    | Event::Called { tid, .. }
                    | Event::Skipped { tid, .. } => {
                        assert!(threads.contains_key(&tid));
                    }
                    Event::Touched { pid, .. }
                    | Event::Begun { pid, .. }
                    | Event::Fetched { pid, .. } => {
                        assert!(processes.contains_key(&pid))
                    }
                    Event::Mark(_)
                    | Event::Sampling(_)
                    | Event::Phase { .. }
                    | Event::Warmed { .. } => {}
                },
            }
        }
        assert!(processes.is_empty(), "every process ends");
    }
}

fn append(batch: &Batch, entries: &mut Vec<Entry>, instructions: &mut HashMap<Tid, u64>) {
    for step in batch.steps() {
        match step {
            Step::Run { tid, instructions: count, accesses } => {
                *instructions.entry(tid).or_default() += count;
                entries.extend(accesses.iter().map(|&access| Entry::Access(tid, access)));
            }
            Step::Event(event) => entries.push(Entry::Event(*event)),
        }
    }
}

/// How often each kind and size of access occurs.
pub fn shapes(accesses: &[(Tid, Access)]) -> HashMap<(bool, u32), usize> {
    let mut counts = HashMap::new();
    for (_, access) in accesses {
        *counts.entry((access.is_store(), access.size())).or_default() += 1;
    }
    counts
}

pub fn gva(address: u64) -> Gva {
    Gva::new(address)
}

/// Does something in a thread of which, and of whose children, the kernel lets no page faults be watched.
pub fn unwatched<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let refused = || {
        refuse_watching();
        act()
    };
    let done = std::thread::scope(|scope| scope.spawn(refused).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Has the kernel refuse `perf_event_open` to the calling thread and what it starts (seccomp(2)), as it does where
/// `kernel.perf_event_paranoid` says so.
fn refuse_watching() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number),
        libc::sock_filter {
            jf: 1,
            ..statement(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                libc::SYS_perf_event_open as u32,
            )
        },
        statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel reads the program, which lives until the call returns.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
