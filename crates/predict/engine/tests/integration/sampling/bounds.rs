//! How often bounds hold the truth, and how wide they are.

use super::machine::{Held, aim, run, setup};
use super::sources::{Told, warmed};
use super::{SAMPLING, made};
use strata_engine::StackKind;
use strata_stream::Sampling;
use strata_workloads::{Aimed, Auto, Sampled};

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    hold_the_truth("zipf:size=32MiB,accesses=1500k,theta=0.8", 50_000);
}

/// Bounds are of chance alone: too short a warming shifts what they are around. After 50,000 instructions the walks
/// of the tree are still 8 % dearer than they should be.
#[test]
fn intervals_hold_the_truth_where_warming_takes_long() {
    hold_the_truth("btree:size=32MiB,accesses=1500k", 150_000);
}

/// Of 100 seeds 95 are to hold the truth. With 88 at least, a test of a right interval fails once in 500
/// times; the seeds are fixed, so that it never does.
fn hold_the_truth(spec: &str, warm: u64) {
    let setup = setup(StackKind::Vm, "base");
    let truth = run(&setup, made(spec));
    let mut held = Held::default();
    for seed in 0..100 {
        let source = Sampled::new(made(spec), Sampling { seed, warm, ..SAMPLING });
        held.note(&run(&setup, source), &truth);
    }
    held.assert_at_least(88);
}

#[test]
fn bounds_hold_the_truth_where_trials_choose_the_warming() {
    let setup = setup(StackKind::Vm, "base");
    let mut held = Held::default();
    for spec in ["btree:size=32MiB,accesses=4M,ipa=20", "zipf:size=32MiB,accesses=4M,ipa=20"] {
        let truth = run(&setup, made(spec));
        for seed in 0..10 {
            let sampling = Sampling { whole: 2_000_000, ..Auto::sampling(seed) };
            let source = Sampled::aimed(made(spec), sampling, Aimed::Auto(aim()));
            held.note(&run(&setup, source), &truth);
        }
    }
    // Nine of ten.
    held.assert_at_least(18);
}

#[test]
fn bounds_are_wider_to_the_side_where_cold_arrays_err() {
    let setup = setup(StackKind::Vm, "base");
    let bounds = |off: [u64; 3]| {
        let source = Sampled::new(made("zipf:size=32MiB,accesses=1500k,theta=0.8"), SAMPLING);
        let found = run(&setup, Told { source, events: warmed(50_000, off) });
        let of = |name: &str| found.sampled.as_ref().unwrap().bounds[name];
        (of("tlb.l2_misses"), of("counters.strata.data_memory"), of("accesses"))
    };
    let (tlb, cache, accesses) = bounds([0; 3]);
    let (over, _, same) = bounds([100_000, 0, 0]);
    assert_eq!((over.high, same), (tlb.high, accesses), "only misses can be too many");
    assert!(over.low < tlb.low);
    let (under, _, _) = bounds([0, 100_000, 0]);
    assert!(under.low == tlb.low && under.high > tlb.high);
    // A tenth of what was estimated, which is most of it.
    let middle = (tlb.low + tlb.high) / 2.0;
    for wider in [tlb.low - over.low, under.high - tlb.high] {
        assert!((0.05..0.1).contains(&(wider / middle)), "{wider} of {middle}");
    }
    let (_, guessed, _) = bounds([0, 0, 5000]);
    assert!(guessed.low == cache.low && (guessed.high - cache.high - 5000.0).abs() < 1e-6);
}

#[test]
fn what_no_window_meets_is_bounded_by_how_much_they_saw() {
    // Of 256 KiB nothing misses the second level once all is touched, which is while the stream is run whole.
    let spec = "zipf:size=256KiB,accesses=1500k,theta=0.8";
    let setup = setup(StackKind::Vm, "base");
    let found = run(&setup, Sampled::new(made(spec), SAMPLING));
    let sampled = found.sampled.as_ref().unwrap();
    let bounds = sampled.bounds["tlb.l2_misses"];
    assert_eq!(bounds.low, found.tlb.l2_misses as f64);
    let beyond = (found.instructions - sampled.whole_instructions) as f64;
    let three = 3.0 * beyond / sampled.window_instructions as f64;
    // In a part that no window met it may do what it did at the beginning: so often, in three of as many parts as windows are.
    let burst =
        bounds.low / sampled.whole_instructions as f64 * beyond * 3.0 / sampled.windows as f64;
    assert!((bounds.high - bounds.low - three - burst).abs() < 1e-6, "{bounds:?} {three} {burst}");
    assert!(three > 30.0 && burst > 30.0, "{three} {burst}");
    // Their walks may find nothing in caches.
    let references = found.walk_refs as f64 / found.tlb.l2_misses as f64;
    let each = references * f64::from(setup.cpu.cache.memory_cycles);
    let walks = sampled.bounds["walk_cycles"];
    let more = walks.high - found.walk_cycles as f64;
    let burst = burst / bounds.low * walks.low;
    assert!((more / (three * each + burst) - 1.0).abs() < 1e-9, "{walks:?} {more}");
}
