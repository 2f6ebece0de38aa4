//! From what the user chose to a machine.

use super::outcome::{Context, State};
use super::{Clock, Relocation, Samples, Simulation};
use crate::memory::Extent;
use crate::warmup::Warmup;
use crate::{Catalogue, PolicyInfo, Run, Setup, SetupError, StackKind, Stop};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use strata_addr::PageSize;
use strata_hardware::{Machine, PHYSICAL_LIMIT};
use strata_params::{Parameter, ParameterError, Parameters};
use strata_policies::{PolicyParameters, REGISTRY};
use strata_stack::{
    AlignerParameters, BuildError, Costs, KernelSettings, MemoryParameters, Policy, Stack,
    StackConfig, ThpMode, ThpParameters,
};
use strata_stream::WorkloadInfo;

strata_params::parameters! {
    /// Time.
    pub struct TimeParameters {
        /// How much faster time passes for background work than for the program, above 0. 1 is the
        /// truth; more lets a short stream stand for a long one.
        scale: f64 = 1.0, "time.scale", "";
    }
}

/// Every parameter that is not the CPU's.
#[derive(Clone, Debug, Default)]
struct ModelParameters {
    costs: Costs,
    thp: ThpParameters,
    memory: MemoryParameters,
    aligner: AlignerParameters,
    policies: PolicyParameters,
    time: TimeParameters,
}

impl ModelParameters {
    fn sets(&self) -> [&dyn Parameters; 6] {
        [&self.costs, &self.thp, &self.memory, &self.aligner, &self.policies, &self.time]
    }

    fn sets_mut(&mut self) -> [&mut dyn Parameters; 6] {
        [
            &mut self.costs,
            &mut self.thp,
            &mut self.memory,
            &mut self.aligner,
            &mut self.policies,
            &mut self.time,
        ]
    }
}

impl Parameters for ModelParameters {
    fn parameters(&self) -> Vec<Parameter> {
        self.sets().iter().flat_map(|set| set.parameters()).collect()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
        for set in self.sets_mut() {
            match set.set(name, value) {
                Err(ParameterError::Unknown(_)) => {}
                done => return done,
            }
        }
        Err(ParameterError::Unknown(name.to_owned()))
    }
}

/// Everything machines can be made of.
pub fn catalogue() -> Catalogue {
    Catalogue {
        policies: REGISTRY
            .iter()
            .map(|entry| PolicyInfo {
                name: entry.name,
                about: entry.summary,
                paper: entry.source,
                stacks: &StackKind::ALL,
            })
            .collect(),
        parameters: ModelParameters::default().parameters(),
        need: |setup, workload| Some(Blueprint::new(setup, workload).ok()?.extent(workload).need()),
        build: |setup, workload, stop| {
            Ok(Box::new(Simulation::new(setup, workload, stop)?) as Box<dyn Run>)
        },
    }
}

const GIB: u64 = 1 << 30;

/// Least memory of a guest whose size nobody gave. A guest has several times what one program
/// touches, as in the papers' testbeds; in fragmented memory a smaller one runs out of huge blocks
/// before a program of 1 GiB is there, and no policy matters any more.
const ORDINARY_MEMORY: u64 = 8 * GIB;

/// Memory of the layers in bytes, the guest's first, in the proportions of the xGemini testbed:
/// 100 GB for L2, 110 GB for L1, 128 GB for L0 (xGemini, table I).
fn layer_memory(setup: &Setup, workload: &WorkloadInfo) -> Vec<u64> {
    let automatic = || {
        let known = workload.footprint_bytes.unwrap_or(0);
        ORDINARY_MEMORY.max(known + known / 2)
    };
    let guest = setup.memory.unwrap_or_else(automatic);
    let share = |percent: u64| (u128::from(guest) * u128::from(percent) / 100) as u64;
    let sizes = match setup.stack {
        StackKind::Native => vec![guest],
        StackKind::Vm => vec![guest, share(128)],
        StackKind::Nested => vec![guest, share(110), share(128)],
    };
    // Whole HPAS regions, so that the slot of a guest is one too.
    sizes.into_iter().map(|bytes| bytes & !((2 << 20) - 1)).collect()
}

/// Less memory than this holds no kernel worth modelling.
const LEAST_MEMORY: u64 = 16 << 20;

/// A machine that can be built.
struct Blueprint {
    parameters: ModelParameters,
    policy: Box<dyn Policy>,
    config: StackConfig,
    /// Bytes of each layer's memory, the guest's first.
    memory: Vec<u64>,
    /// How each layer is set up, the guest first.
    settings: Vec<KernelSettings>,
    /// Of each layer, whether memory is fragmented, the guest first.
    fragmented: Vec<bool>,
}

impl Blueprint {
    /// Checks everything that can be checked before anything is built.
    fn new(setup: &Setup, workload: &WorkloadInfo) -> Result<Self, SetupError> {
        let mut parameters = ModelParameters::default();
        for (name, value) in &setup.overrides {
            parameters.set(name, value).map_err(refused)?;
        }
        if parameters.time.scale <= 0.0 {
            return Err(refused(
                "time.scale=0: no time would pass for background work; give a number above 0",
            ));
        }
        let entry = strata_policies::find(&setup.policy).map_err(refused)?;
        let mut policy = (entry.make)(&parameters.policies);
        let memory = layer_memory(setup, workload);
        let enough = workload.footprint_bytes.unwrap_or(0);
        if memory[0] < LEAST_MEMORY || memory[0] < enough {
            let (have, need) = (memory[0] >> 20, enough.max(LEAST_MEMORY) >> 20);
            return Err(refused(format!(
                "the guest's {have} MiB of memory are too little for {need} MiB: raise --memory, or \
                 leave it out to have it chosen"
            )));
        }
        let largest = memory.iter().copied().max().unwrap_or(0);
        if largest > PHYSICAL_LIMIT {
            let (need, most) = (largest >> 30, PHYSICAL_LIMIT >> 30);
            return Err(refused(format!(
                "a layer would have {need} GiB of memory, and the model's caches tell {most} GiB \
                 apart: lower --memory or make the workload smaller"
            )));
        }
        // The host first.
        let kernels: Vec<_> = (0..memory.len())
            .rev()
            .map(|layer| (memory[layer], setup.fragmentation_of(layer)))
            .collect();
        let config = StackConfig {
            kernels: StackConfig::chain(&kernels, setup.seed),
            levels: setup.levels,
            reused: setup.reused,
            costs: parameters.costs.clone(),
            thp: parameters.thp.clone(),
            start: parameters.memory.clone(),
            aligner: parameters.aligner.clone(),
        };
        let positions = config.positions().map_err(refused)?;
        let mut settings: Vec<_> = positions.iter().map(|at| policy.settings(*at)).collect();
        settings.reverse();
        let fragmented = (0..)
            .zip(&settings)
            .map(|(layer, settings)| settings.fragmented && setup.fragmentation_of(layer) > 0.0);
        let fragmented = fragmented.collect();
        Ok(Self { parameters, policy, config, memory, settings, fragmented })
    }

    /// How much of it there will be to remember.
    fn extent(&self, workload: &WorkloadInfo) -> Extent {
        let (memory, StackConfig { start, reused, .. }) = (&self.memory, &self.config);
        let depth = memory.len();
        let pages = |bytes: u64| bytes >> PageSize::BASE_SHIFT;
        // Each hypervisor's VM process and second stage; and the shadow table.
        let tables = 2 * (depth - 1) + usize::from(depth > 2);
        let has_huge_pages = self.settings.iter().any(|layer| layer.thp != ThpMode::Never);
        // With huge pages nothing is certain but the owners of frames.
        let least =
            |layers: usize| (4 * layers + if has_huge_pages { 0 } else { 8 * tables }) as u64;

        // What is free at least is filled, but for the tables that takes.
        let free = if self.fragmented[0] { 1.0 - start.occupied.min(1.0) } else { 1.0 };
        let share = free * start.reused_share.min(1.0) * 0.99;
        let reused = if *reused { pages((memory[0] as f64 * share) as u64) } else { 0 };
        let is_backed = |&layer: &usize| start.backed && self.fragmented[layer];
        let backed = (0..depth - 1).filter(is_backed).map(|layer| pages(memory[layer])).max();
        let guest_backed = if depth > 1 && is_backed(&0) { pages(memory[0]) } else { 0 };

        let pages_touched = pages(workload.footprint_bytes.unwrap_or(0));
        // Free frames of a region whose buddies are taken: they are given out first.
        let holes = PageSize::Huge.base_pages() as f64 * start.occupied * (1.0 - start.occupied);
        let scattered = if self.fragmented.contains(&true) {
            let all = memory[0] >> PageSize::Huge.shift();
            ((pages_touched as f64 / holes.max(1.0)) as u64).min(all)
        } else {
            0
        };
        Extent {
            regions: memory.iter().sum::<u64>() >> PageSize::Huge.shift(),
            pages_before: reused.max(backed.unwrap_or(0)),
            least_before: (reused * least(depth)).max(guest_backed * least(depth - 1)),
            pages_touched,
            scattered,
            layers: depth as u64,
            tables: tables as u64,
        }
    }
}

fn refused(why: impl std::fmt::Display) -> SetupError {
    SetupError::Refused(why.to_string())
}

impl Simulation {
    /// A machine as `setup` says, for a workload of which `workload` is known beforehand.
    ///
    /// # Errors
    /// [`SetupError`], one line with cause and remedy, or that it was to stop.
    pub fn new(setup: &Setup, workload: &WorkloadInfo, stop: &Stop) -> Result<Self, SetupError> {
        let Blueprint { parameters, mut policy, config, memory, fragmented, .. } =
            Blueprint::new(setup, workload)?;
        let stack = Stack::build(&config, policy.as_mut(), &|| stop.requested());
        let stack = stack.map_err(|error| match error {
            BuildError::Stopped => SetupError::Stopped,
            error => refused(error),
        })?;
        let mut machine = Machine::new(&setup.cpu, setup.misaligned);
        let frequency = f64::from(setup.cpu.core.frequency_mhz) * 1e6;
        // The first CPU is there before any thread, for work that no thread asked for.
        let first = machine.add_cpu();
        let mut in_force: BTreeMap<String, String> = parameters
            .parameters()
            .into_iter()
            .map(|parameter| (parameter.name.to_owned(), parameter.value))
            .collect();
        in_force.extend(setup.cpu.constants().map(|constant| (constant.name, constant.value)));
        let guest = stack.guests().next().expect("a machine runs programs");
        let guest_frames_before = stack.kernel(guest).memory().used_frames();
        let free_huge_before =
            stack.path_down(guest).map(|node| stack.kernel(node).memory().free_regions()).collect();
        Ok(Self {
            guest_frames_before,
            peak_guest_frames: guest_frames_before,
            free_huge_before,
            fullest: State::default(),
            guest,
            stack,
            policy,
            machine,
            clock: Clock::new(frequency, parameters.time.scale),
            cpus: FxHashMap::default(),
            idle_cpus: vec![first],
            relocation: Relocation::default(),
            samples: Samples::default(),
            warmup: Warmup::new(setup),
            dead: None,
            lost_accesses: 0,
            kernel_accesses: 0,
            unresolved_accesses: 0,
            last_feedback: (0, 0),
            flushes: Vec::new(),
            outcome: Context {
                stack: setup.stack,
                policy: setup.policy.clone(),
                cpu: setup.cpu.name.clone(),
                explain: setup.explain,
                footprint: workload.footprint_bytes,
                memory,
                fragmented,
                parameters: in_force,
            },
        })
    }
}
