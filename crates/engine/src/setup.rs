//! What a user can choose for one machine, and what there is to choose from.

use crate::memory::Need;
use crate::{Built, StackKind, Stop};
use strata_hardware::{CpuModel, Misaligned};
use strata_params::Parameter;
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
    /// FMFI of each layer before the program starts, from the guest down; one value stands for
    /// all layers. 0 is unfragmented.
    pub fragmentation: Vec<f64>,
    /// The VM ran something big before, so lower layers already back its memory.
    pub reused: bool,
    /// What the TLB does with a huge page that is not backed by one.
    pub misaligned: Misaligned,
    /// Accesses before counting begins.
    pub warmup: u64,
    /// Counting, or the warm-up, begins only at the first [`strata_stream::Mark::Begin`].
    pub from_mark: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// Find out where misalignment comes from.
    pub explain: bool,
    /// Model and policy parameters to set, in order. Constants of the CPU are already in `cpu`.
    pub overrides: Vec<(String, String)>,
}

impl Setup {
    /// FMFI asked for in layer `index`, counted from the guest down.
    pub fn fragmentation_of(&self, index: usize) -> f64 {
        let values = &self.fragmentation;
        values.get(index).or(values.last()).copied().unwrap_or(0.0)
    }
}

/// A policy, as a list shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Name.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// The paper it comes from, or the kernel's own documentation.
    pub paper: &'static str,
    /// Stacks it can run on.
    pub stacks: &'static [StackKind],
}

/// Everything machines can be made of.
#[derive(Clone, Debug)]
pub struct Catalogue {
    /// The policies, the plainest first.
    pub policies: Vec<PolicyInfo>,
    /// Parameters of the model and of every policy; those of the CPU are in [`CpuModel`].
    pub parameters: Vec<Parameter>,
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
}
