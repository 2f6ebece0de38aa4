//! Requests: how long each was served, and how long whoever sent it would have waited.
//!
//! A machine runs a stream without pauses, so that it finds service times only. Latency comes from a
//! queue that these go through afterwards, as in TailBench (Kasture and Sanchez, IISWC 2016): arrivals
//! that do not wait for answers, at a rate that is a share of what a reference policy can serve and the
//! same under all policies of a stack.

mod load;
mod queue;
mod served;

pub use load::RequestLoad;
pub(crate) use served::Served;
pub use served::ServiceTimes;

use crate::report::RunResult;
use queue::Queue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How times are distributed, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// The mean.
    pub mean: f64,
    /// What 95 % do not exceed; `null` for less than 20 requests.
    pub p95: Option<f64>,
    /// What 99 % do not exceed; `null` for less than 100 requests.
    pub p99: Option<f64>,
}

/// The requests of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// Requests served from their beginning to their end.
    pub served: u64,
    /// Requests that began and did not end.
    pub dropped: u64,
    /// CPUs that served them: the servers of the queue.
    pub servers: u64,
    /// Of all, how long they were served: the time that passed on their CPU.
    pub service: Times,
    /// Requests that went through the queue: all, or blocks of them, evenly spread, if there are many.
    pub queued: u64,
    /// The policy that the rate was chosen for.
    pub reference: String,
    /// Requests that arrive in a second.
    pub arrivals_per_second: f64,
    /// Share of the time that servers are busy; from 1 on the queue grows without end.
    pub load: f64,
    /// How long those that went through the queue waited for a server, on average, in seconds.
    pub wait_mean: f64,
    /// Their latency: from their arrival to their end.
    pub latency: Times,
}

/// Requests that percentiles take to be more than the longest time.
const LEAST_FOR_P95: usize = 20;
const LEAST_FOR_P99: usize = 100;

impl Times {
    /// Of times in cycles, with this mean, at this many cycles a second. Leaves them in another order.
    fn new(mean: f64, cycles: &mut [u64], frequency: f64) -> Self {
        let mut percentile = |percent: usize, least: usize| {
            (cycles.len() >= least).then(|| {
                // The nearest rank: no value that none has.
                let rank = (cycles.len() * percent).div_ceil(100);
                *cycles.select_nth_unstable(rank - 1).1 as f64 / frequency
            })
        };
        Self {
            mean: mean / frequency,
            p95: percentile(95, LEAST_FOR_P95),
            p99: percentile(99, LEAST_FOR_P99),
        }
    }
}

/// What is known of arrivals before a queue.
#[derive(Clone, Debug)]
pub struct Arrivals {
    reference: String,
    servers: u64,
    /// Cycles from one to the next, on average.
    gap: f64,
    seed: u64,
}

impl Arrivals {
    /// Those at which `reference` has this load; `None` without a request.
    fn new(reference: &RunResult, share: f64, seed: u64) -> Option<Self> {
        let times = reference.service_times.as_deref()?;
        let servers = times.servers();
        // A request that took no time at all would let infinitely many arrive.
        let gap = (times.mean()? / share / servers as f64).max(f64::MIN_POSITIVE);
        Some(Self { reference: reference.policy.clone(), servers, gap, seed })
    }

    /// What a run's requests make of them.
    fn queued(&self, times: &ServiceTimes) -> Option<Requests> {
        let mean = times.mean()?;
        let frequency = times.frequency();
        let mut queue = Queue::new(self.servers as usize, self.gap, self.seed);
        let mut latencies = Vec::with_capacity(times.kept().len());
        let mut waited = 0u128;
        for service in times.kept() {
            let latency = queue.serve(*service);
            waited += u128::from(latency - service);
            latencies.push(latency);
        }
        let sum: u128 = latencies.iter().map(|cycles| u128::from(*cycles)).sum();
        let queued = latencies.len() as f64;
        Some(Requests {
            served: times.served(),
            dropped: times.dropped(),
            servers: self.servers,
            service: Times::new(mean, &mut times.kept().to_vec(), frequency),
            queued: latencies.len() as u64,
            reference: self.reference.clone(),
            arrivals_per_second: frequency / self.gap,
            load: mean / self.gap / self.servers as f64,
            wait_mean: waited as f64 / queued / frequency,
            latency: Times::new(sum as f64 / queued, &mut latencies, frequency),
        })
    }
}

/// Gives runs that served requests their latencies; those of a stack face the same arrivals. `also` are
/// further runs of the same stream, to face those of their stack.
pub fn relate(runs: &mut [RunResult], also: &mut [RunResult], load: &RequestLoad, seed: u64) {
    let stacks: BTreeSet<_> = runs.iter().map(|run| run.stack).collect();
    for stack in stacks {
        let of_stack = || runs.iter().filter(|run| run.stack == stack);
        let named = of_stack().find(|run| Some(&run.policy) == load.reference.as_ref());
        let arrivals =
            named.or(of_stack().next()).and_then(|run| Arrivals::new(run, load.share, seed));
        let Some(arrivals) = arrivals else { continue };
        for run in runs.iter_mut().chain(also.iter_mut()).filter(|run| run.stack == stack) {
            run.requests = run.service_times.as_deref().and_then(|times| arrivals.queued(times));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StackKind;

    /// A run that served requests of these cycles, at 1 GHz.
    fn run(policy: &str, cycles: impl IntoIterator<Item = u64>) -> RunResult {
        let service_times = ServiceTimes::of(1e9, cycles);
        RunResult {
            stack: StackKind::Vm,
            policy: policy.to_owned(),
            service_times: Some(Box::new(service_times)),
            ..RunResult::default()
        }
    }

    fn related(mut runs: Vec<RunResult>, share: f64, reference: Option<&str>) -> Vec<RunResult> {
        let reference = reference.map(str::to_owned);
        relate(&mut runs, &mut [], &RequestLoad { share, reference }, 1);
        runs
    }

    #[test]
    fn all_policies_face_the_arrivals_of_the_reference() {
        let runs = || vec![run("base", [3000; 1000]), run("thp", [2000; 1000])];
        for (reference, gap) in [(None, 6000.0), (Some("base"), 6000.0), (Some("thp"), 4000.0)] {
            let runs = related(runs(), 0.5, reference);
            for run in &runs {
                let requests = run.requests.as_ref().unwrap();
                assert_eq!(requests.arrivals_per_second, 1e9 / gap);
                assert_eq!(requests.reference, reference.unwrap_or("base"));
                let mean = requests.service.mean * 1e9;
                assert!((requests.load - mean / gap).abs() < 1e-12);
                let latency = requests.service.mean + requests.wait_mean;
                assert!((requests.latency.mean - latency).abs() < 1e-15);
            }
            // The same arrivals and shorter times: nobody waits longer.
            let mean = |run: &RunResult| run.requests.as_ref().unwrap().latency.mean;
            assert!(mean(&runs[1]) < mean(&runs[0]));
        }
        // Who is not there is no reference.
        let runs = related(runs(), 0.5, Some("gemini"));
        assert_eq!(runs[1].requests.as_ref().unwrap().reference, "base");
    }

    #[test]
    fn runs_without_requests_have_no_latency() {
        let mut runs = vec![RunResult::default()];
        relate(&mut runs, &mut [], &RequestLoad::default(), 1);
        assert_eq!(runs[0].requests, None);
    }

    #[test]
    fn percentiles_are_values_of_the_nearest_rank() {
        let mut cycles: Vec<u64> = (1..=1000).rev().collect();
        let times = Times::new(500.5, &mut cycles, 1.0);
        assert_eq!(times, Times { mean: 500.5, p95: Some(950.0), p99: Some(990.0) });
        let of = |count: u64| Times::new(1.0, &mut (1..=count).collect::<Vec<_>>(), 1.0);
        assert_eq!((of(99).p95, of(99).p99), (Some(95.0), None));
        assert_eq!((of(19).p95, of(20).p95), (None, Some(19.0)));
    }

    /// Mean waits of the M/D/1 queue, by the formula of Pollaczek and Khinchine: D rho / (2 (1 - rho)).
    /// The error of each mean is estimated from the means of batches, which are long enough to depend
    /// little on each other; four of it are exceeded once in 16,000.
    #[test]
    fn constant_service_times_wait_as_long_as_theory_says() {
        let (service, requests, batches) = (10_000u64, 1_000_000usize, 50);
        for (share, seed) in [(0.1, 1), (0.3, 2), (0.5, 3), (0.7, 4), (0.9, 5)] {
            let gap = service as f64 / share;
            let mut queue = Queue::new(1, gap, seed);
            let waits: Vec<f64> =
                (0..requests).map(|_| (queue.serve(service) - service) as f64).collect();
            let mean = |waits: &[f64]| waits.iter().sum::<f64>() / waits.len() as f64;
            let found = mean(&waits);
            let of_batches: Vec<f64> = waits.chunks(requests / batches).map(mean).collect();
            let variance = of_batches.iter().map(|batch| (batch - found).powi(2)).sum::<f64>()
                / (batches - 1) as f64;
            let error = (variance / batches as f64).sqrt();
            let theory = service as f64 * share / (2.0 * (1.0 - share));
            assert!((found - theory).abs() < 4.0 * error, "{share}: {found} {theory} {error}");
            // A test that any number passes would be none.
            assert!(error < theory / 25.0, "{share}: {error}");
            // And what a run reports is this.
            let runs = related(vec![run("base", vec![service; 100_000])], share, None);
            let wait = runs[0].requests.as_ref().unwrap().wait_mean * 1e9;
            let spread = error * (requests as f64 / 100_000.0).sqrt();
            assert!((wait - theory).abs() < 4.0 * spread, "{share}: {wait} {theory}");
        }
    }
}
