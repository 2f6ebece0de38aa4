//! An event as numbers: what a recording and a slot hold of it.

use crate::event::{Advice, Array, Backing, Call, Edge, Event, Mark, Pid, Protection, Tid};
use strata_addr::{Gva, Range, space::Virtual};

const PROCESS_START: u8 = 1;
const FORK: u8 = 2;
const EXEC: u8 = 3;
const PROCESS_EXIT: u8 = 4;
const THREAD_START: u8 = 5;
const THREAD_EXIT: u8 = 6;
const MAP: u8 = 7;
const UNMAP: u8 = 8;
const REMAP: u8 = 9;
const PROTECT: u8 = 10;
const ADVISE: u8 = 11;
const MARK: u8 = 12;
const REQUEST: u8 = 13;
const SAMPLING: u8 = 14;
const SKIPPED: u8 = 15;
const TOUCHED: u8 = 16;
const CALLED: u8 = 17;
const PHASE: u8 = 18;
const FETCHED: u8 = 19;
const WARMED: u8 = 20;
const BEGUN: u8 = 21;

/// Set beside the rights of a mapping whose address the program insisted on.
const FIXED: u32 = 1 << 3;

const BACKINGS: [Backing; 5] =
    [Backing::Anonymous, Backing::Heap, Backing::Stack, Backing::SharedAnonymous, Backing::File];
const ADVICES: [Advice; 6] = [
    Advice::HugePage,
    Advice::NoHugePage,
    Advice::DontNeed,
    Advice::Free,
    Advice::Populate,
    Advice::Collapse,
];
const MARKS: [Mark; 2] = [Mark::Begin, Mark::End];
const EDGES: [Edge; 4] = [Edge::Interval, Edge::Warm, Edge::Window, Edge::Gap];
const CALLS: [Call; 4] = [Call::Request, Call::AwaitedRequest, Call::Wait, Call::Wake];
const STORES: [bool; 2] = [false, true];

/// An event's tag and its numbers, of which each kind has as many as it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Which kind of event: 1 to [`Numbers::LAST_TAG`]. Numbers in files, so none is ever given out anew.
    pub tag: u8,
    numbers: [u64; 5],
    length: usize,
}

impl Numbers {
    /// The highest tag there is.
    pub const LAST_TAG: u8 = BEGUN;

    fn new(tag: u8) -> Self {
        Self { tag, numbers: [0; 5], length: 0 }
    }

    fn with<const N: usize>(mut self, numbers: [u64; N]) -> Self {
        self.numbers[self.length..][..N].copy_from_slice(&numbers);
        self.length += N;
        self
    }

    fn range(self, range: Range<Virtual>) -> Self {
        self.with([range.start.get(), range.bytes()])
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[u64] {
        &self.numbers[..self.length]
    }
}

/// Position of a value in its table: the number that stands for it.
fn code<T: PartialEq>(table: &[T], value: &T) -> u64 {
    table.iter().position(|entry| entry == value).expect("every value is in its table") as u64
}

impl From<&Event> for Numbers {
    fn from(event: &Event) -> Self {
        let of = |tag, pid: Pid| Self::new(tag).with([pid.0.into()]);
        match *event {
            Event::ProcessStart { pid } => of(PROCESS_START, pid),
            Event::Fork { parent, child } => of(FORK, parent).with([child.0.into()]),
            Event::Exec { pid } => of(EXEC, pid),
            Event::ProcessExit { pid } => of(PROCESS_EXIT, pid),
            Event::ThreadStart { pid, tid } => of(THREAD_START, pid).with([tid.0.into()]),
            Event::ThreadExit { tid } => Self::new(THREAD_EXIT).with([tid.0.into()]),
            Event::Map { pid, range, backing, protection, fixed } => {
                let bits = protection.bits() | if fixed { FIXED } else { 0 };
                of(MAP, pid).range(range).with([code(&BACKINGS, &backing), bits.into()])
            }
            Event::Unmap { pid, range } => of(UNMAP, pid).range(range),
            Event::Remap { pid, from, to } => of(REMAP, pid).range(from).range(to),
            Event::Protect { pid, range, protection } => {
                of(PROTECT, pid).range(range).with([protection.bits().into()])
            }
            Event::Advise { pid, range, advice } => {
                of(ADVISE, pid).range(range).with([code(&ADVICES, &advice)])
            }
            Event::Mark(mark) => Self::new(MARK).with([code(&MARKS, &mark)]),
            Event::Request { tid, mark } => {
                Self::new(REQUEST).with([tid.0.into(), code(&MARKS, &mark)])
            }
            Event::Sampling(edge) => Self::new(SAMPLING).with([code(&EDGES, &edge)]),
            Event::Phase { phase, intervals, instructions } => {
                Self::new(PHASE).with([phase.into(), intervals, instructions])
            }
            Event::Warmed { array, after, over, under, guessed } => {
                Self::new(WARMED).with([code(&Array::ALL, &array), after, over, under, guessed])
            }
            Event::Skipped { tid, instructions } => {
                Self::new(SKIPPED).with([tid.0.into(), instructions])
            }
            Event::Touched { pid, range, store } => {
                of(TOUCHED, pid).range(range).with([code(&STORES, &store)])
            }
            Event::Begun { pid, range } => of(BEGUN, pid).range(range),
            Event::Fetched { pid, range } => of(FETCHED, pid).range(range),
            Event::Called { tid, call } => {
                Self::new(CALLED).with([tid.0.into(), code(&CALLS, &call)])
            }
        }
    }
}

impl Event {
    /// The event with this tag whose numbers `next` gives one after another; `None` when there is no such
    /// event, or its numbers end early or cannot be.
    pub fn from_numbers(tag: u8, next: impl FnMut() -> Option<u64>) -> Option<Self> {
        let mut from = Source(next);
        Some(match tag {
            PROCESS_START => Self::ProcessStart { pid: from.pid()? },
            FORK => Self::Fork { parent: from.pid()?, child: from.pid()? },
            EXEC => Self::Exec { pid: from.pid()? },
            PROCESS_EXIT => Self::ProcessExit { pid: from.pid()? },
            THREAD_START => Self::ThreadStart { pid: from.pid()?, tid: from.tid()? },
            THREAD_EXIT => Self::ThreadExit { tid: from.tid()? },
            MAP => {
                let (pid, range) = (from.pid()?, from.range()?);
                let backing = from.code(&BACKINGS)?;
                let bits = from.below(2 * FIXED)?;
                let protection = Protection::from_bits(bits);
                Self::Map { pid, range, backing, protection, fixed: bits & FIXED != 0 }
            }
            UNMAP => Self::Unmap { pid: from.pid()?, range: from.range()? },
            REMAP => Self::Remap { pid: from.pid()?, from: from.range()?, to: from.range()? },
            PROTECT => {
                let (pid, range) = (from.pid()?, from.range()?);
                Self::Protect { pid, range, protection: Protection::from_bits(from.below(FIXED)?) }
            }
            ADVISE => Self::Advise {
                pid: from.pid()?,
                range: from.range()?,
                advice: from.code(&ADVICES)?,
            },
            MARK => Self::Mark(from.code(&MARKS)?),
            REQUEST => Self::Request { tid: from.tid()?, mark: from.code(&MARKS)? },
            SAMPLING => Self::Sampling(from.code(&EDGES)?),
            PHASE => Self::Phase {
                phase: from.u32()?,
                intervals: (from.0)()?,
                instructions: (from.0)()?,
            },
            WARMED => Self::Warmed {
                array: from.code(&Array::ALL)?,
                after: (from.0)()?,
                over: (from.0)()?,
                under: (from.0)()?,
                guessed: (from.0)()?,
            },
            SKIPPED => Self::Skipped { tid: from.tid()?, instructions: (from.0)()? },
            TOUCHED => {
                let (pid, range) = (from.pid()?, from.range()?);
                Self::Touched { pid, range, store: from.code(&STORES)? }
            }
            BEGUN => Self::Begun { pid: from.pid()?, range: from.range()? },
            FETCHED => Self::Fetched { pid: from.pid()?, range: from.range()? },
            CALLED => Self::Called { tid: from.tid()?, call: from.code(&CALLS)? },
            _ => return None,
        })
    }
}

/// Where the numbers come from.
struct Source<F>(F);

impl<F: FnMut() -> Option<u64>> Source<F> {
    fn u32(&mut self) -> Option<u32> {
        (self.0)()?.try_into().ok()
    }

    fn below(&mut self, limit: u32) -> Option<u32> {
        self.u32().filter(|number| *number < limit)
    }

    fn pid(&mut self) -> Option<Pid> {
        self.u32().map(Pid)
    }

    fn tid(&mut self) -> Option<Tid> {
        self.u32().map(Tid)
    }

    fn code<T: Copy>(&mut self, table: &[T]) -> Option<T> {
        table.get(usize::try_from((self.0)()?).ok()?).copied()
    }

    fn range(&mut self) -> Option<Range<Virtual>> {
        let (start, bytes) = (Gva::new((self.0)()?), (self.0)()?);
        Some(Range::new(start, start.checked_add(bytes)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A number that means something in many places, or in few.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 0..8u64, 2 => any::<u32>().prop_map(u64::from), 1 => any::<u64>()]
    }

    proptest! {
        #[test]
        fn numbers_that_are_an_event_are_its_numbers(
            tag in 0..=Numbers::LAST_TAG + 3,
            numbers in prop::collection::vec(number(), 0..7),
        ) {
            let mut rest = numbers.iter().copied();
            let event = Event::from_numbers(tag, || rest.next());
            let taken = numbers.len() - rest.len();
            if let Some(event) = event {
                let again = Numbers::from(&event);
                prop_assert_eq!((again.tag, again.as_slice()), (tag, &numbers[..taken]));
            } else {
                // One of every kind is made of ones, as many as it needs.
                let known = (1..=Numbers::LAST_TAG).contains(&tag);
                prop_assert_eq!(Event::from_numbers(tag, || Some(1)).is_some(), known);
            }
        }
    }

    #[test]
    fn every_kind_of_event_has_its_tag_for_good() {
        let names: Vec<String> = (0..=Numbers::LAST_TAG + 1)
            .filter_map(|tag| Event::from_numbers(tag, || Some(1)))
            .map(|event| format!("{event:?}").split([' ', '(']).next().unwrap().to_owned())
            .collect();
        let expected = "ProcessStart Fork Exec ProcessExit ThreadStart ThreadExit Map Unmap Remap \
                        Protect Advise Mark Request Sampling Skipped Touched Called Phase Fetched \
                        Warmed Begun";
        assert_eq!(names.join(" "), expected);
    }
}
