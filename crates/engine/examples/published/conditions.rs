//! What is run for the comparison with published results, all of it chosen before any result was
//! seen, after what the papers say of their own experiments.

use strata_engine::{Build, Progress, RunResult, Setup, StackKind, Stop, Sweep, catalogue, sweep};
use strata_hardware::{CpuModel, Misaligned};
use strata_stream::{Source, WorkloadInfo};
use strata_workloads::Generator;

/// Memory of the guest over the footprint of the workload. Gemini's guests have 32 GB for
/// workloads of "more than 10 GB" (6.1, 6.2); xGemini's workloads are those of the same suites.
const MEMORY_OVER_FOOTPRINT: u64 = 3;

/// Memory of the guest at least.
const LEAST_MEMORY: u64 = 256 * MIB;

/// FMFI of every layer where memory is fragmented: what `strata run` assumes when it is told
/// nothing. Both papers fragment all layers and neither gives a value.
const FRAGMENTED: f64 = 0.8;

/// What memory looks like before a stand-in runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Not fragmented.
    Clean,
    /// Fragmented alike in every layer, by programs that filled each layer's memory, so that the
    /// layers below have backed it (Gemini 6.1).
    Fragmented,
    /// The same, and the kernels can move all that these programs hold: they are user programs, and
    /// neither paper says that they lock their memory.
    FragmentedMovable,
    /// Not one free huge page in the guest hypervisor, half of free memory usable elsewhere: the
    /// situation that pseudo huge pages are for (xGemini, Fig. 1).
    ExhaustedL1,
}

impl Memory {
    /// FMFI by layer, from the guest down; one value stands for all.
    fn fmfi(self) -> Vec<f64> {
        match self {
            Self::Clean => vec![0.0],
            Self::Fragmented | Self::FragmentedMovable => vec![FRAGMENTED],
            Self::ExhaustedL1 => vec![0.5, 1.0, 0.5],
        }
    }
}

/// Factor by which time passes faster for background work. The streams take tenths of a second of
/// simulated time where the papers' programs run for minutes.
const TIME_SCALE: u32 = 100;

/// Accesses of a stand-in, and how many of them are run before counting begins, so that what is
/// compared is the warm state.
const ACCESSES: u64 = 9_000_000;
const WARMUP: u64 = 6_000_000;

/// A generator that stands in for published programs.
#[derive(Clone, Copy)]
pub struct StandIn {
    /// How the tables call it.
    pub name: &'static str,
    /// The generator without its number of accesses.
    spec: &'static str,
    footprint: u64,
    /// The program of Gemini's figures with the most similar memory behaviour.
    pub gemini_kin: &'static str,
    /// The same of xGemini's.
    pub xgemini_kin: &'static str,
}

const MIB: u64 = 1 << 20;

/// The stand-ins. All but the last are far larger than 1536 base pages, the reach of the L2 TLB.
pub const STAND_INS: [StandIn; 8] = [
    StandIn {
        name: "chase, 192 MiB",
        spec: "chase:size=192MiB,touch=yes",
        footprint: 192 * MIB,
        gemini_kin: "Canneal",
        xgemini_kin: "Canneal",
    },
    StandIn {
        name: "random, 384 MiB",
        spec: "random:size=384MiB,touch=yes",
        footprint: 384 * MIB,
        gemini_kin: "SVM",
        xgemini_kin: "Raytrace",
    },
    StandIn {
        name: "zipf 0.99, 256 MiB",
        spec: "zipf:size=256MiB,touch=yes",
        footprint: 256 * MIB,
        gemini_kin: "Masstree",
        xgemini_kin: "Masstree",
    },
    StandIn {
        name: "strided 4 KiB, 256 MiB",
        spec: "strided:size=256MiB",
        footprint: 256 * MIB,
        gemini_kin: "CG.D",
        xgemini_kin: "FFT",
    },
    StandIn {
        name: "sequential, 128 MiB",
        spec: "sequential:size=128MiB,stride=64",
        footprint: 128 * MIB,
        gemini_kin: "Streamcl.",
        xgemini_kin: "Streamcl.",
    },
    StandIn {
        name: "growing heap, 256 MiB",
        spec: "heap:size=256MiB",
        footprint: 256 * MIB,
        gemini_kin: "Specjbb",
        xgemini_kin: "Specjbb",
    },
    StandIn {
        name: "churn, 192 MiB",
        spec: "churn:size=192MiB",
        footprint: 192 * MIB,
        gemini_kin: "Dedup",
        xgemini_kin: "Dedup",
    },
    StandIn {
        name: "random, 24 MiB",
        spec: "random:size=24MiB,touch=yes",
        footprint: 24 * MIB,
        gemini_kin: "Silo",
        xgemini_kin: "x264",
    },
];

/// A machine without its policy.
fn setup(stack: StackKind, bytes: u64, memory: Memory, warmup: u64) -> Setup {
    Setup {
        stack,
        policy: String::new(),
        cpu: CpuModel::preset(CpuModel::DEFAULT).expect("the default preset exists"),
        memory: Some(bytes),
        levels: 4,
        fragmentation: memory.fmfi(),
        reused: false,
        misaligned: Misaligned::Splinter,
        warmup,
        from_mark: false,
        seed: 1,
        explain: false,
        overrides: Vec::new(),
    }
}

/// Runs policies over one stream. The results are in the order of the policies.
fn run(setup: &Setup, policies: &[&str], workload: &str) -> Vec<RunResult> {
    let catalogue = catalogue();
    let setups: Vec<_> = policies
        .iter()
        .map(|policy| Setup { policy: policy.to_string(), ..setup.clone() })
        .collect();
    let open = || Generator::parse(workload).expect("the stand-ins are well formed");
    let info: WorkloadInfo = open().info();
    let (stop, progress) = (Stop::default(), Progress::default());
    let build = |setup, info: &_| (catalogue.build)(setup, info, &stop);
    let builds =
        setups.iter().map(|setup| -> Build<'_> { Box::new(move |info| build(setup, info)) });
    let swept = sweep(Sweep {
        workload: info,
        open: Box::new(|| Ok(Box::new(open()))),
        replayable: true,
        builds: builds.collect(),
        at_once: None,
        threads: None,
        memory_limit: None,
        stop: &stop,
        progress: &progress,
    });
    swept.expect("the machines fit their workloads").runs
}

/// The micro-benchmark of Gemini's Fig. 2: random accesses in a VM whose memory is not fragmented.
pub fn microbenchmark(policies: &[&str], mebibytes: u64, misaligned: Misaligned) -> Vec<RunResult> {
    const COUNTED: u64 = 1_000_000;
    let pages = mebibytes << 8;
    let memory = (mebibytes * MEMORY_OVER_FOOTPRINT * MIB).max(LEAST_MEMORY);
    let setup =
        Setup { misaligned, ..setup(StackKind::Vm, memory, Memory::Clean, pages + COUNTED) };
    let workload = format!("random:size={mebibytes}MiB,touch=yes,accesses={}", 2 * COUNTED);
    run(&setup, policies, &workload)
}

/// A stand-in on a stack.
pub fn stand_in(
    stand_in: &StandIn,
    stack: StackKind,
    memory: Memory,
    policies: &[&str],
) -> Vec<RunResult> {
    let bytes = (stand_in.footprint * MEMORY_OVER_FOOTPRINT).max(LEAST_MEMORY);
    let mut overrides = vec![("time.scale".to_owned(), TIME_SCALE.to_string())];
    if matches!(memory, Memory::Fragmented | Memory::FragmentedMovable) {
        overrides.push(("fragmentation.backed".to_owned(), "true".to_owned()));
    }
    if memory == Memory::FragmentedMovable {
        overrides.push(("fragmentation.movable".to_owned(), "1".to_owned()));
    }
    let setup = Setup { overrides, ..setup(stack, bytes, memory, WARMUP) };
    run(&setup, policies, &format!("{},accesses={ACCESSES}", stand_in.spec))
}

/// L2 TLB misses relative to another run's.
pub fn relative_misses(run: &RunResult, to: &RunResult) -> f64 {
    run.tlb.l2_misses as f64 / to.tlb.l2_misses.max(1) as f64
}

/// Throughput relative to another run's.
pub fn relative_throughput(run: &RunResult, to: &RunResult) -> f64 {
    let throughput = |run: &RunResult| run.throughput().expect("something was counted");
    throughput(run) / throughput(to)
}
