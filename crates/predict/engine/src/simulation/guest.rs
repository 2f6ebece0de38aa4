//! One guest of a host: the programs of a stream, and what is known of them.

use super::clock::Clock;
use super::moments::Moments;
use super::rates::Happened;
use super::relocation::Relocation;
use super::samples::Samples;
use super::sampling::Sampling;
use crate::layers::{PerLayer, StackKind};
use crate::report::{Alignment, Cause, EntryCounts, Regions, RunResult};
use crate::requests::Served;
use crate::warmup::Warmup;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use strata_hardware::CpuId;
use strata_stack::{Feedback, HostWork, NodeId};
use strata_stream::Tid;

/// A kernel before anything runs.
pub(super) struct KernelBefore {
    pub(super) node: NodeId,
    /// Bytes of memory.
    pub(super) memory: u64,
    pub(super) is_fragmented: bool,
    /// Free huge pages.
    pub(super) free_huge: u64,
    /// Entries of tables that it keeps for VMs.
    pub(super) entries: EntryCounts,
}

/// What the result repeats of the setup.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) stack: StackKind,
    /// Name of its VM.
    pub(super) vm: String,
    pub(super) policy: String,
    pub(super) cpu: String,
    pub(super) explain: bool,
    /// The result has what pictures are made of.
    pub(super) detail: bool,
    /// Colours are used, and the cache is modelled without the hash that the CPU has.
    pub(super) plain_colours: bool,
    pub(super) footprint: Option<u64>,
    pub(super) parameters: BTreeMap<String, String>,
}

/// What memory looks like at one moment.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Frames of the guest in use.
    pub(super) frames: u64,
    pub(super) alignment: Alignment,
    pub(super) fmfi: PerLayer<f64>,
    pub(super) causes: Vec<Cause>,
    pub(super) regions: Option<Regions>,
}

/// A guest of the host.
pub(super) struct Guest {
    /// The kernel that runs the stream's programs.
    pub(super) node: NodeId,
    /// The VM of the host that it is in.
    pub(super) vm: NodeId,
    pub(super) clock: Clock,
    /// The CPUs that threads run on.
    pub(super) cpus: FxHashMap<Tid, CpuId>,
    /// Those that no thread has, the next one last.
    pub(super) idle_cpus: Vec<CpuId>,
    /// Those that it has ever had.
    pub(super) all_cpus: Vec<CpuId>,
    /// It is bound to these: threads beyond their number share them.
    pub(super) is_bound: bool,
    pub(super) relocation: Relocation,
    pub(super) samples: Samples,
    pub(super) moments: Moments,
    pub(super) warmup: Warmup,
    pub(super) sampling: Sampling,
    pub(super) served: Served,
    pub(super) happened: Happened,
    /// Frames in use before the workload.
    pub(super) frames_before: u64,
    pub(super) peak_frames: u64,
    /// Its kernel and those below it down to the host's, as they were before the workload.
    pub(super) layers: Vec<KernelBefore>,
    /// What memory looked like when the guest used most of it.
    pub(super) fullest: State,
    /// Why the whole VM is gone, once it is.
    pub(super) dead: Option<String>,
    pub(super) lost_accesses: u64,
    /// Accesses above the half of the address space that is the program's.
    pub(super) kernel_accesses: u64,
    pub(super) unresolved_accesses: u64,
    /// What hardware has shown of it in all, as far as the policy knows; without the frequency.
    pub(super) last_feedback: Feedback,
    /// What the host's kernel did for it before whoever acts now began.
    pub(super) of_host: HostWork,
    pub(super) context: Context,
    /// What was found, once it has ended.
    pub(super) result: Option<Box<RunResult>>,
}

impl Guest {
    /// Whether its programs may still do something.
    pub(super) fn is_alive(&self) -> bool {
        self.dead.is_none() && self.result.is_none()
    }

    /// The CPU that a thread would go on on, of those that the guest is bound to.
    pub(super) fn next_cpu(&self, tid: Tid) -> CpuId {
        let has = self.cpus.get(&tid).or_else(|| self.idle_cpus.last());
        has.copied().unwrap_or_else(|| self.least_busy_cpu())
    }

    /// Of the CPUs that it is bound to, one with the fewest threads.
    pub(super) fn least_busy_cpu(&self) -> CpuId {
        let threads = |cpu: &CpuId| self.cpus.values().filter(|other| *other == cpu).count();
        let least = self.all_cpus.iter().min_by_key(|cpu| (threads(cpu), **cpu));
        *least.expect("a guest has a CPU from the beginning")
    }

    /// A thread has left a CPU.
    pub(super) fn give_back_cpu(&mut self, cpu: CpuId) {
        if self.cpus.values().any(|other| *other == cpu) {
            return;
        }
        self.idle_cpus.push(cpu);
        // The lowest free number is used next, whatever the order of the exits.
        self.idle_cpus.sort_unstable_by(|a, b| b.cmp(a));
    }
}
