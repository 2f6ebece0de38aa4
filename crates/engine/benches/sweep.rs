//! What sharing a stream saves: five policies in one sweep against five sweeps of one policy.
//!
//! Each time is the least of several, so that other work on the computer counts little. Two cores
//! are meant; the target is 60 %.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};
use strata_engine::{Build, Catalogue, Progress, Setup, StackKind, Stop, Sweep, catalogue, sweep};
use strata_hardware::{CpuModel, Misaligned};
use strata_stream::{Source, WorkloadInfo};
use strata_workloads::Generator;

const WORKLOAD: &str = "random:size=256MiB,accesses=10M";
const POLICIES: [&str; 5] = ["base", "thp", "gemini", "xgemini", "aligned"];
const REPEATS: usize = 3;

fn main() {
    let catalogue = catalogue();
    let least = |policies: &[&str]| {
        let times = (0..REPEATS).map(|_| time(&catalogue, policies));
        times.min().expect("there are repeats")
    };
    let together = least(&POLICIES);
    let apart: Duration = POLICIES.iter().map(|policy| least(&[policy])).sum();
    let ratio = together.as_secs_f64() / apart.as_secs_f64();
    println!("five policies over {WORKLOAD}, nested, 2 threads");
    println!("one sweep    {:6.2} s", together.as_secs_f64());
    println!("five sweeps  {:6.2} s", apart.as_secs_f64());
    println!("ratio        {:6.1} %  (target: at most 60 %)", ratio * 100.0);
}

fn time(catalogue: &Catalogue, policies: &[&str]) -> Duration {
    let setups: Vec<Setup> = policies.iter().map(|policy| setup(policy)).collect();
    let builds = setups.iter().map(|setup| -> Build<'_> {
        Box::new(move |workload: &WorkloadInfo| (catalogue.build)(setup, workload))
    });
    let open = || Generator::parse(WORKLOAD).expect("the generator exists");
    let (stop, progress) = (Stop::default(), Progress::default());
    let start = Instant::now();
    let swept = sweep(Sweep {
        workload: open().info(),
        open: Box::new(move || Ok(Box::new(open()))),
        replayable: true,
        builds: builds.collect(),
        at_once: None,
        threads: NonZeroUsize::new(2),
        memory_limit: None,
        stop: &stop,
        progress: &progress,
    });
    assert_eq!(swept.expect("the machines can be built").runs.len(), policies.len());
    start.elapsed()
}

fn setup(policy: &str) -> Setup {
    Setup {
        stack: StackKind::Nested,
        policy: policy.to_owned(),
        cpu: CpuModel::preset(CpuModel::DEFAULT).expect("the default preset exists"),
        memory: None,
        levels: 4,
        fragmentation: vec![0.8],
        reused: false,
        misaligned: Misaligned::Splinter,
        warmup: 0,
        seed: 1,
        explain: false,
        overrides: Vec::new(),
    }
}
