//! What a machine does in gaps.

use super::machine::{run, setup};
use super::sources::{LineByLine, Once, Phases, family};
use super::{SAMPLING, made};
use strata_engine::{RunResult, StackKind};
use strata_stream::{Backing, Sampling};
use strata_workloads::Sampled;

#[test]
fn faults_exits_and_memory_are_exact() {
    for spec in ["heap:size=24MiB,accesses=1M", "churn:size=16MiB,accesses=1M,min=4KiB,max=1MiB"] {
        let setup = setup(StackKind::Nested, "base");
        let whole = run(&setup, made(spec));
        let found = run(&setup, Sampled::new(made(spec), Sampling { whole: 0, ..SAMPLING }));
        assert_eq!(found.instructions, whole.instructions, "{spec}");
        assert_eq!(found.faults.guest, whole.faults.guest, "{spec}");
        // Hypervisors' faults depend on where the guest puts its pages, which depends on the order in
        // which they are touched.
        let close = |a: u64, b: u64| a.abs_diff(b) <= b / 100;
        assert!(close(found.memory.used_bytes, whole.memory.used_bytes), "{spec}");
        let sum = |result: &RunResult| result.exits.values().sum::<u64>();
        assert!(close(sum(&found), sum(&whole)), "{spec}: {:?} {:?}", found.exits, whole.exits);
        let kernel = |result: &RunResult| result.cycles_by_kind.faults;
        assert!(close(kernel(&found), kernel(&whole)), "{spec}");
        assert!(found.cycles_by_kind.total() == found.cycles && found.cycles > 0);
        let bill: u64 = found.bill.iter().map(|item| item.cycles).sum();
        assert_eq!(bill, found.cycles);
    }
}

#[test]
fn pages_that_were_begun_before_a_gap_have_all_lines_in_caches_after_it() {
    let setup = setup(StackKind::Vm, "base");
    let sampling =
        Sampling { interval: 40_000, window: 10_000, warm: 0, whole: 10_000, ..SAMPLING };
    let misses = |result: &RunResult| result.counters["strata.data_memory"];
    let whole = run(&setup, LineByLine::default());
    assert!(misses(&whole) >= 32 * 64, "each line misses once: {}", misses(&whole));
    // Whatever a window uses of them was used in the gap, as far as can be known.
    let found = run(&setup, Sampled::new(LineByLine::default(), sampling));
    assert!(misses(&found) < 32 * 8, "{}", misses(&found));
}

#[test]
fn short_phases_and_touches_between_windows_are_found() {
    let setup = setup(StackKind::Native, "base");
    let whole = run(&setup, Phases::default());
    assert_eq!(whole.faults.guest, 8000);
    let mut held = 0;
    for seed in 0..100 {
        // A window is a tenth of a round: most hold none of its new pages.
        let sampling = Sampling {
            interval: 100_000,
            window: 2000,
            warm: 2000,
            whole: 0,
            adaptive: false,
            seed,
        };
        let found = run(&setup, Sampled::new(Phases::default(), sampling));
        assert_eq!((found.faults.guest, found.instructions), (8000, whole.instructions));
        assert!(found.accesses.abs_diff(whole.accesses) < whole.accesses / 10);
        let bounds = found.sampled.unwrap().bounds["accesses"];
        let truth = whole.accesses as f64;
        held += u32::from(bounds.low <= truth && truth <= bounds.high);
    }
    assert!(held >= 88, "{held}");
}

#[test]
fn faults_of_stores_in_gaps_are_those_of_the_whole() {
    // Parent and children each fault on 500 pages a round; what was read of a file was mapped read-only, and its
    // neighbours with it.
    let stores = 500 + 3 * (500 + 500);
    for (stack, policy, backing, least) in [
        (StackKind::Native, "base", Backing::Anonymous, stores),
        (StackKind::Native, "base", Backing::File, stores + 500 / 16),
        (StackKind::Nested, "thp", Backing::Anonymous, 1500),
    ] {
        let setup = setup(stack, policy);
        let whole = run(&setup, Once(family(backing)));
        assert!(whole.faults.guest >= least, "{}", whole.faults.guest);
        let sampling = Sampling { whole: 0, interval: 100_000, ..SAMPLING };
        for window in [1, 10_000] {
            let sampling = Sampling { window, ..sampling };
            let found = run(&setup, Sampled::new(Once(family(backing)), sampling));
            assert_eq!(found.faults.guest, whole.faults.guest, "{policy} {backing:?} {window}");
            assert_eq!(found.memory.used_bytes, whole.memory.used_bytes, "{policy} {window}");
        }
    }
}
