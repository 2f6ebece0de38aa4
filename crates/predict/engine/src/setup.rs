//! What a user can choose for one machine, and what there is to choose from.

use crate::memory::Need;
use crate::{Built, StackKind, Stop};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use strata_colours::{CacheIndex, Colours};
use strata_hardware::{CacheGeometry, CpuModel, LlcDesign, Misaligned, WayMask};
use strata_params::Parameter;
use strata_policies::{LinuxByLayer, REGISTRY, Words};
use strata_stack::{PagePlacement, Paging, Policy, ThpMode};
use strata_stream::WorkloadInfo;

/// One machine: a stack, a policy, and everything they depend on.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The stack.
    pub stack: StackKind,
    /// The policy's name.
    pub policy: String,
    /// The CPU.
    pub cpu: CpuModel,
    /// Bytes of memory of the guest. `None` takes 8 GiB, or half as much again as the workload
    /// is known to touch if that is more.
    pub memory: Option<u64>,
    /// Levels of every page table, 4 or 5.
    pub levels: u8,
    /// How fragmented memory is before the program starts.
    pub fragmentation: LayerFmfi,
    /// The VM ran something big before, so lower layers already back its memory.
    pub reused: bool,
    /// How hypervisors have memory for their VMs.
    pub paging: Paging,
    /// What the TLB does with a huge page that is not backed by one.
    pub misaligned: Misaligned,
    /// Accesses before counting begins.
    pub warmup: u64,
    /// Counting, or the warm-up, begins only at the first [`strata_stream::Mark::Begin`].
    pub from_mark: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// How the guest's kernel places base pages; natively that is the host's.
    pub placement: PagePlacement,
    /// The last-level cache.
    pub llc: LlcSetup,
    /// Find out where misalignment comes from.
    pub explain: bool,
    /// Keep what pictures are made of: regions, states at fixed intervals, free blocks.
    pub detail: bool,
    /// Model and policy parameters to set, in order. Constants of the CPU are already in `cpu`.
    pub overrides: Vec<(String, String)>,
    /// Policies that can be named besides those of the registry, which they do not replace.
    pub own: Vec<OwnPolicy>,
}

impl Setup {
    /// A machine of which nothing else is said: memory of an ordinary size that is not fragmented, page
    /// tables of four levels, the plain last-level cache, everything counted from the beginning.
    pub fn new(stack: StackKind, policy: &str, cpu: CpuModel) -> Self {
        Self {
            stack,
            policy: policy.to_owned(),
            cpu,
            memory: None,
            levels: 4,
            fragmentation: LayerFmfi::default(),
            reused: false,
            paging: Paging::Nested,
            misaligned: Misaligned::Splinter,
            warmup: 0,
            from_mark: false,
            seed: 1,
            placement: PagePlacement::Linux,
            llc: LlcSetup::default(),
            explain: false,
            detail: false,
            overrides: Vec::new(),
            own: Vec::new(),
        }
    }
}

/// The last-level cache: how much of it is modelled. The default is the plain one, of one piece with LRU
/// replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LlcSetup {
    /// It is made as that of the CPU, [`strata_hardware::Caches::llc_design`].
    pub as_cpu: bool,
    /// The ways that VMs without a mask of their own may fill; all if `None`.
    pub ways: Option<WayMask>,
    /// Tell misses apart by their cause.
    pub classify: bool,
    /// The cache whose colours pages are placed by.
    pub colours_of: ColouredCache,
    /// The colours of the cache that VMs without one of their own are told of; those of the host's if
    /// `None`.
    pub vllc: Option<Colours>,
}

/// The cache whose colours pages are placed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColouredCache {
    /// The second level, each core's own.
    L2,
    /// The last level.
    #[default]
    Llc,
    /// The one at the memory.
    L4,
}

impl ColouredCache {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::L2, Self::Llc, Self::L4];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Llc => "llc",
            Self::L4 => "l4",
        }
    }

    /// What it is.
    pub const fn words(self) -> &'static str {
        match self {
            Self::L2 => "second-level cache",
            Self::Llc => "last-level cache",
            Self::L4 => "cache at the memory",
        }
    }
}

impl LlcSetup {
    /// How it is made.
    pub fn design(&self, cpu: &CpuModel) -> LlcDesign {
        if self.as_cpu { cpu.cache.llc_design } else { LlcDesign::default() }
    }

    /// How the cache is indexed whose colours pages are placed by.
    pub(crate) fn coloured(&self, cpu: &CpuModel) -> CacheIndex {
        let one_piece = |geometry: &CacheGeometry| LlcDesign::default().index(geometry);
        match self.colours_of {
            ColouredCache::L2 => one_piece(&cpu.cache.l2),
            ColouredCache::Llc => self.design(cpu).index(&cpu.cache.llc),
            ColouredCache::L4 => one_piece(&cpu.cache.l4),
        }
    }
}

/// The FMFI of every kernel's free memory before a program starts; 0 is unfragmented. Kernels are told
/// apart by what they do, since their number depends on the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerFmfi {
    /// Of the kernels that run programs; natively that is the host's.
    pub guest: f64,
    /// Of those between, L1 of a nested stack.
    pub l1: f64,
    /// Of the host's, L0.
    pub host: f64,
}

impl LayerFmfi {
    /// The same for every kernel.
    pub const fn everywhere(fmfi: f64) -> Self {
        Self { guest: fmfi, l1: fmfi, host: fmfi }
    }
}

/// A policy that is in no registry: whoever uses the engine brings it along.
#[derive(Clone)]
pub struct OwnPolicy {
    /// Name.
    pub name: String,
    /// What it does, in one line.
    pub about: String,
    /// Makes one for a machine. Every machine has its own.
    pub make: Arc<dyn Fn() -> Box<dyn Policy> + Send + Sync>,
}

impl OwnPolicy {
    /// Stock Linux in every kernel, with these settings of transparent huge pages, L0's first.
    pub fn linux(name: &str, modes: &[ThpMode]) -> Self {
        let modes = modes.to_vec();
        Self {
            name: name.to_owned(),
            about: "Linux, huge pages set in each layer".to_owned(),
            make: Arc::new(move || Box::new(LinuxByLayer::new(modes.clone()))),
        }
    }
}

impl fmt::Debug for OwnPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnPolicy").field(&self.name).finish()
    }
}

/// A policy, as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Name.
    pub name: Cow<'static, str>,
    /// What it does, in one line.
    pub about: Cow<'static, str>,
    /// The paper it comes from, or the kernel's own documentation.
    pub paper: Cow<'static, str>,
    /// Stacks it can run on.
    pub stacks: &'static [StackKind],
    /// It has the host place a VM's memory by cache colour.
    pub by_colour: bool,
    /// The parameters that matter to it and not to every policy.
    pub parameters: Vec<Cow<'static, str>>,
}

/// Everything machines can be made of.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// The policies, the plainest first.
    pub policies: Vec<PolicyInfo>,
    /// Parameters of the model and of every policy; those of the CPU are in [`CpuModel`].
    pub parameters: Vec<Parameter>,
    /// Those of the policies that are in no registry.
    pub own: Vec<OwnPolicy>,
    /// What a machine needs of this computer's memory; `None` where it cannot be built.
    pub need: fn(&Setup, &WorkloadInfo) -> Option<Need>,
    /// Builds a machine.
    pub build: fn(&Setup, &WorkloadInfo, &Stop) -> Built,
}

impl Catalogue {
    /// The policy of this name.
    pub fn policy(&self, name: &str) -> Option<&PolicyInfo> {
        self.policies.iter().find(|policy| policy.name == name)
    }

    /// The policies to which a parameter matters, if it does not matter to all.
    pub fn readers(&self, parameter: &str) -> Vec<&str> {
        let reads = |policy: &&PolicyInfo| policy.parameters.iter().any(|name| name == parameter);
        self.policies.iter().filter(reads).map(|policy| &*policy.name).collect()
    }

    /// The same with another policy.
    ///
    /// # Errors
    /// When there is one of this name, which is given back.
    pub fn with(mut self, own: OwnPolicy) -> Result<Self, String> {
        if self.policy(&own.name).is_some() {
            return Err(own.name);
        }
        self.policies.push(PolicyInfo {
            name: own.name.clone().into(),
            about: own.about.clone().into(),
            paper: "a policy of one's own".into(),
            stacks: &StackKind::EVERY,
            by_colour: false,
            parameters: Vec::new(),
        });
        self.own.push(own);
        Ok(self)
    }
}

/// The policies that are compared when nobody says which.
pub fn default_policies() -> Vec<String> {
    let entries = REGISTRY.iter().filter(|entry| entry.by_default);
    entries.map(|entry| entry.name.to_owned()).collect()
}

/// Whether the policy of this name works on several layers at once, and so on second stages.
pub fn works_across_layers(policy: &str) -> bool {
    strata_policies::find(policy).is_ok_and(|entry| !entry.independent)
}

/// What is to be said of the results of the policy of this name.
pub fn words(policy: &str) -> Words {
    strata_policies::find(policy).map_or_else(|_| Words::default(), |entry| entry.words)
}
