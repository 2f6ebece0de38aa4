//! Memory that runs out: whom a kernel kills.

use super::cores::GuestId;
use super::{Simulation, layer_name};
use strata_stack::{KernelOutOfMemory, NodeId, SpaceId};

impl Simulation {
    /// A kernel has no memory left, and asked for it was for a guest. The guest's own kernel kills the
    /// process that asked, or its largest; a hypervisor's kernel kills its largest process, which is a
    /// VM (Linux, `mm/oom_kill.c`).
    pub(super) fn out_of_memory(
        &mut self,
        guest: GuestId,
        short: KernelOutOfMemory,
        space: Option<SpaceId>,
    ) {
        // What is killed takes its memory along.
        self.note_state(guest);
        let node = self.guests[guest].node;
        if short.node != node {
            return self.kill_largest_vm(guest, short.node);
        }
        let Some(space) = space.or_else(|| self.largest_process(node)) else { return };
        let cpu = self.guests[guest].clock.last();
        self.release_cpus_of(guest, space);
        if let Err(worse) = self.stack.kill(&mut self.policies, node, space) {
            self.out_of_memory(guest, worse, None);
        }
        self.tell_hardware(guest, cpu);
        self.guests[guest].relocation.forget();
    }

    fn largest_process(&self, node: NodeId) -> Option<SpaceId> {
        let spaces = self.stack.kernel(node).spaces();
        spaces.max_by_key(|(_, space)| space.table().table_pages()).map(|(id, _)| id)
    }

    /// A hypervisor kills the VM that holds most of its memory.
    fn kill_largest_vm(&mut self, asking: GuestId, hypervisor: NodeId) {
        let vms = self.stack.nodes().filter(|vm| self.stack.below(*vm) == Some(hypervisor));
        let Some(victim) = vms.max_by_key(|vm| (self.resident_pages(*vm), vm.index())) else {
            return;
        };
        let layer = layer_name(self.stack.position(hypervisor));
        let is_in = |node| self.stack.path_down(node).any(|below| below == victim);
        let (killed, others): (Vec<GuestId>, Vec<GuestId>) =
            (0..self.guests.len()).partition(|guest| is_in(self.guests[*guest].node));
        for guest in &killed {
            self.guests[*guest].dead = Some(format!("{layer} killed the VM"));
        }
        // With nobody left to use it the memory need not go back.
        if others.iter().any(|guest| self.guests[*guest].is_alive()) {
            for guest in killed {
                self.end(guest);
            }
            self.act_for(asking);
        }
    }

    /// Base pages of its hypervisor's memory that a VM's process has.
    fn resident_pages(&self, vm: NodeId) -> u64 {
        let below = self.stack.below(vm).expect("the host is no VM");
        let process = self.stack.kernel(below).space(self.stack.vm_process(vm));
        let table = process.expect("it lives as long as the VM").table();
        let mapped = table.mapped(table.everything());
        mapped.map(|(_, mapping)| mapping.size.base_pages()).sum()
    }
}
