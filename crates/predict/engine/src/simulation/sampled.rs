//! A sampled stream reaches a machine: windows count, gaps pass in one step, first touches fault.

use super::Simulation;
use super::cores::GuestId;
use super::guest::Guest;
use super::sampling::Sampling;
use crate::sampling::{Elapsed, STARTS, Sampled, Seen, Strata, Windows};
use strata_addr::{Gva, PageSize, Range, space::Virtual};
use strata_hardware::{CpuId, HardwareCounters};
use strata_stack::SpaceId;
use strata_stream::{Access, Array, Edge, Pid, Tid};

/// Instructions of a gap that pass at once; then background work that is due is done.
const STEP: u64 = 1 << 18;

/// Fields of a result that have what comes so many times in a second.
const BY_THE_CLOCK: [&str; 3] = ["exits", "exits_by_layer", "happened"];

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Lines that are touched between two looks at whether the process still lives.
const LINES: u64 = 1 << 14;

impl Simulation {
    /// A sampled stream goes from one part to the next.
    pub(super) fn edge(&mut self, guest: GuestId, edge: Edge) {
        match edge {
            Edge::Interval => self.begin_interval(guest),
            Edge::Warm => {
                self.guests[guest].sampling.warming = Some(0);
                self.note_warming(guest, 0);
            }
            Edge::Window => self.open_window(guest),
            Edge::Gap => self.close_window(guest),
        }
        let sampling = &mut self.guests[guest].sampling;
        sampling.touching.clear();
        sampling.in_gap.clear();
    }

    /// So many instructions more warm up a window, if any do.
    pub(super) fn note_warming(&mut self, guest: GuestId, instructions: u64) {
        let sampling = &mut self.guests[guest].sampling;
        let Some(warming) = &mut sampling.warming else { return };
        *warming += instructions;
        let reached = STARTS.iter().take_while(|start| **start <= *warming).count();
        self.open(guest, reached);
    }

    /// Notes what was counted before places from which the window may count, up to so many of them.
    fn open(&mut self, guest: GuestId, reached: usize) {
        if self.guests[guest].sampling.opened.len() < reached {
            let now = self.seen_by_cpu(guest);
            self.guests[guest].sampling.opened.resize(reached, now);
        }
    }

    /// The window begins. It counts from here where it was not warmed up for longer.
    fn open_window(&mut self, guest: GuestId) {
        self.open(guest, STARTS.len());
        self.guests[guest].sampling.warming = None;
    }

    fn close_window(&mut self, guest: GuestId) {
        let now = self.seen_by_cpu(guest);
        let Self { guests, machine, .. } = self;
        let sampling = &mut guests[guest].sampling;
        let opened = std::mem::take(&mut sampling.opened);
        let Some(strata) = &mut sampling.strata else { return };
        if opened.len() < STARTS.len() {
            return;
        }
        let counted = opened.into_iter().map(|before| {
            let mut counted = now.clone();
            for (own, before) in counted.iter_mut().zip(before) {
                own.counted -= &before.counted;
                own.faults -= before.faults;
            }
            counted
        });
        strata.window(counted.collect(), machine);
        sampling.has_window = true;
    }

    /// Trials of how warm windows are showed this of an array.
    pub(super) fn warmed(&mut self, guest: GuestId, array: Array, after: u64, off: [u64; 3]) {
        if let Some(strata) = &mut self.guests[guest].sampling.strata {
            strata.warmed(array, after, off);
        }
    }

    fn begin_interval(&mut self, guest: GuestId) {
        let (now, faults) = (self.seen_by_cpu(guest), self.page_faults(guest));
        let Self { guests, machine, .. } = self;
        let state = &mut guests[guest];
        let sampling = &mut state.sampling;
        match &mut sampling.strata {
            None => sampling.strata = Some(Box::new(Strata::new(now, machine))),
            Some(strata) => {
                let skipped = |cpu| sampling.skipped_on.get(cpu).copied().unwrap_or(0);
                let cpus = state.all_cpus.iter().zip(now);
                let retired = cpus
                    .map(|(cpu, seen)| seen.counted.instructions.saturating_add(skipped(cpu)))
                    .collect::<Vec<u64>>();
                strata.interval(&retired, sampling.has_window, faults, machine);
            }
        }
        (sampling.has_window, sampling.seen) = (false, false);
        sampling.opened.clear();
        sampling.warming = None;
    }

    /// What is known of a phase, which the next window is of.
    pub(super) fn phase(&mut self, guest: GuestId, phase: u32, intervals: u64, instructions: u64) {
        if let Some(strata) = &mut self.guests[guest].sampling.strata {
            strata.phase(phase, intervals, instructions);
        }
    }

    /// What was counted for a guest on each of its CPUs so far.
    fn seen_by_cpu(&self, guest: GuestId) -> Vec<Seen> {
        let faults_on = &self.guests[guest].sampling.faults_on;
        let seen = |cpu: &CpuId| Seen {
            counted: self.cores.counters(*cpu, guest, &self.machine),
            faults: faults_on.get(cpu).copied().unwrap_or(0),
        };
        self.guests[guest].all_cpus.iter().map(seen).collect()
    }

    /// Page faults of a guest's program so far.
    pub(super) fn page_faults(&self, guest: GuestId) -> u64 {
        self.stack.kernel(self.guests[guest].node).counters().faults
    }

    /// The stream is over: so is its last interval.
    pub(super) fn end_sampling(&mut self, guest: GuestId) {
        if self.guests[guest].sampling.strata.is_some() {
            self.begin_interval(guest);
            let Self { guests, machine, .. } = self;
            let Guest { all_cpus, sampling, .. } = &mut guests[guest];
            let unused = all_cpus.iter().map(|cpu| machine.unused_translations(*cpu)).collect();
            sampling.strata.as_mut().expect("there are some").end(unused);
        }
    }

    /// A thread retired instructions in a gap: the time passes that they take as far as is known.
    pub(super) fn skip(&mut self, guest: GuestId, tid: Tid, instructions: u64) {
        if self.stack.thread_space(self.guests[guest].node, tid).is_none() {
            return;
        }
        let cpu = self.cpu_of(guest, tid);
        self.cores.enter(cpu, guest, &mut self.machine);
        self.guests[guest].clock.resume(cpu, &mut self.cores, &self.machine);
        let place = self.guests[guest].all_cpus.iter().position(|own| *own == cpu);
        let in_gap = self.guests[guest].sampling.in_gap.entry(tid).or_default();
        *in_gap = in_gap.saturating_add(instructions);
        let mut left = instructions;
        // What a damaged recording says may be any number.
        let most = STEP.max(instructions / 4096);
        while left > 0 {
            let step = left.min(most);
            left -= step;
            let Self { guests, machine, cores, .. } = self;
            let sampling = &mut guests[guest].sampling;
            let Some(strata) = &sampling.strata else { return };
            sampling.skipped = sampling.skipped.saturating_add(step);
            let skipped = sampling.skipped_on.entry(cpu).or_default();
            *skipped = skipped.saturating_add(step);
            let each = strata.cycles_per_instruction(place.unwrap_or(0), machine);
            let due = step as f64 * each + sampling.rest;
            let touching = sampling.touching.entry(cpu).or_default();
            let passed = touching.min(due);
            *touching -= passed;
            let whole = (due - passed).floor();
            sampling.rest = due - passed - whole;
            guests[guest].clock.pass_gap(cpu, whole as u64, cores, machine);
            self.pass_time(guest, cpu);
        }
    }

    /// Pages were touched first in a gap: they fault as they would have.
    pub(super) fn touched(&mut self, guest: GuestId, pid: Pid, range: Range<Virtual>, store: bool) {
        let node = self.guests[guest].node;
        let Some(space) = self.stack.process_space(node, pid) else { return };
        let pages = range.bytes() >> PageSize::BASE_SHIFT;
        let whoever = self.who_touched(guest, space, pages);
        let Some(tid) = whoever.or_else(|| self.a_thread_of(guest, pid, space)) else { return };
        let cpu = self.cpu_of(guest, tid);
        let faults_before = self.guests[guest].sampling.faults_on.get(&cpu).copied();
        self.cores.enter(cpu, guest, &mut self.machine);
        self.guests[guest].clock.resume(cpu, &mut self.cores, &self.machine);
        let before = self.hardware_cycles(cpu);
        // Who touches a page first in a gap mostly goes on to use all of it, and later finds its lines in
        // the caches: as windows do not see them come, they come here.
        let touch = |line: u64| {
            let at: Gva = range.start + line * LINE;
            if store { Access::store(at, 8) } else { Access::load(at, 8) }
        };
        let (mut line, lines) = (0, range.bytes() / LINE);
        let mut touches = Vec::new();
        // In pieces: the process may be killed on the way.
        while line < lines && self.stack.thread_space(node, tid).is_some() {
            let end = lines.min(line + LINES);
            touches.clear();
            touches.extend((line..end).map(touch));
            self.accesses(guest, cpu, tid, &touches, u64::MAX);
            self.pass_time(guest, cpu);
            line = end;
        }
        let spent = self.hardware_cycles(cpu) - before;
        let sampling = &mut self.guests[guest].sampling;
        *sampling.touching.entry(cpu).or_default() += spent.max(0.0);
        // What is guessed tells nothing of who faults.
        sampling.faults_on.insert(cpu, faults_before.unwrap_or(0));
    }

    /// The thread of a process that is taken to have touched so many pages first in the present gap, which nobody knows.
    /// Threads take turns, each as often as it would have page faults if it had them as where it was seen, or, where none
    /// had any, as it did instructions.
    fn who_touched(&mut self, guest: GuestId, space: SpaceId, pages: u64) -> Option<Tid> {
        let state = &self.guests[guest];
        let Sampling { in_gap, faults_on, .. } = &state.sampling;
        let expected = |tid: Tid| {
            let instructions = in_gap.get(&tid).copied().unwrap_or(0) as f64;
            let rate = state.cpus.get(&tid).map_or(0.0, |cpu| {
                let seen = self.cores.counters(*cpu, guest, &self.machine).instructions;
                faults_on.get(cpu).copied().unwrap_or(0) as f64 / seen.max(1) as f64
            });
            (tid, rate * instructions, instructions)
        };
        let mut threads: Vec<_> = self.running_in(guest, space).map(expected).collect();
        threads.sort_unstable_by_key(|(tid, ..)| tid.0);
        let [faults, instructions] =
            threads.iter().fold([0.0, 0.0], |sum, own| [sum[0] + own.1, sum[1] + own.2]);
        let share = |own: &(Tid, f64, f64)| match (faults > 0.0, instructions > 0.0) {
            (true, _) => own.1 / faults,
            (_, true) => own.2 / instructions,
            _ => 1.0,
        };
        let owed = &mut self.guests[guest].sampling.owed;
        threads.iter().for_each(|own| {
            *owed.entry(own.0).or_default() += share(own) * pages as f64;
        });
        // Of equals the first.
        let most = threads.iter().rev().max_by(|a, b| owed[&a.0].total_cmp(&owed[&b.0]))?.0;
        *owed.get_mut(&most)? -= pages as f64;
        Some(most)
    }

    fn hardware_cycles(&self, cpu: CpuId) -> f64 {
        let cycles = self.machine.explain(self.machine.counters(cpu));
        cycles.total() - cycles.charged.iter().sum::<f64>()
    }

    /// What was counted for a guest on all its CPUs, or estimated where its stream is sampled.
    pub(super) fn estimated(&self, guest: GuestId) -> HardwareCounters {
        let mut totals = self.totals(guest);
        let sampling = &self.guests[guest].sampling;
        match &sampling.strata {
            None => totals,
            Some(strata) => {
                totals.instructions = totals.instructions.saturating_add(sampling.skipped);
                strata.totals(&totals)
            }
        }
    }

    /// Elapsed cycles of a guest; estimated as all its cycles are, where its stream is sampled.
    pub(super) fn estimated_elapsed(&self, guest: GuestId, totals: &HardwareCounters) -> u64 {
        let elapsed = self.elapsed_cycles(guest);
        let state = &self.guests[guest];
        if state.sampling.strata.is_none() {
            return elapsed;
        }
        let passed: f64 =
            state.all_cpus.iter().map(|cpu| self.busy_cycles(guest, *cpu) as f64).sum();
        let estimated = self.machine.explain(totals).total();
        if passed == 0.0 { elapsed } else { (elapsed as f64 * estimated / passed) as u64 }
    }

    /// Cycles in which a CPU worked, gaps included.
    pub(super) fn busy_cycles(&self, guest: GuestId, cpu: CpuId) -> u64 {
        self.machine.clock(cpu) + self.guests[guest].clock.gaps(cpu)
    }

    /// What is to be said of the sampling, if there was any.
    pub(super) fn sampled(
        &self,
        guest: GuestId,
        totals: &HardwareCounters,
        elapsed: u64,
    ) -> Option<(Sampled, Windows)> {
        let sampling = &self.guests[guest].sampling;
        let strata = sampling.strata.as_ref()?;
        let cycles = self.machine.explain(totals).total();
        let share = elapsed as f64 / cycles.max(1.0);
        let [doubt, cold] = strata.doubts(totals, &self.machine).map(|off| off * share);
        let (instructions, cycles) = (totals.instructions, elapsed as f64);
        let elapsed = Elapsed { instructions, cycles, share, doubt, cold };
        let mut said = strata.describe(totals, elapsed.share, sampling.skipped, &self.machine);
        if self.rates.has_clock() {
            said.estimated.extend(BY_THE_CLOCK.map(str::to_owned));
            said.estimated.sort();
        }
        Some((said, Windows { strata: strata.clone(), elapsed }))
    }
}
