//! What lies between accesses: run lengths and events, as tagged numbers.

use strata_addr::{Gva, Range, space::Virtual};
use strata_files::varint::{put, take};
use strata_stream::{Advice, Backing, Event, Item, Mark, Pid, Protection, Tid};

const RUN: u8 = 0;
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

/// Threads whose empty runs are marks: a reader that does not know of marks passes over an empty run.
const MARKS: [(Mark, Tid); 2] = [(Mark::Begin, Tid(u32::MAX)), (Mark::End, Tid(u32::MAX - 1))];

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

/// Position of a value in its table: the number that stands for it in the file.
fn code<T: PartialEq>(table: &[T], value: &T) -> u64 {
    table.iter().position(|entry| entry == value).expect("every value is in its table") as u64
}

/// Appends a run.
pub fn put_run(out: &mut Vec<u8>, tid: Tid, accesses: u32, instructions: u64) {
    out.push(RUN);
    put(out, tid.0.into());
    put(out, accesses.into());
    put(out, instructions);
}

/// Appends an event.
pub fn put_event(out: &mut Vec<u8>, event: &Event) {
    match *event {
        Event::ProcessStart { pid } => put_all(out, PROCESS_START, [pid.0.into()]),
        Event::Fork { parent, child } => put_all(out, FORK, [parent.0.into(), child.0.into()]),
        Event::Exec { pid } => put_all(out, EXEC, [pid.0.into()]),
        Event::ProcessExit { pid } => put_all(out, PROCESS_EXIT, [pid.0.into()]),
        Event::ThreadStart { pid, tid } => {
            put_all(out, THREAD_START, [pid.0.into(), tid.0.into()]);
        }
        Event::ThreadExit { tid } => put_all(out, THREAD_EXIT, [tid.0.into()]),
        Event::Map { pid, range, backing, protection, fixed } => {
            put_range(out, MAP, pid, range);
            put(out, code(&BACKINGS, &backing));
            put(out, u64::from(protection.bits() | u32::from(fixed) << 3));
        }
        Event::Unmap { pid, range } => put_range(out, UNMAP, pid, range),
        Event::Remap { pid, from, to } => {
            put_range(out, REMAP, pid, from);
            put(out, to.start.get());
            put(out, to.bytes());
        }
        Event::Protect { pid, range, protection } => {
            put_range(out, PROTECT, pid, range);
            put(out, protection.bits().into());
        }
        Event::Advise { pid, range, advice } => {
            put_range(out, ADVISE, pid, range);
            put(out, code(&ADVICES, &advice));
        }
        Event::Mark(mark) => {
            let known = MARKS.iter().find(|(known, _)| *known == mark);
            let (_, tid) = known.expect("every mark is in its table");
            put_run(out, *tid, 0, 0);
        }
    }
}

fn put_all<const N: usize>(out: &mut Vec<u8>, tag: u8, numbers: [u64; N]) {
    out.push(tag);
    for number in numbers {
        put(out, number);
    }
}

fn put_range(out: &mut Vec<u8>, tag: u8, pid: Pid, range: Range<Virtual>) {
    put_all(out, tag, [pid.0.into(), range.start.get(), range.bytes()]);
}

/// Takes the next item off the front, `None` when there is no whole and valid one.
pub fn take_item(input: &mut &[u8]) -> Option<Item> {
    let (&tag, rest) = input.split_first()?;
    *input = rest;
    Some(match tag {
        RUN => {
            let (tid, accesses, instructions) = (take_tid(input)?, take_u32(input)?, take(input)?);
            let mark = MARKS.iter().find(|(_, known)| *known == tid);
            match mark.filter(|_| accesses == 0 && instructions == 0) {
                Some((mark, _)) => Item::Event(Event::Mark(*mark)),
                None => Item::Run { tid, accesses, instructions },
            }
        }
        tag => Item::Event(take_event(tag, input)?),
    })
}

fn take_event(tag: u8, input: &mut &[u8]) -> Option<Event> {
    Some(match tag {
        PROCESS_START => Event::ProcessStart { pid: take_pid(input)? },
        FORK => Event::Fork { parent: take_pid(input)?, child: take_pid(input)? },
        EXEC => Event::Exec { pid: take_pid(input)? },
        PROCESS_EXIT => Event::ProcessExit { pid: take_pid(input)? },
        THREAD_START => Event::ThreadStart { pid: take_pid(input)?, tid: take_tid(input)? },
        THREAD_EXIT => Event::ThreadExit { tid: take_tid(input)? },
        MAP => {
            let (pid, range) = (take_pid(input)?, take_range(input)?);
            let backing = take_code(input, &BACKINGS)?;
            let bits = take_u32(input).filter(|bits| *bits < 16)?;
            let protection = Protection::from_bits(bits);
            Event::Map { pid, range, backing, protection, fixed: bits & 8 != 0 }
        }
        UNMAP => Event::Unmap { pid: take_pid(input)?, range: take_range(input)? },
        REMAP => {
            Event::Remap { pid: take_pid(input)?, from: take_range(input)?, to: take_range(input)? }
        }
        PROTECT => Event::Protect {
            pid: take_pid(input)?,
            range: take_range(input)?,
            protection: Protection::from_bits(take_u32(input).filter(|bits| *bits < 8)?),
        },
        ADVISE => Event::Advise {
            pid: take_pid(input)?,
            range: take_range(input)?,
            advice: take_code(input, &ADVICES)?,
        },
        _ => return None,
    })
}

fn take_u32(input: &mut &[u8]) -> Option<u32> {
    take(input)?.try_into().ok()
}

fn take_pid(input: &mut &[u8]) -> Option<Pid> {
    take_u32(input).map(Pid)
}

fn take_tid(input: &mut &[u8]) -> Option<Tid> {
    take_u32(input).map(Tid)
}

fn take_code<T: Copy>(input: &mut &[u8], table: &[T]) -> Option<T> {
    table.get(usize::try_from(take(input)?).ok()?).copied()
}

fn take_range(input: &mut &[u8]) -> Option<Range<Virtual>> {
    let (start, bytes) = (Gva::new(take(input)?), take(input)?);
    Some(Range::new(start, start.checked_add(bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_empty_runs_to_who_does_not_know_them() {
        for mark in [Mark::Begin, Mark::End] {
            let mut bytes = Vec::new();
            put_event(&mut bytes, &Event::Mark(mark));
            assert_eq!(take_item(&mut &bytes[..]), Some(Item::Event(Event::Mark(mark))));
            let mut rest = &bytes[1..];
            assert_eq!(bytes[0], RUN);
            let numbers: Vec<_> = std::iter::from_fn(|| take(&mut rest)).collect();
            assert!(numbers[0] >= 4_294_967_294 && numbers[1..] == [0, 0], "{numbers:?}");
        }
    }
}
