//! VM exits, by the VM that took them and why, and what they cost.

use crate::tree::NodeId;
use strata_nested::{ExitReason, Part};

/// Exits of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OfVm {
    exits: [u64; ExitReason::ALL.len()],
    handed_on: [u64; ExitReason::ALL.len()],
    cycles: [u64; Part::COUNT],
    read_anew: u64,
}

impl Default for OfVm {
    fn default() -> Self {
        let none = [0; ExitReason::ALL.len()];
        Self { exits: none, handed_on: none, cycles: [0; Part::COUNT], read_anew: 0 }
    }
}

/// Exits by VM and reason, and their cycles by VM and what they go to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitCounts {
    /// By number of the VM's kernel.
    vms: Vec<OfVm>,
}

impl ExitCounts {
    fn of_vm(&mut self, vm: NodeId) -> &mut OfVm {
        if self.vms.len() <= vm.index() {
            self.vms.resize(vm.index() + 1, OfVm::default());
        }
        &mut self.vms[vm.index()]
    }

    pub(crate) fn add(&mut self, vm: NodeId, reason: ExitReason, exits: u64) {
        self.of_vm(vm).exits[reason as usize] += exits;
    }

    /// So many of those that a VM takes by itself are for a hypervisor in a VM to handle.
    pub(crate) fn hand_on(&mut self, vm: NodeId, reason: ExitReason, exits: u64) {
        self.of_vm(vm).handed_on[reason as usize] += exits;
    }

    pub(crate) fn spend(&mut self, vm: NodeId, part: Part, cycles: u64) {
        let spent = &mut self.of_vm(vm).cycles[part.index()];
        *spent = spent.saturating_add(cycles);
    }

    /// Second stages that a hypervisor in a VM wrote were read anew.
    pub(crate) fn add_reading(&mut self, vm: NodeId, cycles: u64) {
        self.of_vm(vm).read_anew += cycles;
    }

    /// Starts anew with those of a VM.
    pub(crate) fn forget(&mut self, vm: NodeId) {
        if let Some(of_vm) = self.vms.get_mut(vm.index()) {
            *of_vm = OfVm::default();
        }
    }

    /// Exits that a VM took for a reason.
    pub fn of(&self, vm: NodeId, reason: ExitReason) -> u64 {
        self.vms.get(vm.index()).map_or(0, |vm| vm.exits[reason as usize])
    }

    /// Of those for a reason that a VM took by itself, how many a hypervisor in a VM handled. Those that its own
    /// hypervisor's instructions lead to are not among them.
    pub fn handed_on(&self, vm: NodeId, reason: ExitReason) -> u64 {
        self.vms.get(vm.index()).map_or(0, |vm| vm.handed_on[reason as usize])
    }

    /// Cycles that went to this part of a VM's exits.
    pub fn cycles(&self, vm: NodeId, part: Part) -> u64 {
        self.vms.get(vm.index()).map_or(0, |vm| vm.cycles[part.index()])
    }

    /// Cycles that it took to read anew what a hypervisor in a VM wrote to its second stages.
    pub fn cycles_of_reading(&self, vm: NodeId) -> u64 {
        self.vms.get(vm.index()).map_or(0, |vm| vm.read_anew)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_anew_is_counted_for_who_wrote_until_the_vm_ends() {
        let (mut counts, [writer, other]) = (ExitCounts::default(), [1, 2].map(NodeId::new));
        assert_eq!(counts.cycles_of_reading(writer), 0);
        counts.add_reading(writer, 5120);
        counts.add_reading(writer, 10_240);
        assert_eq!(
            (counts.cycles_of_reading(writer), counts.cycles_of_reading(other)),
            (15_360, 0)
        );
        assert!(Part::all().all(|part| counts.cycles(writer, part) == 0), "nor is it an exit");
        counts.forget(writer);
        assert_eq!(counts.cycles_of_reading(writer), 0);
    }
}
