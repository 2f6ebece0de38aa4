//! One machine: a stack of layers under a policy, on modelled hardware, fed with a stream.

mod clock;
pub(crate) mod outcome;
mod relocation;
mod samples;
mod setup;

pub use setup::catalogue;

use crate::Run;
use crate::report::RunResult;
use crate::warmup::Warmup;
use clock::Clock;
use relocation::Relocation;
use rustc_hash::FxHashMap;
use samples::Samples;
use strata_addr::{Gva, Range};
use strata_hardware::{Asid, Charge, CpuId, Fault, Machine, RunFault, Tables, VmTag};
use strata_stack::{
    Exhausted, Feedback, Flush, NodeId, Policy, Position, SpaceId, Spending, Stack,
};
use strata_stream::{Access, Batch, Event, Pid, Step, Tid};

/// Pages beyond which Linux flushes an address space rather than single pages
/// (`arch/x86/mm/tlb.c`, `tlb_single_page_flush_ceiling`).
const FLUSH_CEILING: u64 = 33;

/// Faults one access may take before it is given up as something the model cannot do. A 2D walk of
/// five levels needs at most one per guest level, one for the data, and their retries.
const FAULT_LIMIT: u32 = 64;

/// Unmapping less than this is not worth a look at all tables.
const NOTABLE_UNMAP: u64 = 1 << 20;

/// A machine consuming a stream.
pub struct Simulation {
    stack: Stack,
    /// The kernel that runs the stream's programs.
    guest: NodeId,
    policy: Box<dyn Policy>,
    machine: Machine,
    clock: Clock,
    /// The CPUs that threads run on.
    cpus: FxHashMap<Tid, CpuId>,
    idle_cpus: Vec<CpuId>,
    relocation: Relocation,
    samples: Samples,
    warmup: Warmup,
    /// Frames of the guest in use before the workload.
    guest_frames_before: u64,
    peak_guest_frames: u64,
    /// Free huge pages of each layer before the workload.
    free_huge_before: Vec<u64>,
    /// What memory looked like when the guest used most of it.
    fullest: outcome::State,
    /// Why the whole VM is gone, once it is.
    dead: Option<String>,
    lost_accesses: u64,
    /// Accesses above the half of the address space that is the program's.
    kernel_accesses: u64,
    unresolved_accesses: u64,
    last_feedback: (u64, u64),
    /// Translations being dropped; kept for its memory.
    flushes: Vec<Flush>,
    outcome: outcome::Context,
}

impl Run for Simulation {
    fn consume(&mut self, batch: &Batch) {
        for step in batch.steps() {
            if self.dead.is_some() {
                if let Step::Run { accesses, .. } = step {
                    self.lost_accesses += accesses.len() as u64;
                }
                continue;
            }
            match step {
                Step::Event(event) => self.event(event),
                Step::Run { tid, instructions, accesses } => self.run(tid, instructions, accesses),
            }
        }
        self.sample_if_due();
    }

    fn finish(mut self: Box<Self>) -> RunResult {
        if !self.warmup.is_over() {
            self.end_warmup();
        }
        self.take_sample();
        self.note_state();
        self.outcome()
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
        self.dead.is_some() || !self.stack.killed(self.guest).is_empty()
    }

    fn is_over(&self) -> bool {
        self.dead.is_some()
            || !self.stack.killed(self.guest).is_empty() && !self.stack.has_processes(self.guest)
    }

    fn name(&self) -> String {
        format!("{} on {}", self.outcome.policy, self.outcome.stack)
    }

    fn simulated_seconds(&self) -> f64 {
        self.clock.now()
    }
}

impl Simulation {
    /// The CPU of a thread; one is added for a thread not seen before.
    fn cpu_of(&mut self, tid: Tid) -> CpuId {
        if let Some(cpu) = self.cpus.get(&tid) {
            return *cpu;
        }
        let cpu = self.idle_cpus.pop().unwrap_or_else(|| self.machine.add_cpu());
        self.clock.start(cpu, &self.machine);
        self.cpus.insert(tid, cpu);
        cpu
    }

    /// A thread ended: its CPU is free for another.
    fn release_cpu(&mut self, tid: Tid) {
        if let Some(cpu) = self.cpus.remove(&tid) {
            self.clock.end(cpu, &self.machine);
            self.idle_cpus.push(cpu);
            // The lowest free number is used next, whatever the order of the exits.
            self.idle_cpus.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    /// The threads of an address space that are on a CPU.
    fn running_in(&self, space: SpaceId) -> impl Iterator<Item = Tid> {
        let of = move |tid: &&Tid| self.stack.thread_space(self.guest, **tid) == Some(space);
        self.cpus.keys().filter(of).copied()
    }

    /// Threads that end without a word of their own, with their process or its image.
    fn release_cpus(&mut self, pid: Pid) {
        let Some(space) = self.stack.process_space(self.guest, pid) else { return };
        let threads: Vec<Tid> = self.running_in(space).collect();
        threads.into_iter().for_each(|tid| self.release_cpu(tid));
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Mark(mark) => {
                if self.warmup.mark(*mark) {
                    self.end_warmup();
                }
                return;
            }
            Event::ThreadStart { pid, tid }
                if self.stack.process_space(self.guest, *pid).is_some() =>
            {
                self.cpu_of(*tid);
            }
            // Memory is about to be given back: what was made of it would not show at the end.
            Event::ProcessExit { pid } => {
                self.note_state();
                self.release_cpus(*pid);
            }
            Event::Exec { pid } => {
                self.note_state();
                // Which thread lives on shows when it goes on; a lone one keeps its CPU.
                let space = self.stack.process_space(self.guest, *pid);
                if space.is_some_and(|space| self.running_in(space).nth(1).is_some()) {
                    self.release_cpus(*pid);
                }
            }
            Event::Unmap { range, .. } if range.bytes() >= NOTABLE_UNMAP => {
                self.note_state_if_grown();
            }
            Event::ThreadExit { tid } => self.release_cpu(*tid),
            _ => {}
        }
        let done = self.stack.event(self.policy.as_mut(), self.guest, event);
        self.relocation.forget();
        let cpu = self.clock.last();
        self.settle(cpu);
        if let Err(exhausted) = done {
            let space =
                event_process(event).and_then(|pid| self.stack.process_space(self.guest, pid));
            self.out_of_memory(exhausted, space);
        }
    }

    /// A run of accesses by one thread, cut where the warm-up ends.
    fn run(&mut self, tid: Tid, instructions: u64, accesses: &[Access]) {
        if self.stack.thread_space(self.guest, tid).is_none() {
            self.lost_accesses += accesses.len() as u64;
            return;
        }
        let cpu = self.cpu_of(tid);
        self.clock.resume(cpu, &self.machine);
        let mut warm = 0;
        if self.warmup.is_over() {
            self.machine.retire(cpu, instructions);
        } else {
            warm = self.warmup.take(accesses.len());
            let share = if accesses.is_empty() {
                instructions
            } else {
                (u128::from(instructions) * warm as u128 / accesses.len() as u128) as u64
            };
            self.machine.retire(cpu, share);
            self.accesses(cpu, tid, &accesses[..warm]);
            if !self.warmup.is_over() {
                return self.pass_time(cpu);
            }
            self.end_warmup();
            self.machine.retire(cpu, instructions - share);
        }
        self.accesses(cpu, tid, &accesses[warm..]);
        self.pass_time(cpu);
    }

    fn end_warmup(&mut self) {
        self.machine.reset_counters();
        self.stack.reset_counters();
        self.clock.reset(&self.machine);
        self.samples = Samples::default();
        self.last_feedback = (0, 0);
    }

    /// Accesses by a thread. Those beyond the program's half of the address space are left out: the
    /// model has no kernel there.
    fn accesses(&mut self, cpu: CpuId, tid: Tid, accesses: &[Access]) {
        let end = self.stack.user_end();
        let last = |a: &Access| a.addr().get().wrapping_add(u64::from(a.size()) - 1);
        let is_beyond = |access: &Access| (access.addr().get() | last(access)) >= end;
        // A sum of bits that the compiler makes a few instructions for many accesses.
        let bits = accesses.iter().fold(0, |bits, a| bits | a.addr().get() | last(a));
        if bits < end {
            return self.user_accesses(cpu, tid, accesses);
        }
        self.kernel_accesses += accesses.iter().filter(|access| is_beyond(access)).count() as u64;
        for part in accesses.split(is_beyond) {
            self.user_accesses(cpu, tid, part);
        }
    }

    fn user_accesses(&mut self, cpu: CpuId, tid: Tid, accesses: &[Access]) {
        let Some(mut space) = self.stack.thread_space(self.guest, tid) else {
            self.lost_accesses += accesses.len() as u64;
            return;
        };
        let mut rest = accesses;
        let mut faults = 0;
        while !rest.is_empty() {
            let (done, fault) = self.until_fault(cpu, space, rest);
            faults = if done > 0 { 0 } else { faults };
            rest = &rest[done..];
            let Some(fault) = fault else { continue };
            faults += 1;
            if faults > FAULT_LIMIT {
                self.unresolved_accesses += 1;
                rest = &rest[1..];
                faults = 0;
                continue;
            }
            let handled = self.handle(space, fault);
            self.settle(cpu);
            if let Err(exhausted) = handled {
                self.out_of_memory(exhausted, Some(space));
                match self.stack.thread_space(self.guest, tid) {
                    Some(survivor) if self.dead.is_none() => space = survivor,
                    _ => {
                        self.lost_accesses += rest.len() as u64;
                        return;
                    }
                }
            }
        }
    }

    /// Hardware's part: accesses until one faults. Returns how many completed.
    fn until_fault(
        &mut self,
        cpu: CpuId,
        space: SpaceId,
        accesses: &[Access],
    ) -> (usize, Option<Fault>) {
        let moved;
        let mut accesses = accesses;
        if self.stack.moves_areas(self.guest, space) {
            accesses = &accesses[..accesses.len().min(Relocation::RUN)];
            moved = self.relocation.modelled_run(&self.stack, self.guest, space, accesses);
            accesses = moved;
        }
        let Some((guest, second)) = self.stack.hardware_tables(self.guest, space) else {
            return (accesses.len(), None);
        };
        let mut tables = Tables { vm: vm_tag(self.guest), guest, second };
        match self.machine.access_run(cpu, Asid(space.0), accesses, &mut tables) {
            Ok(()) => (accesses.len(), None),
            Err(RunFault { completed, fault }) => (completed, Some(fault)),
        }
    }

    /// Software's part of a fault.
    fn handle(&mut self, space: SpaceId, fault: Fault) -> Result<(), Exhausted> {
        let policy = self.policy.as_mut();
        match fault {
            Fault::Guest { gva, store, .. } => {
                let page = gva.page().cross();
                self.stack.guest_fault(policy, self.guest, space, page, store).map(drop)
            }
            Fault::SecondStage { gpa, .. } => {
                self.stack.second_stage_fault(policy, self.guest, gpa.page().cross())
            }
        }
    }

    /// Passes what software did on to hardware: translations to drop, cycles to charge.
    fn settle(&mut self, cpu: CpuId) {
        self.settle_as(cpu, false);
    }

    /// The same for background work, faults and exits it causes included, which is weighed.
    fn settle_background(&mut self, cpu: CpuId) {
        self.settle_as(cpu, true);
    }

    fn charge(&mut self, cpu: CpuId, kind: Charge, cycles: u64, background: bool) {
        let cycles = if background { self.clock.weigh(kind, cycles) } else { cycles };
        self.machine.charge(cpu, kind, cycles);
    }

    fn settle_as(&mut self, cpu: CpuId, background: bool) {
        if self.stack.has_flushes() {
            let shootdown = self.stack.costs().shootdown;
            let mut flushes = std::mem::take(&mut self.flushes);
            flushes.extend(self.stack.drain_flushes());
            // Whether a space has threads on other CPUs, remembered for the space asked for last.
            let mut shared = None;
            for flush in flushes.drain(..) {
                match flush {
                    Flush::SecondStage(guest) => self.machine.flush_second_stage(vm_tag(guest)),
                    Flush::Space(_, space) => self.machine.flush_asid(Asid(space.0)),
                    Flush::Pages(_, change) => {
                        let asid = Asid(change.space.0);
                        if change.pages > FLUSH_CEILING {
                            self.machine.flush_asid(asid);
                        } else {
                            let start: Gva = change.page.addr().cross();
                            let range = Range::sized(start, change.pages << 12);
                            self.machine.invalidate_range(asid, range);
                        }
                        let others = match shared {
                            Some((space, others)) if space == change.space => others,
                            _ => self.running_in(change.space).nth(1).is_some(),
                        };
                        shared = Some((change.space, others));
                        if others {
                            self.charge(cpu, Charge::Shootdown, shootdown, background);
                        }
                    }
                }
            }
            self.flushes = flushes;
        }
        let spent = self.stack.take_spent();
        if !spent.is_zero() {
            for kind in Spending::ALL {
                let charge = match kind {
                    Spending::GuestFault | Spending::HypervisorFault => Charge::Fault,
                    Spending::Exit => Charge::Exit,
                    Spending::Background => Charge::Background,
                    Spending::Shootdown => Charge::Shootdown,
                };
                self.charge(cpu, charge, spent.0[kind as usize], background);
            }
        }
    }

    /// Time has passed on a CPU: background work that is due is done, on that CPU's account.
    fn pass_time(&mut self, cpu: CpuId) {
        self.clock.advance(cpu, &self.machine);
        if self.stack.next_wake(self.policy.as_ref()) > self.clock.now() || self.dead.is_some() {
            return;
        }
        let totals = self.machine.totals();
        let (misses, accesses) = self.last_feedback;
        self.last_feedback = (totals.l2_misses, totals.accesses);
        let feedback = Feedback {
            tlb_misses: totals.l2_misses - misses,
            accesses: totals.accesses - accesses,
            frequency: self.clock.frequency(),
        };
        let done = self.stack.wake(self.policy.as_mut(), self.clock.now(), feedback);
        self.settle_background(cpu);
        if let Err(exhausted) = done {
            self.out_of_memory(exhausted, None);
        }
    }

    /// A kernel has no memory left. The guest kills the process that asked; a hypervisor's kernel
    /// kills its largest process, which is the VM (Linux, `mm/oom_kill.c`).
    fn out_of_memory(&mut self, exhausted: Exhausted, space: Option<SpaceId>) {
        let layer = layer_name(self.stack.position(exhausted.node));
        // What is killed takes its memory along.
        self.note_state();
        if exhausted.node != self.guest {
            self.dead = Some(format!("{layer} killed the VM"));
            return;
        }
        let Some(space) = space.or_else(|| self.largest_process()) else { return };
        let cpu = self.clock.last();
        let threads: Vec<Tid> = self.running_in(space).collect();
        threads.into_iter().for_each(|tid| self.release_cpu(tid));
        if let Err(worse) = self.stack.kill(self.policy.as_mut(), self.guest, space) {
            self.out_of_memory(worse, None);
        }
        self.settle(cpu);
        self.relocation.forget();
    }

    fn largest_process(&self) -> Option<SpaceId> {
        let spaces = self.stack.kernel(self.guest).spaces();
        spaces.max_by_key(|(_, space)| space.table().table_pages()).map(|(id, _)| id)
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
        | Event::Advise { pid, .. } => Some(pid),
        Event::Fork { child, .. } => Some(child),
        Event::ThreadExit { .. } | Event::Mark(_) => None,
    }
}

/// How hardware tags the second stage that it walks for a guest.
fn vm_tag(guest: NodeId) -> VmTag {
    VmTag(guest.index() as u16)
}

/// The name of a kernel in reports.
fn layer_name(at: Position) -> &'static str {
    match at.level {
        _ if at.guest => "guest",
        0 => "host",
        _ => "l1",
    }
}
