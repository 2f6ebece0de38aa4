//! What happened, counted as it happens.

use crate::costs::ExitCosts;
use crate::reason::ExitReason;

const REASONS: usize = ExitReason::ALL.len();

/// Exits of all VMs, and what hypervisors in VMs did.
pub(super) struct Account {
    /// By level of the VM from 1.
    exits: Vec<[u64; REASONS]>,
    /// Those of them that L0 handed on.
    handed_on: Vec<[u64; REASONS]>,
    /// How often a hypervisor in a VM did work.
    handled: u64,
    /// Fields that were copied between VMCSs in shared memory and the copies of them.
    pub(super) copied_fields: u64,
}

impl Account {
    /// Of so many VMs, each in the one before.
    pub(super) fn new(vms: usize) -> Self {
        let none = vec![[0; REASONS]; vms];
        Self { exits: none.clone(), handed_on: none, handled: 0, copied_fields: 0 }
    }

    /// Starts counting anew.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.exits.len());
    }

    /// A VM exits, and the hypervisor at level `handler` handles it: those between it and L0 hand the exit on.
    pub(super) fn exit(&mut self, vm: usize, handler: usize, reason: ExitReason) {
        self.exits[vm - 1][reason as usize] += 1;
        if handler > 0 {
            self.exits[vm - 1][ExitReason::HandedOn as usize] += 1;
            self.handed_on[vm - 1][reason as usize] += 1;
            self.handled += handler as u64;
        }
    }

    /// Exits of a VM, 1 for L1.
    pub(super) fn exits(&self, vm: usize, reason: ExitReason) -> u64 {
        self.exits[vm - 1][reason as usize]
    }

    /// Cycles of all that was counted, copies included.
    pub(super) fn cycles(&self, costs: &ExitCosts) -> u64 {
        let mut cycles = self.copied_fields * costs.copied_field;
        for (exits, handed_on) in self.exits.iter().zip(&self.handed_on) {
            for reason in ExitReason::ALL {
                let (all, on) = (exits[reason as usize], handed_on[reason as usize]);
                cycles += match reason {
                    ExitReason::HandedOn => 0,
                    _ => (all - on) * costs.of(reason) + on * costs.handed_on,
                };
            }
        }
        cycles + self.handled * costs.handler
    }
}
