//! What a run found, as it is written to JSON. `docs/json.md` describes every field.
//!
//! Fields are only ever added; a change of meaning raises [`VERSION`]. Nothing here depends on
//! the clock, the number of threads or the machine that ran the model, so equal inputs give equal
//! bytes.

use crate::StackKind;
use crate::options::{Options, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strata_stream::WorkloadInfo;

/// Version of the format, the value of the field `strata`.
pub const VERSION: u32 = 1;

/// One thing per layer. Layers a stack has not got are `None`, written as `null`: `l1` in a VM,
/// `l1` and `host` natively, where `guest` is the only kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerLayer<T> {
    /// The kernel the program runs on: L2 when nested.
    pub guest: T,
    /// The guest hypervisor, L1.
    pub l1: Option<T>,
    /// The host hypervisor, L0.
    pub host: Option<T>,
}

impl<T: Copy> PerLayer<T> {
    /// The layers there are, with their names, from the guest down.
    pub fn present(&self) -> impl Iterator<Item = (&'static str, T)> {
        let layers = [("guest", Some(self.guest)), ("l1", self.l1), ("host", self.host)];
        layers.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

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

/// References a walk makes at one position of the two-dimensional walk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WalkPosition {
    /// Name as `strata walk` prints it, such as `g3n2`.
    pub position: String,
    /// References made; those a walk cache answered are not among them.
    pub references: u64,
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
    /// Huge pages when the guest used most memory: at the end, unless memory was given back.
    pub alignment: Alignment,
    /// Page faults each layer handled.
    pub faults: PerLayer<u64>,
    /// VM exits by reason.
    pub exits: BTreeMap<String, u64>,
    /// The same exits by the layer that took them.
    #[serde(default)]
    pub exits_by_layer: Vec<LayerExits>,
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
    /// Every parameter in force, printed as `--set` takes it.
    pub parameters: BTreeMap<String, String>,
}

impl RunResult {
    /// Accesses per elapsed cycle, the measure of throughput: every run gets the same accesses.
    /// `None` when no time passed.
    pub fn throughput(&self) -> Option<f64> {
        (self.elapsed_cycles > 0 && self.accesses > 0)
            .then(|| self.accesses as f64 / self.elapsed_cycles as f64)
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
    pub composition: Option<strata_tables::Composition>,
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
    /// The runs, in the order asked for.
    pub runs: Vec<RunResult>,
}

impl Report {
    /// A report over `runs`, with throughput related to the first run of each stack.
    pub fn new(workload: WorkloadInfo, mut runs: Vec<RunResult>) -> Self {
        relate(&mut runs);
        crate::room::remark(&mut runs);
        // Every run saw the same accesses, so what was counted on the way is true of each; what a
        // run was told before it began may have been an upper bound.
        if let Some(touched) = workload.footprint_bytes {
            runs.iter_mut().for_each(|run| run.memory.touched_bytes = touched);
        }
        let partial_reason = out_of_memory(&runs);
        Self {
            strata: VERSION,
            version: Version::default(),
            command: Vec::new(),
            options: Options::default(),
            partial: partial_reason.is_some(),
            partial_reason,
            workload: workload.into(),
            seed: 0,
            warmup: 0,
            tables: None,
            runs,
        }
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

/// Which runs ended for want of memory and say nothing of their policies, if any did.
fn out_of_memory(runs: &[RunResult]) -> Option<String> {
    let several = runs.iter().any(|run| run.stack != runs[0].stack);
    let mut ended: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.out_of_memory) {
        let stack = if several { format!("{} ", run.stack) } else { String::new() };
        let name = format!("{stack}{}", run.policy);
        ended.entry(run.killed.join(", ")).or_default().push(name);
    }
    let ended: Vec<_> = ended
        .into_iter()
        .map(|(killed, names)| match &killed[..] {
            "" => names.join(", "),
            killed => format!("{} ({killed})", names.join(", ")),
        })
        .collect();
    (!ended.is_empty()).then(|| {
        let ended = ended.join(", ");
        format!("memory ran out under {ended}, so that nothing compares with it: raise --memory")
    })
}

fn relate(runs: &mut [RunResult]) {
    let mut first = BTreeMap::new();
    for run in runs {
        let own = run.throughput().filter(|_| !run.out_of_memory);
        let (base, accesses) = *first.entry(run.stack).or_insert((own, run.accesses));
        // Runs that saw different parts of the stream cannot be compared.
        let comparable = own.zip(base).filter(|_| run.accesses == accesses);
        run.relative_throughput = comparable.map(|(own, base)| own / base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stack: StackKind, policy: &str, elapsed_cycles: u64) -> RunResult {
        RunResult {
            stack,
            policy: policy.to_owned(),
            accesses: 100,
            elapsed_cycles,
            ..RunResult::default()
        }
    }

    #[test]
    fn throughput_relates_to_the_first_run_of_the_same_stack() {
        let report = Report::new(
            WorkloadInfo::default(),
            vec![
                run(StackKind::Nested, "base", 1000),
                run(StackKind::Vm, "base", 800),
                run(StackKind::Nested, "xgemini", 500),
                run(StackKind::Vm, "xgemini", 1600),
                run(StackKind::Native, "base", 0),
                run(StackKind::Native, "thp", 10),
            ],
        );
        let relative: Vec<_> = report.runs.iter().map(|run| run.relative_throughput).collect();
        assert_eq!(relative, [Some(1.0), Some(1.0), Some(2.0), Some(0.5), None, None]);
        let stacks: Vec<_> = report.by_stack().iter().map(|(s, runs)| (*s, runs.len())).collect();
        assert_eq!(stacks, [(StackKind::Nested, 2), (StackKind::Vm, 2), (StackKind::Native, 2)]);
    }

    #[test]
    fn json_reads_back_as_written_and_names_absent_layers() {
        let mut result = run(StackKind::Vm, "thp", 7);
        result.fmfi = PerLayer { guest: 0.25, l1: None, host: Some(0.5) };
        result.exits.insert("ept_violation".to_owned(), 3);
        result.samples.push(Sample { seconds: 0.1, ..Sample::default() });
        let report = Report::new(WorkloadInfo::default(), vec![result]);
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.starts_with(r#"{"strata":1,"#), "{text}");
        assert!(text.contains(r#""fmfi":{"guest":0.25,"l1":null,"host":0.5}"#), "{text}");
        assert!(text.contains(r#""stack":"vm""#), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
