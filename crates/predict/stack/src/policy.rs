//! What a memory policy decides. A policy governs all kernels of a VM and what the host does for that
//! VM, since the systems in the papers work across layers.

use crate::fault::{PageFault, Placement};
use crate::kernel::Kernel;
use crate::owner::SpaceId;
use crate::settings::KernelSettings;
use crate::stack::{KernelOutOfMemory, Stack};
use crate::tree::{NodeId, Position};
use crate::vma::HugeAdvice;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
use strata_counters::counters;

/// What hardware showed since it was last told; measured over all vCPUs of the VMs it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Feedback {
    /// Last-level TLB misses.
    pub tlb_misses: u64,
    /// Accesses.
    pub accesses: u64,
    /// Cycles of walks that nothing hides.
    pub walk_cycles: f64,
    /// Cycles of accesses that only memory could serve, likewise.
    pub memory_cycles: f64,
    /// Cycles per second of one vCPU.
    pub frequency: f64,
}

counters! {
    /// How a policy that places memory by cache colour does with a guest.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PlacementCounts {
        /// Entries of guest hypervisors' second stages whose colour the host looked at.
        checks: u64, "strata.colour_checks";
        /// Frames of a wrong colour that the host replaced.
        replaced: u64, "strata.recoloured_pages";
        /// Frames of a wrong colour that stayed, or were given at first, because no frame of the right
        /// one was free.
        colour_was_out: u64, "strata.colour_was_out";
        /// Moves of the guest's memory by the host, its huge pages included, that were refused because
        /// a colour would have been another.
        moves_refused: u64, "strata.moves_refused";
        /// Pages of the guest's memory with a real frame behind them, at the end.
        backed: u64, "strata.coloured_pages";
        /// Of these, pages whose frame has not the colour that their virtual colour was assigned.
        violations: u64, "strata.colour_violations";
    }
}

counters! {
    /// What a policy that has both makes of a guest's memory, region by region of 2 MiB: rows of 512 frames
    /// under one huge entry, or pages in their cache colours.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TradeCounts {
        /// Regions of the guest's memory that are rows, at the end.
        rows: u64, "strata.rows_chosen";
        /// Regions that have a place as a row and are not whole yet, at the end.
        filling: u64, "strata.rows_filling";
        /// Other regions with backed pages, at the end: their pages are coloured one by one.
        coloured: u64, "strata.regions_coloured";
        /// Cycles that the rows chosen by a comparison were estimated to save, less those to make them:
        /// what the policy expected, not what happened.
        row_gain: u64, "strata.row_gain_estimate";
        /// The same of regions for which colours were chosen by a comparison.
        colour_gain: u64, "strata.colour_gain_estimate";
    }
}

/// A page that a kernel is about to put elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The kernel.
    pub node: NodeId,
    /// The space whose page it is.
    pub space: SpaceId,
    /// The page, anywhere in a region that becomes huge.
    pub page: Frame<Upper>,
    /// Where to; `None` is any place aligned to the size.
    pub to: Option<Frame<Lower>>,
    /// What is moved.
    pub size: PageSize,
}

/// A memory policy. The defaults are those of stock Linux.
///
/// Hooks that get the whole [`Stack`] may call its operations with `self` as the policy.
pub trait Policy: Send {
    /// How a kernel is set up; asked of every kernel, the host first, before anything else.
    fn settings(&mut self, at: Position) -> KernelSettings;

    /// What the hypervisor below a kernel tells its own kernel of that VM's memory, by `madvise`; asked
    /// before the VM starts. By default what [`MemoryParameters::advice`](crate::MemoryParameters) says.
    fn vm_memory(&mut self, _at: Position) -> HugeAdvice {
        HugeAdvice::Default
    }

    /// Where the page of a fault goes.
    fn place(&mut self, _node: NodeId, _kernel: &mut Kernel, _fault: &PageFault) -> Placement {
        Placement::Linux
    }

    /// Whether a fault of the host is to say which guest's page it backs ([`PageFault::backs`]); finding that
    /// out takes time.
    fn wants_backs(&self) -> bool {
        false
    }

    /// How many base pages the host maps at once in the second stage of its VM when a fault asks for one, of those that
    /// it has for the VM already.
    fn mapped_at_once(&self, _vm: NodeId) -> u64 {
        1
    }

    /// The page of a fault was mapped with this size.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`] when an operation ran out of memory in a way that ends the run.
    fn mapped(
        &mut self,
        _stack: &mut Stack,
        _node: NodeId,
        _fault: &PageFault,
        _size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        Ok(())
    }

    /// The hypervisor below `_vm`, which is not the host, wrote an entry for `_page` of the VM's memory
    /// into its second stage. The table is write-protected, so the host sees it.
    ///
    /// # Errors
    /// As [`Policy::mapped`].
    fn second_stage_written(
        &mut self,
        _stack: &mut Stack,
        _vm: NodeId,
        _page: Frame<Upper>,
        _size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        Ok(())
    }

    /// Whether a kernel may move a page: asked before a base page is migrated and before a region of base
    /// pages becomes huge. Compaction does not ask: it keeps the colour of what it moves.
    fn may_move(&mut self, _stack: &Stack, _asked: &Move) -> bool {
        true
    }

    /// Every cache colour of a guest's memory, in the order in which its balloon is to take pages of
    /// them; none where colours do not matter.
    fn balloon_colours(&mut self, _stack: &Stack, _guest: NodeId) -> Vec<Colour<Lower>> {
        Vec::new()
    }

    /// Whether a page of the memory of `_vm`, a VM of the host, may share a frame with pages equal to it.
    fn may_merge(
        &mut self,
        _stack: &Stack,
        _vm: NodeId,
        _page: Frame<Upper>,
        _frame: Frame<Lower>,
    ) -> bool {
        true
    }

    /// A huge page's HPAS region was freed; it was memory of `_vm`, or of a program.
    fn freed_huge(
        &mut self,
        _stack: &mut Stack,
        _node: NodeId,
        _vm: Option<NodeId>,
        _region: Frame<Lower>,
    ) {
    }

    /// A VM has ended, and with it the VMs on it: what is known of these kernels can be forgotten.
    fn ended(&mut self, _stack: &mut Stack, _kernels: &[NodeId]) {}

    /// A kernel found no free frame. Returns whether something was released, so that trying again
    /// makes sense.
    fn memory_short(&mut self, _node: NodeId, kernel: &mut Kernel) -> bool {
        kernel.memory_mut().release_all_regions() > 0
    }

    /// Background work for `_vm`, a VM of the host or the host itself, at `now`, in seconds of simulated
    /// time; `_feedback` is what hardware showed of its programs.
    ///
    /// # Errors
    /// As [`Policy::mapped`].
    fn wake(
        &mut self,
        _stack: &mut Stack,
        _vm: NodeId,
        _now: f64,
        _feedback: Feedback,
    ) -> Result<(), KernelOutOfMemory> {
        Ok(())
    }

    /// How a guest's memory lies over the cache's colours; `None` for a policy without regard to them.
    fn placement(&self, _stack: &Stack, _guest: NodeId) -> Option<PlacementCounts> {
        None
    }

    /// What the policy chose between rows and colours for a guest's memory; `None` where it does not choose.
    fn trade(&self, _stack: &Stack, _guest: NodeId) -> Option<TradeCounts> {
        None
    }

    /// A VM is told of a last-level cache unlike the host's; asked before anything runs. Why the policy cannot
    /// work with that, if so.
    fn told_of_cache(&mut self, _vm: NodeId, _cache: VirtualCache) -> Option<String> {
        None
    }

    /// Why the policy cannot work where the last-level cache has these colours, if so; asked of policies
    /// that tell colours apart, before anything runs.
    fn refuses(&self, _colours: Colours) -> Option<String> {
        None
    }

    /// When [`Policy::wake`] wants to be called next for `_vm`, in seconds; infinity for never.
    fn next_wake(&self, _vm: NodeId) -> f64 {
        f64::INFINITY
    }
}
