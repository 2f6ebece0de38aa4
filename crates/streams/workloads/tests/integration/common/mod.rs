//! What the tests have in common.

use proptest::prelude::*;
use strata_addr::{Gva, PageSize, Range, space::Virtual};
use strata_stream::{
    Access, Advice, Array, Backing, Batch, Call, Event, Fill, Item, Mark, Pid, Protection, Source,
    Step, Tid,
};

/// A stream without the cuts between batches and between runs of one thread.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Event(Event),
    Run { tid: Tid, instructions: u64, accesses: Vec<Access> },
}

/// Appends a batch to a stream.
pub fn append(parts: &mut Vec<Part>, batch: &Batch) {
    for step in batch.steps() {
        match step {
            Step::Event(event) => parts.push(Part::Event(*event)),
            Step::Run { tid, instructions, accesses } => match parts.last_mut() {
                Some(Part::Run { tid: last, instructions: sum, accesses: all }) if *last == tid => {
                    *sum += instructions;
                    all.extend_from_slice(accesses);
                }
                _ => parts.push(Part::Run { tid, instructions, accesses: accesses.to_vec() }),
            },
        }
    }
}

/// Reads a source to its end; gives the stream and the error it ended with.
pub fn read(source: &mut dyn Source) -> (Vec<Part>, Option<String>) {
    let (mut parts, mut batch) = (Vec::new(), Batch::new());
    loop {
        let fill = source.fill(&mut batch);
        append(&mut parts, &batch);
        match fill {
            Ok(Fill::More) => {}
            Ok(Fill::End) => return (parts, None),
            Err(error) => return (parts, Some(error.to_string())),
        }
    }
}

/// Reads a source that is sound.
pub fn read_all(source: &mut dyn Source) -> Vec<Part> {
    let (parts, error) = read(source);
    assert_eq!(error, None);
    parts
}

/// Events and accesses one by one.
pub fn units(parts: &[Part]) -> Vec<Result<(Tid, Access), Event>> {
    let units = parts.iter().flat_map(|part| match part {
        Part::Event(event) => vec![Err(*event)],
        Part::Run { tid, accesses, .. } => accesses.iter().map(|a| Ok((*tid, *a))).collect(),
    });
    units.collect()
}

fn range() -> impl Strategy<Value = Range<Virtual>> {
    (0u64..1 << 44, 1u64..1 << 30).prop_map(|(page, pages)| {
        let bytes = PageSize::Base.bytes();
        Range::sized(Gva::new(page * bytes), pages * bytes)
    })
}

fn mark() -> impl Strategy<Value = Mark> {
    prop_oneof![Just(Mark::Begin), Just(Mark::End)]
}

fn call() -> impl Strategy<Value = Call> {
    prop::sample::select(vec![Call::Request, Call::AwaitedRequest, Call::Wait, Call::Wake])
}

/// Any event.
pub fn event() -> impl Strategy<Value = Event> {
    let pid = || any::<u32>().prop_map(Pid);
    let tid = || (0u32..4).prop_map(Tid);
    let protection = || (0u32..8).prop_map(Protection::from_bits);
    let backing = prop::sample::select(vec![
        Backing::Anonymous,
        Backing::Heap,
        Backing::Stack,
        Backing::SharedAnonymous,
        Backing::File,
    ]);
    let advice = prop::sample::select(vec![
        Advice::HugePage,
        Advice::NoHugePage,
        Advice::DontNeed,
        Advice::Free,
        Advice::Populate,
        Advice::Collapse,
    ]);
    let array = prop::sample::select(Array::ALL.to_vec());
    prop_oneof![
        pid().prop_map(|pid| Event::ProcessStart { pid }),
        (pid(), pid()).prop_map(|(parent, child)| Event::Fork { parent, child }),
        pid().prop_map(|pid| Event::Exec { pid }),
        pid().prop_map(|pid| Event::ProcessExit { pid }),
        (pid(), tid()).prop_map(|(pid, tid)| Event::ThreadStart { pid, tid }),
        tid().prop_map(|tid| Event::ThreadExit { tid }),
        (pid(), range(), backing, protection(), any::<bool>()).prop_map(
            |(pid, range, backing, protection, fixed)| Event::Map {
                pid,
                range,
                backing,
                protection,
                fixed
            }
        ),
        (pid(), range()).prop_map(|(pid, range)| Event::Unmap { pid, range }),
        (pid(), range(), range()).prop_map(|(pid, from, to)| Event::Remap { pid, from, to }),
        (pid(), range(), protection()).prop_map(|(pid, range, protection)| Event::Protect {
            pid,
            range,
            protection
        }),
        (pid(), range(), advice).prop_map(|(pid, range, advice)| Event::Advise {
            pid,
            range,
            advice
        }),
        mark().prop_map(Event::Mark),
        (any::<u32>(), mark()).prop_map(|(tid, mark)| Event::Request { tid: Tid(tid), mark }),
        (any::<u32>(), call()).prop_map(|(tid, call)| Event::Called { tid: Tid(tid), call }),
        (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(phase, intervals, instructions)| {
            Event::Phase { phase, intervals, instructions }
        }),
        (array, any::<[u64; 4]>()).prop_map(|(array, [after, over, under, guessed])| {
            Event::Warmed { array, after, over, under, guessed }
        }),
        (pid(), range()).prop_map(|(pid, range)| Event::Begun { pid, range }),
    ]
}

/// Any batch, its accesses near and far.
pub fn batch() -> impl Strategy<Value = Batch> {
    let access = (any::<u64>(), 0u32..57)
        .prop_map(|(bits, shift)| Access::from_bits(bits & 0xf << 60 | bits >> shift));
    let run = (0u32..4, any::<u32>(), prop::collection::vec(access, 0..40));
    let item = prop_oneof![event().prop_map(Err), run.prop_map(Ok)];
    prop::collection::vec(item, 0..30).prop_map(|items| {
        let mut batch = Batch::new();
        for item in items {
            match item {
                Err(event) => batch.event(event),
                Ok((tid, instructions, accesses)) => {
                    batch.run(Tid(tid), instructions.into(), |out| out.extend(accesses));
                }
            }
        }
        batch
    })
}

/// The instructions of a batch.
pub fn instructions(batch: &Batch) -> u64 {
    let count = |item: &Item| match item {
        Item::Run { instructions, .. } => *instructions,
        Item::Event(_) => 0,
    };
    batch.items().iter().map(count).sum()
}
