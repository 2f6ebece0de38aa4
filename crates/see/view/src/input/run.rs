//! The JSON of `strata run`, as far as it is shown; `docs/json.md` describes it.

use serde::Deserialize;
use std::collections::BTreeMap;
use strata_text::estimate::marked;

/// A result of `strata run`.
#[derive(Debug, Deserialize)]
pub struct Report {
    /// The Strata that wrote it.
    #[serde(default)]
    pub version: Version,
    /// The words that give it again.
    #[serde(default)]
    pub command: Vec<String>,
    /// Not everything asked for is there.
    pub partial: bool,
    /// Why.
    pub partial_reason: Option<String>,
    /// What was run.
    pub workload: Workload,
    /// Seed of everything random.
    pub seed: u64,
    /// The runs.
    pub runs: Vec<Run>,
    /// VMs that shared a host.
    #[serde(default)]
    pub vms: Vec<Vm>,
    /// The host as a whole, for each run of the VMs.
    #[serde(default)]
    pub hosts: Vec<Host>,
}

/// The program that wrote a result.
#[derive(Debug, Default, Deserialize)]
pub struct Version {
    /// Version.
    #[serde(default)]
    pub package: String,
    /// Commit.
    pub commit: Option<String>,
}

/// What was run.
#[derive(Debug, Default, Deserialize)]
pub struct Workload {
    /// As people call it.
    pub name: String,
    /// Where it came from.
    pub kind: String,
    /// Bytes touched.
    pub footprint_bytes: Option<u64>,
    /// What a reader must know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A VM of a host.
#[derive(Debug, Deserialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// What it ran.
    pub workload: Workload,
    /// What was found on each host.
    pub runs: Vec<Run>,
    /// The same without the other VMs.
    #[serde(default)]
    pub alone: Vec<Run>,
    /// Time over that alone, on each host.
    #[serde(default)]
    pub slowdown: Vec<Option<f64>>,
}

/// A host.
#[derive(Debug, Deserialize)]
pub struct Host {
    /// Bytes.
    pub memory_bytes: u64,
    /// The stack of VMs that have none of their own.
    #[serde(default)]
    pub stack: Option<String>,
    /// Their policy.
    #[serde(default)]
    pub policy: Option<String>,
}

/// One machine under one policy.
#[derive(Debug, Deserialize)]
pub struct Run {
    /// `native`, `vm` or `nested`.
    pub stack: String,
    /// The policy.
    pub policy: String,
    /// The CPU.
    pub cpu: String,
    /// A layer ran out of memory.
    #[serde(default)]
    pub out_of_memory: bool,
    /// Loads and stores.
    pub accesses: u64,
    /// TLB misses.
    pub tlb: Tlb,
    /// Walks.
    pub walks: u64,
    /// Their references.
    pub walk_refs: u64,
    /// By position.
    pub walk_positions: Vec<Position>,
    /// Cycles in walks.
    #[serde(default)]
    pub walk_cycles: u64,
    /// Cycles.
    pub cycles: u64,
    /// Simulated seconds.
    pub elapsed_seconds: f64,
    /// Where cycles went.
    pub cycles_by_kind: BTreeMap<String, u64>,
    /// The same in more detail.
    #[serde(default)]
    pub bill: Vec<BillItem>,
    /// Huge pages.
    pub alignment: Alignment,
    /// Faults.
    pub faults: PerLayer<u64>,
    /// Exits by the layer that took them.
    #[serde(default)]
    pub exits_by_layer: Vec<LayerExits>,
    /// Memory touched and used.
    pub memory: Memory,
    /// Memory of each layer.
    #[serde(default)]
    pub layers: Vec<LayerMemory>,
    /// Throughput over that of the first run.
    pub relative_throughput: Option<f64>,
    /// What a reader must know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Counters by name.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// States at fixed intervals of simulated time.
    pub series: Option<Series>,
    /// The guest's regions through all layers.
    pub regions: Option<Regions>,
    /// Every parameter in force.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// What is estimated, if the stream was sampled.
    #[serde(default)]
    pub sampled: Option<Sampled>,
}

/// What a sampled run says besides its figures.
#[derive(Debug, Deserialize)]
pub struct Sampled {
    /// Windows that count.
    pub windows: u64,
    /// How often in 100 the bounds hold the figure of the whole stream.
    pub confidence: u32,
    /// Bounds of figures, by their names.
    pub bounds: BTreeMap<String, Bounds>,
    /// The phases, if windows stand for these.
    #[serde(default)]
    pub phases: Vec<Phase>,
}

/// Bounds of a figure.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Bounds {
    /// It is not below this.
    pub low: f64,
    /// Nor above this.
    pub high: f64,
}

impl Bounds {
    /// How far the value that they are around may be off, as a share of it.
    pub fn relative(&self, value: f64) -> f64 {
        if value > 0.0 { (self.high - value).max(value - self.low) / value } else { 0.0 }
    }
}

/// A phase of a stream.
#[derive(Debug, Deserialize)]
pub struct Phase {
    /// Of the instructions.
    pub share: f64,
    /// Its intervals.
    pub intervals: u64,
    /// Those of them that were run in detail.
    pub windows: u64,
}

impl Run {
    /// A figure, marked where it is estimated from windows of the stream.
    pub fn mark(&self, figure: String) -> String {
        if self.sampled.is_some() { marked(figure) } else { figure }
    }

    /// All faults, of all layers.
    pub fn all_faults(&self) -> u64 {
        self.faults.present().iter().map(|(_, faults)| faults).sum()
    }

    /// Seconds that an exit of this reason takes, if that is known.
    pub fn exit_seconds(&self, reason: &str) -> Option<f64> {
        let number = |name: &str| self.parameters.get(name)?.parse::<f64>().ok();
        let frequency = number("core.frequency_mhz").filter(|mhz| *mhz > 0.0)?;
        Some(number(&format!("exit.{reason}"))? / (frequency * 1e6))
    }

    /// All exits, whoever took them.
    pub fn all_exits(&self) -> u64 {
        let layers = self.exits_by_layer.iter();
        layers.flat_map(|layer| each_once(&layer.exits)).sum()
    }
}

/// The reason of exits that the layer below made one for the layer above. They are counted under their
/// own reason, too, and cost what handing them on does.
pub const HANDED_ON: &str = "handed_on";
/// Reasons of exits that are handed on, those first that rather are: where some of all are, the others are
/// mostly those that no hypervisor in a VM has anything to do with.
pub const MAY_BE_HANDED_ON: [&str; 5] =
    ["second_stage_violation", "io", "halt", "apic", "external_interrupt"];

/// What there is of exits by reason, each exit once.
pub fn each_once<T>(by_reason: &BTreeMap<String, T>) -> impl Iterator<Item = &T> {
    by_reason.iter().filter(|(reason, _)| *reason != HANDED_ON).map(|(_, count)| count)
}

/// TLB misses.
#[derive(Debug, Deserialize)]
pub struct Tlb {
    /// Of the first level.
    #[serde(default)]
    pub l1_misses: u64,
    /// Of both.
    pub l2_misses: u64,
}

/// What became of a position of the walk. Results of before lack all but the references.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Position {
    /// Its name, such as `g4n3`.
    pub position: String,
    /// References.
    pub references: u64,
    /// Of them, served by the first-level data cache.
    #[serde(default)]
    pub l1: u64,
    /// By the second-level cache.
    #[serde(default)]
    pub l2: u64,
    /// By the last-level cache.
    #[serde(default)]
    pub llc: u64,
    /// By memory.
    #[serde(default)]
    pub memory: u64,
    /// Saved by the guest's paging-structure caches.
    #[serde(default)]
    pub pwc: u64,
    /// Saved by the nested ones.
    #[serde(default)]
    pub nested_pwc: u64,
    /// Saved by the nested TLB.
    #[serde(default)]
    pub ntlb: u64,
}

/// A line of the bill.
#[derive(Debug, Deserialize)]
pub struct BillItem {
    /// What the cycles went to.
    pub name: String,
    /// Whose affair it was.
    pub level: String,
    /// Cycles.
    pub cycles: u64,
    /// The event of perf that shows it.
    #[serde(default)]
    pub event: String,
}

/// Huge pages of the guest.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Alignment {
    /// All.
    pub guest_huge: u64,
    /// Backed by one huge mapping.
    pub well_aligned: u64,
    /// Nothing allocated below yet.
    pub type1: u64,
    /// Something allocated below.
    pub type2: u64,
    /// Of the well aligned, those that L1 maps with base pages.
    #[serde(default)]
    pub pseudo_huge: u64,
}

/// A value for each layer there is: `guest`, `l1` and others between, `host`.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PerLayer<T>(BTreeMap<String, Option<T>>);

impl<T: Copy> PerLayer<T> {
    /// Layers with their values, the guest first, the host last.
    pub fn present(&self) -> Vec<(&str, T)> {
        let mut all: Vec<(&str, T)> =
            self.0.iter().filter_map(|(layer, value)| Some((layer.as_str(), (*value)?))).collect();
        all.sort_by_key(|(layer, _)| match *layer {
            "guest" => (0, String::new()),
            "host" => (2, String::new()),
            // The higher its number, the nearer to the guest.
            between => (1, format!("{:03}", 999 - number(between))),
        });
        all
    }
}

/// 1 of `l1`.
fn number(layer: &str) -> u32 {
    layer.trim_start_matches('l').parse().unwrap_or(0).min(999)
}

/// Exits that a layer took.
#[derive(Debug, Deserialize)]
pub struct LayerExits {
    /// By reason.
    pub exits: BTreeMap<String, u64>,
}

/// Memory touched and used.
#[derive(Debug, Deserialize)]
pub struct Memory {
    /// Bytes of pages touched.
    pub touched_bytes: u64,
    /// Bytes allocated for it, at most.
    pub used_bytes: u64,
}

/// Memory of a layer at the end.
#[derive(Debug, Deserialize)]
pub struct LayerMemory {
    /// The layer.
    pub layer: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes of page tables.
    pub table_bytes: u64,
    /// Free blocks by order.
    #[serde(default)]
    pub free_blocks: Vec<u64>,
}

/// States at fixed intervals: lists of equal length. Counts are those so far.
#[derive(Debug, Deserialize)]
pub struct Series {
    /// Simulated seconds.
    pub seconds: Vec<f64>,
    /// Accesses.
    pub accesses: Vec<u64>,
    /// L2 TLB misses.
    pub l2_misses: Vec<u64>,
    /// Faults by layer.
    pub faults: BTreeMap<String, Vec<u64>>,
    /// Exits by layer and reason.
    pub exits: BTreeMap<String, BTreeMap<String, Vec<u64>>>,
    /// FMFI by layer.
    pub fmfi: BTreeMap<String, Vec<f64>>,
    /// Well-aligned ones.
    pub well_aligned: Vec<u64>,
    /// Bytes used.
    pub used_bytes: Vec<u64>,
}

/// Regions of 2 MiB through all layers, as rows of numbers.
#[derive(Clone, Debug, Deserialize)]
pub struct Regions {
    /// What the numbers of a row are.
    pub columns: Vec<String>,
    /// Layer and cause.
    pub causes: Vec<[String; 2]>,
    /// Regions beside each other that differ in nothing but their place.
    pub rows: Vec<Vec<i64>>,
}
