//! Memory that begins as a real machine's was found to be, by what a snapshot of each of its kernels says.
//!
//! A snapshot counts by region of 2 MiB. Which frames of a region are in use, or backed, is taken to be the
//! first ones: what is known is how many. A VM's memory is where it was found, by region, and what is free besides is
//! left to the program.

use crate::owner::Owner;
use crate::policy::Policy;
use crate::stack::{KernelOutOfMemory, Stack};
use crate::tree::NodeId;
use std::iter;
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
    /// Memory of a VM of its own.
    pub of_vm: u16,
    /// Backed by the hypervisor below.
    pub backed: u16,
    /// It is backed by one huge page.
    pub huge: bool,
}

impl FoundRegion {
    /// Base pages that are in use besides as memory of a VM.
    fn in_use(&self) -> u64 {
        (u64::from(self.pinned) + u64::from(self.movable)).min(PageSize::Huge.base_pages())
    }
}

/// Free frames that a kernel keeps while memory of its VM is put where it was found: enough for the page tables on the
/// way to a page, of every kernel below.
const FOR_TABLES: u64 = 64;

impl Stack {
    /// Frames that somebody else held when the memory was looked at.
    pub(crate) fn occupy(&mut self, node: NodeId, found: &Found) {
        self.nodes[node].kernel.compacts = !found.without_compaction;
        let memory = &mut self.nodes[node].kernel.frames.memory;
        let all = memory.frames();
        for (first, region) in regions(&*found.regions, all) {
            let pinned = u64::from(region.pinned);
            for i in 0..region.in_use() {
                let owner = if i < pinned { Owner::Pinned } else { Owner::Movable };
                // The kernel's own tables are somewhere, too.
                if memory.alloc_at(first + i, 0) {
                    memory.set_owner(first + i, owner.to_bits());
                }
            }
        }
    }

    /// The kernels below back as much of a VM's memory as they were found to do; the one right below has its memory
    /// where `below` says.
    pub(crate) fn back_found(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        found: &[FoundRegion],
        below: &[FoundRegion],
    ) -> Result<(), KernelOutOfMemory> {
        let all = self.kernel(node).memory().frames();
        let hypervisor = self.below(node).expect("the host is in no VM");
        let mut held = self.hold_free(hypervisor, below);
        let (huge, others): (Vec<_>, Vec<_>) =
            regions(found, all).partition(|(_, region)| region.huge);
        self.back_regions(policy, node, &huge, &mut held)?;
        // What is left of whole regions is for base pages.
        let memory = &mut self.nodes[hypervisor].kernel.frames.memory;
        for (first, region) in regions(below, memory.frames()) {
            let whole = region.of_vm > 0 && memory.is_free(first, PageSize::Huge.order());
            held.extend((whole && memory.alloc_at(first, 0)).then_some(first));
        }
        self.back_regions(policy, node, &others, &mut held)?;
        let memory = &mut self.nodes[hypervisor].kernel.frames.memory;
        held.into_iter().for_each(|frame| memory.free(frame, 0));
        Ok(())
    }

    /// The kernels below back so much of these regions of a VM's memory, each given by its first page; the one right
    /// below has `held` back what is free of its memory.
    fn back_regions(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        regions: &[(Frame<Lower>, &FoundRegion)],
        held: &mut Vec<Frame<Lower>>,
    ) -> Result<(), KernelOutOfMemory> {
        let hypervisor = self.below(node).expect("the host is in no VM");
        for (first, region) in regions {
            for i in 0..u64::from(region.backed).min(PageSize::Huge.base_pages()) {
                let memory = &mut self.nodes[hypervisor].kernel.frames.memory;
                // Page tables on the way to a page took some of the VM's memory.
                if memory.free_frames() < FOR_TABLES {
                    let rest = held.len().saturating_sub(FOR_TABLES as usize);
                    held.drain(rest..).for_each(|frame| memory.free(frame, 0));
                }
                self.write_block(policy, node, *first + i, 0)?;
            }
        }
        Ok(())
    }

    /// Takes all that is free of a kernel's memory but for what was found to be memory of its VM; nothing if none was.
    /// What is in regions that are all free comes first.
    fn hold_free(&mut self, node: NodeId, found: &[FoundRegion]) -> Vec<Frame<Lower>> {
        if found.iter().all(|region| region.of_vm == 0) {
            return Vec::new();
        }
        let memory = &mut self.nodes[node].kernel.frames.memory;
        // Of what lies behind nothing was found to be in use.
        let unused = FoundRegion::default();
        let all = memory.frames();
        let (whole, parts): (Vec<_>, Vec<_>) =
            regions(found.iter().chain(iter::repeat(&unused)), all)
                .map(|(first, region)| (first, region.in_use() + u64::from(region.of_vm)))
                .partition(|(_, used)| *used == 0);
        let mut held = Vec::new();
        for (first, used) in whole.into_iter().chain(parts) {
            let free = (used..PageSize::Huge.base_pages()).map(|i| first + i);
            held.extend(free.filter(|frame| memory.alloc_at(*frame, 0)));
        }
        held
    }
}

/// The whole regions of a memory of so many frames, each with its first one.
fn regions<'a>(
    found: impl IntoIterator<Item = &'a FoundRegion>,
    frames: u64,
) -> impl Iterator<Item = (Frame<Lower>, &'a FoundRegion)> {
    let whole = 0..frames >> PageSize::Huge.order();
    whole.map(|region| Frame::new(region << PageSize::Huge.order())).zip(found)
}
