//! What is compared.

use super::conditions::{FEW_SEEDS, Setting, seeds};
use crate::cells::over_seeds;
use crate::{Found, Spread};
use strata_engine::RunResult;

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Accesses in a time.
    Throughput,
    /// Mean latency of requests.
    MeanLatency,
    /// 99th percentile of latency.
    TailLatency,
    /// Misses of the second level of TLB.
    Misses,
    /// Share of the guest's huge pages that are well aligned.
    Aligned,
    /// FMFI of the host at the end.
    HostFmfi,
    /// FMFI of the guest at the end.
    GuestFmfi,
}

impl Measure {
    /// In words.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::MeanLatency => "mean latency",
            Self::TailLatency => "99th percentile of latency",
            Self::Misses => "TLB misses",
            Self::Aligned => "huge pages well aligned",
            Self::HostFmfi => "FMFI of the host",
            Self::GuestFmfi => "FMFI of the guest",
        }
    }

    /// Whether more of it is better.
    pub(super) fn more_is_better(self) -> bool {
        matches!(self, Self::Throughput | Self::Aligned)
    }

    /// Of a run; `None` if it has none, or did not come to its end.
    pub(super) fn of(self, run: &RunResult) -> Option<f64> {
        if run.out_of_memory {
            return None;
        }
        let latency = || run.requests.as_ref().map(|requests| requests.latency);
        match self {
            Self::Throughput => run.throughput(),
            Self::MeanLatency => latency().map(|times| times.mean),
            Self::TailLatency => latency().and_then(|times| times.p99),
            // None at all is as good as one, and can be compared.
            Self::Misses => Some(run.tlb.l2_misses.max(1) as f64),
            Self::Aligned => {
                let huge = run.alignment.guest_huge;
                Some(if huge == 0 { 0.0 } else { run.alignment.well_aligned as f64 / huge as f64 })
            }
            Self::HostFmfi => run.fmfi.host,
            Self::GuestFmfi => Some(run.fmfi.guest),
        }
    }

    /// Under a policy, relative to another one's unless that is `None`.
    pub(super) fn relative(
        self,
        found: &Found,
        setting: &Setting,
        policy: &str,
        to: Option<&str>,
    ) -> Option<f64> {
        let row = setting.row_name();
        let own = self.of(found.run(&row, policy)?)?;
        match to {
            None => Some(own),
            Some(to) => {
                Some(own / self.of(found.run(&row, to)?)?).filter(|ratio| ratio.is_finite())
            }
        }
    }

    /// The same over the first few seeds.
    pub(super) fn of_few_seeds(
        self,
        found: &Found,
        with_seed: impl Fn(u64) -> Setting,
        policy: &str,
        to: Option<&str>,
    ) -> Option<Spread> {
        over_seeds(1..=FEW_SEEDS, |seed| self.relative(found, &with_seed(seed), policy, to))
    }

    /// The same over all seeds; `None` if one is missing.
    pub(super) fn spread(
        self,
        found: &Found,
        with_seed: impl Fn(u64) -> Setting,
        policy: &str,
        to: Option<&str>,
    ) -> Option<Spread> {
        over_seeds(seeds(), |seed| self.relative(found, &with_seed(seed), policy, to))
    }
}
