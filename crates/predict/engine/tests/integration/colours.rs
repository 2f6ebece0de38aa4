//! What page placement does to conflicts in the last-level cache: a working set of exactly the cache's
//! size is read round and round.

use strata_engine::{
    ColouredCache, Colours, LayerFmfi, LlcSetup, PagePlacement, RunResult, Setup, StackKind, Stop,
    catalogue,
};
use strata_hardware::{CacheGeometry, Caches, CpuModel};
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
        memory: Some(64 << 20),
        fragmentation: LayerFmfi::everywhere(0.5),
        warmup: 4 * LINES,
        seed,
        placement,
        ..Setup::new(stack, policy, cpu())
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

/// 32 colours of the second level, and 4 of the last: whoever keeps apart by these leaves the others to chance.
#[test]
fn pages_are_placed_by_the_colours_of_the_cache_that_is_named() {
    let left = |colours_of| {
        let mut setup = setup(StackKind::Native, "base", PagePlacement::BestBin, 1);
        setup.cpu.cache.l2 = CacheGeometry { bytes: 512 << 10, ways: 4, ..setup.cpu.cache.l2 };
        setup.cpu.cache.llc = CacheGeometry { bytes: 1 << 20, ways: 64, ..setup.cpu.cache.llc };
        setup.llc = LlcSetup { colours_of, ..LlcSetup::default() };
        setup.warmup = 4 * (512 << 10) / 64;
        let accesses = 2 * setup.warmup;
        let workload = format!("sequential:size=512KiB,stride=64,accesses={accesses}");
        let found = run_of(&setup, &workload);
        found.counters["strata.data_l3"] + found.counters["strata.data_memory"]
    };
    assert_eq!(left(ColouredCache::L2), 0);
    assert!(left(ColouredCache::Llc) > 1000);
}

/// A VM that is told of 8 of 64 colours: what fits them has no conflicts, and the host keeps all of its memory
/// in 8 real ones, so that what fits the whole cache does not fit them.
#[test]
fn a_vm_that_is_told_of_few_colours_has_these_and_no_others() {
    let lines = |stack, policy: &str, vllc: u32, pages: u64| {
        let mut setup = setup(stack, policy, PagePlacement::Colouring, 1);
        setup.llc.vllc = Colours::counted(vllc);
        setup.warmup = 4 * pages * 64;
        let workload =
            format!("sequential:size={},stride=64,accesses={}", pages << 12, 8 * pages * 64);
        let found = run_of(&setup, &workload);
        let violations = found.counters.get("strata.colour_violations").copied();
        (found.counters["strata.data_memory"], violations)
    };
    for (stack, policy) in [(StackKind::Vm, "coplace"), (StackKind::Nested, "xplace")] {
        assert_eq!(lines(stack, policy, 8, 8 * WAYS), (0, Some(0)), "{policy}");
        // Twice as much, read round and round: LRU has none of it.
        let all = 4 * 16 * WAYS * 64;
        assert_eq!(lines(stack, policy, 8, 16 * WAYS), (all, Some(0)), "{policy}");
        assert_eq!(lines(stack, policy, 64, 16 * WAYS), (0, Some(0)), "{policy}");
        // With more colours than there are, several share a real one, evenly here.
        assert_eq!(lines(stack, policy, 128, PAGES), (0, Some(0)), "{policy}");
    }
    // CoPlace does not know the nested guest's colours.
    assert!(lines(StackKind::Nested, "coplace", 8, 8 * WAYS).1 > Some(0));
}

/// The paper's allocation pattern (5.3): the host takes and frees frames of wanted colours, one by one, as programs
/// come and go. The contiguity list leaves more large blocks than a buddy allocator that splits the smallest
/// block with the colour in it.
#[test]
fn the_contiguity_list_fragments_the_host_no_more_than_the_buddy_lists() {
    let fragmented = |stack, policy: &str, seed: u64, before: f64, contiguity: bool| {
        let mut setup = setup(stack, policy, PagePlacement::BinHopping, seed);
        setup.fragmentation = LayerFmfi::everywhere(before);
        setup.warmup = 0;
        setup.overrides.push(("colours.contiguity".to_owned(), contiguity.to_string()));
        let workload = "churn:size=32MiB,min=4KiB,max=256KiB,work=16,accesses=200k";
        let found = run_of(&setup, workload);
        assert_eq!(found.counters["strata.colour_violations"], 0, "{policy}");
        found.fmfi.host.expect("there is a host")
    };
    for (stack, policy) in [(StackKind::Vm, "coplace"), (StackKind::Nested, "xplace")] {
        for (seed, before) in (1..=3).flat_map(|seed| [(seed, 0.0), (seed, 0.8)]) {
            let [with, without] =
                [true, false].map(|contiguity| fragmented(stack, policy, seed, before, contiguity));
            assert!(with <= without, "{policy}, seed {seed}: {before} became {with}, {without}");
        }
    }
}

/// A direct-mapped cache of 32 MiB at the memory, 16 huge pages: what fills it exactly has no conflicts there where
/// huge pages are placed by its colours.
#[test]
fn huge_pages_are_kept_apart_in_a_cache_larger_than_they_are() {
    let conflicts = |placement| {
        let mut setup = setup(StackKind::Native, "thp", placement, 1);
        setup.cpu.cache.l4 = CacheGeometry { bytes: 32 << 20, ways: 1, cycles: 100 };
        setup.memory = Some(512 << 20);
        setup.fragmentation = LayerFmfi::default();
        setup.llc =
            LlcSetup { classify: true, colours_of: ColouredCache::L4, ..LlcSetup::default() };
        let lines = (32 << 20) / 64;
        setup.warmup = 2 * lines;
        let found =
            run_of(&setup, &format!("sequential:size=32MiB,stride=64,accesses={}", 4 * lines));
        let l4 = found.l4.expect("there is one");
        (l4.data_misses.expect("they are told apart").conflict, l4.reads)
    };
    let (random, reads) = conflicts(PagePlacement::Random);
    assert!(random * 4 > reads, "{random} of {reads}");
    for placement in [
        PagePlacement::Colouring,
        PagePlacement::BinHopping,
        PagePlacement::BestBin,
        PagePlacement::Hierarchical,
    ] {
        let (conflicts, _) = conflicts(placement);
        // Pages at the ends of the area are base pages, and page tables take room.
        assert!(conflicts * 8 < random, "{placement}: {conflicts}, {random}");
    }
}

#[test]
fn policies_of_base_pages_do_not_place_by_colours_of_huge_ones() {
    let mut setup = setup(StackKind::Vm, "coplace", PagePlacement::Linux, 1);
    setup.cpu.cache.l4 = CacheGeometry { bytes: 32 << 20, ways: 1, cycles: 100 };
    setup.llc.colours_of = ColouredCache::L4;
    let workload = Generator::parse("sequential:size=1MiB,accesses=1k").unwrap().info();
    let refused = |setup: &Setup| {
        (catalogue().build)(setup, &workload, &Stop::default()).err().map(|why| why.to_string())
    };
    let why = refused(&setup).unwrap();
    assert!(
        why.contains("the 16 colours of the cache at the memory are those of huge pages"),
        "{why}"
    );
    setup.policy = "thp".to_owned();
    setup.placement = PagePlacement::Colouring;
    assert_eq!(refused(&setup), None);
    setup.llc.vllc = Colours::counted(8);
    assert!(refused(&setup).unwrap().contains("leave out one of the two"));
    setup.llc.vllc = None;
    setup.policy = "coplace".to_owned();
    // With 16 ways they are those of base pages again.
    setup.cpu.cache.l4.ways = 16;
    assert_eq!(refused(&setup), None);
}

#[test]
fn rows_need_a_guest_with_the_hosts_colours() {
    let workload = Generator::parse("sequential:size=1MiB,accesses=1k").unwrap().info();
    let refused = |stack, policy| {
        let mut setup = setup(stack, policy, PagePlacement::Colouring, 1);
        setup.llc.vllc = Colours::counted(8);
        (catalogue().build)(&setup, &workload, &Stop::default()).err().map(|why| why.to_string())
    };
    assert_eq!(refused(StackKind::Vm, "xplace"), None);
    let why = refused(StackKind::Nested, "xgemini+xplace").unwrap();
    assert!(why.contains("leave out the VM's own cache"), "{why}");
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
    // With unsync tables the host no longer fills on a write, which made up for some of the moves.
    const MARGIN: f64 = 1.08;
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
