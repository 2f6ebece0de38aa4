//! What tests of sampled streams share: a run, and its figures by name.

use strata_engine::{RunResult, Setup, Stop, catalogue};
use strata_stream::{Batch, Fill, Source};

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

/// A figure of a result by the name that its bounds have.
pub fn figure(result: &RunResult, name: &str) -> f64 {
    (match name {
        "accesses" => result.accesses,
        "tlb.l1_misses" => result.tlb.l1_misses,
        "tlb.l2_misses" => result.tlb.l2_misses,
        "walk_refs" => result.walk_refs,
        "walk_cycles" => result.walk_cycles,
        "counters.strata.data_memory" => result.counters["strata.data_memory"],
        "cycles" => result.cycles,
        "elapsed_cycles" => result.elapsed_cycles,
        _ => panic!("{name}"),
    }) as f64
}
