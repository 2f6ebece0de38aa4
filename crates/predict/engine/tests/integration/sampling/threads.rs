//! What machines estimate of sampled streams of several threads.

use super::SAMPLING;
use super::machine::{run, setup};
use super::sources::{at, begin};
use strata_engine::StackKind;
use strata_stream::{
    Access, Backing, Batch, Edge, Event, Fill, Sampling, Source, SourceError, Tid, WorkloadInfo,
};
use strata_workloads::Sampled;

const FIRST: Tid = Tid(0);
const SECOND: Tid = Tid(1);

/// Two threads of a process that has so many pages do something in so many rounds.
struct Rounds<F> {
    pages: u64,
    rounds: u64,
    round: u64,
    act: F,
}

impl<F: FnMut(u64, &mut Batch) + Send> Rounds<F> {
    fn new(pages: u64, rounds: u64, act: F) -> Self {
        Self { pages, rounds, round: 0, act }
    }
}

impl<F: FnMut(u64, &mut Batch) + Send> Source for Rounds<F> {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo::default()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.round == 0 {
            begin(batch, self.pages << 12, Backing::Anonymous, &[FIRST, SECOND]);
        }
        (self.act)(self.round, batch);
        self.round += 1;
        Ok(if self.round < self.rounds { Fill::More } else { Fill::End })
    }
}

/// A thread reads so many pages, or one so many times.
fn read(batch: &mut Batch, tid: Tid, instructions: u64, pages: impl Iterator<Item = u64>) {
    batch.run(tid, instructions, |out| {
        out.extend(pages.map(|number| Access::load(at(number << 12), 8)));
    });
}

/// A thread stores to a page.
fn store(batch: &mut Batch, tid: Tid, instructions: u64, pages: impl Iterator<Item = u64>) {
    batch.run(tid, instructions, |out| {
        out.extend(pages.map(|number| Access::store(at(number << 12), 8)));
    });
}

/// One thread misses all the time and the other, which does four times as much, never. One waits for nobody.
fn unlike() -> impl Source {
    const PAGES: u64 = 4096;
    Rounds::new(PAGES, 2000, |round, batch| {
        // Every page in turn, in an order that no array can hold.
        read(batch, FIRST, 1_000, (0..100).map(|n| (round * 100 + n) * 1237 % PAGES));
        read(batch, SECOND, 4_000, [0; 100].into_iter());
    })
}

/// Time passes in gaps for each thread as it does in windows for that thread.
#[test]
fn threads_that_do_unlike_things_take_their_own_time() {
    let setup = setup(StackKind::Vm, "base");
    let truth = run(&setup, unlike());
    let found = run(&setup, Sampled::new(unlike(), SAMPLING));
    let off = |found: u64, truth: u64| found as f64 / truth as f64 - 1.0;
    let elapsed = off(found.elapsed_cycles, truth.elapsed_cycles);
    assert!(elapsed.abs() < 0.05, "{elapsed}");
    assert_eq!(found.cpus.len(), 2);
    for (cpu, whole) in found.cpus.iter().zip(&truth.cpus) {
        assert!(off(cpu.instructions, whole.instructions).abs() < 1e-3, "{cpu:?} {whole:?}");
        assert!(off(cpu.cycles, whole.cycles).abs() < 0.1, "{cpu:?} {whole:?}");
    }
}

/// One thread misses all the time and the other never. Seen in detail each does half of the instructions, and in gaps,
/// where nothing holds it up, one does nine tenths: so it is with live programs.
fn uneven(is_sampled: bool) -> impl Source {
    const PAGES: u64 = 4096;
    let mut at = 0;
    // So many pieces of 1000 instructions of each thread, in turn.
    let mut pieces = move |pieces: [u64; 2], in_gap: bool, batch: &mut Batch| {
        for piece in 0..pieces[0].max(pieces[1]) {
            for (tid, pieces) in [FIRST, SECOND].into_iter().zip(pieces) {
                if piece >= pieces {
                    continue;
                }
                if in_gap && is_sampled {
                    batch.event(Event::Skipped { tid, instructions: 1000 });
                    continue;
                }
                // Every page in turn, in an order that no array can hold.
                let number = |n: u64| if tid == FIRST { (at + n) * 1237 % PAGES } else { 0 };
                read(batch, tid, 1000, (0..100).map(number));
                at += if tid == FIRST { 100 } else { 0 };
            }
        }
    };
    Rounds::new(PAGES, 60, move |round, batch| {
        if round == 0 {
            // All page faults are over before anything is left out.
            store(batch, FIRST, 100_000, 0..PAGES);
        }
        for (edge, of) in [
            (Edge::Interval, [10, 90]),
            // How even it is in detail depends on the window.
            (Edge::Warm, [10, 10]),
            (Edge::Window, [5 + round % 10, 15 - round % 10]),
            (Edge::Gap, [10, 90]),
        ] {
            if is_sampled {
                batch.event(Event::Sampling(edge));
            }
            pieces(of, matches!(edge, Edge::Interval | Edge::Gap), batch);
        }
    })
}

/// What each thread did is estimated by its own instructions, and bounds are of what these do not explain.
#[test]
fn threads_count_for_as_much_as_they_did_and_not_as_windows_saw_of_them() {
    let setup = setup(StackKind::Vm, "base");
    let truth = run(&setup, uneven(false));
    let found = run(&setup, uneven(true));
    assert_eq!(found.instructions, truth.instructions);
    let bounds = &found.sampled.as_ref().unwrap().bounds;
    for name in ["accesses", "tlb.l1_misses", "tlb.l2_misses", "walk_refs", "cycles"] {
        let (value, truth) = (found.bounded(name), truth.bounded(name));
        // Of each thread every window is alike. By shares in windows there would be three times as many misses.
        assert!((value / truth - 1.0).abs() < 0.01, "{name}: {value} {truth}");
        let half = bounds[name].half() / truth;
        assert!(half < 0.02, "{name}: {half}");
    }
    // Threads are not as far as they would be, at any time.
    assert_eq!(bounds.get("elapsed_cycles"), None);
}

/// One thread does nine tenths of the instructions, the other touches all new memory.
fn toucher() -> impl Source {
    Rounds::new(8192, 1000, |round, batch| {
        read(batch, FIRST, 9000, [0; 100].into_iter());
        store(batch, SECOND, 1000, [round + 1].into_iter());
    })
}

/// What is touched first in a gap is taken to be touched by whoever does so in windows.
#[test]
fn page_faults_of_gaps_are_those_of_the_thread_that_has_them_where_it_is_seen() {
    let setup = setup(StackKind::Vm, "base");
    let truth = run(&setup, toucher());
    let found = run(&setup, Sampled::new(toucher(), SAMPLING));
    assert_eq!(found.faults.guest, truth.faults.guest);
    for (cpu, whole) in found.cpus.iter().zip(&truth.cpus) {
        assert_eq!(cpu.instructions, whole.instructions);
        let off = cpu.cycles as f64 / whole.cycles as f64 - 1.0;
        assert!(off.abs() < 0.05, "{cpu:?} {whole:?}");
    }
}

/// One thread touches memory that its TLB has room for. The other reads what it has read before, and a page more from time
/// to time.
fn reader() -> impl Source {
    const PAGES: u64 = 600;
    Rounds::new(PAGES, 3000, |round, batch| {
        if round == 0 {
            store(batch, FIRST, 100_000, 0..PAGES);
        }
        let known = (round / 4 + 1).min(PAGES);
        read(batch, FIRST, 1000, [0; 10].into_iter());
        read(batch, SECOND, 4000, [known - 1, round * 7919 % known].into_iter());
    })
}

/// What a thread loads into its TLB once and keeps is mostly loaded in gaps, and does not come again in each.
#[test]
fn what_a_thread_loads_once_is_there_once() {
    let setup = setup(StackKind::Nested, "base");
    let truth = run(&setup, reader());
    for seed in 1..=4 {
        let found = run(&setup, Sampled::new(reader(), Sampling { seed, ..SAMPLING }));
        for name in ["tlb.l2_misses", "walk_refs"] {
            let (value, truth) = (found.bounded(name), truth.bounded(name));
            let bounds = found.sampled.as_ref().unwrap().bounds[name];
            assert!((0.6..1.05).contains(&(value / truth)), "{name}: {value} {truth}");
            assert!(bounds.low <= truth && truth <= bounds.high, "{name}: {bounds:?} {truth}");
        }
    }
}

/// One thread touches memory that its TLB has room for. The other reads all of it once, and one page otherwise.
fn once() -> impl Source {
    const PAGES: u64 = 600;
    Rounds::new(PAGES, 3000, |round, batch| {
        if round == 0 {
            store(batch, FIRST, 100_000, 0..PAGES);
        }
        read(batch, FIRST, 1000, [0; 10].into_iter());
        read(batch, SECOND, 4000, if round == 1501 { 0..PAGES } else { 0..1 });
    })
}

/// What a thread loads in a gap and no window meets may be what others use.
#[test]
fn what_a_thread_loads_in_a_gap_may_be_there() {
    let setup = setup(StackKind::Nested, "base");
    let truth = run(&setup, once());
    for seed in 1..=4 {
        let found = run(&setup, Sampled::new(once(), Sampling { seed, ..SAMPLING }));
        for name in ["tlb.l2_misses", "walk_refs", "walk_cycles"] {
            let (value, truth) = (found.bounded(name), truth.bounded(name));
            let bounds = found.sampled.as_ref().unwrap().bounds[name];
            assert!(
                bounds.low <= truth && truth <= bounds.high,
                "{name}: {value} {bounds:?} {truth}"
            );
        }
    }
}
