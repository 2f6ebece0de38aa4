//! The traced processes as the consumer knows them.

use crate::pages::Pages;
use crate::vmas::Vmas;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use strata_stream::Pid;
use strata_wire::ProcessId;

/// How long a process may stay unknown to the kernel after it was told of: its `fork` may have
/// been cut short by the parent's death.
const PATIENCE: Duration = Duration::from_secs(5);

/// One traced process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its mappings.
    pub(crate) vmas: Vmas,
    /// Pages of code that it has executed since they were mapped.
    pub(crate) fetched: Pages,
    /// Its identity on this machine, once it said so.
    pub(crate) identity: Option<ProcessId>,
    /// How many `execve` it has behind it.
    pub(crate) image: u32,
    /// Whether it has told everything there is before a signal ends it.
    pub(crate) has_last_word: bool,
    told: Instant,
}

impl Process {
    fn new(vmas: Vmas, fetched: Pages) -> Self {
        Self { vmas, fetched, identity: None, image: 0, has_last_word: false, told: Instant::now() }
    }

    fn has_ended(&self) -> bool {
        match &self.identity {
            Some(identity) => !identity.is_running(),
            None => self.told.elapsed() > PATIENCE,
        }
    }
}

/// All traced processes that live.
#[derive(Debug, Default)]
pub(crate) struct Processes(BTreeMap<Pid, Process>);

impl Processes {
    /// A process begins with nothing mapped.
    pub(crate) fn start(&mut self, pid: Pid) {
        self.0.insert(pid, Process::new(Vmas::default(), Pages::default()));
    }

    /// A process begins as the copy of another.
    pub(crate) fn fork(&mut self, parent: Pid, child: Pid) {
        let like = |parent: &Process| (parent.vmas.clone(), parent.fetched.clone());
        let (vmas, fetched) = self.0.get(&parent).map(like).unwrap_or_default();
        self.0.insert(child, Process::new(vmas, fetched));
    }

    /// A process has ended. `false` when it was not known, or had ended before.
    pub(crate) fn end(&mut self, pid: Pid) -> bool {
        self.0.remove(&pid).is_some()
    }

    /// The living process with this number.
    pub(crate) fn get(&mut self, pid: Pid) -> Option<&mut Process> {
        self.0.get_mut(&pid)
    }

    /// Processes that ended without saying so.
    pub(crate) fn silently_ended(&self) -> Vec<Pid> {
        self.0.iter().filter(|(_, process)| process.has_ended()).map(|(&pid, _)| pid).collect()
    }

    /// Whether none lives.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Who they are on this machine.
    pub(crate) fn identities(&self) -> Vec<ProcessId> {
        self.0.values().filter_map(|process| process.identity).collect()
    }
}
