//! What a run found, as it is written to JSON. `docs/json.md` describes every field.
//!
//! Fields are only ever added; a change of meaning raises [`VERSION`]. Nothing here depends on
//! the clock, the number of threads or the machine that ran the model, so equal inputs give equal
//! bytes.

pub use crate::last_level::LastLevel;
pub use crate::layers::PerLayer;
use crate::layers::StackKind;
use crate::options::{Options, Version};
pub use crate::requests::{Requests, ServiceTimes, Times};
pub use crate::sampling::{Bounds, Choice, PhaseShare, Sampled, Windows};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
pub use strata_hardware::MissCauses;
use strata_stream::WorkloadInfo;

/// Version of the format, the value of the field `strata`.
pub const VERSION: u32 = 1;

/// TLB misses and fills.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tlb {
    /// Accesses that missed the L1 data TLB.
    pub l1_misses: u64,
    /// Accesses that also missed the L2 TLB; each is a walk.
    pub l2_misses: u64,
    /// Entries filled by size of the translation cached: `4k`, `2m`, `1g`; `none` counts walks
    /// whose translation could not be cached (`--tlb-misaligned no-fill`).
    pub fills: BTreeMap<String, u64>,
}

/// Huge pages of the guest at one moment and how they are backed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alignment {
    /// Huge pages of the guest.
    pub guest_huge: u64,
    /// Of them, those backed by one huge mapping down to HPA.
    pub well_aligned: u64,
    /// Misaligned, nothing allocated yet in the other layer's region.
    pub type1: u64,
    /// Misaligned, something allocated that would have to move.
    pub type2: u64,
    /// Huge in the shadow table though L1 maps them with base pages; counted in `well_aligned`.
    pub pseudo_huge: u64,
}

/// Memory of the workload against memory spent on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes of the distinct base pages the program touched.
    pub touched_bytes: u64,
    /// Bytes the guest allocated for the program, at most at any time; more than touched where
    /// huge pages hold untouched parts.
    pub used_bytes: u64,
}

/// Where the cycles of all CPUs went. The parts add up to [`RunResult::cycles`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cycles {
    /// Retired instructions at the base CPI.
    pub execution: u64,
    /// Stalls on data in caches and memory, overlap deducted.
    pub data: u64,
    /// Page walks and lookups in the L2 TLB.
    pub walks: u64,
    /// Page faults of any layer: kernel work, zeroing and compaction while the program waits.
    pub faults: u64,
    /// VM exits and their handling.
    pub exits: u64,
    /// TLB shootdowns.
    pub shootdowns: u64,
    /// Background work (khugepaged, scanners, migration) on a CPU the program uses.
    pub background: u64,
}

impl Cycles {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.execution
            + self.data
            + self.walks
            + self.faults
            + self.exits
            + self.shootdowns
            + self.background
    }
}

/// One line of a bill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BillItem {
    /// What the cycles went to.
    pub name: String,
    /// The layer whose affair it was: `guest`, `l1`, `host`, or `all` where layers are not told apart.
    pub level: String,
    /// Cycles.
    pub cycles: u64,
    /// The event of Linux perf that shows it on hardware; empty where there is none.
    pub event: String,
    /// Whether the cycles are estimated from windows of a sampled stream.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// A host with several VMs, as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRun {
    /// The stack of the VMs that have none of their own; `null` when all have one.
    pub stack: Option<StackKind>,
    /// The policy of the VMs that have none of their own; `null` when all have one.
    pub policy: Option<String>,
    /// Simulated time until the last program ended, in seconds.
    pub elapsed_seconds: f64,
    /// Bytes of memory the host has.
    pub memory_bytes: u64,
    /// Free huge pages of the host when there were fewest.
    pub free_huge_least: u64,
    /// Accesses of all VMs.
    pub accesses: u64,
    /// Page faults of the host's kernel.
    pub faults: u64,
    /// Exits of all VMs to whoever is below them, by reason.
    pub exits: BTreeMap<String, u64>,
}

/// References a walk makes at one position of the two-dimensional walk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkPosition {
    /// Name as `strata walk` prints it, such as `g3n2`.
    pub position: String,
    /// References made; those a walk cache answered are not among them.
    pub references: u64,
    /// Of them, served by the first-level data cache.
    #[serde(default)]
    pub l1: u64,
    /// Served by the second-level cache.
    #[serde(default)]
    pub l2: u64,
    /// Served by the last-level cache.
    #[serde(default)]
    pub llc: u64,
    /// Served by memory, or a cache at it.
    #[serde(default)]
    pub memory: u64,
    /// References that the guest's paging-structure caches saved.
    #[serde(default)]
    pub pwc: u64,
    /// References that the nested paging-structure caches saved.
    #[serde(default)]
    pub nested_pwc: u64,
    /// References that the nested TLB saved.
    #[serde(default)]
    pub ntlb: u64,
}

/// What one virtual CPU did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTotals {
    /// Number of the virtual CPU, which is the number of the thread in the stream.
    pub cpu: u32,
    /// Loads and stores.
    pub accesses: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// Cycles.
    pub cycles: u64,
    /// Cycles in walks.
    pub walk_cycles: u64,
    /// L2 TLB misses.
    pub l2_misses: u64,
}

/// Entries of page tables by the size of page that they map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryCounts {
    /// 4 KiB.
    pub base: u64,
    /// 2 MiB.
    pub huge: u64,
}

/// The memory of one layer at the end of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerMemory {
    /// `guest`, `l1` or `host`.
    pub layer: String,
    /// Bytes of memory the layer has.
    pub size_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes of page tables it keeps.
    pub table_bytes: u64,
    /// Huge pages it maps.
    pub huge_pages: u64,
    /// Page faults that it satisfied with a huge page.
    #[serde(default)]
    pub huge_faults: u64,
    /// Entries of the tables that hardware walks for VMs and that it keeps as their hypervisor.
    #[serde(default)]
    pub second_stage: EntryCounts,
    /// The same when the workload started.
    #[serde(default)]
    pub second_stage_before: EntryCounts,
    /// Regions booked at the end.
    pub booked_regions: u64,
    /// Linux's `extfrag` index for order 9; `null` while a huge page could be allocated.
    pub extfrag: Option<f64>,
    /// Whether its memory was fragmented.
    #[serde(default)]
    pub fragmented: bool,
    /// Free huge pages, neither allocated nor booked, when the workload started.
    #[serde(default)]
    pub free_huge_before: u64,
    /// The fewest there were since.
    #[serde(default)]
    pub free_huge_least: u64,
    /// Free blocks of the buddy allocator by order, from one base page up, if `--detail`
    /// asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub free_blocks: Vec<u64>,
}

/// VM exits that one layer took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerExits {
    /// `guest` or `l1`.
    pub layer: String,
    /// Exits by reason.
    pub exits: BTreeMap<String, u64>,
}

/// One cause of misalignment, from `--explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The layer responsible: `guest`, `l1` or `host`.
    pub layer: String,
    /// What it did or did not do, in words.
    pub cause: String,
    /// Guest huge pages misaligned by it.
    pub huge_pages: u64,
    /// Address ranges hit, the largest first: `[first, after the last]`, guest virtual.
    pub ranges: Vec<[u64; 2]>,
}

/// The state at one moment of simulated time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Simulated seconds since the start.
    pub seconds: f64,
    /// Accesses so far, as are the counts that follow.
    pub accesses: u64,
    /// L1 TLB misses.
    pub l1_misses: u64,
    /// L2 TLB misses.
    pub l2_misses: u64,
    /// Cycles in walks.
    pub walk_cycles: u64,
    /// Cycles.
    pub cycles: u64,
    /// Huge pages at that moment.
    pub alignment: Alignment,
    /// Fragmentation at that moment.
    pub fmfi: PerLayer<f64>,
    /// Bytes used for it at that moment.
    pub used_bytes: u64,
}

/// The state at fixed intervals of simulated time, from `--detail`: lists of equal length, an entry for
/// each moment. Counts are those so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Simulated seconds between two moments.
    pub interval: f64,
    /// Simulated seconds since the start: the first fault or end of a batch of accesses
    /// after each interval.
    pub seconds: Vec<f64>,
    /// Accesses.
    pub accesses: Vec<u64>,
    /// L1 TLB misses.
    pub l1_misses: Vec<u64>,
    /// L2 TLB misses.
    pub l2_misses: Vec<u64>,
    /// Cycles in walks.
    pub walk_cycles: Vec<u64>,
    /// Cycles.
    pub cycles: Vec<u64>,
    /// Page faults by layer.
    pub faults: BTreeMap<String, Vec<u64>>,
    /// Exits by the layer that took them and by reason; what never happened is left out.
    pub exits: BTreeMap<String, BTreeMap<String, Vec<u64>>>,
    /// FMFI by layer, then.
    pub fmfi: BTreeMap<String, Vec<f64>>,
    /// Huge pages of the guest, then.
    pub guest_huge: Vec<u64>,
    /// Well-aligned ones.
    pub well_aligned: Vec<u64>,
    /// Type-1 misaligned ones.
    pub type1: Vec<u64>,
    /// Type-2 misaligned ones.
    pub type2: Vec<u64>,
    /// Bytes used, then.
    pub used_bytes: Vec<u64>,
}

/// The 2 MiB regions of the guest's programs through all layers, from `--detail`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Regions {
    /// What the numbers of a row are.
    pub columns: Vec<String>,
    /// Why huge pages are misaligned: the layer responsible and the cause.
    pub causes: Vec<[String; 2]>,
    /// Rows of regions beside each other that differ in nothing but their place.
    pub rows: Vec<Vec<i64>>,
}

/// What one machine under one policy made of the stream. Counts leave the warm-up out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The stack.
    pub stack: StackKind,
    /// The policy.
    pub policy: String,
    /// The CPU preset, or the name a CPU file gives itself.
    pub cpu: String,
    /// The run did not see the whole stream.
    pub partial: bool,
    /// A layer ran out of memory and killed what was running.
    #[serde(default)]
    pub out_of_memory: bool,
    /// What was killed for that, and by which layer.
    #[serde(default)]
    pub killed: Vec<String>,
    /// Loads and stores.
    pub accesses: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// TLB misses and fills.
    pub tlb: Tlb,
    /// Page walks.
    pub walks: u64,
    /// Memory references made by walks.
    pub walk_refs: u64,
    /// The references by position.
    pub walk_positions: Vec<WalkPosition>,
    /// Cycles in walks.
    pub walk_cycles: u64,
    /// Cycles of all CPUs together.
    pub cycles: u64,
    /// Cycles of the CPU that took longest: what the program's user waits for.
    pub elapsed_cycles: u64,
    /// The same in simulated seconds.
    pub elapsed_seconds: f64,
    /// Where the cycles went.
    pub cycles_by_kind: Cycles,
    /// The same in more detail; the cycles of all lines add up to [`RunResult::cycles`].
    #[serde(default)]
    pub bill: Vec<BillItem>,
    /// The last-level cache, if more than its size was modelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc: Option<LastLevel>,
    /// The cache at the memory, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l4: Option<LastLevel>,
    /// Huge pages when the guest used most memory: at the end, unless memory was given back.
    pub alignment: Alignment,
    /// Page faults each layer handled.
    pub faults: PerLayer<u64>,
    /// VM exits by reason.
    pub exits: BTreeMap<String, u64>,
    /// The same exits by the layer that took them.
    #[serde(default)]
    pub exits_by_layer: Vec<LayerExits>,
    /// What happened in a VM besides its use of memory, how often: ticks, requests and others; only what
    /// happened at all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub happened: BTreeMap<String, u64>,
    /// Base pages moved, over all layers.
    pub migrated_pages: u64,
    /// Huge pages made of base pages, over all layers.
    pub promotions: u64,
    /// Huge pages split, over all layers.
    pub demotions: u64,
    /// Unusable free space index for order 9 at that same moment, 0 to 1.
    pub fmfi: PerLayer<f64>,
    /// Memory touched and used.
    pub memory: Memory,
    /// The memory of each layer.
    pub layers: Vec<LayerMemory>,
    /// Accesses per elapsed cycle over those of the first run with the same stack; `null` if
    /// that one has none.
    pub relative_throughput: Option<f64>,
    /// Counters under the names Linux perf gives them on the modelled CPU.
    pub counters: BTreeMap<String, u64>,
    /// What each virtual CPU did.
    pub cpus: Vec<CpuTotals>,
    /// What a reader must know, such as accesses that were left out.
    pub notes: Vec<String>,
    /// Whether `--explain` asked where misalignment comes from.
    #[serde(default)]
    pub explained: bool,
    /// Where misalignment comes from; empty without `--explain`.
    pub explain: Vec<Cause>,
    /// States over simulated time.
    pub samples: Vec<Sample>,
    /// The same and more at fixed intervals, if `--detail` asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
    /// The guest's regions when it used most memory, if `--detail` asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<Regions>,
    /// Every parameter in force, printed as `--set` takes it.
    pub parameters: BTreeMap<String, String>,
    /// The requests of the stream and their latency; `None` when it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Requests>,
    /// What [`Requests`] is made of.
    #[serde(skip)]
    pub service_times: Option<Box<ServiceTimes>>,
    /// What of a sampled stream is estimated, and how far it may be off; `None` for one that was run
    /// whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Sampled>,
    /// What the bounds of relations between runs are made of.
    #[serde(skip)]
    pub windows: Option<Windows>,
}

impl RunResult {
    /// Accesses per elapsed cycle, the measure of throughput: every run gets the same accesses.
    /// `None` when no time passed.
    pub fn throughput(&self) -> Option<f64> {
        (self.elapsed_cycles > 0 && self.accesses > 0)
            .then(|| self.accesses as f64 / self.elapsed_cycles as f64)
    }

    /// The figure that bounds of this name are around (`sampled.bounds`); 0 if there is none.
    pub fn bounded(&self, name: &str) -> f64 {
        let count = match name {
            "relative_throughput" => return self.relative_throughput.unwrap_or(0.0),
            "accesses" => self.accesses,
            "tlb.l1_misses" => self.tlb.l1_misses,
            "tlb.l2_misses" => self.tlb.l2_misses,
            "walk_refs" => self.walk_refs,
            "walk_cycles" => self.walk_cycles,
            "cycles" => self.cycles,
            "elapsed_cycles" => self.elapsed_cycles,
            name => {
                let counter = name.strip_prefix("counters.").unwrap_or(name);
                self.counters.get(counter).copied().unwrap_or(0)
            }
        };
        count as f64
    }
}

/// What was run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// A command line, quoted for a shell, a file name or a generator's description.
    pub name: String,
    /// The words of a live program's command line; of a recording, what it says it is of. Empty
    /// otherwise.
    #[serde(default)]
    pub argv: Vec<String>,
    /// `live`, `recording`, `champsim`, `cloudsuite`, `lackey` or `generator`.
    pub kind: String,
    /// Bytes of memory it touches, when known.
    pub footprint_bytes: Option<u64>,
    /// Accesses in the whole of it, when known.
    pub accesses: Option<u64>,
    /// Exit status of a live program: the code, or 128 + the signal's number.
    pub exit_status: Option<i32>,
    /// What a reader must know of it, such as mappings inferred.
    pub notes: Vec<String>,
}

impl From<WorkloadInfo> for Workload {
    fn from(info: WorkloadInfo) -> Self {
        Self {
            name: info.name,
            argv: info.argv,
            kind: info.kind.to_owned(),
            footprint_bytes: info.footprint_bytes,
            accesses: info.accesses,
            exit_status: info.exit_status,
            notes: info.notes,
        }
    }
}

/// Page tables captured from a real machine, which a stream was replayed against.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedTables {
    /// Layers of the machine: 1 natively, 2 in a VM, 3 in a nested VM.
    pub layers: u8,
    /// What in the results is of the real machine.
    pub real: Vec<String>,
    /// What in the results is Strata's model.
    pub modelled: Vec<String>,
    /// The check of every access against the tables when they were captured.
    pub check: strata_tables::Check,
    /// The shadow table against what it is made of; `null` unless all tables of three layers were
    /// captured.
    pub composition: Option<strata_tables::ShadowCheck>,
}

/// Everything one `strata run` found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub strata: u32,
    /// The program that wrote it.
    #[serde(default)]
    pub version: Version,
    /// The command line, word by word, that gives the same bytes for the same input: configuration
    /// files are folded in, and what changes no result is left out.
    #[serde(default)]
    pub command: Vec<String>,
    /// The options in force.
    #[serde(default)]
    pub options: Options,
    /// Not everything asked for is here: runs that did not see the whole stream have their own
    /// `partial` set, runs never begun are missing.
    pub partial: bool,
    /// Why it is partial; `null` when it is not.
    pub partial_reason: Option<String>,
    /// What was run.
    pub workload: Workload,
    /// Seed of everything random in the model.
    pub seed: u64,
    /// Accesses before counting began.
    pub warmup: u64,
    /// The tables that `--tables` gave; `null` when the whole stack was modelled.
    #[serde(default)]
    pub tables: Option<CapturedTables>,
    /// The runs, in the order asked for; none when several VMs shared a host.
    pub runs: Vec<RunResult>,
    /// What each VM of a shared host ran and what was found, in the order asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<VmReport>,
    /// The host as a whole, for each run of its VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostRun>,
}

/// What was found of a VM that shared a host with others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmReport {
    /// Its name.
    pub name: String,
    /// What it ran.
    pub workload: Workload,
    /// The runs, in the order of [`Report::hosts`].
    pub runs: Vec<RunResult>,
    /// The same without the other VMs, in the same order; empty without `--alone`.
    pub alone: Vec<RunResult>,
    /// How often its program ran to its end in each of them: more than once only if it repeats.
    pub rounds: Vec<u64>,
    /// Time of its program, run for the first time, over that without the other VMs, for each run;
    /// `null` where memory ran out in one of the two. Empty without `--alone`.
    pub slowdown: Vec<Option<f64>>,
    /// Whether the program did not come to its end, so that the slowdown is an estimate: the time of an
    /// access until then over that of all of them alone.
    #[serde(default)]
    pub slowdown_estimated: Vec<bool>,
}

impl Report {
    /// What tells each of the hosts from the others: the policy, and the stack where there are several, of
    /// VMs that have none of their own.
    pub fn host_names(&self) -> Vec<String> {
        let several = self.hosts.iter().any(|host| host.stack != self.hosts[0].stack);
        let name = |host: &HostRun| {
            let policy = host.policy.as_deref().unwrap_or("as given");
            match host.stack.filter(|_| several) {
                Some(stack) => format!("{stack} {policy}"),
                None => policy.to_owned(),
            }
        };
        self.hosts.iter().map(name).collect()
    }

    /// What to call the runs of a VM, one on each of the hosts: by its own policy, and where that does not
    /// tell them apart by that of the others too.
    pub fn names_of_runs(&self, vm: &VmReport) -> Vec<String> {
        let key = |run: &RunResult| (run.stack, run.policy.clone());
        let keys: BTreeSet<_> = vm.runs.iter().map(key).collect();
        let are_alike = keys.len() < vm.runs.len();
        let names = vm.runs.iter().zip(self.host_names());
        let name = |(run, host): (&RunResult, String)| match are_alike {
            true => format!("{} beside {host}", run.policy),
            false => run.policy.clone(),
        };
        names.map(name).collect()
    }

    /// The runs by stack, stacks in the order of their first run.
    pub fn by_stack(&self) -> Vec<(StackKind, Vec<&RunResult>)> {
        let mut stacks: Vec<(StackKind, Vec<&RunResult>)> = Vec::new();
        for run in &self.runs {
            match stacks.iter_mut().find(|(stack, _)| *stack == run.stack) {
                Some((_, runs)) => runs.push(run),
                None => stacks.push((run.stack, vec![run])),
            }
        }
        stacks
    }
}
