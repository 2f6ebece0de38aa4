//! Memory that begins as a real machine's was found to be, by what a snapshot of each of its kernels says.
//!
//! A snapshot counts by region of 2 MiB. Which frames of a region are in use, or backed, is taken to be the
//! first ones: what is known is how many.

use crate::owner::Owner;
use crate::policy::Policy;
use crate::stack::{KernelOutOfMemory, Stack};
use crate::tree::NodeId;
use std::sync::Arc;
use strata_addr::{Frame, PageSize, space::Lower};

/// What a kernel was found like when the program began, if somebody looked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// What its memory was used for, region by region of 2 MiB from its first frame on.
    pub regions: Arc<[FoundRegion]>,
    /// It does not compact, neither at faults nor in the background: Linux with `never` in
    /// `transparent_hugepage/defrag` and 0 in `khugepaged/defrag`.
    pub without_compaction: bool,
}

/// What 2 MiB of a kernel's memory were found to be used for, in base pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoundRegion {
    /// Neither free nor memory of a VM of its own, and not to be moved.
    pub pinned: u16,
    /// The same, but the kernel may move them: memory of programs.
    pub movable: u16,
    /// Backed by the hypervisor below; 512 where it has one huge page there.
    pub backed: u16,
}

impl Stack {
    /// Frames that somebody else held when the memory was looked at.
    pub(crate) fn occupy(&mut self, node: NodeId, found: &Found) {
        self.nodes[node].kernel.compacts = !found.without_compaction;
        let memory = &mut self.nodes[node].kernel.frames.memory;
        let all = memory.frames();
        for (first, region) in regions(&found.regions, all) {
            let (pinned, movable) = (u64::from(region.pinned), u64::from(region.movable));
            let owners = [(pinned, Owner::Pinned), (pinned + movable, Owner::Movable)];
            for i in 0..(pinned + movable).min(PageSize::Huge.base_pages()) {
                let (_, owner) = owners.iter().find(|(end, _)| i < *end).expect("within both");
                // The kernel's own tables are somewhere, too.
                if memory.alloc_at(first + i, 0) {
                    memory.set_owner(first + i, owner.to_bits());
                }
            }
        }
    }

    /// The kernels below back as much of a VM's memory as they were found to do.
    pub(crate) fn back_found(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        found: &[FoundRegion],
    ) -> Result<(), KernelOutOfMemory> {
        let all = self.kernel(node).memory().frames();
        for (first, region) in regions(found, all) {
            for i in 0..u64::from(region.backed).min(PageSize::Huge.base_pages()) {
                self.write_block(policy, node, first + i, 0)?;
            }
        }
        Ok(())
    }
}

/// The whole regions of a memory of so many frames, each with its first one.
fn regions(
    found: &[FoundRegion],
    frames: u64,
) -> impl Iterator<Item = (Frame<Lower>, &FoundRegion)> {
    let whole = 0..frames >> PageSize::Huge.order();
    whole.map(|region| Frame::new(region << PageSize::Huge.order())).zip(found)
}
