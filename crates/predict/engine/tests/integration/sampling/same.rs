//! What must not make a difference.

use super::machine::{run, setup};
use super::{SAMPLING, made};
use strata_engine::{Setup, StackKind, Stop, catalogue};
use strata_stream::{Batch, Fill, Sampling, Source, Step};
use strata_workloads::Sampled;

#[test]
fn windows_that_cover_everything_give_the_result_of_the_whole() {
    let all = Sampling { interval: 1000, window: 700, warm: 300, ..SAMPLING };
    for (stack, policy) in [(StackKind::Native, "thp"), (StackKind::Nested, "xgemini")] {
        let spec = "heap:size=32MiB,accesses=300k";
        let setup = Setup { memory: Some(512 << 20), ..setup(stack, policy) };
        let whole = run(&setup, made(spec));
        assert_eq!(run(&setup, Sampled::new(made(spec), all)), whole);
        assert_eq!(whole.sampled, None);
        // So does a program that ends before anything is left out.
        let late = Sampling { whole: 1 << 40, ..SAMPLING };
        assert_eq!(run(&setup, Sampled::new(made(spec), late)), whole);
    }
}

#[test]
fn equal_seeds_give_equal_results_and_batches_do_not_matter() {
    let setup = setup(StackKind::Vm, "thp");
    let spec = "churn:size=16MiB,accesses=500k";
    let once = run(&setup, Sampled::new(made(spec), SAMPLING));
    assert_eq!(run(&setup, Sampled::new(made(spec), SAMPLING)), once);
    let other = run(&setup, Sampled::new(made(spec), Sampling { seed: 9, ..SAMPLING }));
    assert_ne!(other.tlb, once.tlb);
    // Runs cut at any place are the same run.
    let mut machine = (catalogue().build)(&setup, &made(spec).info(), &Stop::default()).unwrap();
    let (mut source, mut batch, mut all) =
        (Sampled::new(made(spec), SAMPLING), Batch::new(), Batch::new());
    loop {
        let fill = source.fill(&mut batch).unwrap();
        for step in batch.steps() {
            match step {
                Step::Event(event) => all.event(*event),
                Step::Run { tid, instructions, accesses } => {
                    all.run(tid, instructions, |out| out.extend_from_slice(accesses));
                }
            }
        }
        if fill == Fill::End {
            break;
        }
    }
    machine.consume(&all);
    let found = machine.finish();
    assert_eq!((&found.tlb, found.cycles, &found.sampled), (&once.tlb, once.cycles, &once.sampled));
}

/// A recording that was cut off says nowhere else that it is sampled.
#[test]
fn a_sampled_stream_is_not_sampled_again() {
    let sampled = Sampled::new(made("churn:size=16MiB,accesses=500k"), SAMPLING);
    let (mut twice, mut batch) = (Sampled::new(sampled, SAMPLING), Batch::new());
    let error = loop {
        match twice.fill(&mut batch) {
            Ok(Fill::More) => {}
            Ok(Fill::End) => panic!("it ended"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("sampled already"), "{error}");
}
