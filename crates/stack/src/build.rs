//! Making a stack: memories, fragmentation, the VM processes, what ran before.

use crate::costs::Costs;
use crate::kernel::{Kernel, OutOfMemory};
use crate::owner::Owner;
use crate::place::AlignerParameters;
use crate::policy::{Layer, LayerSettings, Policy};
use crate::stack::{Exhausted, SecondStage, SecondStageTable, Stack, StackLayer, VM};
use crate::thp::ThpParameters;
use crate::vma::{HugeAdvice, Vma};
use strata_addr::{Frame, PageSize, Range, space::Lower};
use strata_frames::{Fragmenter, FragmenterError, Holders, Memory, shuffled};
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
        /// Share of the guest's memory that the workload before touched, with a reused VM. Gemini
        /// 6.1: 30 GB of 32 GB.
        reused_share: f64 = 0.9, "reused.share", "share";
    }
}

/// What a stack is made of.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Memory of each layer in bytes, the guest's first.
    pub memory: Vec<u64>,
    /// FMFI of each layer's free memory before anything runs.
    pub fragmentation: Vec<f64>,
    /// Levels of every page table: 4 or 5.
    pub levels: u8,
    /// The VM ran something big before.
    pub reused: bool,
    /// Seed of what is random.
    pub seed: u64,
    /// Cycles of software work.
    pub costs: Costs,
    /// khugepaged.
    pub thp: ThpParameters,
    /// Fragmentation in detail.
    pub start: MemoryParameters,
    /// Huge Aligner.
    pub aligner: AlignerParameters,
}

/// A stack could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No layers, or not one fragmentation per layer.
    #[error("a stack needs at least one layer, and one FMFI per layer")]
    Layers,
    /// The guest of a layer is as large as the layer itself.
    #[error(
        "layer {layer} has {have} MiB, too little for its guest of {need} MiB and its page tables: \
         raise the memory of the lower layers or lower --memory"
    )]
    TooSmall {
        /// The hypervisor layer.
        layer: Layer,
        /// Its memory in MiB.
        have: u64,
        /// Its guest's memory in MiB.
        need: u64,
    },
    /// A fragmentation that cannot be.
    #[error("layer {layer}: {source}")]
    Fragmentation {
        /// The layer.
        layer: Layer,
        /// Why.
        source: FragmenterError,
    },
    /// Memory ran out before the workload started.
    #[error("{0} before the workload started: give it more memory or less fragmentation")]
    Exhausted(#[from] Exhausted),
    /// It was to stop.
    #[error("stopped before the workload started")]
    Stopped,
}

/// Where the VM process has its guest's memory, in base pages: 0x7f00_0000_0000, as Linux would.
const SLOT: u64 = 0x7f00_0000_0000 >> 12;

impl Stack {
    /// Makes a stack for a policy: fragments memories, starts the VM processes, and lets the
    /// workload before run if the VM is reused. What takes long asks `stopped` now and then whether
    /// to give up.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build(
        config: &StackConfig,
        policy: &mut dyn Policy,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Self, BuildError> {
        let depth = config.memory.len();
        if depth == 0 || config.fragmentation.len() != depth {
            return Err(BuildError::Layers);
        }
        let settings: Vec<_> = (0..depth).map(|layer| policy.settings(layer, depth)).collect();
        let mut layers = Vec::with_capacity(depth);
        for (layer, settings) in settings.iter().enumerate() {
            go_on(stopped)?;
            layers.push(build_layer(config, layer, *settings)?);
        }
        let shadow = if depth > 2 {
            let host = &mut layers[depth - 1].kernel;
            let root = table_root(host).map_err(|_| Exhausted { layer: depth - 1 })?;
            Some(SecondStageTable::new(config.levels, root))
        } else {
            None
        };
        let mut stack = Self::assemble(layers, shadow, config.costs.clone(), config.thp.clone());
        stack.guest.align_areas = settings[0].align_areas;
        stack.guest.aligner = config.aligner.clone();
        for layer in (0..depth).rev() {
            stack.settle(policy, layer, crate::costs::Spending::HypervisorFault)?;
        }
        if config.start.backed {
            for layer in (0..depth - 1).rev() {
                if settings[layer].fragmented && config.fragmentation[layer] > 0.0 {
                    let seed = config.seed.wrapping_add(layer as u64);
                    stack.back_all_of(policy, layer, seed, stopped)?;
                }
            }
        }
        if config.reused {
            stack.run_before(policy, config, stopped)?;
        }
        stack.reset_counters();
        for layer in &mut stack.layers {
            layer.kernel.memory.watch_free_regions();
        }
        stack.take_spent();
        stack.flushes.clear();
        Ok(stack)
    }

    /// The program that fragmented `layer` had touched all of its memory: the layers below back it,
    /// as they do under the policy. It got its memory in no order that anybody knows, so the order
    /// of the HPAS regions is drawn at random.
    fn back_all_of(
        &mut self,
        policy: &mut dyn Policy,
        layer: Layer,
        seed: u64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), BuildError> {
        let regions = self.layers[layer].kernel.frames.memory.frames() >> PageSize::Huge.order();
        for region in shuffled(regions, seed) {
            go_on(stopped)?;
            let first = Frame::new(region << PageSize::Huge.order());
            self.write_block(policy, layer, first, PageSize::Huge.order())?;
        }
        Ok(())
    }

    /// The workload before: touches its share of the guest's memory, page by page, and ends.
    fn run_before(
        &mut self,
        policy: &mut dyn Policy,
        config: &StackConfig,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), BuildError> {
        let before = Pid(u32::MAX);
        let free = self.layers[0].kernel.frames.memory.free_frames();
        // Its page tables need room too: one frame in 512, and some for upper levels.
        let pages = (free as f64 * config.start.reused_share.min(1.0) * 0.99) as u64;
        let range = Range::sized(strata_addr::Gva::new(1 << 40), pages << PageSize::BASE_SHIFT);
        self.event(policy, &Event::ProcessStart { pid: before })?;
        self.event(
            policy,
            &Event::Map {
                pid: before,
                range,
                backing: Backing::Anonymous,
                protection: Protection::READ_WRITE,
                fixed: true,
            },
        )?;
        let space = self.process_space(before).expect("just started");
        for page in 0..pages {
            go_on(stopped)?;
            let page: Frame<_> = range.start.page().cross() + page;
            self.guest_fault(policy, space, page, true)?;
        }
        Ok(self.event(policy, &Event::ProcessExit { pid: before })?)
    }
}

fn go_on(stopped: &dyn Fn() -> bool) -> Result<(), BuildError> {
    if stopped() { Err(BuildError::Stopped) } else { Ok(()) }
}

fn table_root(kernel: &mut Kernel) -> Result<Frame<Lower>, OutOfMemory> {
    let root = kernel.take(0, None).ok_or(OutOfMemory)?;
    kernel.set_owner(root, Owner::Table);
    kernel.zeroed(root, 0);
    Ok(root)
}

/// Share of the frames of a fragmented region that the fragmenting program keeps.
fn occupied(config: &StackConfig, layer: Layer) -> f64 {
    let MemoryParameters { occupied, backed, spare, .. } = config.start;
    if !backed || layer == 0 {
        return occupied;
    }
    let (own, guest) = (config.memory[layer] as f64, config.memory[layer - 1] as f64);
    // None at all would be no fragmentation.
    occupied.min((own - guest) / own * spare.min(1.0)).max(1e-3)
}

fn build_layer(
    config: &StackConfig,
    layer: Layer,
    settings: LayerSettings,
) -> Result<StackLayer, BuildError> {
    let frames = config.memory[layer] >> PageSize::BASE_SHIFT;
    let mut memory = Memory::new(frames);
    if settings.fragmented && config.fragmentation[layer] > 0.0 {
        let fragmenter = Fragmenter {
            target_fmfi: config.fragmentation[layer],
            occupied: occupied(config, layer),
            movable: config.start.movable,
            seed: config.seed.wrapping_add(layer as u64),
        };
        fragmenter
            .apply(
                &mut memory,
                Holders { movable: Owner::Movable.word(), unmovable: Owner::Pinned.word() },
            )
            .map_err(|source| BuildError::Fragmentation { layer, source })?;
    }
    let mut kernel = Kernel::new(memory, config.levels, settings.thp);
    if layer == 0 {
        return Ok(StackLayer::new(kernel, None));
    }
    let guest = config.memory[layer - 1];
    if guest >= config.memory[layer] {
        let (have, need) = (config.memory[layer] >> 20, guest >> 20);
        return Err(BuildError::TooSmall { layer, have, need });
    }
    let exhausted = |_| Exhausted { layer };
    kernel.create_space(VM).map_err(exhausted)?;
    let slot = SLOT + config.start.slot_offset;
    let start = Frame::new(slot).addr();
    kernel.space_mut(VM).expect("just made").vmas.insert(Vma {
        range: Range::sized(start, guest),
        backing: Backing::Anonymous,
        protection: Protection::READ_WRITE,
        huge: HugeAdvice::Default,
    });
    let root = table_root(&mut kernel).map_err(exhausted)?;
    let table = SecondStageTable::new(config.levels, root);
    Ok(StackLayer::new(kernel, Some(SecondStage { table, slot })))
}
