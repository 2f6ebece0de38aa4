//! `strata join --gain`: what it would gain if all huge pages of the guest were well aligned, by
//! the hardware model.

use crate::failure::Failure;
use crate::gain_tables::{Backing, Composed, tables};
use crate::number::{bytes, count, percent, ratio, share};
use crate::sight::heading;
use crate::table::{Cells, paragraph};
use serde::Serialize;
use std::collections::HashSet;
use std::fmt::Write;
use strata_addr::PageSize;
use strata_engine::{RunResult, Setup, StackKind, replay};
use strata_hardware::{CpuModel, Misaligned};
use strata_inspect::compose::descend;
use strata_inspect::{Options, Snapshot, Verdict, chosen, verdicts};
use strata_stream::{Batch, Event, Fill, Source, Step};
use strata_tables::Capture;
use strata_tables::variant::Variant;
use strata_workloads::Generator;

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
#[derive(Clone, Debug, PartialEq, Serialize)]
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

/// Estimates.
///
/// # Errors
/// When the snapshots cannot be joined, or the model does not take them.
pub fn gain(snapshots: &[Snapshot], options: &Options, cpu: &CpuModel) -> Result<Gain, Failure> {
    let failed = |error: strata_inspect::Error| Failure::failed(error.to_string());
    let below = chosen(snapshots, options).map_err(failed)?;
    let (mut judged, mut left_out) = (Vec::new(), 0);
    let mut seen = HashSet::new();
    for (_, _, gpa, verdict) in verdicts(snapshots, options).map_err(failed)? {
        let frame = gpa >> PageSize::BASE_SHIFT;
        // A page that several processes map counts once; frame 0 is a hidden one.
        if frame != 0 && !seen.insert(frame) {
            continue;
        }
        let known = matches!(verdict, Verdict::WellAligned { .. } | Verdict::Misaligned { .. });
        if known && frame.is_multiple_of(PageSize::Huge.base_pages()) {
            judged.push((frame, verdict));
        } else {
            left_out += 1;
        }
    }
    let pages_judged = judged.len() as u64;
    let backing = |(frame, verdict)| match verdict {
        Verdict::WellAligned { frame: below, .. } => (frame, Backing::Huge(below)),
        _ => (frame, Backing::Base(descend(&below, frame))),
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
    pages: impl Iterator<Item = (u64, Backing)>,
    cpu: &CpuModel,
) -> Result<Gain, Failure> {
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
    let (now, aligned) = (run(Variant::Captured)?, run(Variant::Ideal)?);
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

fn bytes_of(pages: u64) -> u64 {
    pages * PageSize::Huge.bytes()
}

fn generator(workload: &str) -> Result<Generator, Failure> {
    Generator::parse(workload).map_err(|error| Failure::failed(error.to_string()))
}

/// The virtual page where a generator's memory begins, whatever its size.
fn start() -> Result<u64, Failure> {
    let mut batch = Batch::new();
    let filled = generator("random:size=2MiB,accesses=1")?.fill(&mut batch);
    filled.map_err(|error| Failure::failed(error.to_string()))?;
    let begins = batch.steps().find_map(|step| match step {
        Step::Event(Event::Map { range, .. }) => Some(range.start.page().get()),
        _ => None,
    });
    Ok(begins.expect("generators map their memory first"))
}

fn replayed(
    capture: &Capture,
    variant: Variant,
    cpu: &CpuModel,
    workload: &str,
) -> Result<RunResult, Failure> {
    let setup = Setup {
        stack: StackKind::Vm,
        policy: variant.name().to_owned(),
        cpu: cpu.clone(),
        memory: None,
        levels: strata_tables::LEVELS,
        fragmentation: Vec::new(),
        reused: false,
        misaligned: Misaligned::Splinter,
        warmup: ACCESSES,
        from_mark: false,
        seed: 1,
        explain: false,
        overrides: Vec::new(),
    };
    let mut run =
        replay(capture, variant, &setup).map_err(|error| Failure::failed(error.to_string()))?;
    let mut source = generator(workload)?;
    let mut batch = Batch::new();
    loop {
        let fill = source.fill(&mut batch).map_err(|error| Failure::failed(error.to_string()))?;
        run.consume(&batch);
        if fill == Fill::End {
            return Ok(run.finish());
        }
    }
}

impl Gain {
    /// For people.
    pub fn text(&self, width: usize) -> String {
        let mut out = "\n".to_owned() + &heading("if all huge pages were well aligned");
        let Some(throughput) = self.throughput else {
            let left = match self.left_out {
                0 => "the guest has no huge pages, so alignment can gain nothing.".to_owned(),
                some => format!("nothing is known of the guest's {} huge pages.", count(some)),
            };
            paragraph(&mut out, &format!("No estimate: {left}"), width);
            return out;
        };
        let mut cells = Cells::new(["model", "now", "aligned"]);
        for (label, compared) in [
            ("L2 TLB misses per 1000", self.l2_misses_per_1000),
            ("walk references per 1000", self.walk_refs_per_1000),
            ("walk cycles per access", self.walk_cycles_per_access),
            ("cycles per access", self.cycles_per_access),
        ] {
            let figure = |side: fn(Compared) -> f64| ratio(compared.map(side));
            cells.row([label.to_owned(), figure(|both| both.now), figure(|both| both.aligned)]);
        }
        cells.row(["throughput".to_owned(), ratio(Some(1.0)), ratio(Some(throughput))]);
        out += &cells.to_string();
        for sentence in self.sentences() {
            paragraph(&mut out, &sentence, width);
        }
        out
    }

    fn sentences(&self) -> Vec<String> {
        let mut first = format!(
            "{} accesses to {} huge pages ({}), of which {} are well aligned now, on {}.",
            count(self.accesses),
            count(self.pages),
            bytes(bytes_of(self.pages)),
            percent(share(self.well_aligned, self.pages)),
            self.cpu
        );
        if self.left_out > 0 {
            let _ = write!(first, " {} are left out: not known.", count(self.left_out));
        }
        if self.base_pages_added > 0 {
            let _ = write!(
                first,
                " {} base pages that nothing backs yet count as backed, each by itself.",
                count(self.base_pages_added)
            );
        }
        let mut all = vec![first];
        if self.pages_judged > self.pages {
            all.push(format!(
                "Only {} of {} are replayed, evenly chosen.",
                count(self.pages),
                count(self.pages_judged)
            ));
        }
        all.push(format!("Real: {}.", self.real.join("; ")));
        all.push(format!(
            "Modelled: {}. Take it as about the most that alignment can give, not as a forecast: \
             programs that reuse what they touched miss less, and mostly gain less.",
            self.modelled.join("; ")
        ));
        all.extend(self.notes.iter().map(|note| format!("Note: {note}.")));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_inspect::region::Run;

    /// An estimate for 4 GiB of huge pages, well aligned where `huge` says.
    fn of(pages: u64, huge: impl Fn(u64) -> bool) -> Gain {
        let page = |at: u64| {
            let (gpa, hpa) = ((1 + at) << 9, (5000 + 2 * at) << 9);
            let runs = || vec![Run::new(0, 256, hpa + 7), Run::new(256, 256, hpa + 300)];
            (gpa, if huge(at) { Backing::Huge(hpa) } else { Backing::Base(runs()) })
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
    fn nothing_to_replay_is_said() {
        let mut gain = of(0, |_| true);
        assert_eq!((gain.throughput, gain.accesses), (None, 0));
        assert!(gain.text(80).contains("has no huge pages"));
        gain.left_out = 3;
        assert!(gain.text(80).contains("nothing is known of the guest's 3 huge pages"));
    }

    #[test]
    fn samples_are_even() {
        let all: Vec<usize> = (0..10).collect();
        assert_eq!(sample(&all, 4).collect::<Vec<_>>(), [0, 2, 5, 7]);
        assert_eq!(sample(&all, 10).collect::<Vec<_>>(), all);
        assert_eq!(sample(&all[..0], 4).count(), 0);
    }
}
