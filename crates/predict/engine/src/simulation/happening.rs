//! What happens to a guest besides its use of memory reaches its kernels and hardware: timers and devices by
//! time, and what the program's system calls lead to.

use super::Simulation;
use super::cores::GuestId;
use strata_hardware::CpuId;
use strata_stack::{Happening, NodeId};
use strata_stream::{Call, Tid};

impl Simulation {
    /// A thread made a system call that concerns devices or other threads.
    pub(super) fn call(&mut self, guest: GuestId, tid: Tid, call: Call) {
        let state = &self.guests[guest];
        if state.dead.is_some() || self.stack.thread_space(state.node, tid).is_none() {
            return;
        }
        let Some(what) = self.rates.by_call(call) else { return };
        let cpu = self.cpu_of(guest, tid);
        self.cores.enter(cpu, guest, &mut self.machine);
        self.guests[guest].clock.resume(cpu, &mut self.cores, &self.machine);
        self.happens(guest, cpu, what, 1);
    }

    /// Time has passed on a CPU: what happens by time alone happens as often as is due.
    pub(super) fn happen_by_time(&mut self, guest: GuestId, cpu: CpuId) {
        let by_time = self.rates.by_time();
        if by_time.iter().all(|(_, hertz)| *hertz == 0.0) || self.guests[guest].dead.is_some() {
            return;
        }
        let worked = self.busy_cycles(guest, cpu);
        let since = self.cores.turn(cpu).map_or(0, |turn| turn.worked);
        let Self { guests, .. } = self;
        let state = &mut guests[guest];
        let frequency = state.clock.frequency();
        let rates = by_time.map(|(_, hertz)| hertz / frequency);
        let due = state.happened.due(cpu, worked, since, rates);
        for ((what, _), times) in by_time.into_iter().zip(due) {
            self.happens(guest, cpu, what, times);
        }
    }

    fn happens(&mut self, guest: GuestId, cpu: CpuId, what: Happening, times: u64) {
        let node = self.guests[guest].node;
        if times == 0 || node == NodeId::HOST {
            return;
        }
        self.guests[guest].happened.counts[what as usize] += times;
        let (accesses, direct_timers) = (self.rates.accesses, self.rates.direct_timers);
        self.stack.happens(node, what, times, accesses, direct_timers);
        self.tell_hardware(guest, cpu);
    }
}
