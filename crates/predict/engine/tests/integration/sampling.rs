//! What machines estimate of sampled streams, against what they find on the whole ones.

use crate::common::{figure, run};
use std::collections::BTreeMap;
use strata_engine::{LayerFmfi, Report, RunResult, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_stream::{
    Array, Backing, Batch, Edge, Event, Fill, Pid, Sampling, Source, Step, Tid, WorkloadInfo,
};
use strata_workloads::{Aim, Aimed, Auto, Generator, Reach, Sampled};

/// Caches are small, so that streams of a few million accesses are long for them.
pub fn setup(stack: StackKind, policy: &str) -> Setup {
    let mut cpu = CpuModel::preset("broadwell-e5-2620v4").unwrap();
    (cpu.cache.l2.bytes, cpu.cache.l2.ways) = (64 << 10, 8);
    (cpu.cache.llc.bytes, cpu.cache.llc.ways) = (256 << 10, 16);
    Setup {
        memory: Some(256 << 20),
        fragmentation: LayerFmfi::everywhere(0.0),
        ..Setup::new(stack, policy, cpu)
    }
}

fn made(spec: &str) -> Generator {
    Generator::parse(spec).unwrap()
}

pub const SAMPLING: Sampling = Sampling {
    interval: 200_000,
    window: 10_000,
    warm: 50_000,
    whole: 600_000,
    adaptive: false,
    seed: 1,
};

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
    let mut held = BTreeMap::<String, u32>::new();
    for seed in 0..100 {
        let found = run(&setup, Sampled::new(made(spec), Sampling { seed, warm, ..SAMPLING }));
        for (name, bounds) in &found.sampled.expect("it is sampled").bounds {
            let truth = figure(&truth, name);
            let holds = bounds.low <= truth && truth <= bounds.high;
            *held.entry(name.clone()).or_default() += u32::from(holds);
        }
    }
    assert_eq!(held.len(), 8, "{spec}: {held:?}");
    println!("{spec}: {held:?}");
    assert!(held.values().all(|held| *held >= 88), "{spec}: {held:?}");
}

/// The arrays of [`setup`].
fn aim() -> Aim {
    let reach = |array, entries, ways, cycles| Reach { array, entries, ways, cycles };
    let reaches = vec![
        reach(Array::LastLevelCache, 4096, 16, 200.0),
        reach(Array::L2Tlb, 1536, 6, 50.0),
        reach(Array::L2Cache, 1024, 8, 40.0),
        reach(Array::L1Tlb, 64, 4, 7.0),
    ];
    Aim { within: 0.02, base_cpi: 0.5, reaches }
}

#[test]
fn bounds_hold_the_truth_where_trials_choose_the_warming() {
    let setup = setup(StackKind::Vm, "base");
    let (mut held, mut all) = (BTreeMap::<String, u32>::new(), 0);
    for spec in ["btree:size=32MiB,accesses=4M,ipa=20", "zipf:size=32MiB,accesses=4M,ipa=20"] {
        let truth = run(&setup, made(spec));
        for seed in 0..10 {
            let sampling = Sampling { whole: 2_000_000, ..Auto::sampling(seed) };
            let source = Sampled::aimed(made(spec), sampling, Aimed::Auto(aim()));
            let found = run(&setup, source);
            for (name, bounds) in &found.sampled.expect("it is sampled").bounds {
                let truth = figure(&truth, name);
                let holds = bounds.low <= truth && truth <= bounds.high;
                *held.entry(name.clone()).or_default() += u32::from(holds);
            }
            all += 1;
        }
    }
    println!("{held:?} of {all}");
    assert_eq!(held.len(), 8);
    assert!(held.values().all(|held| held * 10 >= all * 9), "{held:?} of {all}");
}

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

/// A sampled stream that tells, as its first interval begins, how warm arrays of windows are.
struct Told<S> {
    source: S,
    events: Vec<Event>,
}

impl<S: Source> Source for Told<S> {
    fn info(&self) -> WorkloadInfo {
        self.source.info()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, strata_stream::SourceError> {
        batch.clear();
        let mut read = Batch::new();
        let fill = self.source.fill(&mut read)?;
        for step in read.steps() {
            match step {
                Step::Event(event) => {
                    batch.event(*event);
                    if *event == Event::Sampling(Edge::Interval) {
                        self.events.drain(..).for_each(|event| batch.event(event));
                    }
                }
                Step::Run { tid, instructions, accesses } => {
                    batch.run(tid, instructions, |out| out.extend_from_slice(accesses));
                }
            }
        }
        Ok(fill)
    }
}

/// Every array warm after so many instructions, with misses off by so much.
fn warmed(after: u64, [over, under, guessed]: [u64; 3]) -> Vec<Event> {
    let warmed = |array| Event::Warmed { array, after, over, under, guessed };
    Array::ALL.map(warmed).to_vec()
}

#[test]
fn what_warms_up_one_array_counts_for_another() {
    // Regions of unlike misses in turn: 10,000 instructions of an interval tell less of them than 60,000.
    let spec = "zipf:size=32MiB,accesses=1500k,theta=0.8";
    let setup = setup(StackKind::Vm, "base");
    let truth = figure(&run(&setup, made(spec)), "tlb.l1_misses");
    let off = |events: &dyn Fn() -> Vec<Event>| {
        let squares = (0..12).map(|seed| {
            let source = Sampled::new(made(spec), Sampling { seed, ..SAMPLING });
            let found = run(&setup, Told { source, events: events() });
            (figure(&found, "tlb.l1_misses") / truth - 1.0).powi(2)
        });
        (squares.sum::<f64>() / 12.0).sqrt()
    };
    let [without, with] = [off(&Vec::new), off(&|| warmed(0, [0; 3]))];
    assert!(with < 0.7 * without, "{with} {without}");
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

/// A program that touches 32 pages at once, and then a line more of each in every round.
#[derive(Default)]
struct LineByLine {
    round: u64,
}

impl Source for LineByLine {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo::default()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, strata_stream::SourceError> {
        use strata_addr::{Gva, Range};
        use strata_stream::{Access, Backing, Protection};
        batch.clear();
        let (pid, tid) = (Pid(0), Tid(0));
        if self.round == 0 {
            batch.event(Event::ProcessStart { pid });
            batch.event(Event::ThreadStart { pid, tid });
            let range = Range::sized(Gva::new(1 << 32), 32 << 12);
            let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
            batch.event(Event::Map { pid, range, backing, protection, fixed: false });
        }
        let at = |page: u64| Gva::new((1 << 32) + (page << 12) + self.round * 64);
        batch.run(tid, 10_000, |out| out.extend((0..32).map(|page| Access::store(at(page), 8))));
        self.round += 1;
        Ok(if self.round < 64 { Fill::More } else { Fill::End })
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

/// Two phases in turn, each shorter than an interval; the second touches new memory and nothing else does.
#[derive(Default)]
struct Phases {
    round: u64,
    /// Whether four rounds of sixteen do nothing but touch new memory, and the others touch none.
    by_bursts: bool,
}

impl Source for Phases {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo::default()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, strata_stream::SourceError> {
        use strata_addr::{Gva, Range};
        use strata_stream::{Access, Backing, Protection};
        batch.clear();
        let (pid, tid) = (Pid(0), Tid(0));
        if self.round == 0 {
            batch.event(Event::ProcessStart { pid });
            batch.event(Event::ThreadStart { pid, tid });
            let range = Range::sized(Gva::new(1 << 32), 64 << 20);
            let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
            batch.event(Event::Map { pid, range, backing, protection, fixed: false });
        }
        let start = (1 << 32) + (self.round << 16);
        let (is_burst, by_bursts) = (self.round % 16 < 4, self.by_bursts);
        batch.run(tid, 20_000, |out| {
            if by_bursts && is_burst {
                out.extend((0..16_000).map(|at| Access::store(Gva::new(start + at * 4), 4)));
                return;
            }
            if by_bursts {
                out.extend((0..200).map(|at| Access::load(Gva::new((1 << 32) + at % 64 * 8), 8)));
                return;
            }
            out.extend((0..16).map(|page| Access::store(Gva::new(start + page * 4096), 8)));
            out.extend((0..5000).map(|at| Access::load(Gva::new((1 << 32) + at % 64 * 8), 8)));
        });
        self.round += 1;
        Ok(if self.round == 500 { Fill::End } else { Fill::More })
    }
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
        let bounds = &found.runs[1].sampled.as_ref().unwrap().bounds;
        let relative = bounds["relative_throughput"];
        held += u32::from(relative.low <= truth && truth <= relative.high);
        // What both runs have in common says nothing against their relation.
        let own = bounds["elapsed_cycles"];
        assert!(relative.half() / truth < 3.0 * own.half() / own.high + 0.01);
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

/// A process reads half of its pages and stores to all, and so do three children, one after another, and the
/// process again after each.
fn family(backing: Backing) -> Batch {
    use strata_addr::{Gva, Range};
    use strata_stream::{Access, Protection};
    const PAGES: u64 = 500;
    let (pid, start) = (Pid(0), Gva::new(1 << 32));
    let protection = Protection::READ_WRITE;
    let mut batch = Batch::new();
    batch.event(Event::ProcessStart { pid });
    batch.event(Event::ThreadStart { pid, tid: Tid(0) });
    let range = Range::sized(start, PAGES << 12);
    batch.event(Event::Map { pid, range, backing, protection, fixed: false });
    let stores = |batch: &mut Batch, tid| {
        for page in 0..PAGES {
            batch.run(tid, 1000, |out| out.push(Access::store(start + (page << 12), 8)));
        }
    };
    for page in (0..PAGES).step_by(2) {
        batch.run(Tid(0), 100, |out| out.push(Access::load(start + (page << 12), 8)));
    }
    stores(&mut batch, Tid(0));
    for number in 1..4 {
        let (child, tid) = (Pid(number), Tid(number));
        batch.event(Event::Fork { parent: pid, child });
        batch.event(Event::ThreadStart { pid: child, tid });
        stores(&mut batch, tid);
        batch.event(Event::ProcessExit { pid: child });
        batch.run(Tid(0), 10_000, |_| ());
        stores(&mut batch, Tid(0));
    }
    batch
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

/// A stream of one batch.
struct Once(Batch);

impl Source for Once {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo::default()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, strata_stream::SourceError> {
        *batch = std::mem::take(&mut self.0);
        Ok(Fill::End)
    }
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
