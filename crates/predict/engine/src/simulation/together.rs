//! A host's guests side by side: one stream each, merged by simulated time.
//!
//! Whoever is furthest behind in time goes on, for one step of its stream: an event, or accesses by one
//! thread, which make a fraction of a millisecond. So a slow VM makes fewer accesses in the same time,
//! and nothing in the result depends on which stream can be read faster. On a core that several guests
//! have in turn, one goes on until its time slice is over or it has nothing to do there.

use super::Simulation;
use super::cores::GuestId;
use super::host::HostSetup;
use super::setup::Built;
use crate::SetupError;
use crate::pass::{Progress, Stop};
use crate::report::{HostRun, RunResult};
use crate::sweep::OpenError;
use std::collections::BTreeSet;
use std::mem;
use strata_addr::PageSize;
use strata_hardware::CpuId;
use strata_stack::{ExitReason, NodeId};
use strata_stream::{Batch, Event, Fill, Item, Source, SourceError, Step, WorkloadInfo};

/// Seconds after which a step ends that faults make long.
const LONGEST_STEP: f64 = 1e-4;

/// Opens the stream of the VM of this name, from its beginning.
pub type OpenVm<'a> = dyn Fn(&str) -> Result<Box<dyn Source>, OpenError> + Sync + 'a;

/// What happened on a host.
#[derive(Debug)]
pub struct HostOutcome {
    /// The host as a whole.
    pub host: HostRun,
    /// What was found for each guest.
    pub guests: Vec<GuestOutcome>,
    /// Why the results do not cover all streams to their end, if they do not.
    pub cut_short: Option<HostCutShort>,
}

/// Why the results of a host do not cover all streams to their end.
#[derive(Debug, thiserror::Error)]
pub enum HostCutShort {
    /// Somebody asked it to stop.
    #[error("stopped")]
    Stopped,
    /// The stream of a VM could not be read further. The others went on.
    #[error("VM '{vm}': {error}")]
    Failed {
        /// The VM's name.
        vm: String,
        /// Why.
        error: SourceError,
    },
}

/// What happened to a guest.
#[derive(Clone, Debug)]
pub struct GuestOutcome {
    /// The VM's name.
    pub vm: String,
    /// Its workload, with what became known by reading it.
    pub workload: WorkloadInfo,
    /// What was found.
    pub run: RunResult,
    /// How often its program ran to its end.
    pub rounds: u64,
    /// Seconds of simulated time that the first of these took. Later ones find memory that is backed.
    pub first_seconds: f64,
}

/// A host could not be run.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// It could not be built, or its VMs are never there together.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The workload of a VM could not be opened.
    #[error("VM '{vm}': {error}")]
    Open {
        /// The VM's name.
        vm: String,
        /// Why.
        error: OpenError,
    },
}

/// A host with its guests' streams.
pub struct Host<'a> {
    simulation: Simulation,
    setup: &'a HostSetup,
    open: &'a OpenVm<'a>,
    streams: Vec<Stream>,
    /// Cycles of a time slice.
    slice: u64,
    cut_short: Option<HostCutShort>,
}

/// The stream of a guest.
struct Stream {
    /// The guest's VM, by its place in [`HostSetup::vms`].
    vm: usize,
    source: Box<dyn Source>,
    batch: Batch,
    /// The next item of the batch, and the accesses before it.
    next: (usize, usize),
    /// Accesses of the next item that were made before.
    made: usize,
    /// The instructions of the next item were retired before.
    is_retired: bool,
    /// It holds nothing more than the batch.
    ended: bool,
    /// It could not be read to its end.
    failed: bool,
    has_begun: bool,
    /// How often it was run to its end.
    rounds: u64,
    /// Cycles of the guest until it first was, and what was then known of its workload.
    first_round: u64,
    whole: Option<WorkloadInfo>,
    finished: Option<(WorkloadInfo, RunResult)>,
}

impl Stream {
    fn peek(&self) -> Option<&Item> {
        self.batch.items().get(self.next.0)
    }
}

impl<'a> Host<'a> {
    /// A host and its guests' streams, opened.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn new(setup: &'a HostSetup, open: &'a OpenVm<'a>, stop: &Stop) -> Result<Self, HostError> {
        let Built { mut simulation, vms, slice } = Simulation::build(setup, stop)?;
        let frequency = f64::from(setup.common.cpu.core.frequency_mhz) * 1e6;
        let cycles = |seconds: f64| (seconds * frequency) as u64;
        simulation.longest_step = cycles(LONGEST_STEP);
        let mut host = Self {
            simulation,
            setup,
            open,
            streams: Vec::new(),
            slice: cycles(slice),
            cut_short: None,
        };
        for vm in vms {
            let source = host.open(vm)?;
            host.streams.push(Stream {
                vm,
                source,
                batch: Batch::new(),
                next: (0, 0),
                made: 0,
                is_retired: false,
                ended: false,
                failed: false,
                has_begun: false,
                rounds: 0,
                first_round: 0,
                whole: None,
                finished: None,
            });
        }
        Ok(host)
    }

    fn open(&self, vm: usize) -> Result<Box<dyn Source>, HostError> {
        let vm = &self.setup.vms[vm].name;
        (self.open)(vm).map_err(|error| HostError::Open { vm: vm.clone(), error })
    }

    /// Runs until every stream has ended that does not repeat.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn run(mut self, stop: &Stop, progress: &Progress) -> Result<HostOutcome, HostError> {
        for guest in 0..self.streams.len() {
            self.prepare(guest)?;
        }
        while let Some(guest) = self.next_guest() {
            if stop.requested() {
                self.cut_short = Some(HostCutShort::Stopped);
                break;
            }
            self.must_not_be_late(guest)?;
            let accesses = self.step(guest);
            progress.note(accesses as u64, self.simulation.guests[guest].clock.now());
            self.prepare(guest)?;
            self.finish_killed();
            if self.nobody_is_waited_for() {
                break;
            }
        }
        for guest in 0..self.streams.len() {
            self.finish(guest);
        }
        Ok(self.outcome())
    }

    /// Sees to it that a stream has a next step, or is finished.
    fn prepare(&mut self, guest: GuestId) -> Result<(), HostError> {
        while self.goes_on(guest) && self.streams[guest].peek().is_none() {
            if !self.streams[guest].ended {
                self.fill(guest);
                continue;
            }
            let stream = &mut self.streams[guest];
            stream.rounds += 1;
            if stream.rounds == 1 {
                stream.first_round = self.simulation.elapsed_cycles(guest);
                stream.whole = Some(stream.source.info());
            }
            if self.setup.vms[self.streams[guest].vm].repeat {
                self.begin_anew(guest)?;
            } else {
                self.finish(guest);
            }
        }
        Ok(())
    }

    fn fill(&mut self, guest: GuestId) {
        let stream = &mut self.streams[guest];
        stream.next = (0, 0);
        match stream.source.fill(&mut stream.batch) {
            Ok(Fill::More) => {}
            Ok(Fill::End) => stream.ended = true,
            Err(error) => {
                stream.ended = true;
                stream.failed = true;
                let vm = self.setup.vms[stream.vm].name.clone();
                self.cut_short.get_or_insert(HostCutShort::Failed { vm, error });
            }
        }
    }

    /// The stream of a guest that repeats is read again; what its programs left ends.
    fn begin_anew(&mut self, guest: GuestId) -> Result<(), HostError> {
        let node = self.simulation.guests[guest].node;
        let processes = self.simulation.stack.processes(node);
        for pid in processes {
            self.simulation.step(guest, Step::Event(&Event::ProcessExit { pid }));
        }
        let source = self.open(self.streams[guest].vm)?;
        let stream = &mut self.streams[guest];
        stream.source = source;
        stream.ended = false;
        self.fill(guest);
        // An empty stream would be read for ever.
        if self.streams[guest].peek().is_none() {
            self.finish(guest);
        }
        Ok(())
    }

    /// A guest's next step happens; gives its accesses.
    fn step(&mut self, guest: GuestId) -> usize {
        let stream = &mut self.streams[guest];
        stream.has_begun = true;
        let (item, from) = stream.next;
        let (step, accesses) = match &stream.batch.items()[item] {
            Item::Event(event) => (Step::Event(event), 0),
            &Item::Run { tid, accesses, instructions } => {
                let rest = accesses as usize - stream.made;
                // A fault that took long may have cut it before its first access was made.
                let instructions = if stream.is_retired { 0 } else { instructions };
                let accesses = &stream.batch.accesses()[from..from + rest];
                (Step::Run { tid, instructions, accesses }, rest)
            }
        };
        let made = self.simulation.step(guest, step);
        let is_over = made == accesses;
        stream.next = (item + usize::from(is_over), from + made);
        stream.made = if is_over { 0 } else { stream.made + made };
        stream.is_retired = !is_over;
        if stream.peek().is_none() {
            self.simulation.sample_if_due(guest);
        }
        made
    }

    /// Who goes on: of those that may, the one furthest behind in time; of several that wait for one
    /// core, the one that has waited longest.
    fn next_guest(&self) -> Option<GuestId> {
        let waiting = (0..self.streams.len()).filter(|guest| self.goes_on(*guest));
        let may = waiting.filter(|guest| self.has_core(*guest));
        let own = |guest: GuestId| self.simulation.guests[guest].clock.cycles();
        may.min_by_key(|guest| (self.time_of(*guest), own(*guest), *guest))
    }

    fn goes_on(&self, guest: GuestId) -> bool {
        self.streams[guest].finished.is_none()
    }

    /// The core that a guest's next step is on, if others share it.
    fn shared_core(&self, guest: GuestId) -> Option<CpuId> {
        let state = &self.simulation.guests[guest];
        if !state.is_bound {
            return None;
        }
        let core = match self.streams[guest].peek() {
            Some(Item::Run { tid, .. }) => state.next_cpu(*tid),
            _ => state.clock.last(),
        };
        self.simulation.cores.turn(core).map(|_| core)
    }

    /// When a guest's next step can begin, in cycles.
    fn time_of(&self, guest: GuestId) -> u64 {
        let own = self.simulation.guests[guest].clock.cycles();
        match self.shared_core(guest) {
            Some(core) => own.max(self.simulation.cores.reading(core, &self.simulation.machine)),
            None => own,
        }
    }

    /// Whether a guest has its next core now: nobody else's slice lasts, and its own is not over while
    /// others wait.
    fn has_core(&self, guest: GuestId) -> bool {
        let Some(core) = self.shared_core(guest) else { return true };
        let simulation = &self.simulation;
        let turn = simulation.cores.turn(core).expect("the core is shared");
        let reading = simulation.cores.reading(core, &simulation.machine);
        let wants = |other: GuestId| {
            self.goes_on(other)
                && self.shared_core(other) == Some(core)
                && simulation.guests[other].clock.cycles() <= reading
        };
        let lasts = reading.saturating_sub(turn.since) < self.slice;
        match turn.guest {
            Some(owner) if owner == guest => {
                lasts || !(0..self.streams.len()).any(|other| other != guest && wants(other))
            }
            Some(owner) => !(lasts && wants(owner)),
            None => true,
        }
    }

    /// A VM that begins when the others are gone is no neighbour of theirs. One that waits for its core
    /// until they are has begun.
    fn must_not_be_late(&self, guest: GuestId) -> Result<(), HostError> {
        let others = || (0..self.streams.len()).filter(move |other| *other != guest);
        let alone = others().count() > 0 && others().all(|other| !self.goes_on(other));
        if self.streams[guest].has_begun || !alone {
            return Ok(());
        }
        let vm = &self.setup.vms[self.streams[guest].vm];
        let ends = others().map(|other| self.simulation.guests[other].clock.now());
        let last = ends.fold(0.0, f64::max);
        if vm.start < last {
            return Ok(());
        }
        Err(HostError::Setup(SetupError::Refused(format!(
            "VM '{}' starts at {} s, and all others had ended by {last:.6} s: let it start earlier",
            vm.name, vm.start
        ))))
    }

    /// Whether all that is left repeats.
    fn nobody_is_waited_for(&self) -> bool {
        let mut left = self.streams.iter().filter(|stream| stream.finished.is_none());
        left.all(|stream| self.setup.vms[stream.vm].repeat)
    }

    /// Streams of VMs that a hypervisor has killed are not read further.
    fn finish_killed(&mut self) {
        for guest in 0..self.streams.len() {
            if self.simulation.guests[guest].result.is_some() {
                self.finish(guest);
            }
        }
    }

    fn finish(&mut self, guest: GuestId) {
        if !self.goes_on(guest) {
            return;
        }
        let mut result = self.simulation.end(guest);
        let stream = &mut self.streams[guest];
        // Others that were cut short take nothing from a stream that was seen to its end.
        let is_stopped = matches!(self.cut_short, Some(HostCutShort::Stopped));
        result.partial |= stream.failed || is_stopped && stream.rounds == 0;
        // Of a program that repeats, what one whole run of it touches: the last may have only begun.
        let info = stream.whole.take().unwrap_or_else(|| stream.source.info());
        if let Some(touched) = info.footprint_bytes {
            result.memory.touched_bytes = touched;
        }
        stream.finished = Some((info, result));
    }

    fn outcome(mut self) -> HostOutcome {
        let host = self.totals();
        let streams = mem::take(&mut self.streams).into_iter();
        let guests = streams.map(|stream| {
            let (workload, run) = stream.finished.expect("all were finished");
            let frequency = f64::from(self.setup.common.cpu.core.frequency_mhz) * 1e6;
            GuestOutcome {
                vm: self.setup.vms[stream.vm].name.clone(),
                workload,
                run,
                rounds: stream.rounds,
                first_seconds: stream.first_round as f64 / frequency,
            }
        });
        HostOutcome { host, guests: guests.collect(), cut_short: self.cut_short }
    }

    fn totals(&self) -> HostRun {
        let Simulation { stack, guests, .. } = &self.simulation;
        let memory = stack.kernel(NodeId::HOST).memory();
        let results = || self.streams.iter().filter_map(|stream| stream.finished.as_ref());
        let vms: BTreeSet<NodeId> =
            guests.iter().flat_map(|guest| stack.path_down(guest.node)).collect();
        let exits = ExitReason::ALL.into_iter().map(|reason| {
            let of_all: u64 = vms.iter().map(|vm| stack.exits().of(*vm, reason)).sum();
            (reason, of_all)
        });
        let exits = exits
            .filter(|(reason, count)| reason.is_of_every_run() || *count > 0)
            .map(|(reason, count)| (reason.name().to_owned(), count));
        let frequency = guests.first().map_or(1.0, |guest| guest.clock.frequency());
        let elapsed = guests.iter().map(|guest| guest.clock.cycles()).max().unwrap_or(0);
        HostRun {
            stack: None,
            policy: None,
            elapsed_seconds: elapsed as f64 / frequency,
            memory_bytes: memory.frames() << PageSize::BASE_SHIFT,
            free_huge_least: memory.least_free_regions(),
            accesses: results().map(|(_, result)| result.accesses).sum(),
            faults: (0..guests.len())
                .map(|guest| self.simulation.work_for(guest).kernel.faults)
                .sum(),
            exits: exits.collect(),
        }
    }
}

impl Simulation {
    /// A guest's programs have ended: gives what was found. Its VM ends, if others still need memory.
    pub(super) fn end(&mut self, guest: GuestId) -> RunResult {
        if let Some(result) = self.guests[guest].result.take() {
            self.guests[guest].result = Some(result.clone());
            return *result;
        }
        let result = self.end_of_stream(guest);
        self.guests[guest].result = Some(Box::new(result.clone()));
        if self.guests.iter().any(|other| other.is_alive()) {
            self.end_vm_of(guest);
        }
        result
    }

    /// Ends a guest's VM, and its guest hypervisor if nobody else is in it.
    fn end_vm_of(&mut self, guest: GuestId) {
        let Self { stack, policies, guests, .. } = self;
        let state = &guests[guest];
        let is_needed = guests.iter().any(|other| other.is_alive() && other.vm == state.vm);
        let (vm, cpu) = (if is_needed { state.node } else { state.vm }, state.clock.last());
        let ended = stack.end_vm(policies, vm);
        self.tell_hardware(guest, cpu);
        if let Err(short) = ended
            && let Some(other) = (0..self.guests.len()).find(|other| self.guests[*other].is_alive())
        {
            self.out_of_memory(other, short, None);
        }
    }
}
