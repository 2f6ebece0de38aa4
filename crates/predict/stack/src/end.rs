//! The end of a VM: everything it had goes back.

use crate::costs::Spending;
use crate::owner::SpaceId;
use crate::policy::Policy;
use crate::stack::{Flush, KernelOutOfMemory, Stack};
use crate::tree::NodeId;
use strata_paging::FrameSource;

impl Stack {
    /// Ends a VM and the VMs on it: its hypervisor frees the memory of the VM process and of the
    /// second stage, the host the shadow tables.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    ///
    /// # Panics
    /// For the host, which is no VM.
    pub fn end_vm(&mut self, policy: &mut dyn Policy, vm: NodeId) -> Result<(), KernelOutOfMemory> {
        let ending: Vec<NodeId> =
            self.nodes().filter(|node| self.path_down(*node).any(|below| below == vm)).collect();
        for node in &ending {
            if let Some((shadow, frames)) = self.nodes.shadow_and_frames(*node) {
                shadow.clear(frames);
                frames.free_table_frame(shadow.root_frame());
            }
            for number in 0..self.nodes[*node].shadows.len() {
                self.end_shadow(*node, SpaceId(number as u16));
            }
            if self.position(*node).is_guest() {
                self.flushes.push(Flush::SecondStage(*node));
            }
        }
        let (edge, kernel) = self.nodes.vm_and_below(vm);
        let (below, process) = (edge.below, edge.process);
        edge.second.clear(&mut kernel.frames);
        kernel.frames.free_table_frame(edge.second.root_frame());
        let freed = kernel.destroy_space(process);
        self.nodes[below].above[process.0 as usize] = None;
        for node in &ending {
            self.nodes[*node].ended = true;
        }
        // What the VM process had mapped has nobody above any more.
        self.nodes[below].kernel.frames.log.changes.retain(|change| change.space != process);
        self.ksm.forget(&ending);
        policy.ended(self, &ending);
        let settled = self.settle(policy, below, Spending::HypervisorFault);
        freed.map_err(|_| KernelOutOfMemory { node: below }).and(settled)
    }
}
