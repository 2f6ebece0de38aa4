//! A host on modelled hardware: kernels under their policies, fed with a stream for each guest.

mod asids;
mod clock;
mod cores;
mod detail;
mod fetched;
mod guest;
mod happening;
pub(crate) mod host;
mod moments;
mod oom;
pub(crate) mod outcome;
mod parameters;
mod rates;
mod relocation;
mod requests;
mod sampled;
mod samples;
mod sampling;
pub(crate) mod setup;
mod sizes;
mod tell_hardware;
pub(crate) mod together;
mod tree;

use crate::layers::hypervisor_name;
use crate::report::RunResult;
use crate::{Run, Setup, SetupError, Stop};
use asids::Asids;
use cores::{Cores, GuestId, owner};
use guest::Guest;
use host::HostSetup;
use moments::Moments;
use rates::{Happened, RateParameters};
use relocation::Relocation;
use samples::Samples;
use strata_hardware::{CpuId, Fault, Machine, RunFault, Tables, VmTag};
use strata_policies::PerVm;
use strata_stack::{
    Feedback, Flush, HostWork, KernelOutOfMemory, NodeId, Position, SpaceId, Stack,
};
use strata_stream::{Access, Batch, Event, Pid, Step, Tid, WorkloadInfo};

/// Faults one access may take before it is given up as something the model cannot do. A 2D walk of
/// five levels needs at most one per guest level, one for the data, and their retries.
const FAULT_LIMIT: u32 = 64;

/// Unmapping less than this is not worth a look at all tables.
const NOTABLE_UNMAP: u64 = 1 << 20;

/// A host and its guests.
pub struct Simulation {
    stack: Stack,
    policies: PerVm,
    machine: Machine,
    cores: Cores,
    asids: Asids,
    guests: Vec<Guest>,
    /// Who acts now, and what the host's kernel had done when that began.
    acting: (GuestId, HostWork),
    /// Cycles after which a step ends, once a fault has been handled: others may be behind.
    longest_step: u64,
    /// How often something happens that is no memory's.
    rates: RateParameters,
    /// Translations being dropped; kept for its memory.
    flushes: Vec<Flush>,
}

/// The one guest of a host that was made for one.
const ONLY: GuestId = 0;

impl Run for Simulation {
    fn consume(&mut self, batch: &Batch) {
        for step in batch.steps() {
            self.step(ONLY, step);
        }
        self.sample_if_due(ONLY);
    }

    fn finish(mut self: Box<Self>) -> RunResult {
        self.end_of_stream(ONLY)
    }

    fn memory_estimate(&self) -> u64 {
        let stack = &self.stack;
        let tables: usize = stack.nodes().map(|node| stack.table_pages(node)).sum();
        let owned = |node| {
            let memory = stack.kernel(node).memory();
            memory.used_frames() - memory.folded_frames()
        };
        let owners: u64 = stack.nodes().map(|node| owned(node) * 4).sum();
        tables as u64 * 4096 + owners
    }

    fn ran_out_of_memory(&self) -> bool {
        self.is_out_of_memory(ONLY)
    }

    fn is_over(&self) -> bool {
        self.is_done_for(ONLY)
    }

    fn name(&self) -> String {
        let context = &self.guests[ONLY].context;
        format!("{} on {}", context.policy, context.stack)
    }

    fn simulated_seconds(&self) -> f64 {
        self.guests[ONLY].clock.now()
    }
}

impl Simulation {
    /// A machine as `setup` says, for a workload of which `workload` is known beforehand.
    ///
    /// # Errors
    /// [`SetupError`], one line with cause and remedy, or that it was to stop.
    pub fn new(setup: &Setup, workload: &WorkloadInfo, stop: &Stop) -> Result<Self, SetupError> {
        Ok(Self::build(&HostSetup::single(setup, workload), stop)?.simulation)
    }

    /// What comes next in a guest's stream happens. Returns how many accesses of a run were made: all,
    /// unless they took longer than a step may.
    fn step(&mut self, guest: GuestId, step: Step<'_>) -> usize {
        self.act_for(guest);
        match step {
            Step::Run { accesses, .. } if self.guests[guest].dead.is_some() => {
                self.lose(guest, accesses)
            }
            Step::Run { tid, instructions, accesses } => {
                self.run(guest, tid, instructions, accesses)
            }
            Step::Event(event) => {
                if self.guests[guest].dead.is_none() {
                    self.event(guest, event);
                }
                0
            }
        }
    }

    /// Accesses that nobody is there to make.
    fn lose(&mut self, guest: GuestId, accesses: &[Access]) -> usize {
        self.guests[guest].lost_accesses += accesses.len() as u64;
        accesses.len()
    }

    /// From now on the host's kernel works for this guest.
    fn act_for(&mut self, guest: GuestId) {
        let (before, since) = self.acting;
        if before != guest {
            let now = self.stack.work_of_host();
            self.guests[before].of_host.add_between(&since, &now);
            self.acting = (guest, now);
        }
    }

    /// What the host's kernel did for a guest.
    pub(super) fn work_for(&self, guest: GuestId) -> HostWork {
        let mut work = self.guests[guest].of_host;
        let (acting, since) = &self.acting;
        if *acting == guest {
            work.add_between(since, &self.stack.work_of_host());
        }
        work
    }

    /// The end of a guest's stream: its result.
    fn end_of_stream(&mut self, guest: GuestId) -> RunResult {
        self.act_for(guest);
        if !self.guests[guest].warmup.is_over() {
            self.end_warmup(guest);
        }
        self.end_sampling(guest);
        self.take_sample(guest);
        self.last_moment(guest);
        self.note_state(guest);
        self.outcome(guest)
    }

    /// Whether memory ran out for a guest's programs.
    fn is_out_of_memory(&self, guest: GuestId) -> bool {
        let guest = &self.guests[guest];
        guest.dead.is_some() || !self.stack.killed(guest.node).is_empty()
    }

    /// Whether memory ran out for all of them.
    fn is_done_for(&self, guest: GuestId) -> bool {
        let guest = &self.guests[guest];
        let all_killed =
            || !self.stack.killed(guest.node).is_empty() && !self.stack.has_processes(guest.node);
        guest.dead.is_some() || all_killed()
    }

    /// The CPU of a thread: one for itself, or one of those that the guest is bound to.
    fn cpu_of(&mut self, guest: GuestId, tid: Tid) -> CpuId {
        let state = &mut self.guests[guest];
        if let Some(cpu) = state.cpus.get(&tid) {
            return *cpu;
        }
        let cpu = state.idle_cpus.pop().unwrap_or_else(|| match state.is_bound {
            true => state.least_busy_cpu(),
            false => {
                let cpu = self.machine.add_cpu();
                self.machine.assign(cpu, owner(guest));
                state.all_cpus.push(cpu);
                cpu
            }
        });
        state.clock.start(cpu, &mut self.cores, &self.machine);
        state.cpus.insert(tid, cpu);
        cpu
    }

    /// A thread ended: its CPU is free for another.
    fn release_cpu(&mut self, guest: GuestId, tid: Tid) {
        let state = &mut self.guests[guest];
        if let Some(cpu) = state.cpus.remove(&tid) {
            state.clock.end(cpu, &self.cores, &self.machine);
            state.give_back_cpu(cpu);
        }
    }

    /// The threads of an address space that are on a CPU.
    fn running_in(&self, guest: GuestId, space: SpaceId) -> impl Iterator<Item = Tid> {
        let guest = &self.guests[guest];
        let of = move |tid: &&Tid| self.stack.thread_space(guest.node, **tid) == Some(space);
        guest.cpus.keys().filter(of).copied()
    }

    /// A thread of a process: the first that has run, or, if none has, the first there is.
    fn a_thread_of(&self, guest: GuestId, pid: Pid, space: SpaceId) -> Option<Tid> {
        let running = self.running_in(guest, space).min();
        running.or_else(|| self.stack.threads(self.guests[guest].node, pid).min())
    }

    /// Threads that end without a word of their own, with their space.
    fn release_cpus_of(&mut self, guest: GuestId, space: SpaceId) {
        let threads: Vec<Tid> = self.running_in(guest, space).collect();
        threads.into_iter().for_each(|tid| self.release_cpu(guest, tid));
    }

    /// The same, with their process or its image.
    fn release_cpus(&mut self, guest: GuestId, pid: Pid) {
        let node = self.guests[guest].node;
        if let Some(space) = self.stack.process_space(node, pid) {
            self.release_cpus_of(guest, space);
        }
    }

    fn event(&mut self, guest: GuestId, event: &Event) {
        let node = self.guests[guest].node;
        match event {
            Event::Mark(mark) => {
                if self.guests[guest].warmup.mark(*mark) {
                    self.end_warmup(guest);
                }
                return;
            }
            Event::Request { tid, mark } => return self.request(guest, *tid, *mark),
            Event::Called { tid, call } => return self.call(guest, *tid, *call),
            Event::Sampling(edge) => return self.edge(guest, *edge),
            Event::Phase { phase, intervals, instructions } => {
                return self.phase(guest, *phase, *intervals, *instructions);
            }
            Event::Warmed { array, after, over, under, guessed } => {
                return self.warmed(guest, *array, *after, [*over, *under, *guessed]);
            }
            Event::Skipped { tid, instructions } => return self.skip(guest, *tid, *instructions),
            Event::Touched { pid, range, store } => {
                return self.touched(guest, *pid, *range, *store);
            }
            Event::Begun { pid, range } => return self.touched(guest, *pid, *range, false),
            Event::Fetched { pid, range } => return self.fetched(guest, *pid, *range),
            Event::ThreadStart { pid, tid } if self.stack.process_space(node, *pid).is_some() => {
                self.cpu_of(guest, *tid);
            }
            // Memory is about to be given back: what was made of it would not show at the end.
            Event::ProcessExit { pid } => {
                self.note_state(guest);
                self.release_cpus(guest, *pid);
            }
            Event::Exec { pid } => {
                self.note_state(guest);
                // Which thread lives on shows when it goes on; a lone one keeps its CPU.
                let space = self.stack.process_space(node, *pid);
                if space.is_some_and(|space| self.running_in(guest, space).nth(1).is_some()) {
                    self.release_cpus(guest, *pid);
                }
            }
            Event::Unmap { range, .. } if range.bytes() >= NOTABLE_UNMAP => {
                self.note_state_if_grown(guest);
            }
            Event::ThreadExit { tid } => self.release_cpu(guest, *tid),
            _ => {}
        }
        let cpu = self.guests[guest].clock.last();
        self.cores.enter(cpu, guest, &mut self.machine);
        let done = self.stack.event(&mut self.policies, node, event);
        self.guests[guest].relocation.forget();
        self.tell_hardware(guest, cpu);
        if let Err(short) = done {
            let process = event_process(event);
            let space = process.and_then(|pid| self.stack.process_space(node, pid));
            self.out_of_memory(guest, short, space);
        }
    }

    /// A run of accesses by one thread, cut where the warm-up ends.
    fn run(&mut self, guest: GuestId, tid: Tid, instructions: u64, accesses: &[Access]) -> usize {
        if self.stack.thread_space(self.guests[guest].node, tid).is_none() {
            return self.lose(guest, accesses);
        }
        let cpu = self.cpu_of(guest, tid);
        self.cores.enter(cpu, guest, &mut self.machine);
        let state = &mut self.guests[guest];
        state.clock.resume(cpu, &mut self.cores, &self.machine);
        let mut warm = 0;
        if state.warmup.is_over() {
            self.machine.retire(cpu, instructions);
        } else {
            warm = state.warmup.take(accesses.len());
            let share = if accesses.is_empty() {
                instructions
            } else {
                (u128::from(instructions) * warm as u128 / accesses.len() as u128) as u64
            };
            self.machine.retire(cpu, share);
            self.accesses(guest, cpu, tid, &accesses[..warm], u64::MAX);
            if !self.guests[guest].warmup.is_over() {
                self.pass_time(guest, cpu);
                return accesses.len();
            }
            self.end_warmup(guest);
            self.machine.retire(cpu, instructions - share);
        }
        let until = self.cores.reading(cpu, &self.machine).saturating_add(self.longest_step);
        let made = self.accesses(guest, cpu, tid, &accesses[warm..], until);
        self.pass_time(guest, cpu);
        self.moment_if_due(guest, cpu);
        self.note_warming(guest, instructions);
        warm + made
    }

    fn end_warmup(&mut self, guest: GuestId) {
        let Self { stack, machine, cores, guests, acting, .. } = self;
        let state = &mut guests[guest];
        state.all_cpus.iter().for_each(|cpu| cores.reset(*cpu, guest, machine));
        machine.reset_llc_counters(owner(guest));
        stack.reset_counters(state.node);
        state.of_host = HostWork::default();
        *acting = (guest, stack.work_of_host());
        state.clock.reset(&state.all_cpus, cores, machine);
        state.samples = Samples::default();
        state.moments = Moments::default();
        state.served.reset();
        state.happened.counts = Happened::default().counts;
        state.last_feedback = Feedback::default();
    }

    /// Accesses by a thread until a fault ends after `until` in cycles; gives how many. Those beyond the
    /// program's half of the address space are left out: the model has no kernel there.
    fn accesses(
        &mut self,
        guest: GuestId,
        cpu: CpuId,
        tid: Tid,
        accesses: &[Access],
        until: u64,
    ) -> usize {
        let end = self.stack.user_end();
        let last = |a: &Access| a.addr().get().wrapping_add(u64::from(a.size()) - 1);
        let is_beyond = |access: &Access| (access.addr().get() | last(access)) >= end;
        // A sum of bits that the compiler makes a few instructions for many accesses.
        let bits = accesses.iter().fold(0, |bits, a| bits | a.addr().get() | last(a));
        if bits < end {
            return self.user_accesses(guest, cpu, tid, accesses, until);
        }
        let mut made = 0;
        for part in accesses.split_inclusive(is_beyond) {
            let beyond = part.last().is_some_and(is_beyond);
            let user = part.len() - usize::from(beyond);
            made += self.user_accesses(guest, cpu, tid, &part[..user], until);
            if beyond {
                self.guests[guest].kernel_accesses += 1;
                made += 1;
            }
        }
        made
    }

    fn user_accesses(
        &mut self,
        guest: GuestId,
        cpu: CpuId,
        tid: Tid,
        accesses: &[Access],
        until: u64,
    ) -> usize {
        let node = self.guests[guest].node;
        let Some(mut space) = self.stack.thread_space(node, tid) else {
            return self.lose(guest, accesses);
        };
        let mut rest = accesses;
        let mut faults = 0;
        while !rest.is_empty() {
            let (done, fault) = self.until_fault(guest, cpu, space, rest);
            faults = if done > 0 { 0 } else { faults };
            rest = &rest[done..];
            let Some(fault) = fault else { continue };
            faults += 1;
            if faults > FAULT_LIMIT {
                self.guests[guest].unresolved_accesses += 1;
                rest = &rest[1..];
                faults = 0;
                continue;
            }
            let handled = self.handle(guest, cpu, space, fault);
            self.tell_hardware(guest, cpu);
            self.moment_if_due(guest, cpu);
            if let Err(short) = handled {
                self.out_of_memory(guest, short, Some(space));
                let dead = self.guests[guest].dead.is_some();
                match self.stack.thread_space(node, tid) {
                    Some(survivor) if !dead => space = survivor,
                    _ => {
                        self.lose(guest, rest);
                        break;
                    }
                }
            }
            if self.cores.reading(cpu, &self.machine) >= until {
                return accesses.len() - rest.len();
            }
        }
        accesses.len()
    }

    /// Hardware's part: accesses until one faults. Returns how many completed.
    fn until_fault(
        &mut self,
        guest: GuestId,
        cpu: CpuId,
        space: SpaceId,
        accesses: &[Access],
    ) -> (usize, Option<Fault>) {
        let Self { stack, machine, asids, guests, .. } = self;
        let state = &mut guests[guest];
        let mut accesses = accesses;
        if stack.moves_areas(state.node, space) {
            let run = &accesses[..accesses.len().min(Relocation::RUN)];
            accesses = state.relocation.modelled_run(stack, state.node, space, run);
        }
        let Some((table, second)) = stack.hardware_tables(state.node, space) else {
            return (accesses.len(), None);
        };
        let asid = asids.of(guest, space, machine);
        let mut tables = Tables { vm: vm_tag(state.node), guest: table, second };
        match machine.access_run(cpu, asid, accesses, &mut tables) {
            Ok(()) => (accesses.len(), None),
            Err(RunFault { completed, fault }) => (completed, Some(fault)),
        }
    }

    /// Software's part of a fault on a CPU.
    fn handle(
        &mut self,
        guest: GuestId,
        cpu: CpuId,
        space: SpaceId,
        fault: Fault,
    ) -> Result<(), KernelOutOfMemory> {
        let before = self.page_faults(guest);
        let handled = self.have_handled(self.guests[guest].node, space, fault);
        let faults = self.page_faults(guest) - before;
        *self.guests[guest].sampling.faults_on.entry(cpu).or_default() += faults;
        handled
    }

    fn have_handled(
        &mut self,
        node: NodeId,
        space: SpaceId,
        fault: Fault,
    ) -> Result<(), KernelOutOfMemory> {
        let policy = &mut self.policies;
        match fault {
            Fault::Guest { gva, store, .. } => {
                let page = gva.page().cross();
                match self.stack.has_shadow_paging(node) {
                    true => self.stack.shadow_fault(policy, node, space, page, store).map(drop),
                    false => self.stack.guest_fault(policy, node, space, page, store).map(drop),
                }
            }
            Fault::SecondStage { gpa, store, .. } => {
                let page = gpa.page().cross();
                match self.stack.has_shadow_paging(node) {
                    true => self.stack.fault_below_shadow(policy, node, page, store),
                    false => self.stack.second_stage_fault(policy, node, page, store),
                }
            }
        }
    }
}

/// The process an event belongs to.
fn event_process(event: &Event) -> Option<Pid> {
    match *event {
        Event::ProcessStart { pid }
        | Event::Exec { pid }
        | Event::ProcessExit { pid }
        | Event::ThreadStart { pid, .. }
        | Event::Map { pid, .. }
        | Event::Unmap { pid, .. }
        | Event::Remap { pid, .. }
        | Event::Protect { pid, .. }
        | Event::Advise { pid, .. }
        | Event::Touched { pid, .. }
        | Event::Begun { pid, .. }
        | Event::Fetched { pid, .. } => Some(pid),
        Event::Fork { child, .. } => Some(child),
        Event::ThreadExit { .. }
        | Event::Mark(_)
        | Event::Request { .. }
        | Event::Called { .. }
        | Event::Sampling(_)
        | Event::Phase { .. }
        | Event::Warmed { .. }
        | Event::Skipped { .. } => None,
    }
}

/// How hardware tags the second stage that it walks for a guest.
fn vm_tag(guest: NodeId) -> VmTag {
    VmTag(guest.index() as u16)
}

/// The name of a kernel in reports.
fn layer_name(at: Position) -> &'static str {
    if at.is_guest() { "guest" } else { hypervisor_name(at.level.into()) }
}
