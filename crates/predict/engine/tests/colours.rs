//! What page placement does to conflicts in the last-level cache: a working set of exactly the cache's
//! size is read round and round.

use strata_engine::{
    LayerFmfi, LlcSetup, PagePlacement, RunResult, Setup, StackKind, Stop, catalogue,
};
use strata_hardware::{CacheGeometry, Caches, CpuModel, Misaligned};
use strata_stream::{Batch, Fill, Source};
use strata_workloads::Generator;

const COLOURS: u64 = 64;
const WAYS: u64 = 4;
/// The cache's, and the working set's.
const PAGES: u64 = COLOURS * WAYS;
const LINES: u64 = PAGES * 64;

/// A CPU whose last-level cache is small, LRU, and not hidden by those above it; its TLB reaches over all
/// of the working set, so that no walk takes a line once all is warm.
fn cpu() -> CpuModel {
    let cpu = CpuModel::preset("broadwell-e5-2620v4").unwrap();
    let llc = CacheGeometry { bytes: PAGES << 12, ways: WAYS as u32, ..cpu.cache.llc };
    let l2 = CacheGeometry { bytes: 64 << 10, ..cpu.cache.l2 };
    CpuModel { cache: Caches { llc, l2, ..cpu.cache }, ..cpu }
}

fn setup(stack: StackKind, policy: &str, placement: PagePlacement, seed: u64) -> Setup {
    Setup {
        stack,
        policy: policy.to_owned(),
        cpu: cpu(),
        memory: Some(64 << 20),
        levels: 4,
        fragmentation: LayerFmfi::everywhere(0.5),
        reused: false,
        misaligned: Misaligned::Splinter,
        warmup: 4 * LINES,
        from_mark: false,
        seed,
        explain: false,
        detail: false,
        placement,
        llc: LlcSetup::default(),
        overrides: Vec::new(),
    }
}

fn run(setup: &Setup) -> RunResult {
    let accesses = 8 * LINES;
    run_of(setup, &format!("sequential:size={},stride=64,accesses={accesses}", PAGES << 12))
}

fn run_of(setup: &Setup, workload: &str) -> RunResult {
    let mut source = Generator::parse(workload).unwrap();
    let mut run = (catalogue().build)(setup, &source.info(), &Stop::default()).unwrap();
    let mut batch = Batch::new();
    while source.fill(&mut batch).unwrap() == Fill::More {
        run.consume(&batch);
    }
    run.consume(&batch);
    run.finish()
}

/// Lines that no cache had in a round, of all there are.
fn missed(stack: StackKind, policy: &str, placement: PagePlacement, seed: u64) -> f64 {
    let found = run(&setup(stack, policy, placement, seed));
    assert_eq!(found.accesses, 4 * LINES);
    found.counters["strata.data_memory"] as f64 / 4.0
}

#[test]
fn a_working_set_of_the_caches_size_has_no_conflicts_where_pages_are_kept_apart() {
    for placement in [
        PagePlacement::Colouring,
        PagePlacement::BinHopping,
        PagePlacement::BestBin,
        PagePlacement::Hierarchical,
    ] {
        assert_eq!(missed(StackKind::Native, "base", placement, 1), 0.0, "{placement}");
    }
}

/// A page misses in all its lines, round after round, where more pages have its colour than there are
/// ways. How many have a colour is binomial.
#[test]
fn random_placement_has_the_conflicts_that_chance_gives() {
    const SEEDS: u64 = 16;
    let (pages, share) = (PAGES as f64, 1.0 / COLOURS as f64);
    let mut probability = (1.0 - share).powi(PAGES as i32);
    let (mut mean, mut square) = (0.0, 0.0);
    for k in 0..=PAGES {
        if k > WAYS {
            mean += probability * k as f64;
            square += probability * (k * k) as f64;
        }
        probability *= (pages - k as f64) / (k + 1) as f64 * share / (1.0 - share);
    }
    let expected = COLOURS as f64 * mean;
    // Numbers of pages of two colours are negatively correlated, so this is an upper bound.
    let deviation = (COLOURS as f64 * (square - mean * mean) / SEEDS as f64).sqrt();
    let of_seed = |seed| missed(StackKind::Native, "base", PagePlacement::Random, seed) / 64.0;
    let found = (1..=SEEDS).map(of_seed).sum::<f64>() / SEEDS as f64;
    let bound = 3.0 * deviation;
    assert!((found - expected).abs() < bound, "{found} pages, expected {expected} +- {bound}");
    assert!(expected > pages / 2.0 && bound < pages / 10.0, "{expected} +- {bound} says little");
}

#[test]
fn what_the_guest_keeps_apart_stays_apart_where_the_host_cares() {
    let missed = |stack, policy| missed(stack, policy, PagePlacement::Colouring, 1);
    // The host's own choice undoes the guest's.
    assert!(missed(StackKind::Vm, "base") > 0.0);
    assert_eq!(missed(StackKind::Vm, "coplace"), 0.0);
    assert_eq!(missed(StackKind::Vm, "xplace"), 0.0);
    // CoPlace cares for the guest hypervisor's pages, which are not the guest's.
    assert!(missed(StackKind::Nested, "base") > 0.0);
    assert!(missed(StackKind::Nested, "coplace") > 0.0);
    assert_eq!(missed(StackKind::Nested, "xplace"), 0.0);
}

#[test]
fn only_policies_of_colours_report_them() {
    let colours = |policy| {
        let found = run(&setup(StackKind::Nested, policy, PagePlacement::BinHopping, 1));
        let violations = found.counters.get("strata.colour_violations").copied();
        let notes = found.notes.iter().filter(|note| note.contains("another cache colour")).count();
        (violations, notes)
    };
    assert_eq!(colours("base"), (None, 0));
    assert_eq!(colours("xplace"), (Some(0), 1));
    let (violations, notes) = colours("coplace");
    assert!(violations.is_some_and(|violations| violations > PAGES / 2) && notes == 1);
}

#[test]
fn a_cache_without_whole_colours_is_refused_only_where_colours_are_asked_for() {
    let mut odd = setup(StackKind::Native, "base", PagePlacement::Linux, 1);
    odd.cpu.cache.llc.bytes = 96 * 4 * 64;
    let refused = |setup: &Setup| {
        let workload = Generator::parse("sequential:size=1MiB,accesses=1k").unwrap().info();
        (catalogue().build)(setup, &workload, &Stop::default()).err().map(|why| why.to_string())
    };
    assert_eq!(refused(&odd), None);
    let placed = Setup { placement: PagePlacement::BinHopping, ..odd.clone() };
    let why = refused(&placed).unwrap();
    assert!(why.contains("96 sets of 64 B are 6144 B, not a whole number"), "{why}");
    let host = Setup { stack: StackKind::Vm, policy: "coplace".to_owned(), ..odd };
    assert!(refused(&host).unwrap().contains("colours of the last-level cache"));
}

/// Rows where regions can be whole, colours elsewhere: as good as the better of the two, up to a margin for
/// moving pages that the other leaves where they are, whatever the memory is like.
#[test]
fn rows_and_colours_together_are_about_as_fast_as_the_better_of_the_two() {
    const MARGIN: f64 = 1.05;
    for (fragmentation, workload) in [
        (0.0, "random:size=16MiB,accesses=1M"),
        (0.5, "random:size=16MiB,accesses=1M"),
        (0.97, "random:size=16MiB,accesses=1M"),
        (0.5, "sequential:size=1MiB,stride=64,accesses=1M"),
        (0.97, "sequential:size=1MiB,stride=64,accesses=1M"),
    ] {
        let run = |policy| {
            let colouring = PagePlacement::Colouring;
            let fragmentation = LayerFmfi::everywhere(fragmentation);
            let setup = setup(StackKind::Nested, policy, colouring, 1);
            // All of it counts, faults too.
            run_of(&Setup { fragmentation, warmup: 0, ..setup }, workload)
        };
        let cycles = |found: &RunResult| found.cycles as f64 / found.accesses as f64;
        let both = run("xgemini+xplace");
        let better = ["xgemini", "xplace"].map(|policy| cycles(&run(policy)));
        let better = better.into_iter().fold(f64::INFINITY, f64::min);
        let shown = format!("{workload} at {fragmentation}: {} and {better}", cycles(&both));
        assert!(cycles(&both) < MARGIN * better, "{shown}");
        assert_eq!(both.counters["strata.colour_violations"], 0, "{shown}");
        assert!(both.counters["strata.rows_chosen"] > 0 || fragmentation > 0.9, "{shown}");
        let notes = both.notes.iter().filter(|note| note.contains("estimates, not measured"));
        assert_eq!(notes.count(), 1);
    }
}

#[test]
fn rows_and_colours_together_need_a_table_that_rows_keep() {
    let colouring = PagePlacement::Colouring;
    let fits = setup(StackKind::Nested, "xgemini+xplace", colouring, 1);
    let workload = Generator::parse("sequential:size=1MiB,accesses=1k").unwrap().info();
    let refused = |setup: &Setup| {
        (catalogue().build)(setup, &workload, &Stop::default()).err().map(|why| why.to_string())
    };
    assert_eq!(refused(&fits), None);
    let mut drawn = fits.clone();
    drawn.overrides.push(("colours.table_seed".to_owned(), "7".to_owned()));
    assert!(refused(&drawn).unwrap().contains("leave colours.table_seed at 0"));
    let mut odd = fits;
    odd.cpu.cache.llc.bytes = (48 * 4) << 12;
    assert!(refused(&odd).unwrap().contains("48 cache colours do not divide"));
}
