//! Runs whose guests have balloons.

use strata_engine::{RunResult, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_stream::{Batch, Fill, Source};
use strata_workloads::Generator;

fn run(stack: StackKind, policy: &str, overrides: &[(&str, &str)]) -> RunResult {
    let setup = Setup {
        memory: Some(64 << 20),
        overrides: overrides.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        ..Setup::new(stack, policy, CpuModel::preset("broadwell-e5-2620v4").unwrap())
    };
    let mut source = Generator::parse("random:size=16M,accesses=400000").unwrap();
    let mut run = (catalogue().build)(&setup, &source.info(), &Stop::default()).unwrap();
    let mut batch = Batch::new();
    while source.fill(&mut batch).unwrap() == Fill::More {
        run.consume(&batch);
    }
    run.consume(&batch);
    run.finish()
}

/// Filled and emptied in turn, while the program goes on as before.
#[test]
fn a_balloon_comes_and_goes_while_the_program_runs() {
    let size = [("balloon.size", "16"), ("balloon.period", "0.001")];
    for (stack, policy) in
        [(StackKind::Vm, "thp"), (StackKind::Nested, "xgemini"), (StackKind::Nested, "xplace")]
    {
        let without = run(stack, policy, &[]);
        let with = run(stack, policy, &size);
        let count = |name: &str| with.counters[&format!("strata.balloon_{name}")];
        let taken = count("taken");
        assert!(taken > 4096 && taken.is_multiple_of(4096), "{policy}: {taken}");
        assert!(taken - count("returned") <= 4096, "{policy}");
        assert_eq!(count("exits"), (taken + count("returned")) / 256);
        assert!(with.cycles_by_kind.background > without.cycles_by_kind.background, "{policy}");
        assert_eq!(with.accesses, without.accesses);
        // What it has is not counted as the program's.
        assert_eq!(with.memory.used_bytes, without.memory.used_bytes, "{policy}");
        if policy == "xplace" {
            assert_eq!(with.counters["strata.colour_violations"], 0);
        }
        assert!(without.counters.iter().all(|(name, n)| !name.contains("balloon") || *n == 0));
    }
}

#[test]
fn natively_there_is_no_balloon() {
    let found = run(StackKind::Native, "base", &[("balloon.size", "16")]);
    assert_eq!(found.counters["strata.balloon_taken"], 0);
}
