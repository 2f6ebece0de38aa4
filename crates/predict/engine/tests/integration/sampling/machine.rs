//! A small machine for sampled streams, and how often bounds hold what it finds of whole ones.

use std::collections::BTreeMap;
use strata_engine::{LayerFmfi, Report, RunResult, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_stream::{Array, Batch, Fill, Source};
use strata_workloads::{Aim, Reach};

/// Caches are small, so that streams of a few million accesses are long for them.
pub fn setup(stack: StackKind, policy: &str) -> Setup {
    with_caches(stack, policy, [64 << 10, 256 << 10])
}

/// With so many bytes in the second-level cache and the last one.
pub fn with_caches(stack: StackKind, policy: &str, [l2, llc]: [u64; 2]) -> Setup {
    let mut cpu = CpuModel::preset("broadwell-e5-2620v4").unwrap();
    (cpu.cache.l2.bytes, cpu.cache.l2.ways) = (l2, 8);
    (cpu.cache.llc.bytes, cpu.cache.llc.ways) = (llc, 16);
    Setup {
        memory: Some(256 << 20),
        fragmentation: LayerFmfi::everywhere(0.0),
        ..Setup::new(stack, policy, cpu)
    }
}

/// The arrays of [`setup`].
pub fn aim() -> Aim {
    let reach = |array, entries, ways, cycles| Reach { array, entries, ways, cycles };
    let reaches = vec![
        reach(Array::LastLevelCache, 4096, 16, 200.0),
        reach(Array::L2Tlb, 1536, 6, 50.0),
        reach(Array::L2Cache, 1024, 8, 40.0),
        reach(Array::L1Tlb, 64, 4, 7.0),
    ];
    Aim { within: 0.02, base_cpi: 0.5, reaches }
}

/// Runs a stream to its end.
pub fn run(setup: &Setup, mut source: impl Source) -> RunResult {
    let mut run = (catalogue().build)(setup, &source.info(), &Stop::default()).unwrap();
    let mut batch = Batch::new();
    loop {
        let fill = source.fill(&mut batch).unwrap();
        run.consume(&batch);
        if fill == Fill::End {
            return run.finish();
        }
    }
}

/// Whether the bounds of a report's second run beside its first hold the truth. They are nearer than the run's own bounds: what
/// both runs have in common says nothing against their relation.
pub fn relation_holds(found: &Report, truth: f64) -> bool {
    let bounds = &found.runs[1].sampled.as_ref().expect("it is sampled").bounds;
    let [relative, own] = ["relative_throughput", "elapsed_cycles"].map(|name| bounds[name]);
    assert!(relative.half() / truth < 3.0 * own.half() / own.high + 0.01);
    relative.low <= truth && truth <= relative.high
}

/// How many runs have bounds that hold the truth, by the names of figures.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<String, u32>);

impl Held {
    /// Adds a run, beside that of the whole stream.
    pub fn note(&mut self, found: &RunResult, whole: &RunResult) {
        for (name, bounds) in &found.sampled.as_ref().expect("it is sampled").bounds {
            let truth = whole.bounded(name);
            let holds = bounds.low <= truth && truth <= bounds.high;
            *self.0.entry(name.clone()).or_default() += u32::from(holds);
        }
    }

    /// Each of the eight that have any hold it in at least so many runs.
    pub fn assert_at_least(&self, runs: u32) {
        println!("{self:?}");
        assert_eq!(self.0.len(), 8, "{self:?}");
        assert!(self.0.values().all(|held| *held >= runs), "{self:?}");
    }
}
