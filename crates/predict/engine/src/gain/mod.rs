//! What it would gain if all huge pages of a live guest were well aligned, by the hardware model:
//! the same accesses to the page tables that snapshots show, as they are and with every huge page
//! backed by one.

mod tables;

use crate::{RunResult, Setup, SetupError, StackKind, replay};
use serde::Serialize;
use std::collections::HashSet;
use strata_addr::{Frame, PageSize, Vpn, space::GuestPhysical};
use strata_hardware::CpuModel;
use strata_inspect::join::compose::descend;
use strata_inspect::{Judged, Options, Snapshot, Verdict, chosen, verdicts};
use strata_stream::{Batch, Event, Fill, Source, SourceError, Step};
use strata_tables::Capture;
use strata_tables::variant::TableVariant;
use strata_workloads::Generator;
use tables::{Composed, HugePageBacking, tables};

/// Accesses counted, and as many before them to warm up.
const ACCESSES: u64 = 1_000_000;

/// Most huge pages replayed, 128 GiB: the tables of each take up to 8 KiB of memory.
const MOST_PAGES: usize = 64 << 10;

/// A figure with the tables as they are, and if all huge pages were well aligned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// As the snapshots show it.
    pub now: f64,
    /// If all were well aligned.
    pub aligned: f64,
}

/// What was estimated; `docs/inspect.md` describes the fields. Figures are absent when no huge
/// page could be replayed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gain {
    /// The CPU modelled.
    pub cpu: String,
    /// The generator that made the accesses, as `strata run --workload` takes it.
    pub workload: Option<String>,
    /// Accesses counted.
    pub accesses: u64,
    /// Accesses before, to fill TLBs and caches.
    pub warmup: u64,
    /// Huge pages that accesses went to.
    pub pages: u64,
    /// Of those, well aligned now.
    pub well_aligned: u64,
    /// Huge pages that could have been taken; more than `pages` when every n-th was.
    pub pages_judged: u64,
    /// Huge pages left out: uncertain, unknown, or at addresses that the model does not take.
    pub left_out: u64,
    /// Base pages that nothing backs yet, in the pages replayed; taken as base pages.
    pub base_pages_added: u64,
    /// Misses of the L2 TLB per 1000 accesses.
    pub l2_misses_per_1000: Option<Compared>,
    /// Memory references of walks per 1000 accesses.
    pub walk_refs_per_1000: Option<Compared>,
    /// Cycles in walks per access.
    pub walk_cycles_per_access: Option<Compared>,
    /// All cycles per access.
    pub cycles_per_access: Option<Compared>,
    /// Accesses per cycle if all were well aligned, over those now.
    pub throughput: Option<f64>,
    /// What in this is of the real machine.
    pub real: Vec<&'static str>,
    /// What is Strata's model.
    pub modelled: Vec<&'static str>,
    /// What else a reader must know.
    pub notes: Vec<String>,
}

/// No estimate could be made. One line.
#[derive(Debug, thiserror::Error)]
pub enum GainError {
    /// The snapshots cannot be joined.
    #[error(transparent)]
    Snapshots(#[from] strata_inspect::Error),
    /// The model does not take their tables.
    #[error(transparent)]
    Model(#[from] SetupError),
    /// The accesses could not be made.
    #[error(transparent)]
    Accesses(#[from] SourceError),
}

/// Estimates.
///
/// # Errors
/// [`GainError`].
pub fn gain(snapshots: &[Snapshot], options: &Options, cpu: &CpuModel) -> Result<Gain, GainError> {
    let below = chosen(snapshots, options)?;
    let (mut judged, mut left_out) = (Vec::new(), 0);
    let mut frames = HashSet::new();
    for Judged { gpa, verdict, .. } in verdicts(snapshots, options)? {
        let frame = gpa.page();
        // A page that several processes map counts once; frame 0 is a hidden one.
        if frame.get() != 0 && !frames.insert(frame) {
            continue;
        }
        let known = matches!(verdict, Verdict::WellAligned { .. } | Verdict::Misaligned { .. });
        if known && frame.is_aligned(PageSize::Huge) {
            judged.push((frame, verdict));
        } else {
            left_out += 1;
        }
    }
    let pages_judged = judged.len() as u64;
    let backing = |(frame, verdict): (Frame<GuestPhysical>, _)| match verdict {
        Verdict::WellAligned { frame: below, .. } => (frame, HugePageBacking::Huge(below)),
        _ => (frame, HugePageBacking::Base(descend(&below, frame.get()))),
    };
    let pages = sample(&judged, MOST_PAGES).map(backing);
    let mut gain = estimate(snapshots.len(), pages, cpu)?;
    gain.pages_judged = pages_judged;
    gain.left_out += left_out;
    Ok(gain)
}

/// At most `most` of them, evenly.
fn sample<T: Copy>(all: &[T], most: usize) -> impl Iterator<Item = T> {
    let number = all.len().min(most);
    (0..number).map(move |at| all[at * all.len() / number])
}

/// Replays the same accesses to these huge pages, as they are and aligned.
fn estimate(
    layers: usize,
    pages: impl Iterator<Item = (Frame<GuestPhysical>, HugePageBacking)>,
    cpu: &CpuModel,
) -> Result<Gain, GainError> {
    let Composed { capture, pages, huge, added, left_out } =
        tables(layers.min(3) as u8, start()?, pages);
    let mut gain = Gain {
        cpu: cpu.name.clone(),
        workload: None,
        accesses: 0,
        warmup: 0,
        pages,
        well_aligned: huge,
        pages_judged: pages,
        left_out,
        base_pages_added: added,
        l2_misses_per_1000: None,
        walk_refs_per_1000: None,
        walk_cycles_per_access: None,
        cycles_per_access: None,
        throughput: None,
        real: vec![
            "which huge pages the guest has, which of them are well aligned",
            "the frames behind them in the lowest layer",
        ],
        modelled: vec![
            "the accesses: uniformly random over all the huge pages, 3 instructions each",
            "one program that has all the huge pages, side by side",
            "its page table, in base pages of the layers below",
            "TLBs, walk caches, data caches, cycles",
        ],
        notes: Vec::new(),
    };
    if pages == 0 {
        return Ok(gain);
    }
    let size = bytes_of(pages) >> 20;
    let workload = format!("random:size={size}MiB,accesses={},seed=1,ipa=3", 2 * ACCESSES);
    let run = |variant| replayed(&capture, variant, cpu, &workload);
    let (now, aligned) = (run(TableVariant::Captured)?, run(TableVariant::Ideal)?);
    let compared = |measure: fn(&RunResult) -> u64, factor: f64| {
        let per = |run: &RunResult| measure(run) as f64 * factor / run.accesses.max(1) as f64;
        Some(Compared { now: per(&now), aligned: per(&aligned) })
    };
    gain.accesses = now.accesses;
    gain.warmup = ACCESSES;
    gain.l2_misses_per_1000 = compared(|run| run.tlb.l2_misses, 1000.0);
    gain.walk_refs_per_1000 = compared(|run| run.walk_refs, 1000.0);
    gain.walk_cycles_per_access = compared(|run| run.walk_cycles, 1.0);
    gain.cycles_per_access = compared(|run| run.elapsed_cycles, 1.0);
    gain.throughput = aligned.throughput().zip(now.throughput()).map(|(new, old)| new / old);
    gain.notes = now.notes;
    gain.workload = Some(workload);
    Ok(gain)
}

impl Gain {
    /// Bytes of the huge pages that accesses went to.
    pub fn bytes(&self) -> u64 {
        bytes_of(self.pages)
    }
}

fn bytes_of(pages: u64) -> u64 {
    pages * PageSize::Huge.bytes()
}

fn generator(workload: &str) -> Generator {
    Generator::parse(workload).expect("the text is one that generators take")
}

/// The virtual page where a generator's memory begins, whatever its size.
fn start() -> Result<Vpn, SourceError> {
    let mut batch = Batch::new();
    generator("random:size=2MiB,accesses=1").fill(&mut batch)?;
    let begins = batch.steps().find_map(|step| match step {
        Step::Event(Event::Map { range, .. }) => Some(range.start.page()),
        _ => None,
    });
    Ok(begins.expect("generators map their memory first"))
}

fn replayed(
    capture: &Capture,
    variant: TableVariant,
    cpu: &CpuModel,
    workload: &str,
) -> Result<RunResult, GainError> {
    let setup = Setup {
        levels: strata_tables::LEVELS,
        warmup: ACCESSES,
        placement: crate::PagePlacement::Linux,
        ..Setup::new(StackKind::Vm, variant.name(), cpu.clone())
    };
    let mut run = replay(capture, variant, &setup)?;
    let mut source = generator(workload);
    let mut batch = Batch::new();
    loop {
        let fill = source.fill(&mut batch)?;
        run.consume(&batch);
        if fill == Fill::End {
            return Ok(run.finish());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_inspect::snapshot::region::Run;

    /// An estimate for 4 GiB of huge pages, well aligned where `huge` says.
    fn of(pages: u64, huge: impl Fn(u64) -> bool) -> Gain {
        let page = |at: u64| {
            let (gpa, hpa) = ((1 + at) << 9, (5000 + 2 * at) << 9);
            let runs = || vec![Run::new(0, 256, hpa + 7), Run::new(256, 256, hpa + 300)];
            let backing = match huge(at) {
                true => HugePageBacking::Huge(Frame::new(hpa)),
                false => HugePageBacking::Base(runs()),
            };
            (Frame::new(gpa), backing)
        };
        let cpu = CpuModel::preset(CpuModel::DEFAULT).unwrap();
        estimate(2, (0..pages).map(page), &cpu).unwrap()
    }

    #[test]
    fn the_gain_is_nothing_when_all_are_aligned_and_grows_with_those_that_are_not() {
        let (all, half, none) =
            (of(2048, |_| true), of(2048, |at| at % 2 == 0), of(2048, |_| false));
        assert_eq!(all.throughput, Some(1.0));
        let misses = |gain: &Gain| gain.l2_misses_per_1000.unwrap();
        assert_eq!(misses(&all).now, misses(&all).aligned);
        assert!(misses(&none).now > 1.5 * misses(&none).aligned, "{none:?}");
        assert!(misses(&all).now < misses(&half).now && misses(&half).now < misses(&none).now);
        assert!(1.0 < half.throughput.unwrap() && half.throughput < none.throughput);
        for gain in [&all, &half, &none] {
            assert_eq!((gain.accesses, gain.pages, gain.notes.len()), (ACCESSES, 2048, 0));
            assert_eq!(gain.base_pages_added, 0);
        }
        assert_eq!([&all, &half, &none].map(|gain| gain.well_aligned), [2048, 1024, 0]);
    }

    #[test]
    fn nothing_to_replay_is_no_estimate() {
        let gain = of(0, |_| true);
        assert_eq!((gain.throughput, gain.accesses, gain.bytes()), (None, 0, 0));
    }

    #[test]
    fn samples_are_even() {
        let all: Vec<usize> = (0..10).collect();
        assert_eq!(sample(&all, 4).collect::<Vec<_>>(), [0, 2, 5, 7]);
        assert_eq!(sample(&all, 10).collect::<Vec<_>>(), all);
        assert_eq!(sample(&all[..0], 4).count(), 0);
    }
}
