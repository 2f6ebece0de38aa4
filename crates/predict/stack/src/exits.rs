//! VM exits, by the VM that took them and why.

use crate::tree::NodeId;
use strata_nested::ExitReason;

/// Counts of exits by VM and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitCounts {
    /// By number of the VM's kernel.
    counts: Vec<[u64; ExitReason::ALL.len()]>,
}

impl ExitCounts {
    pub(crate) fn add(&mut self, vm: NodeId, reason: ExitReason, exits: u64) {
        if self.counts.len() <= vm.index() {
            self.counts.resize(vm.index() + 1, Default::default());
        }
        self.counts[vm.index()][reason as usize] += exits;
    }

    /// Starts anew with those of a VM.
    pub(crate) fn forget(&mut self, vm: NodeId) {
        if let Some(counts) = self.counts.get_mut(vm.index()) {
            *counts = Default::default();
        }
    }

    /// Exits that a VM took for a reason.
    pub fn of(&self, vm: NodeId, reason: ExitReason) -> u64 {
        self.counts.get(vm.index()).map_or(0, |counts| counts[reason as usize])
    }
}
