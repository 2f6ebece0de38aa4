//! Requests of a guest's programs, as time passes on their CPUs.

use super::Simulation;
use super::cores::GuestId;
use strata_stream::{Mark, Tid};

impl Simulation {
    /// A thread begins to serve a request, or has served it. Those that begin in the warm-up do not count.
    pub(super) fn request(&mut self, guest: GuestId, tid: Tid, mark: Mark) {
        let lives = self.stack.thread_space(self.guests[guest].node, tid).is_some();
        if !lives || !self.guests[guest].warmup.is_over() {
            return;
        }
        let cpu = self.cpu_of(guest, tid);
        self.cores.enter(cpu, guest, &mut self.machine);
        let state = &mut self.guests[guest];
        // What the thread has waited for before is no part of the request.
        state.clock.catch_up(cpu, &mut self.cores, &self.machine);
        let now = self.cores.reading(cpu, &self.machine);
        match mark {
            Mark::Begin => state.served.begin(tid, now),
            Mark::End => state.served.end(tid, cpu, now),
        }
    }
}
