//! The scheduler, driven with machines that remember everything they were given.

use proptest::prelude::*;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use strata_addr::Gva;
use strata_engine::{
    Build, OpenError, Progress, Run, RunResult, SetupError, Stop, Sweep, SweepError, Swept, sweep,
};
use strata_stream::{
    Access, Batch, Event, Fill, Pid, Source, SourceError, Step, Tid, WorkloadInfo,
};

/// A stream of numbered accesses cut into batches of given sizes.
struct Numbered {
    sizes: Vec<usize>,
    next: u64,
    batch: usize,
    fails: bool,
    endless: bool,
}

impl Numbered {
    fn new(sizes: &[usize]) -> Self {
        Self { sizes: sizes.to_vec(), next: 0, batch: 0, fails: false, endless: false }
    }
}

impl Source for Numbered {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo {
            name: "numbered".into(),
            accesses: Some(self.sizes.iter().sum::<usize>() as u64),
            ..WorkloadInfo::default()
        }
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        let Some(&size) = self.sizes.get(self.batch) else {
            return Ok(Fill::End);
        };
        self.batch += 1;
        batch.event(Event::ProcessStart { pid: Pid(self.batch as u32) });
        for _ in 0..size {
            batch.access(Tid((self.next % 3) as u32), Access::load(Gva::new(self.next), 8), 1);
            self.next += 1;
        }
        if self.batch < self.sizes.len() {
            return Ok(Fill::More);
        }
        if self.endless {
            self.batch = 0;
            return Ok(Fill::More);
        }
        if self.fails {
            return Err(SourceError::Invalid("damaged".into()));
        }
        Ok(Fill::End)
    }
}

/// A machine whose result depends on every access, its order and its own number.
struct Digest {
    number: u64,
    state: DefaultHasher,
    accesses: u64,
    /// Iterations of busy work per batch, so that runs differ in speed.
    slowness: u64,
    memory_per_access: u64,
    panics: bool,
}

impl Digest {
    fn new(number: usize) -> Self {
        Self {
            number: number as u64,
            state: DefaultHasher::new(),
            accesses: 0,
            slowness: 0,
            memory_per_access: 0,
            panics: false,
        }
    }
}

impl Run for Digest {
    fn consume(&mut self, batch: &Batch) {
        assert!(!self.panics, "a machine broke");
        for step in batch.steps() {
            match step {
                Step::Event(event) => format!("{event:?}").hash(&mut self.state),
                Step::Run { tid, instructions, accesses } => {
                    (self.number, tid, instructions, accesses).hash(&mut self.state);
                    self.accesses += accesses.len() as u64;
                }
            }
        }
        for turn in 0..self.slowness {
            std::hint::black_box(turn);
        }
    }

    fn finish(self: Box<Self>) -> RunResult {
        RunResult {
            policy: self.number.to_string(),
            accesses: self.accesses,
            cycles: self.state.finish(),
            ..RunResult::default()
        }
    }

    fn memory_estimate(&self) -> u64 {
        self.accesses * self.memory_per_access
    }
}

fn run_sweep(
    open: impl FnMut() -> Numbered,
    builds: Vec<Build<'_>>,
    change: impl FnOnce(&mut Sweep<'_>),
) -> Result<Swept, SweepError> {
    let (stop, progress) = (Stop::default(), Progress::default());
    let mut open = open;
    let mut options = Sweep {
        workload: WorkloadInfo::default(),
        open: Box::new(move || Ok(Box::new(open()))),
        replayable: true,
        builds,
        at_once: None,
        threads: None,
        memory_limit: None,
        stop: &stop,
        progress: &progress,
    };
    change(&mut options);
    sweep(options)
}

fn digest<'a>(number: usize, change: impl Fn(&mut Digest) + Sync + 'a) -> Build<'a> {
    Box::new(move |_| {
        let mut run = Digest::new(number);
        change(&mut run);
        Ok(Box::new(run))
    })
}

/// The plain way: each machine alone, one batch after the other.
fn one_by_one(sizes: &[usize], runs: usize) -> Vec<RunResult> {
    let one = |number| {
        let mut source = Numbered::new(sizes);
        let mut run = Box::new(Digest::new(number));
        let mut batch = Batch::new();
        while let Fill::More = source.fill(&mut batch).unwrap() {
            run.consume(&batch);
        }
        run.consume(&batch);
        run.finish()
    };
    (0..runs).map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_number_of_threads_and_any_grouping_gives_the_same_results(
        sizes in prop::collection::vec(0usize..50, 1..120),
        slowness in prop::collection::vec(0u64..20_000, 1..8),
        threads in 1usize..9,
        at_once in 1usize..9,
    ) {
        let builds = slowness.iter().enumerate();
        let builds = builds.map(|(i, &slow)| digest(i, move |run| run.slowness = slow)).collect();
        let swept = run_sweep(|| Numbered::new(&sizes), builds, |sweep| {
            sweep.threads = NonZeroUsize::new(threads);
            sweep.at_once = NonZeroUsize::new(at_once);
        }).unwrap();
        prop_assert!(swept.cut_short.is_none());
        prop_assert_eq!(swept.runs, one_by_one(&sizes, slowness.len()));
    }
}

#[test]
fn runs_that_outgrow_memory_are_done_in_a_later_reading_with_the_same_result() {
    let sizes = vec![100; 400];
    let opened = AtomicUsize::new(0);
    let builds = (0..4).map(|i| digest(i, |run| run.memory_per_access = 10)).collect();
    let open = || {
        opened.fetch_add(1, SeqCst);
        Numbered::new(&sizes)
    };
    // Each comes to hold 400 000 bytes, so two fit and four do not.
    let swept = run_sweep(open, builds, |sweep| sweep.memory_limit = Some(900_000)).unwrap();
    assert_eq!(swept.runs, one_by_one(&sizes, 4));
    assert!((2..=4).contains(&opened.load(SeqCst)), "{opened:?}");
}

#[test]
fn a_stream_that_cannot_be_read_again_is_opened_once_whatever_memory_there_is() {
    let sizes = vec![100; 50];
    let opened = AtomicUsize::new(0);
    let builds = (0..4).map(|i| digest(i, |run| run.memory_per_access = 10)).collect();
    let open = || {
        opened.fetch_add(1, SeqCst);
        Numbered::new(&sizes)
    };
    let swept = run_sweep(open, builds, |sweep| {
        sweep.replayable = false;
        sweep.at_once = NonZeroUsize::new(1);
        sweep.memory_limit = Some(1);
    })
    .unwrap();
    assert_eq!(swept.runs, one_by_one(&sizes, 4));
    assert_eq!(opened.load(SeqCst), 1);
}

#[test]
fn a_known_footprint_too_large_for_all_runs_splits_them() {
    let opened = AtomicUsize::new(0);
    let sizes = [10, 10];
    let open = || {
        opened.fetch_add(1, SeqCst);
        Numbered::new(&sizes)
    };
    let builds = (0..4).map(|i| digest(i, |_| ())).collect();
    let swept = run_sweep(open, builds, |sweep| {
        sweep.workload.footprint_bytes = Some(1 << 40);
        sweep.memory_limit = Some(1 << 20);
    })
    .unwrap();
    assert_eq!(swept.runs, one_by_one(&sizes, 4));
    assert_eq!(opened.load(SeqCst), 4);
}

#[test]
fn stopping_leaves_every_run_with_the_same_part_of_the_stream() {
    let stop = Stop::default();
    let progress = Progress::default();
    let builds: Vec<Build<'_>> = (0..3).map(|i| digest(i, |_| ())).collect();
    let swept = std::thread::scope(|scope| {
        scope.spawn(|| {
            while progress.accesses() < 10_000 {
                std::thread::yield_now();
            }
            stop.request();
        });
        sweep(Sweep {
            workload: WorkloadInfo::default(),
            open: Box::new(|| {
                Ok(Box::new(Numbered { endless: true, ..Numbered::new(&[7, 100, 3]) }))
            }),
            replayable: true,
            builds,
            at_once: None,
            threads: NonZeroUsize::new(2),
            memory_limit: None,
            stop: &stop,
            progress: &progress,
        })
        .unwrap()
    });
    assert!(matches!(swept.cut_short, Some(strata_engine::CutShort::Stopped)));
    assert_eq!(swept.runs.len(), 3);
    assert!(swept.runs[0].accesses >= 10_000);
    assert!(swept.runs.iter().all(|run| run.partial && run.accesses == swept.runs[0].accesses));
}

/// A machine that takes long for a batch; one of them asks to stop.
struct Slow {
    stop: Stop,
    batches: usize,
    asks_at: usize,
    /// Batches consumed since.
    after: Arc<AtomicUsize>,
}

impl Run for Slow {
    fn consume(&mut self, _: &Batch) {
        if self.stop.requested() {
            self.after.fetch_add(1, SeqCst);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        self.batches += 1;
        if self.batches == self.asks_at {
            self.stop.request();
        }
    }

    fn finish(self: Box<Self>) -> RunResult {
        RunResult { accesses: self.batches as u64, ..RunResult::default() }
    }

    fn memory_estimate(&self) -> u64 {
        0
    }
}

#[test]
fn slow_machines_stop_soon_too() {
    let (stop, after) = (Stop::default(), Arc::new(AtomicUsize::new(0)));
    let build = |number: usize| -> Build<'_> {
        let asks_at = if number == 0 { 3 } else { usize::MAX };
        let (stop, after) = (stop.clone(), after.clone());
        Box::new(move |_| {
            Ok(Box::new(Slow { stop: stop.clone(), batches: 0, asks_at, after: after.clone() }))
        })
    };
    let swept = sweep(Sweep {
        workload: WorkloadInfo::default(),
        open: Box::new(|| Ok(Box::new(Numbered { endless: true, ..Numbered::new(&[7]) }))),
        replayable: true,
        builds: (0..8).map(build).collect(),
        at_once: None,
        threads: NonZeroUsize::new(2),
        memory_limit: None,
        stop: &stop,
        progress: &Progress::default(),
    })
    .unwrap();
    // A window of 32 batches for each of 8 would be 256.
    let after = after.load(SeqCst);
    assert!(after < 60, "{after} batches after the request");
    assert!(swept.runs.iter().all(|run| run.accesses == swept.runs[0].accesses));
}

#[test]
fn stopping_while_machines_are_set_up_leaves_what_was_found_before() {
    let stop = Stop::default();
    let builds: Vec<Build<'_>> = vec![
        digest(0, |_| ()),
        Box::new(|_| {
            stop.request();
            Err(SetupError::Stopped)
        }),
        Box::new(|_| unreachable!("nothing more is set up")),
    ];
    let swept = run_sweep(
        || Numbered::new(&[10; 3]),
        builds,
        |sweep| {
            sweep.at_once = NonZeroUsize::new(1);
        },
    )
    .unwrap();
    assert!(matches!(swept.cut_short, Some(strata_engine::CutShort::Stopped)));
    let found: Vec<_> = swept.runs.iter().map(|run| (run.accesses, run.partial)).collect();
    assert_eq!(found, [(30, false)]);
}

#[test]
fn a_damaged_stream_is_used_up_to_the_damage_by_every_run() {
    let sizes = vec![5; 100];
    let builds = (0..3).map(|i| digest(i, |_| ())).collect();
    let open = || Numbered { fails: true, ..Numbered::new(&sizes) };
    let swept = run_sweep(open, builds, |sweep| sweep.at_once = NonZeroUsize::new(2)).unwrap();
    let Some(strata_engine::CutShort::Failed(error)) = &swept.cut_short else {
        panic!("{:?}", swept.cut_short)
    };
    assert_eq!(error.to_string(), "damaged");
    let mut expected = one_by_one(&sizes, 3);
    expected.iter_mut().for_each(|run| run.partial = true);
    assert_eq!(swept.runs, expected);
}

#[test]
fn a_machine_that_cannot_be_built_is_told_before_the_stream_is_opened() {
    let refuse: Build<'_> = Box::new(|_| Err(SetupError::Refused("too small".into())));
    let result = run_sweep(|| unreachable!(), vec![digest(0, |_| ()), refuse], |_| ());
    assert_eq!(result.unwrap_err().to_string(), "too small");
}

#[test]
fn a_workload_that_cannot_be_opened_is_told() {
    let result = run_sweep(
        || unreachable!(),
        vec![digest(0, |_| ())],
        |sweep| {
            sweep.open = Box::new(|| Err(OpenError("no such file".into())));
        },
    );
    assert_eq!(result.unwrap_err().to_string(), "no such file");
}

#[test]
#[should_panic(expected = "a machine broke")]
fn a_machine_that_panics_ends_the_sweep_instead_of_hanging_it() {
    let builds = (0..4).map(|i| digest(i, move |run| run.panics = i == 2)).collect();
    let _ = run_sweep(|| Numbered::new(&[10; 500]), builds, |_| ());
}
