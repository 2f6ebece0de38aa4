//! Making a tree of kernels: memories, fragmentation, the VMs, what ran before.

use crate::balloon_pages::BalloonParameters;
use crate::costs::Costs;
use crate::found::Found;
use crate::kernel::{Kernel, OutOfMemory};
use crate::ksm_memory::KsmParameters;
use crate::owner::Owner;
use crate::place::AlignerParameters;
use crate::policy::Policy;
use crate::ppm::{PagePlacement, Placer, Purpose};
use crate::settings::{AlignAreas, KernelSettings};
use crate::shadowed::Paging;
use crate::stack::{KernelOutOfMemory, Stack};
use crate::thp::ThpParameters;
use crate::tree::{Interrupts, NodeId, Nodes, Position, SecondStageTable, Vm};
use crate::vm_advice::VmAdvice;
use crate::vma::{HugeAdvice, Vma};
use std::collections::BTreeSet;
use strata_addr::{Frame, PageSize, Range, space::Lower};
use strata_colours::{Colours, VirtualCache};
use strata_frames::{
    ColouredParameters, ColouringError, Fragmenter, FragmenterError, Holders, Memory, shuffled,
};
use strata_nested::{ExitCosts, Nesting, Virtualization};
use strata_stream::{Backing, Event, Pid, Protection};

strata_params::parameters! {
    /// How memory looks before the workload starts.
    pub struct MemoryParameters {
        /// Share of the frames of a fragmented HPAS region that somebody else holds. `?`
        occupied: f64 = 0.25, "fragmentation.occupied", "share";
        /// Share of those that the kernel can move. `?`
        movable: f64 = 0.5, "fragmentation.movable", "share";
        /// Whether the program that fragments a layer had filled that layer's memory, so that the
        /// layers below back all of it when the workload starts. Gemini 6.1 and xGemini V fragment
        /// guests so. Takes time and memory in proportion to the guest's memory.
        backed: bool = false, "fragmentation.backed", "";
        /// With `fragmentation.backed`: share of the memory a hypervisor has beyond its guest's
        /// that the fragmenting program may keep, since all of the guest's memory must fit too. `?`
        spare: f64 = 0.5, "fragmentation.spare", "share";
        /// Offset of the guest's memory in the VM process against 2 MiB, in base pages. 0 as QEMU
        /// aligns it; anything else keeps a hypervisor's huge pages from lining up with its guest's.
        slot_offset: u64 = 0, "slot.offset", "base pages";
        /// What the program of a hypervisor tells its kernel of a VM's memory: `hugepage`, as QEMU does,
        /// so that faults for which there is no free huge page compact, or `none`.
        advice: VmAdvice = VmAdvice::HugePage, "vm.advice", "";
        /// Share of the guest's memory that the workload before touched, with a reused VM. Gemini
        /// 6.1: 30 GB of 32 GB.
        reused_share: f64 = 0.9, "reused.share", "share";
        /// Of what that workload used, the share that stays in use when it has ended, 0.5 at most, with a
        /// reused VM: pages of files that it read, from among its own memory. As many more were dropped
        /// again, at random. 0: nothing is left of it but what backs the VM.
        reused_left: f64 = 0.0, "reused.left", "share";
    }
}

/// One kernel of a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelConfig {
    /// The kernel whose VM it runs in, by its place in [`StackConfig::kernels`]; `None` for the host.
    pub below: Option<usize>,
    /// Its memory in bytes.
    pub memory: u64,
    /// FMFI of its free memory before anything runs.
    pub fragmentation: f64,
    /// Seed of what is random about its memory.
    pub seed: u64,
    /// How it places base pages.
    pub placement: PagePlacement,
    /// The last-level cache that it is told of, as a VM; `None` for one like the host's.
    pub cache: Option<VirtualCache>,
    /// What it was found like.
    pub found: Found,
}

/// What a tree of kernels is made of.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// The kernels, the host first, a VM's after the one it runs on. Those without VMs are guests:
    /// they run programs.
    pub kernels: Vec<KernelConfig>,
    /// Levels of every page table: 4 or 5.
    pub levels: u8,
    /// The guests ran something big before.
    pub reused: bool,
    /// How hypervisors have memory for VMs that run programs.
    pub paging: Paging,
    /// Cycles of software work.
    pub costs: Costs,
    /// Cycles of VM exits.
    pub exits: ExitCosts,
    /// What the CPU has for hypervisors in VMs.
    pub virtualization: Virtualization,
    /// khugepaged.
    pub thp: ThpParameters,
    /// Fragmentation in detail.
    pub start: MemoryParameters,
    /// Huge Aligner.
    pub aligner: AlignerParameters,
    /// The colours of the last-level cache; VMs without one of their own are told of one like it. `None` where nobody places
    /// pages by colour.
    pub colours: Option<Colours>,
    /// How frames of a colour are found.
    pub coloured: ColouredParameters,
    /// Balloons of the guests.
    pub balloon: BalloonParameters,
    /// Merging of equal pages by the host.
    pub ksm: KsmParameters,
}

impl StackConfig {
    /// The kernels of one machine in which each runs on the one before: `kernels` has memory in
    /// bytes and FMFI of each, the host's first.
    ///
    /// ```
    /// use strata_stack::{KernelConfig, StackConfig};
    /// // A nested VM on a fragmented host, and one more VM beside it: from a chain to a tree.
    /// let mut kernels = StackConfig::chain(&[(8 << 30, 0.9), (4 << 30, 0.0), (2 << 30, 0.0)], 1);
    /// assert_eq!(kernels.iter().map(|kernel| kernel.below).collect::<Vec<_>>(), [None, Some(0), Some(1)]);
    /// kernels.push(KernelConfig { below: Some(0), seed: 9, ..kernels[2].clone() });
    /// ```
    pub fn chain(kernels: &[(u64, f64)], seed: u64) -> Vec<KernelConfig> {
        let kernel = |(index, &(memory, fragmentation)): (usize, &(u64, f64))| KernelConfig {
            below: index.checked_sub(1),
            memory,
            fragmentation,
            // Counted from the guest, whose memory then looks the same whatever is below.
            seed: seed.wrapping_add((kernels.len() - 1 - index) as u64),
            placement: PagePlacement::Linux,
            cache: None,
            found: Found::default(),
        };
        kernels.iter().enumerate().map(kernel).collect()
    }

    /// Bytes of memory of the VMs of kernel number `index`.
    fn memory_of_vms(&self, index: usize) -> u64 {
        self.kernels.iter().filter(|k| k.below == Some(index)).map(|k| k.memory).sum()
    }

    /// Bytes that kernel number `index` must have for its VMs: each of them must fit. Memory for all is
    /// needed only where all is used from the beginning, since what they touch is what they get.
    fn memory_that_must_fit(&self, index: usize) -> u64 {
        if self.start.backed || self.reused {
            return self.memory_of_vms(index);
        }
        let vms = self.kernels.iter().filter(|k| k.below == Some(index));
        vms.map(|k| k.memory).max().unwrap_or(0)
    }

    /// Where each kernel will be, in their order.
    ///
    /// # Errors
    /// [`BuildError::NoTree`].
    pub fn positions(&self) -> Result<Vec<Position>, BuildError> {
        let mut positions: Vec<Position> = Vec::with_capacity(self.kernels.len());
        for (index, kernel) in self.kernels.iter().enumerate() {
            let below = match kernel.below {
                None if index == 0 => None,
                Some(below) if below < index => Some(positions[below]),
                _ => return Err(BuildError::NoTree),
            };
            let vms = self.kernels.iter().filter(|above| above.below == Some(index)).count();
            let vms = u16::try_from(vms).map_err(|_| BuildError::NoTree)?;
            positions.push(Position::above(below, NodeId::new(index), vms));
        }
        if positions.is_empty() { Err(BuildError::NoTree) } else { Ok(positions) }
    }
}

/// A tree could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Not a tree.
    #[error("the first kernel is the host, and every other one runs on one that comes before it")]
    NoTree,
    /// A VM is as large as the kernel below it, or all VMs are that must fit together.
    #[error(
        "L{level} has {have} MiB, too little for {need} MiB of VMs and their page tables: give it more \
         memory, or them less"
    )]
    TooSmall {
        /// Level of the hypervisor.
        level: u8,
        /// Its memory in MiB.
        have: u64,
        /// Its VMs' memory in MiB, of those that must fit together.
        need: u64,
    },
    /// A fragmentation that cannot be.
    #[error("L{level}: {source}")]
    Fragmentation {
        /// Level of the kernel.
        level: u8,
        /// Why.
        source: FragmenterError,
    },
    /// Pages are to be placed by the colours of a cache that has none.
    #[error("L{level} places pages by cache colour, and the last-level cache has no colours")]
    NoColours {
        /// Level of the kernel.
        level: u8,
    },
    /// A kernel cannot tell the colours apart.
    #[error("L{level}: {source}")]
    Colouring {
        /// Level of the kernel.
        level: u8,
        /// Why.
        source: ColouringError,
    },
    /// A shadow of a shadow where there is none.
    #[error(
        "a guest at L{level} has no shadow of a shadow: that is for nested VMs, which have three layers"
    )]
    NoShadowOnShadow {
        /// Level of the guest.
        level: u8,
    },
    /// Memory ran out before the workload started.
    #[error("{0} before the workload started: give it more memory or less fragmentation")]
    KernelOutOfMemory(#[from] KernelOutOfMemory),
    /// It was to stop.
    #[error("stopped before the workload started")]
    Stopped,
}

/// Where a VM process has the VM's memory, in base pages: 0x7f00_0000_0000, as Linux would.
const SLOT: u64 = 0x7f00_0000_0000 >> 12;

impl Stack {
    /// Makes a tree of kernels for a policy: fragments memories, starts the VM processes, and lets
    /// the workload before run if the guests are reused. What takes long asks `stopped` now and then
    /// whether to give up.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build(
        config: &StackConfig,
        policy: &mut dyn Policy,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Self, BuildError> {
        let positions = config.positions()?;
        if config.paging == Paging::ShadowOnShadow
            && let Some(guest) =
                positions.iter().find(|at| at.is_guest() && ![0, 2].contains(&at.level))
        {
            return Err(BuildError::NoShadowOnShadow { level: guest.level });
        }
        let settings: Vec<_> = positions.iter().map(|at| policy.settings(*at)).collect();
        let mut nodes = Nodes::default();
        for (at, settings) in positions.iter().zip(&settings) {
            go_on(stopped)?;
            let advice = match policy.vm_memory(*at) {
                HugeAdvice::Default => config.start.advice.into(),
                own => own,
            };
            add_kernel(&mut nodes, config, at, settings, advice)?;
        }
        let levels = positions.iter().map(|at| at.level).max().unwrap_or(0);
        let nesting = Nesting::new(config.virtualization, config.exits.clone(), levels);
        let mut stack = Self::of(nodes, config.costs.clone(), nesting, config.thp.clone());
        stack.paging = config.paging;
        stack.balloons = config.balloon.clone();
        stack.ksm.settings = config.ksm.clone();
        stack.ksm.seed = config.kernels[0].seed;
        // The hypervisors' own page tables are backed from the host up.
        for node in positions.iter().map(|at| at.node) {
            stack.settle(policy, node, crate::costs::Spending::HypervisorFault)?;
        }
        for (kernel, at) in config.kernels.iter().zip(&positions) {
            go_on(stopped)?;
            stack.occupy(at.node, &kernel.found);
        }
        for (kernel, at) in config.kernels.iter().zip(&positions).skip(1) {
            go_on(stopped)?;
            let below = &config.kernels[kernel.below.expect("it is in a VM")].found.regions;
            stack.back_found(policy, at.node, &kernel.found.regions, below)?;
        }
        if config.start.backed {
            let in_vms = config.kernels.iter().zip(&positions).zip(&settings).skip(1);
            for ((kernel, at), settings) in in_vms {
                if settings.fragmented && kernel.fragmentation > 0.0 {
                    stack.back_all_of(policy, at.node, kernel.seed, stopped)?;
                }
            }
        }
        if config.reused {
            for at in positions.iter().filter(|at| at.is_guest()) {
                stack.run_before(policy, at.node, config, stopped)?;
            }
        }
        stack.reset_all_counters();
        for node in stack.nodes.iter_mut() {
            node.kernel.frames.memory.watch_free_regions();
        }
        stack.take_spent();
        stack.flushes.clear();
        Ok(stack)
    }

    /// The program that fragmented a kernel's memory had touched all of it: the kernels below back
    /// it, as they do under the policy. It got its memory in no order that anybody knows, so the
    /// order of the HPAS regions is drawn at random.
    fn back_all_of(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        seed: u64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), BuildError> {
        let regions = self.kernel(node).memory().frames() >> PageSize::Huge.order();
        for region in shuffled(regions, seed) {
            go_on(stopped)?;
            let first = Frame::new(region << PageSize::Huge.order());
            self.write_block(policy, node, first, PageSize::Huge.order())?;
        }
        Ok(())
    }

    /// The workload before: touches its share of the guest's memory, page by page, and ends. Pages of files
    /// are read in between; some of them stay.
    fn run_before(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        config: &StackConfig,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), BuildError> {
        let (before, files) = (Pid(u32::MAX), Pid(u32::MAX - 1));
        let free = self.kernel(guest).memory().free_frames();
        // Its page tables need room too: one frame in 512, and some for upper levels.
        let pages = (free as f64 * config.start.reused_share.min(1.0) * 0.99) as u64;
        let left = (pages as f64 * config.start.reused_left.min(0.5)) as u64;
        let (of_files, own) = (2 * left, pages - 2 * left);
        let range = |pages: u64| {
            Range::sized(strata_addr::Gva::new(1 << 40), pages << PageSize::BASE_SHIFT)
        };
        let mut start = |pid, pages, backing| {
            self.event(policy, guest, &Event::ProcessStart { pid })?;
            let (range, protection) = (range(pages), Protection::READ_WRITE);
            let map = Event::Map { pid, range, backing, protection, fixed: true };
            self.event(policy, guest, &map)?;
            Ok::<_, BuildError>(self.process_space(guest, pid).expect("just started"))
        };
        let space = start(before, own, Backing::Anonymous)?;
        let space_of_files = match of_files {
            0 => None,
            _ => Some(start(files, of_files, Backing::File)?),
        };
        let first: Frame<_> = range(own).start.page().cross();
        let mut read = 0;
        for page in 0..own.max(1) {
            go_on(stopped)?;
            if page < own {
                self.guest_fault(policy, guest, space, first + page, true)?;
            }
            while let Some(files) = space_of_files
                && read * own.max(1) < of_files * (page + 1)
            {
                // It comes into the page cache now, as a store to it would have it come: by itself, and written.
                self.guest_fault(policy, guest, files, first + read, true)?;
                read += 1;
            }
        }
        if of_files > 0 {
            let seed = config.kernels[guest.index()].seed;
            for page in shuffled(of_files, seed).into_iter().take((of_files - left) as usize) {
                go_on(stopped)?;
                let page: Frame<_> = range(of_files).start.page() + page;
                let range = Range::sized(page.addr(), PageSize::Base.bytes());
                self.event(policy, guest, &Event::Unmap { pid: files, range })?;
            }
        }
        Ok(self.event(policy, guest, &Event::ProcessExit { pid: before })?)
    }
}

fn go_on(stopped: &dyn Fn() -> bool) -> Result<(), BuildError> {
    if stopped() { Err(BuildError::Stopped) } else { Ok(()) }
}

fn table_root(kernel: &mut Kernel) -> Result<Frame<Lower>, OutOfMemory> {
    let root = kernel.frames.base_page(Purpose::Kernel).ok_or(OutOfMemory)?;
    kernel.set_owner(root, Owner::Table);
    kernel.zeroed(root, 0);
    Ok(root)
}

/// Share of the frames of a fragmented region that the fragmenting program keeps.
fn occupied(config: &StackConfig, at: &Position) -> f64 {
    let MemoryParameters { occupied, backed, spare, .. } = config.start;
    if !backed || at.is_guest() {
        return occupied;
    }
    let own = config.kernels[at.node.index()].memory as f64;
    let vms = config.memory_of_vms(at.node.index()) as f64;
    // None at all would be no fragmentation.
    occupied.min((own - vms) / own * spare.min(1.0)).max(1e-3)
}

fn fragmented_memory(
    config: &StackConfig,
    at: &Position,
    settings: &KernelSettings,
) -> Result<Memory, BuildError> {
    let kernel = &config.kernels[at.node.index()];
    let mut memory = Memory::new(kernel.memory >> PageSize::BASE_SHIFT);
    if settings.fragmented && kernel.fragmentation > 0.0 {
        let fragmenter = Fragmenter {
            target_fmfi: kernel.fragmentation,
            occupied: occupied(config, at),
            movable: config.start.movable,
            seed: kernel.seed,
        };
        fragmenter
            .apply(
                &mut memory,
                Holders { movable: Owner::Movable.to_bits(), unmovable: Owner::Pinned.to_bits() },
            )
            .map_err(|source| BuildError::Fragmentation { level: at.level, source })?;
    }
    Ok(memory)
}

fn add_kernel(
    nodes: &mut Nodes,
    config: &StackConfig,
    at: &Position,
    settings: &KernelSettings,
    advice: HugeAdvice,
) -> Result<(), BuildError> {
    let KernelConfig { below, memory, .. } = config.kernels[at.node.index()];
    let vms = config.memory_that_must_fit(at.node.index());
    if vms >= memory {
        let (have, need) = (memory >> 20, vms >> 20);
        return Err(BuildError::TooSmall { level: at.level, have, need });
    }
    let mut kernel =
        Kernel::new(fragmented_memory(config, at, settings)?, config.levels, settings.thp);
    let KernelConfig { placement, seed, cache, .. } = config.kernels[at.node.index()];
    if settings.coloured || placement != PagePlacement::Linux {
        let level = at.level;
        let colours = config.colours.ok_or(BuildError::NoColours { level })?;
        let colours = cache.map_or(colours, |cache| cache.colours);
        let places = placement != PagePlacement::Linux;
        let placer = places.then(|| Placer::new(placement, colours, seed));
        if colours.are_of_huge_pages() {
            kernel.frames.huge_placer = placer;
        } else {
            let told = kernel.frames.memory.tell_colours(colours, config.coloured.clone());
            told.map_err(|source| BuildError::Colouring { level, source })?;
            kernel.frames.placer = placer;
        }
    }
    let vm = match below {
        Some(below) => Some(start_vm(nodes, NodeId::new(below), at, config, settings, advice)?),
        None => None,
    };
    let node = nodes.add(kernel, vm, at.vms);
    nodes[node].khugepaged_next = config.thp.scan_sleep;
    nodes[node].kernel.whole = at.is_guest() && settings.align_areas == AlignAreas::Needless;
    nodes[node].guest.align_areas = settings.align_areas;
    nodes[node].guest.cache = cache;
    nodes[node].guest.aligner = config.aligner.clone();
    Ok(())
}

/// Starts the VM process for a kernel, with this advice for its memory, and the tables that belong to
/// it.
fn start_vm(
    nodes: &mut Nodes,
    below: NodeId,
    at: &Position,
    config: &StackConfig,
    settings: &KernelSettings,
    advice: HugeAdvice,
) -> Result<Vm, KernelOutOfMemory> {
    let memory = config.kernels[at.node.index()].memory;
    let kernel = &mut nodes[below].kernel;
    let exhausted = |_| KernelOutOfMemory { node: below };
    let process = kernel.free_space_id().map_err(exhausted)?;
    kernel.create_space(process).map_err(exhausted)?;
    let aligned = settings.align_areas == AlignAreas::Needless;
    let slot = SLOT + if aligned { 0 } else { config.start.slot_offset };
    let start = Frame::new(slot).addr();
    kernel.alive_mut(process).vmas.insert(Vma {
        range: Range::sized(start, memory),
        backing: Backing::Anonymous,
        protection: Protection::READ_WRITE,
        huge: advice,
        mapping: 0,
    });
    let root = table_root(kernel).map_err(exhausted)?;
    let second = SecondStageTable::new(config.levels, root);
    let shadow = if at.is_guest() && below != NodeId::HOST && config.paging == Paging::Nested {
        let host = &mut nodes[NodeId::HOST].kernel;
        let root = table_root(host).map_err(|_| KernelOutOfMemory { node: NodeId::HOST })?;
        Some(SecondStageTable::new(config.levels, root))
    } else {
        None
    };
    Ok(Vm {
        below,
        process,
        slot,
        second,
        shadow,
        unsync: BTreeSet::new(),
        kept_unsync: None,
        interrupts: Interrupts::default(),
    })
}
