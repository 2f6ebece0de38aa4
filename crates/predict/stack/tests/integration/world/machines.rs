//! The machines on which random lives are led.

use super::World;
use strata_colours::{CacheIndex, Colours, SliceHash, VirtualCache};
use strata_nested::{Hypervisor, Instructions};
use strata_stack::{
    AlignerParameters, BalloonParameters, ColouredParameters, Costs, ExitCosts, Found, FoundRegion,
    KernelConfig, KsmParameters, MemoryParameters, PagePlacement, Paging, Policy, StackConfig,
    ThpParameters, Virtualization,
};

const MIB: u64 = 1 << 20;

/// Those of a cache of 1024 sets: 16.
pub fn colours() -> Colours {
    let index = CacheIndex { line_bytes: 64, sets: 1024, slices: 1, hash: SliceHash::None };
    Colours::new(&index).unwrap()
}

/// Kernels of which each runs on the one before, `layers` of them.
fn chain(layers: usize, fragmentation: f64) -> Vec<KernelConfig> {
    let memory = |layer: u64| (32 + 16 * layer) * MIB;
    let kernels: Vec<_> =
        (0..layers as u64).rev().map(|layer| (memory(layer), fragmentation)).collect();
    StackConfig::chain(&kernels, 7)
}

/// Kernels with all else by default, but for a khugepaged that begins soon.
pub fn config(kernels: Vec<KernelConfig>) -> StackConfig {
    StackConfig {
        kernels,
        levels: 4,
        reused: false,
        paging: Paging::Nested,
        costs: Costs::default(),
        exits: ExitCosts::default(),
        virtualization: Virtualization::default(),
        thp: ThpParameters { scan_sleep: 1.0, alloc_sleep: 1.0, ..ThpParameters::default() },
        start: MemoryParameters::default(),
        aligner: AlignerParameters::default(),
        colours: Some(colours()),
        coloured: ColouredParameters::default(),
        balloon: BalloonParameters::default(),
        ksm: KsmParameters::default(),
    }
}

/// Shadow paging, and what is switched on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shadows {
    /// L0 has a shadow of L1's in place of a second stage.
    pub twice: bool,
    pub trap: bool,
    pub bypass: bool,
    pub hypervisor: Hypervisor,
    pub svm: bool,
}

fn svm(cpu: Virtualization) -> Virtualization {
    Virtualization { instructions: Instructions::Svm, vmcs_shadowing: false, ..cpu }
}

impl World {
    /// A chain of `layers` kernels under `policy`, with one process whose area spans [`PAGES`].
    pub fn new(layers: usize, fragmentation: f64, policy: Box<dyn Policy>) -> Self {
        Self::of(config(chain(layers, fragmentation)), policy)
    }

    /// A world in which hypervisors exit at each write to their second stages.
    pub fn trapping(layers: usize, policy: Box<dyn Policy>) -> Self {
        let mut config = config(chain(layers, 0.0));
        config.exits.second_stage_writes = strata_stack::SecondStageWrites::Trap;
        Self::of(config, policy)
    }

    /// A world whose memory was backed below when it was fragmented.
    pub fn backed(layers: usize, fragmentation: f64, policy: Box<dyn Policy>) -> Self {
        let mut config = config(chain(layers, fragmentation));
        config.start.backed = true;
        Self::of(config, policy)
    }

    /// A world whose memories were found to be used for this, the host's first.
    pub fn found(found: &[Vec<FoundRegion>], policy: Box<dyn Policy>) -> Self {
        let mut config = config(chain(found.len(), 0.0));
        for (kernel, found) in config.kernels.iter_mut().zip(found) {
            kernel.found = Found { regions: found.as_slice().into(), ..Found::default() };
        }
        Self::of(config, policy)
    }

    /// A world in which the hypervisor of the guest keeps shadows of its page tables.
    pub fn shadowed(
        layers: usize,
        fragmentation: f64,
        shadows: Shadows,
        policy: Box<dyn Policy>,
    ) -> Self {
        let mut config = config(chain(layers, fragmentation));
        config.paging = match shadows.twice {
            true => Paging::ShadowOnShadow,
            false => Paging::Shadow,
        };
        if shadows.trap {
            config.exits.second_stage_writes = strata_stack::SecondStageWrites::Trap;
        }
        config.exits.page_fault_bypass = shadows.bypass;
        config.exits.hypervisor = shadows.hypervisor;
        if shadows.svm {
            config.virtualization = svm(config.virtualization);
        }
        Self::of(config, policy)
    }

    /// A world on processors with AMD's instructions.
    pub fn on_svm(layers: usize, policy: Box<dyn Policy>) -> Self {
        Self::interrupted(layers, 0.0, policy)
    }

    /// The same, in which this share of the exits that are handed on is interrupted.
    pub fn interrupted(layers: usize, share: f64, policy: Box<dyn Policy>) -> Self {
        let mut config = config(chain(layers, 0.0));
        config.virtualization = svm(config.virtualization);
        config.exits.interrupted = share;
        Self::of(config, policy)
    }

    /// A world in which every kernel places its pages like this.
    pub fn placed(
        layers: usize,
        fragmentation: f64,
        placement: PagePlacement,
        policy: Box<dyn Policy>,
    ) -> Self {
        let mut config = config(chain(layers, fragmentation));
        config.kernels.iter_mut().for_each(|kernel| kernel.placement = placement);
        Self::of(config, policy)
    }

    /// A world whose guest is told of a last-level cache of its own.
    pub fn told(
        layers: usize,
        fragmentation: f64,
        cache: VirtualCache,
        mut policy: Box<dyn Policy>,
    ) -> Self {
        let mut config = config(chain(layers, fragmentation));
        config.kernels.last_mut().unwrap().cache = Some(cache);
        let guest = config.positions().unwrap().pop().unwrap();
        assert_eq!(policy.told_of_cache(guest.node, cache), None);
        Self::of(config, policy)
    }

    /// A tree: of each kernel the one it runs on, the host first, and its memory in MiB.
    pub fn tree(kernels: &[(Option<usize>, u64)], policy: Box<dyn Policy>) -> Self {
        let kernel = |(seed, &(below, mib)): (u64, &(Option<usize>, u64))| KernelConfig {
            below,
            memory: mib * MIB,
            fragmentation: 0.3,
            seed,
            placement: PagePlacement::Linux,
            cache: None,
            found: Found::default(),
        };
        Self::of(config((0..).zip(kernels).map(kernel).collect()), policy)
    }
}
