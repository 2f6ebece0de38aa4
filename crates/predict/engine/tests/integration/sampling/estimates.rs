//! What is estimated by what windows saw, and how it is marked.

use super::machine::{run, setup};
use super::sources::{Told, warmed};
use super::{SAMPLING, made};
use strata_engine::{Setup, StackKind};
use strata_stream::{Event, Sampling};
use strata_workloads::Sampled;

#[test]
fn what_warms_up_one_array_counts_for_another() {
    // Regions of unlike misses in turn: 10,000 instructions of an interval tell less of them than 60,000.
    let spec = "zipf:size=32MiB,accesses=1500k,theta=0.8";
    let setup = setup(StackKind::Vm, "base");
    let truth = run(&setup, made(spec)).bounded("tlb.l1_misses");
    let off = |events: &dyn Fn() -> Vec<Event>| {
        let squares = (0..12).map(|seed| {
            let source = Sampled::new(made(spec), Sampling { seed, ..SAMPLING });
            let found = run(&setup, Told { source, events: events() });
            (found.bounded("tlb.l1_misses") / truth - 1.0).powi(2)
        });
        (squares.sum::<f64>() / 12.0).sqrt()
    };
    let [without, with] = [off(&Vec::new), off(&|| warmed(0, [0; 3]))];
    assert!(with < 0.7 * without, "{with} {without}");
}

/// A run with a cache at the memory that holds a part of what the stream uses, and with states over time.
fn with_all_that_is_counted_apart() -> Setup {
    let mut setup = Setup { detail: true, ..setup(StackKind::Vm, "base") };
    let l4 = &mut setup.cpu.cache.l4;
    (l4.bytes, l4.ways, l4.cycles) = (8 << 20, 1, 100);
    setup
}

/// Exits are as many as in the whole stream, unless some come so many times in a second of the estimated clock.
#[test]
fn exits_are_estimated_where_some_come_by_the_clock() {
    let estimated = |hertz: &str| {
        let overrides = [("rate.tick".to_owned(), hertz.to_owned())].into();
        let setup = Setup { overrides, ..setup(StackKind::Vm, "base") };
        let spec = "random:size=32MiB,accesses=1500k";
        let found = run(&setup, Sampled::new(made(spec), SAMPLING));
        let mut exits = found.bill.iter().filter(|item| item.name.starts_with("exits: "));
        let named = found.sampled.unwrap().estimated.contains(&"exits".to_owned());
        (named, exits.clone().count() > 0, exits.all(|item| item.estimated))
    };
    assert_eq!(estimated("1000"), (true, true, true));
    assert_eq!(estimated("0"), (false, true, false));
}

#[test]
fn a_cache_at_the_memory_is_estimated_as_the_last_level_is() {
    let (setup, spec) =
        (with_all_that_is_counted_apart(), "zipf:size=32MiB,accesses=1500k,theta=0.8");
    let whole = run(&setup, made(spec)).l4.unwrap();
    let found = run(&setup, Sampled::new(made(spec), SAMPLING));
    let l4 = found.l4.unwrap();
    let close = |a: u64, b: u64| a.abs_diff(b) < b / 10;
    assert!(close(l4.reads, whole.reads), "{l4:?} {whole:?}");
    assert!(close(l4.misses, whole.misses), "{l4:?} {whole:?}");
    assert!(close(l4.evicted_own, whole.evicted_own), "{l4:?} {whole:?}");
    assert!(found.sampled.unwrap().estimated.contains(&"l4".to_owned()));
}

#[test]
fn states_over_time_are_of_the_whole_stream() {
    let setup = with_all_that_is_counted_apart();
    let source = Sampled::new(made("zipf:size=32MiB,accesses=1500k,theta=0.8"), SAMPLING);
    let found = run(&setup, source);
    let series = found.series.as_ref().unwrap();
    let estimated = &found.sampled.as_ref().unwrap().estimated;
    for (name, counts, all) in [
        ("accesses", &series.accesses, found.accesses),
        ("l1_misses", &series.l1_misses, found.tlb.l1_misses),
        ("l2_misses", &series.l2_misses, found.tlb.l2_misses),
        ("walk_cycles", &series.walk_cycles, found.walk_cycles),
    ] {
        assert_eq!(*counts.last().unwrap(), all, "{name}");
        assert!(estimated.contains(&format!("series.{name}")), "{name}");
    }
    // Those of each CPU are rounded by themselves.
    assert!(series.cycles.last().unwrap().abs_diff(found.cycles) < 10);
    assert_eq!(*series.faults["guest"].last().unwrap(), found.faults.guest);
    // One for 65,536 accesses or so.
    let samples: Vec<u64> = found.samples.iter().map(|sample| sample.accesses).collect();
    assert!(samples.len() > 1_500_000 / 65_536 / 2, "{samples:?}");
}

#[test]
fn a_stream_that_ends_in_a_gap_or_before_any_window_has_a_result() {
    let setup = setup(StackKind::Native, "thp");
    let spec = "random:size=8MiB,accesses=100k";
    let whole = run(&setup, made(spec));
    let never = Sampling { interval: 1 << 40, whole: 100_000, ..SAMPLING };
    let found = run(&setup, Sampled::new(made(spec), never));
    let said = found.sampled.as_ref().unwrap();
    assert_eq!((said.windows, said.bounds.len()), (0, 0));
    assert!(found.notes[0].contains("no window was over"), "{:?}", found.notes);
    assert_eq!(found.instructions, whole.instructions);
    // The beginning stands for the rest.
    assert!(found.accesses.abs_diff(whole.accesses) < whole.accesses / 20);
    let few = Sampling { interval: 100_000, window: 100, whole: 0, warm: 0, ..SAMPLING };
    let found = run(&setup, Sampled::new(made(spec), few));
    assert_eq!(found.sampled.as_ref().unwrap().windows, 3);
    assert!(found.notes[0].contains("too few"), "{:?}", found.notes);
}
