//! One policy beside another.

use super::machine::{relation_holds, run, setup};
use super::sources::{Phases, Told, warmed};
use super::{SAMPLING, made};
use strata_engine::{Report, StackKind};
use strata_stream::{Sampling, WorkloadInfo};
use strata_workloads::Sampled;

#[test]
fn throughput_is_related_window_by_window() {
    let spec = "zipf:size=48MiB,accesses=2M,theta=0.5";
    let (base, thp) = (setup(StackKind::Vm, "base"), setup(StackKind::Vm, "thp"));
    let whole =
        Report::new(WorkloadInfo::default(), vec![run(&base, made(spec)), run(&thp, made(spec))]);
    let truth = whole.runs[1].relative_throughput.unwrap();
    let mut held = 0;
    for seed in 0..20 {
        let sampled = |setup| run(setup, Sampled::new(made(spec), Sampling { seed, ..SAMPLING }));
        let runs = vec![sampled(&base), sampled(&thp)];
        let found = Report::new(WorkloadInfo::default(), runs);
        held += u32::from(relation_holds(&found, truth));
    }
    assert!(held >= 16, "{held} of 20 hold {truth}");
}

/// What arrays of windows were too cold for may be more in one run than in another.
#[test]
fn relative_throughput_is_known_no_better_than_arrays_are_warm() {
    let half = |off: [u64; 3]| {
        let sampled = |policy| {
            let source = Sampled::new(made("zipf:size=32MiB,accesses=1500k,theta=0.8"), SAMPLING);
            run(&setup(StackKind::Vm, policy), Told { source, events: warmed(50_000, off) })
        };
        let report = Report::new(WorkloadInfo::default(), vec![sampled("base"), sampled("thp")]);
        let thp = &report.runs[1];
        let bounds = thp.sampled.as_ref().unwrap().bounds["relative_throughput"];
        bounds.half() / thp.relative_throughput.unwrap()
    };
    let warm = half([0; 3]);
    // Most cycles are those of misses, of which a tenth may be too many.
    let cold = half([100_000, 0, 0]);
    assert!((warm + 0.05..warm + 0.11).contains(&cold), "{warm} {cold}");
}

/// Policies have different page faults, and what they say of the rest must not be what the program is.
#[test]
fn a_program_is_the_same_under_all_policies_and_so_they_are_compared() {
    let bursts = || Phases { by_bursts: true, ..Phases::default() };
    let sampling = Sampling { interval: 100_000, window: 10_000, warm: 10_000, ..SAMPLING };
    for seed in 0..5 {
        let sampled = |policy| {
            let sampling = Sampling { seed, ..sampling };
            run(&setup(StackKind::Native, policy), Sampled::new(bursts(), sampling))
        };
        let report = Report::new(WorkloadInfo::default(), vec![sampled("base"), sampled("thp")]);
        let [base, thp] = &report.runs[..] else { panic!() };
        assert_ne!(base.faults.guest, thp.faults.guest);
        assert_eq!(base.accesses, thp.accesses);
        assert!(thp.relative_throughput.is_some());
        assert!(thp.sampled.as_ref().unwrap().bounds.contains_key("relative_throughput"));
    }
}
