//! What is measured of a run.

use strata_engine::RunResult;

/// What is measured of two runs that are compared.
#[derive(Clone, Copy)]
pub(super) enum Measure {
    Throughput,
    MeanLatency,
    TailLatency,
    /// The share of the program's references to the last level that miss it.
    Misses,
}

impl Measure {
    pub(super) fn of(self, run: &RunResult) -> Option<f64> {
        let latency = || Some(&run.requests.as_ref()?.latency);
        match self {
            Self::Throughput => run.throughput(),
            Self::MeanLatency => Some(latency()?.mean),
            Self::TailLatency => latency()?.p99,
            Self::Misses => miss_ratio(run),
        }
    }

    /// One run over another.
    pub(super) fn ratio(self, over: Option<&RunResult>, under: Option<&RunResult>) -> Option<f64> {
        Some(self.of(over?)? / self.of(under?)?)
    }
}

/// The share of the program's loads and stores that miss the last level, of those that get there. References
/// of page walks are left out, as processors leave them out of their events for loads: a nested VM has more
/// of them than bare metal has, and most hit.
pub(super) fn miss_ratio(run: &RunResult) -> Option<f64> {
    let [hits, misses] =
        ["strata.data_l3", "strata.data_memory"].map(|name| run.counters.get(name).copied());
    let (hits, misses) = (hits?, misses?);
    (hits + misses > 0).then(|| misses as f64 / (hits + misses) as f64)
}
