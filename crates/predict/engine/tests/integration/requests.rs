//! Requests of a stream on whole machines: what they are served in, and how long they would wait.

use strata_engine::report::ServiceTimes;
use strata_engine::requests::{RequestLoad, relate};
use strata_engine::{LayerFmfi, RunResult, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_stream::{Batch, Event, Fill, Mark, Source, Tid};
use strata_workloads::Generator;

fn setup(stack: StackKind, policy: &str, warmup: u64) -> Setup {
    Setup {
        memory: Some(1 << 30),
        fragmentation: LayerFmfi::everywhere(0.0),
        warmup,
        ..Setup::new(stack, policy, CpuModel::preset("broadwell-e5-2620v4").unwrap())
    }
}

/// What a machine makes of a stream, of which `change` may change every batch.
fn run(setup: &Setup, workload: &str, change: impl Fn(&Batch) -> Batch) -> RunResult {
    let mut source = Generator::parse(workload).unwrap();
    let mut run = (catalogue().build)(setup, &source.info(), &Stop::default()).unwrap();
    let mut batch = Batch::new();
    loop {
        let fill = source.fill(&mut batch).unwrap();
        run.consume(&change(&batch));
        if fill == Fill::End {
            return run.finish();
        }
    }
}

fn times(result: &RunResult) -> &ServiceTimes {
    result.service_times.as_deref().expect("there are requests")
}

#[test]
fn constant_requests_are_an_m_d_1_queue() {
    // All in the L1 cache, once it is there.
    let workload = "sequential:size=4KiB,accesses=4100k,request=100,stores=0";
    let found = run(&setup(StackKind::Native, "base", 100_000), workload, Batch::clone);
    let times = times(&found);
    assert_eq!((times.served(), times.dropped(), times.servers()), (40_000, 0, 1));
    let mean = times.mean().unwrap();
    // What is not whole cycles is rounded away from one clock reading to the other.
    assert!(times.kept().iter().all(|cycles| (*cycles as f64 - mean).abs() < 1.0), "{mean}");
    for (share, tolerance) in [(0.2, 0.1), (0.5, 0.1), (0.8, 0.25)] {
        let load = RequestLoad { share, reference: None };
        let mut runs = [found.clone()];
        relate(&mut runs, &mut [], &load, 3);
        let requests = runs[0].requests.as_ref().unwrap();
        assert!((requests.load - share).abs() < 1e-9);
        let theory = requests.service.mean * share / (2.0 * (1.0 - share));
        let error = (requests.wait_mean / theory - 1.0).abs();
        assert!(error < tolerance, "{share}: {} instead of {theory}", requests.wait_mean);
    }
}

#[test]
fn all_cycles_of_one_thread_are_those_of_its_requests() {
    // Faults, exits and walks included: requests follow one another without a gap.
    for stack in StackKind::ALL {
        let workload = "random:size=64MiB,accesses=1M,request=50";
        let found = run(&setup(stack, "thp", 0), workload, Batch::clone);
        let sum = times(&found).kept().iter().sum::<u64>();
        let outside = found.elapsed_cycles - sum;
        // The process and its tables were made before the first.
        assert!(outside < found.elapsed_cycles / 100, "{outside} of {}", found.elapsed_cycles);
        // The first touches are what takes long.
        let longest = *times(&found).kept().iter().max().unwrap();
        let mean = times(&found).mean().unwrap();
        assert!(longest as f64 > 3.0 * mean, "{longest} {mean}");
    }
}

#[test]
fn requests_change_nothing_else() {
    for (stack, threads) in [(StackKind::Native, 1), (StackKind::Nested, 3)] {
        let workload =
            |request| format!("zipf:size=32MiB,accesses=200k,threads={threads},request={request}");
        let with = run(&setup(stack, "thp", 1000), &workload(70), Batch::clone);
        let without = run(&setup(stack, "thp", 1000), &workload(0), Batch::clone);
        assert_eq!(times(&with).servers(), threads);
        assert_eq!(without.service_times, None);
        assert_eq!(RunResult { service_times: None, ..with }, without);
    }
}

#[test]
fn requests_of_the_warm_up_do_not_count() {
    let workload = "random:size=1MiB,accesses=10k,request=100";
    let served = |warmup| {
        let found = run(&setup(StackKind::Native, "base", warmup), workload, Batch::clone);
        found.service_times.map_or(0, |times| times.served())
    };
    assert_eq!([0, 5_000, 5_050, 10_000].map(served), [100, 50, 49, 0]);
}

#[test]
fn threads_that_are_not_there_serve_nothing() {
    let stray = |batch: &Batch| {
        let mut batch = batch.clone();
        batch.event(Event::Request { tid: Tid(9), mark: Mark::Begin });
        batch.event(Event::Request { tid: Tid(9), mark: Mark::End });
        batch.event(Event::Request { tid: Tid(0), mark: Mark::End });
        batch
    };
    let workload = "random:size=1MiB,accesses=10k";
    let found = run(&setup(StackKind::Vm, "base", 0), workload, stray);
    assert_eq!(found.service_times, None);
}
