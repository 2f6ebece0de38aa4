//! One machine with its last-level cache in detail.

use strata_engine::{
    LayerFmfi, LlcSetup, PagePlacement, RunResult, Setup, StackKind, Stop, catalogue,
};
use strata_hardware::{CacheGeometry, Caches, CpuModel, WayMask};
use strata_stream::{Batch, Fill, Source};
use strata_workloads::Generator;

/// Sets of the cache, all of one slice: four colours.
const SETS: u64 = 256;

fn setup(ways: u32, llc: LlcSetup) -> Setup {
    let cpu = CpuModel::preset("broadwell-e5-2620v4").unwrap();
    let geometry = CacheGeometry { bytes: SETS * u64::from(ways) * 64, ways, ..cpu.cache.llc };
    let l2 = CacheGeometry { bytes: 32 << 10, ..cpu.cache.l2 };
    Setup {
        memory: Some(64 << 20),
        fragmentation: LayerFmfi::everywhere(0.5),
        warmup: 5_000,
        llc,
        ..Setup::new(
            StackKind::Nested,
            "thp",
            CpuModel { cache: Caches { llc: geometry, l2, ..cpu.cache }, ..cpu },
        )
    }
}

fn run(setup: &Setup, workload: &str) -> RunResult {
    let mut source = Generator::parse(workload).unwrap();
    let mut run = (catalogue().build)(setup, &source.info(), &Stop::default()).unwrap();
    let mut batch = Batch::new();
    while source.fill(&mut batch).unwrap() == Fill::More {
        run.consume(&batch);
    }
    run.consume(&batch);
    run.finish()
}

const RANDOM: &str = "random:size=2MiB,accesses=60k";

/// A result without what says how the cache was modelled.
fn bare(run: RunResult) -> RunResult {
    RunResult { llc: None, parameters: Default::default(), ..run }
}

#[test]
fn some_ways_are_a_cache_of_these_ways() {
    let ways = Some("5".parse::<WayMask>().unwrap());
    let divided = run(&setup(16, LlcSetup { ways, ..LlcSetup::default() }), RANDOM);
    let llc = divided.llc.clone().unwrap();
    assert_eq!((llc.ways, llc.mask.as_str(), llc.held_bytes), (5, "0x1f", SETS * 5 * 64));
    let small = run(&setup(5, LlcSetup::default()), RANDOM);
    assert_eq!(small.llc, None);
    assert_eq!(bare(divided), bare(small));
}

#[test]
fn telling_misses_apart_changes_nothing_else() {
    // More than the TLBs reach in base pages, so that there are walks.
    let wide = "random:size=16MiB,accesses=60k";
    let base = |llc| Setup { policy: "base".to_owned(), ..setup(8, llc) };
    let told = run(&base(LlcSetup { classify: true, ..LlcSetup::default() }), wide);
    let plain = run(&base(LlcSetup::default()), wide);
    let llc = told.llc.clone().unwrap();
    let (data, walks) = (llc.data_misses.unwrap(), llc.walk_misses.unwrap());
    assert_eq!(data.total() + walks.total(), llc.misses);
    assert_eq!(data.total(), plain.counters["strata.data_memory"]);
    assert!(data.capacity > 0 && data.conflict > 0 && walks.total() > 0, "{llc:?}");
    assert_eq!(bare(told), bare(plain));
}

/// A working set of exactly the cache's size, read again and again: every miss is a conflict, and
/// colouring has none.
#[test]
fn conflicts_are_what_placement_can_avoid() {
    let ways = 16;
    let size = SETS * u64::from(ways) * 64;
    let workload = format!("sequential:size={size},stride=64,accesses={}", 8 * size / 64);
    let with = |placement| {
        let whole = setup(ways, LlcSetup { classify: true, ..LlcSetup::default() });
        let setup = Setup {
            stack: StackKind::Native,
            policy: "base".to_owned(),
            placement,
            warmup: 4 * size / 64,
            ..whole
        };
        run(&setup, &workload).llc.unwrap().data_misses.unwrap()
    };
    assert_eq!(with(PagePlacement::Colouring).total(), 0);
    let random = with(PagePlacement::Random);
    assert!(random.conflict > 0 && random.cold == 0, "{random:?}");
    // Reads of page tables take room, too: few lines of the working set drop out of any cache.
    assert!(random.capacity * 20 < random.conflict, "{random:?}");
}

/// What fits both levels together has no misses where the last one is filled by the second one's victims. Where
/// misses fill it, it holds the second one's lines again, and what does not fit is read round and round.
#[test]
fn a_last_level_filled_by_victims_adds_the_second_one_to_it() {
    let missed = |name: &str| {
        let llc = LlcSetup { as_cpu: true, classify: true, ..LlcSetup::default() };
        let mut setup = setup(4, llc);
        setup.cpu.cache.llc_design = CpuModel::preset(name).unwrap().cache.llc_design;
        setup.cpu.cache.llc_design.hash = strata_hardware::SliceHash::None;
        setup.cpu.cache.llc_design.inclusive = false;
        setup.stack = StackKind::Native;
        setup.policy = "base".to_owned();
        setup.placement = PagePlacement::Colouring;
        // 64 KiB in the last level and 32 KiB in the second: two of its four colours are taken twice.
        setup.cpu.cache.l2 = CacheGeometry { bytes: 32 << 10, ways: 8, ..setup.cpu.cache.l2 };
        setup.cpu.cache.l1d = CacheGeometry { bytes: 4 << 10, ways: 8, ..setup.cpu.cache.l1d };
        let size = 88 << 10;
        setup.warmup = 8 * size / 64;
        let workload = format!("sequential:size={size},stride=64,accesses={}", 16 * size / 64);
        let found = run(&setup, &workload);
        let causes = found.llc.unwrap().data_misses.unwrap();
        assert_eq!(causes.total(), found.counters["strata.data_memory"]);
        (causes, 8 * size / 64)
    };
    let (causes, reads) = missed("zen2");
    // Page tables take room, too.
    assert!(causes.total() * 8 < reads, "{causes:?} of {reads}");
    let (causes, reads) = missed("haswell-ep");
    assert!(
        causes.total() * 2 > reads && causes.capacity > causes.conflict,
        "{causes:?} of {reads}"
    );
}

#[test]
fn a_cache_made_as_the_cpus_has_its_hash_and_is_inclusive() {
    let as_cpu = LlcSetup { as_cpu: true, ..LlcSetup::default() };
    let mut sliced = setup(8, as_cpu);
    sliced.cpu.cache.llc.bytes *= 8;
    // Larger together than the cache that includes them.
    sliced.cpu.cache.l2 = CacheGeometry { bytes: 1 << 20, ways: 16, ..sliced.cpu.cache.l2 };
    let found = run(&sliced, RANDOM);
    assert!(found.llc.as_ref().unwrap().inclusion_victims > 0, "{:?}", found.llc);
    sliced.cpu.cache.llc_design.inclusive = false;
    let apart = run(&sliced, RANDOM);
    assert_eq!(apart.llc.as_ref().unwrap().inclusion_victims, 0);
    let plain = run(&Setup { llc: LlcSetup::default(), ..sliced }, RANDOM);
    assert_ne!(apart.counters["strata.data_memory"], plain.counters["strata.data_memory"]);
}
