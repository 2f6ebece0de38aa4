//! What happens to a guest besides its use of memory.

use crate::stack::Stack;
use crate::tree::NodeId;
use strata_nested::Happening;

impl Stack {
    /// Something happens this often to a guest's CPU: every exit that follows is counted and charged. Native
    /// programs are in no VM, so that nothing follows.
    ///
    /// `accesses` and `direct_timers` are those of [`Happening::exits`].
    pub fn happens(
        &mut self,
        guest: NodeId,
        what: Happening,
        times: u64,
        accesses: u64,
        direct_timers: bool,
    ) {
        if times == 0 || guest == NodeId::HOST {
            return;
        }
        // By level, the host first.
        let mut path: Vec<NodeId> = self.path_down(guest).collect();
        path.reverse();
        let level = self.position(guest).level;
        for exit in what.exits(level, accesses, direct_timers) {
            let (handler, vm) = (path[usize::from(exit.handler)], path[usize::from(exit.vm)]);
            self.exit_to(handler, vm, exit.reason, exit.times.saturating_mul(times));
        }
    }

    /// Cycles that it takes once.
    pub fn cycles_of(
        &self,
        guest: NodeId,
        what: Happening,
        accesses: u64,
        direct_timers: bool,
    ) -> u64 {
        if guest == NodeId::HOST {
            return 0;
        }
        let exits = what.exits(self.position(guest).level, accesses, direct_timers);
        let cycles = exits.iter().map(|exit| {
            let once = self.nesting().exit(exit.vm, exit.handler, exit.reason).cycles;
            once.saturating_mul(exit.times)
        });
        cycles.fold(0, u64::saturating_add)
    }
}
