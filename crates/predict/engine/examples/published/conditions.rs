//! What is run for the comparison with published results, after what the papers say of their own
//! experiments. The head of the page says what was chosen before any result was seen, and what was not.

use std::num::NonZeroUsize;
use std::thread;
use strata_engine::requests::{RequestLoad, Times, relate};
use strata_engine::{
    Build, HostSetup, Hosts, LayerFmfi, OpenError, Progress, RunResult, Setup, StackKind, Stop,
    Sweep, VmSetup, catalogue, run_hosts, sweep,
};
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
    fn fmfi(self) -> LayerFmfi {
        match self {
            Self::Clean => LayerFmfi::everywhere(0.0),
            Self::Fragmented | Self::FragmentedMovable => LayerFmfi::everywhere(FRAGMENTED),
            Self::ExhaustedL1 => LayerFmfi { guest: 0.5, l1: 1.0, host: 0.5 },
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

/// What chooses all that is random.
const SEED: u64 = 1;

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
    /// Accesses that serve a request where latencies are shown; 0 if none are.
    request: u64,
}

impl StandIn {
    /// Bytes of memory of its VM.
    fn guest_memory(&self) -> u64 {
        (self.footprint * MEMORY_OVER_FOOTPRINT).max(LEAST_MEMORY)
    }

    /// The generator's whole description.
    fn workload(&self) -> String {
        format!("{},accesses={ACCESSES}", self.spec)
    }
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
        request: 0,
    },
    StandIn {
        name: "random, 384 MiB",
        spec: "random:size=384MiB,touch=yes",
        footprint: 384 * MIB,
        gemini_kin: "SVM",
        xgemini_kin: "Raytrace",
        request: 0,
    },
    StandIn {
        name: "zipf 0.99, 256 MiB",
        spec: "zipf:size=256MiB,touch=yes",
        footprint: 256 * MIB,
        gemini_kin: "Masstree",
        xgemini_kin: "Masstree",
        request: 100,
    },
    StandIn {
        name: "strided 4 KiB, 256 MiB",
        spec: "strided:size=256MiB",
        footprint: 256 * MIB,
        gemini_kin: "CG.D",
        xgemini_kin: "FFT",
        request: 0,
    },
    StandIn {
        name: "sequential, 128 MiB",
        spec: "sequential:size=128MiB,stride=64",
        footprint: 128 * MIB,
        gemini_kin: "Streamcl.",
        xgemini_kin: "Streamcl.",
        request: 0,
    },
    StandIn {
        name: "growing heap, 256 MiB",
        spec: "heap:size=256MiB",
        footprint: 256 * MIB,
        gemini_kin: "Specjbb",
        xgemini_kin: "Specjbb",
        request: 100,
    },
    StandIn {
        name: "churn, 192 MiB",
        spec: "churn:size=192MiB",
        footprint: 192 * MIB,
        gemini_kin: "Dedup",
        xgemini_kin: "Dedup",
        request: 0,
    },
    StandIn {
        name: "random, 24 MiB",
        spec: "random:size=24MiB,touch=yes",
        footprint: 24 * MIB,
        gemini_kin: "Silo",
        xgemini_kin: "x264",
        request: 100,
    },
];

/// Of the latencies alone: weights that every image goes through. They are those of `strata paper
/// xplace` with shorter requests, so that there are enough for a 99th percentile.
pub const IMG_DNN: StandIn = StandIn {
    name: "sequential, 12 MiB",
    spec: "sequential:size=12MiB,stride=64,stores=0,touch=yes",
    footprint: 12 * MIB,
    gemini_kin: "Img-dnn",
    xgemini_kin: "Img-dnn",
    request: 2000,
};

/// The stand-ins that serve requests, for the programs that both papers have latencies of.
pub fn servers() -> impl Iterator<Item = &'static StandIn> {
    std::iter::once(&IMG_DNN).chain(STAND_INS.iter()).filter(|known| known.request > 0)
}

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
        seed: SEED,
        explain: false,
        detail: false,
        placement: strata_engine::PagePlacement::Linux,
        llc: strata_engine::LlcSetup::default(),
        overrides: Vec::new(),
        own: Vec::new(),
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
    run_stand_in(stand_in, &stand_in.workload(), stack, memory, policies)
}

fn run_stand_in(
    of: &StandIn,
    workload: &str,
    stack: StackKind,
    memory: Memory,
    policies: &[&str],
) -> Vec<RunResult> {
    let setup =
        Setup { overrides: overrides(memory), ..setup(stack, of.guest_memory(), memory, WARMUP) };
    run(&setup, policies, workload)
}

/// Share of what base pages can serve that arrives; neither paper gives one.
const LOAD: f64 = 0.7;

/// A stand-in that serves requests, with their latencies: all policies face the arrivals that keep the
/// servers of `base` busy for [`LOAD`] of the time.
pub fn serving(
    of: &StandIn,
    stack: StackKind,
    memory: Memory,
    policies: &[&str],
) -> Vec<RunResult> {
    let workload = format!("{},request={}", of.workload(), of.request);
    let mut runs = run_stand_in(of, &workload, stack, memory, policies);
    let load = RequestLoad { share: LOAD, reference: Some("base".to_owned()) };
    relate(&mut runs, &mut [], &load, SEED);
    runs
}

/// Parameters that differ from their defaults.
fn overrides(memory: Memory) -> Vec<(String, String)> {
    let mut overrides = vec![("time.scale".to_owned(), TIME_SCALE.to_string())];
    if matches!(memory, Memory::Fragmented | Memory::FragmentedMovable) {
        overrides.push(("fragmentation.backed".to_owned(), "true".to_owned()));
    }
    if memory == Memory::FragmentedMovable {
        overrides.push(("fragmentation.movable".to_owned(), "1".to_owned()));
    }
    overrides
}

/// Two VMs on one host: the stand-in that is measured, and the one beside it, which begins anew until
/// the first has ended.
#[derive(Clone, Copy)]
pub struct Pair {
    /// The one measured, by its name.
    pub measured: &'static str,
    /// Its neighbour.
    pub beside: &'static str,
    /// What the pair stands for.
    pub what: &'static str,
}

/// The pairs. Both papers put programs together that suffer from TLB misses, and such a program with
/// one that does not (Gemini 6.4, Figs. 17 and 18; xGemini V.C, Fig. 14). No stand-in misses none; the
/// small one misses on four times the reach of the L2 TLB.
pub const PAIRS: [Pair; 4] = [
    Pair { measured: "zipf 0.99, 256 MiB", beside: "random, 384 MiB", what: "large beside large" },
    Pair { measured: "zipf 0.99, 256 MiB", beside: "random, 24 MiB", what: "a small neighbour" },
    Pair {
        measured: "zipf 0.99, 256 MiB",
        beside: "growing heap, 256 MiB",
        what: "a neighbour hungry for memory",
    },
    Pair { measured: "random, 24 MiB", beside: "random, 384 MiB", what: "small beside large" },
];

/// The policies of the two VMs of a pair, the one measured first.
pub const SIDE_BY_SIDE: [[&str; 2]; 5] = [
    ["base", "base"],
    ["thp", "thp"],
    ["gemini", "gemini"],
    ["xgemini", "xgemini"],
    ["gemini", "thp"],
];

/// Runs a pair of VMs under each of [`SIDE_BY_SIDE`], in fragmented memory. The results are those of
/// the one measured.
pub fn pair(of: &Pair, stack: StackKind) -> Vec<RunResult> {
    let known = |name: &str| STAND_INS.iter().find(|known| known.name == name).expect("a stand-in");
    let (measured, beside) = (known(of.measured), known(of.beside));
    let open = |vm: &str| -> Result<Box<dyn Source>, OpenError> {
        let workload = if vm == "measured" { measured } else { beside }.workload();
        Ok(Box::new(Generator::parse(&workload).expect("the stand-ins are well formed")))
    };
    let host = |[policy, policy_beside]: [&str; 2]| {
        let vm = |name: &str, of: &StandIn, policy: &str| VmSetup {
            name: name.to_owned(),
            stack,
            policy: policy.to_owned(),
            memory: Some(of.guest_memory()),
            cores: Vec::new(),
            start: 0.0,
            repeat: name == "beside",
            placement: strata_engine::PagePlacement::Linux,
            balloon: None,
            llc_ways: None,
            vllc: None,
            within: None,
            seed: 1,
            workload: open(name).ok().map(|source| source.info()),
        };
        let common = Setup {
            overrides: overrides(Memory::Fragmented),
            policy: policy.to_owned(),
            ..setup(stack, measured.guest_memory(), Memory::Fragmented, WARMUP)
        };
        let vms = vec![vm("measured", measured, policy), vm("beside", beside, policy_beside)];
        HostSetup::shared(common, None, vms).expect("they can be on one host")
    };
    let hosts = SIDE_BY_SIDE.map(host);
    let outcomes = run_hosts(&Hosts {
        setups: &hosts,
        open: &open,
        at_once: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        stop: &Stop::default(),
        progress: &Progress::default(),
    });
    let outcomes = outcomes.expect("the hosts have room for their VMs").into_iter().flatten();
    let measured = outcomes.map(|outcome| {
        let mut guests = outcome.guests.into_iter();
        guests.find(|guest| guest.vm == "measured").expect("it was there").run
    });
    measured.collect()
}

/// L2 TLB misses relative to another run's.
pub fn relative_misses(run: &RunResult, to: &RunResult) -> f64 {
    run.tlb.l2_misses as f64 / to.tlb.l2_misses.max(1) as f64
}

/// Mean and 99th percentile of latency relative to another run's.
///
/// # Panics
/// When the runs have too few requests for a percentile.
pub fn relative_latency(run: &RunResult, to: &RunResult) -> [f64; 2] {
    let latency = |run: &RunResult| run.requests.as_ref().expect("it serves requests").latency;
    let (own, other) = (latency(run), latency(to));
    let p99 = |of: Times| of.p99.expect("there are more than 100 requests");
    [own.mean / other.mean, p99(own) / p99(other)]
}

/// Throughput relative to another run's.
pub fn relative_throughput(run: &RunResult, to: &RunResult) -> f64 {
    let throughput = |run: &RunResult| run.throughput().expect("something was counted");
    throughput(run) / throughput(to)
}
