//! The cores of a host: the time on each, and whose turn it is on those that several guests share.

use rustc_hash::FxHashMap;
use strata_hardware::{CpuId, HardwareCounters, Machine, Owner};

/// Number of a guest of the host.
pub(crate) type GuestId = usize;

/// Whose lines a guest's are in the last-level cache.
pub(super) fn owner(guest: GuestId) -> Owner {
    Owner(guest as u16)
}

/// Time on the cores, in cycles, and the counters of whoever is not on them now.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    /// Cycles each was idle.
    idle: Vec<u64>,
    /// Of cores that guests share: whose turn it is, and since when.
    turns: FxHashMap<CpuId, Turn>,
    /// What was counted for guests that had a turn before, on cores that are shared.
    away: FxHashMap<(GuestId, CpuId), HardwareCounters>,
}

/// A guest's turn on a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) guest: Option<GuestId>,
    /// The core's clock when it began.
    pub(crate) since: u64,
    /// Cycles that the core had worked by then.
    pub(crate) worked: u64,
}

impl Cores {
    /// Several guests have a core in turn.
    pub(crate) fn share(&mut self, core: CpuId) {
        self.turns.insert(core, Turn { guest: None, since: 0, worked: 0 });
    }

    /// Whose turn it is on a core that is shared.
    pub(crate) fn turn(&self, core: CpuId) -> Option<Turn> {
        self.turns.get(&core).copied()
    }

    /// The clock of a core: cycles it worked and cycles it was idle.
    #[inline]
    pub(crate) fn reading(&self, core: CpuId, machine: &Machine) -> u64 {
        machine.clock(core) + self.idle.get(core.0 as usize).copied().unwrap_or(0)
    }

    /// Nothing happens on a core until `time`.
    #[inline]
    pub(crate) fn wait_until(&mut self, core: CpuId, machine: &Machine, time: u64) {
        let index = core.0 as usize;
        if self.idle.len() <= index {
            self.idle.resize(index + 1, 0);
        }
        self.idle[index] += time.saturating_sub(self.reading(core, machine));
    }

    /// A guest goes on on a core: what is counted there is its own from now on.
    #[inline]
    pub(crate) fn enter(&mut self, core: CpuId, guest: GuestId, machine: &mut Machine) {
        if !self.turns.is_empty() {
            self.take_turn(core, guest, machine);
        }
    }

    fn take_turn(&mut self, core: CpuId, guest: GuestId, machine: &mut Machine) {
        let Some(turn) = self.turn(core).filter(|turn| turn.guest != Some(guest)) else { return };
        let counted = machine.take_counters(core);
        if let Some(before) = turn.guest {
            *self.away.entry((before, core)).or_default() += &counted;
        }
        machine.assign(core, owner(guest));
        let since = self.reading(core, machine);
        let worked = machine.clock(core);
        self.turns.insert(core, Turn { guest: Some(guest), since, worked });
    }

    /// What was counted for a guest on a core.
    pub(crate) fn counters(
        &self,
        core: CpuId,
        guest: GuestId,
        machine: &Machine,
    ) -> HardwareCounters {
        let Some(turn) = self.turn(core) else { return machine.counters(core).clone() };
        let mut counters = self.away.get(&(guest, core)).cloned().unwrap_or_default();
        if turn.guest == Some(guest) {
            counters += machine.counters(core);
        }
        counters
    }

    /// Starts counting anew for a guest on a core.
    pub(crate) fn reset(&mut self, core: CpuId, guest: GuestId, machine: &mut Machine) {
        self.away.remove(&(guest, core));
        if self.turn(core).is_none_or(|turn| turn.guest == Some(guest)) {
            machine.take_counters(core);
        }
    }
}
