//! What was asked for and which program did it: all that running it again takes.

use crate::layers::{PerLayer, StackKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Every option in force, defaults included. Options that only say where results go, or how many
/// threads and machines there are at once, change nothing in a result and are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// The stacks; that of the captured tables, if some are given.
    pub stack: Vec<StackKind>,
    /// The policies; with captured tables what they are compared with.
    pub policy: Vec<String>,
    /// The CPU: a preset or a file.
    pub cpu: String,
    /// The file of captured page tables; `None` when the whole stack is modelled.
    pub tables: Option<String>,
    /// The format of the trace, if it was said.
    pub format: Option<String>,
    /// Levels of every page table; `None` with captured tables, as all that follows about layers.
    pub levels: Option<u8>,
    /// Memory of the guest as it was asked for; `None` when it was left to be chosen.
    pub memory: Option<String>,
    /// Bytes of memory the layers had; `None` when nothing ran.
    pub memory_bytes: Option<PerLayer<u64>>,
    /// FMFI asked for in each layer that the stacks have.
    pub fragmentation: Option<PerLayer<f64>>,
    /// The VM ran something big before.
    pub reused: Option<bool>,
    /// How hypervisors have memory for their VMs, `nested` or `shadow`; not there when it was not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paging: Option<String>,
    /// What the TLB does with a huge page that is not backed by one: `splinter` or `no-fill`.
    pub tlb_misaligned: String,
    /// The walk caches: `none`, `1d`, `2d` or `2d+ntlb`; `None` for all that the CPU has.
    #[serde(default)]
    pub walk_caches: Option<String>,
    /// The part run is between marks of the program.
    pub marked: bool,
    /// How the guests' kernels place base pages, if it was said.
    #[serde(default)]
    pub placement: Option<String>,
    /// The last-level cache: `cpu`, or `None` for the plain one.
    #[serde(default)]
    pub llc: Option<String>,
    /// The ways of it that each VM may fill, a mask in hexadecimal; `None` for all.
    #[serde(default)]
    pub llc_ways: Option<String>,
    /// Its misses are told apart by their cause.
    #[serde(default)]
    pub llc_misses: bool,
    /// The cache at the memory, as `--l4` takes it; `None` for that of the CPU.
    #[serde(default)]
    pub l4: Option<String>,
    /// The cache whose colours pages are placed by, `l2` or `l4`; `None` for the last level.
    #[serde(default)]
    pub colours_of: Option<String>,
    /// The last-level cache that VMs are told of, as `--vllc` takes it; `None` for one like the host's.
    #[serde(default)]
    pub vllc: Option<String>,
    /// How the stream is sampled, as `--sample` takes it; not there when it is run whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<String>,
    /// How often requests arrive, as `--request-load` takes it, if it was said.
    #[serde(default)]
    pub request_load: Option<String>,
    /// Ticks a second of every kernel's timer; not there when it was not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick_hz: Option<u32>,
    /// Requests a second to devices, as `--io-hz` takes them; not there when it was not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_hz: Option<String>,
    /// Accesses passed over first.
    pub skip: u64,
    /// Accesses before counting begins.
    pub warmup: u64,
    /// Accesses counted at most; `None` for all.
    pub limit: Option<u64>,
    /// Seed of everything random in the model.
    pub seed: u64,
    /// The VMs that shared a host, each as `--vm` takes it.
    #[serde(default)]
    pub vm: Vec<String>,
    /// Memory of the host that they shared as it was asked for; `None` when it was left to be chosen.
    #[serde(default)]
    pub host_memory: Option<String>,
    /// Each of them was also run without the others.
    #[serde(default)]
    pub alone: bool,
    /// Say where misalignment comes from.
    pub explain: bool,
    /// Have what pictures are made of; `None` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<bool>,
    /// Constants and parameters that were set, by name, as `--set` takes them.
    pub set: BTreeMap<String, String>,
}

/// Which Strata it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Version of the package.
    pub package: String,
    /// The commit that was checked out when it was built; `None` when it was built from no
    /// checkout.
    pub commit: Option<String>,
}
