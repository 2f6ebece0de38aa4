//! What is left of a stream when it is sampled.

use crate::common::{Part, read_all};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use strata_addr::{Gva, Range, space::Virtual};
use strata_phases::{Phase, Window, Windows};
use strata_stream::{
    Access, Advice, Backing, Batch, Edge, Event, Fill, Pid, Protection, Sampling, Source,
    SourceError, Tid, WorkloadInfo,
};
use strata_workloads::record::{Encoder, Outcome, Reader};
use strata_workloads::{Aimed, Generator, Marker, Phases, Sampled};

const PAGE: u64 = 4096;

/// A stream made before, in one batch for each part.
struct Made(Vec<Part>, usize);

impl Source for Made {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo::default()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        let Some(part) = self.0.get(self.1) else { return Ok(Fill::End) };
        self.1 += 1;
        match part {
            Part::Event(event) => batch.event(*event),
            Part::Run { tid, instructions, accesses } => {
                batch.run(*tid, *instructions, |out| out.extend_from_slice(accesses));
            }
        }
        Ok(Fill::More)
    }
}

/// The pages that are there, page by page.
#[derive(Clone, Debug, Default, PartialEq)]
struct Twin {
    there: BTreeSet<(Pid, u64)>,
    owners: std::collections::BTreeMap<Tid, Pid>,
    /// The pages of a process before each event that may take some away.
    before: Vec<(Pid, Vec<u64>)>,
}

impl Twin {
    fn pages(range: Range<Virtual>) -> std::ops::Range<u64> {
        range.start.get() / PAGE..range.end.get() / PAGE
    }

    fn note(&mut self, pid: Pid, range: Range<Virtual>) {
        let pages = Self::pages(range);
        let there = self.there.iter().filter(|(of, page)| *of == pid && pages.contains(page));
        let there = there.map(|(_, page)| *page).collect();
        self.before.push((pid, there));
    }

    fn take(&mut self, pid: Pid, range: Range<Virtual>) {
        let pages = Self::pages(range);
        self.there.retain(|(of, page)| *of != pid || !pages.contains(page));
    }

    fn of(parts: &[Part]) -> Self {
        let mut twin = Self::default();
        let all = Range::new(Gva::new(0), Gva::new(1 << 50));
        for part in parts {
            match part {
                Part::Run { tid, accesses, .. } => {
                    let pid = twin.owners.get(tid).copied().unwrap_or_default();
                    for access in accesses {
                        let first = access.addr().get();
                        let last = first + u64::from(access.size()) - 1;
                        twin.there.extend([(pid, first / PAGE), (pid, last / PAGE)]);
                    }
                }
                Part::Event(event) => match *event {
                    Event::Touched { pid, range, .. } => {
                        twin.there.extend(Self::pages(range).map(|page| (pid, page)));
                    }
                    Event::ThreadStart { pid, tid } => {
                        twin.owners.insert(tid, pid);
                    }
                    Event::Unmap { pid, range }
                    | Event::Map { pid, range, .. }
                    | Event::Advise { pid, range, advice: Advice::DontNeed | Advice::Free } => {
                        twin.note(pid, range);
                        twin.take(pid, range);
                    }
                    Event::Remap { pid, from, to } => {
                        twin.note(pid, from);
                        twin.note(pid, to);
                        let (start, end) = (from.start.get() / PAGE, to.end.get() / PAGE);
                        let moved: Vec<_> = Self::pages(from)
                            .filter(|page| twin.there.contains(&(pid, *page)))
                            .map(|page| (pid, page - start + to.start.get() / PAGE))
                            .filter(|(_, page)| *page < end)
                            .collect();
                        twin.take(pid, from);
                        twin.take(pid, to);
                        twin.there.extend(moved);
                    }
                    Event::Fork { parent, child } => {
                        twin.note(parent, all);
                        twin.take(child, all);
                        let copies: Vec<_> = twin.there.iter().copied().collect();
                        let copies = copies.into_iter().filter(|(pid, _)| *pid == parent);
                        twin.there
                            .extend(copies.map(|(_, page)| (child, page)).collect::<Vec<_>>());
                    }
                    Event::Exec { pid } | Event::ProcessExit { pid } => {
                        twin.note(pid, all);
                        twin.take(pid, all);
                    }
                    _ => {}
                },
            }
        }
        twin
    }
}

fn instructions(parts: &[Part]) -> u64 {
    let of = |part: &Part| match part {
        Part::Run { instructions, .. } => *instructions,
        Part::Event(Event::Skipped { instructions, .. }) => *instructions,
        Part::Event(_) => 0,
    };
    parts.iter().map(of).sum()
}

fn range() -> impl Strategy<Value = Range<Virtual>> {
    // Around the border of a huge page.
    let pages = prop_oneof![8 => 1u64..40, 1 => 500u64..1600];
    (480u64..560, pages).prop_map(|(at, pages)| Range::sized(Gva::new(at * PAGE), pages * PAGE))
}

fn part() -> impl Strategy<Value = Part> {
    let pid = || (0u32..3).prop_map(Pid);
    let event = prop_oneof![
        (pid(), range()).prop_map(|(pid, range)| Event::Unmap { pid, range }),
        (pid(), range()).prop_map(|(pid, range)| Event::Map {
            pid,
            range,
            backing: Backing::Anonymous,
            protection: Protection::READ_WRITE,
            fixed: true
        }),
        (pid(), range())
            .prop_map(|(pid, range)| { Event::Advise { pid, range, advice: Advice::DontNeed } }),
        (pid(), range(), 2000u64..2100, 1u64..60).prop_map(|(pid, from, at, pages)| {
            Event::Remap { pid, from, to: Range::sized(Gva::new(at * PAGE), pages * PAGE) }
        }),
        (pid(), pid()).prop_map(|(parent, child)| Event::Fork { parent, child }),
        pid().prop_map(|pid| Event::Exec { pid }),
        (pid(), 0u32..4).prop_map(|(pid, tid)| Event::ThreadStart { pid, tid: Tid(tid) }),
    ];
    let place = prop_oneof![9 => 480u64..620, 1 => 2000u64..2100];
    let access = (place, 0u64..4096, any::<bool>()).prop_map(|(page, at, store)| {
        let at = Gva::new(page * PAGE + at);
        if store { Access::store(at, 8) } else { Access::load(at, 8) }
    });
    prop_oneof![
        2 => event.prop_map(Part::Event),
        3 => (0u32..4, 0u64..60, prop::collection::vec(access, 0..40)).prop_map(
            |(tid, more, accesses)| Part::Run {
                tid: Tid(tid),
                instructions: accesses.len() as u64 + more,
                accesses,
            }
        ),
    ]
}

/// Parts in which a child is a process that was not there before.
fn with_new_children(mut parts: Vec<Part>) -> Vec<Part> {
    for (index, part) in parts.iter_mut().enumerate() {
        if let Part::Event(Event::Fork { child, .. }) = part {
            child.0 = 100 + index as u32;
        }
    }
    parts
}

/// Nothing is lost, nothing is read in a gap, and windows are as long as they are to be.
fn is_of_the_whole(sampled: &[Part], parts: &[Part], window: u64) -> Result<(), TestCaseError> {
    prop_assert_eq!(Twin::of(sampled), Twin::of(parts));
    prop_assert_eq!(instructions(sampled), instructions(parts));
    let (mut in_gap, mut counted, mut last) = (false, 0, None);
    for part in sampled {
        match part {
            Part::Event(Event::Sampling(edge)) => {
                if *edge == Edge::Gap {
                    prop_assert_eq!(counted, window);
                }
                (in_gap, counted) = (matches!(edge, Edge::Interval | Edge::Gap), 0);
                last = Some(*edge);
            }
            Part::Event(_) => {}
            Part::Run { instructions, .. } => {
                prop_assert!(!in_gap);
                if last == Some(Edge::Window) {
                    counted += instructions;
                }
            }
        }
    }
    Ok(())
}

proptest! {
    /// At every moment at which pages go away, and at the end, those that are there are those of the
    /// whole stream; and no instruction is lost.
    #[test]
    fn pages_and_instructions_are_those_of_the_whole_stream(
        parts in prop::collection::vec(part(), 0..60),
        interval in 20u64..600,
        window in 1u64..20,
        warm in 0u64..20,
        whole in 0u64..200,
        seed: u64,
    ) {
        let parts = with_new_children(parts);
        let interval = interval + window + warm;
        let sampling = Sampling { interval, window, warm, whole, adaptive: false, seed };
        let sampled = read_all(&mut Sampled::new(Made(parts.clone(), 0), sampling));
        is_of_the_whole(&sampled, &parts, window)?;
    }

    #[test]
    fn windows_of_phases_are_of_the_whole_stream_too(
        parts in prop::collection::vec(part(), 0..60),
        gaps in prop::collection::vec(0u64..200, 1..9),
        window in 1u64..40,
        warm in 0u64..60,
    ) {
        let parts = with_new_children(parts);
        let mut at = 0;
        let starts: Vec<u64> = gaps.iter().map(|gap| {
            at += gap + window;
            at - window
        }).collect();
        let windows = starts.iter().enumerate();
        let windows = windows.map(|(number, start)| Window { start: *start, phase: number % 2 });
        let phase = Phase { intervals: 9, instructions: 9 * window };
        let windows =
            Windows { length: window, warm, phases: vec![phase; 2], windows: windows.collect() };
        let phases = Phases { windows, marker: Marker::Memory };
        let (sampling, aimed) = (phases.sampling(), Aimed::Phases(Arc::new(phases)));
        let sampled = read_all(&mut Sampled::aimed(Made(parts.clone(), 0), sampling, aimed));
        is_of_the_whole(&sampled, &parts, window)?;
        // Each window begins where it was to.
        let (mut clock, mut found) = (0, Vec::new());
        for part in &sampled {
            match part {
                Part::Event(Event::Sampling(Edge::Window)) => found.push(clock),
                Part::Event(Event::Skipped { instructions, .. }) => clock += instructions,
                Part::Run { instructions, .. } => clock += instructions,
                Part::Event(_) => {}
            }
        }
        let reached = starts.into_iter().take_while(|start| *start < clock);
        prop_assert!(found.len() <= gaps.len());
        for (found, start) in found.iter().zip(reached) {
            prop_assert_eq!(*found, start);
        }
    }
}

#[test]
fn what_covers_everything_is_the_whole_stream() {
    let made = || Generator::parse("heap:size=4MiB,accesses=50k").unwrap();
    let all = Sampling { interval: 9, window: 5, warm: 4, whole: 0, adaptive: false, seed: 1 };
    assert_eq!(read_all(&mut Sampled::new(made(), all)), read_all(&mut made()));
}

#[test]
fn a_sampled_stream_is_recorded_as_it_is() {
    let spec = "churn:size=16MiB,accesses=100k";
    let sampling = Sampling {
        interval: 10_000,
        window: 700,
        warm: 300,
        whole: 5000,
        adaptive: false,
        seed: 4,
    };
    let sampled = || Sampled::new(Generator::parse(spec).unwrap(), sampling);
    let mut writer = Encoder::new(Vec::new()).unwrap();
    let (mut source, mut batch) = (sampled(), Batch::new());
    loop {
        let filled = source.fill(&mut batch).unwrap();
        writer.push(&batch).unwrap();
        if filled == Fill::End {
            break;
        }
    }
    let (file, summary) = writer.finish(Outcome::default()).unwrap();
    let mut reader = Reader::new(std::io::Cursor::new(file), "made".into()).unwrap();
    assert_eq!(read_all(&mut reader), read_all(&mut sampled()));
    let full = read_all(&mut Generator::parse(spec).unwrap());
    assert_eq!(summary.instructions, instructions(&full));
}
