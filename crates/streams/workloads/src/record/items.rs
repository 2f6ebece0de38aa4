//! What lies between accesses: run lengths and events, as tagged numbers.

use strata_files::varint::{put, take};
use strata_stream::{Call, Event, Item, Mark, Numbers, Tid};

/// The tag of a run; those of events follow.
const RUN: u8 = 0;

/// The tags of events that are written as runs.
const AS_RUNS: [u8; 3] = [12, 13, 17];

/// Threads whose empty runs are marks: a reader that does not know of marks passes over an empty run.
const MARKS: [(Mark, Tid); 2] = [(Mark::Begin, Tid(u32::MAX)), (Mark::End, Tid(u32::MAX - 1))];

/// The same for requests: an empty run of the thread that serves it follows.
const REQUESTS: [(Mark, Tid); 2] =
    [(Mark::Begin, Tid(u32::MAX - 2)), (Mark::End, Tid(u32::MAX - 3))];

/// The same for system calls: an empty run of the thread that made it follows.
const CALLS: [(Call, Tid); 4] = [
    (Call::Request, Tid(u32::MAX - 4)),
    (Call::AwaitedRequest, Tid(u32::MAX - 5)),
    (Call::Wait, Tid(u32::MAX - 6)),
    (Call::Wake, Tid(u32::MAX - 7)),
];

/// Finds the thread that stands for something.
fn thread_of<T: Copy + PartialEq>(known: &[(T, Tid)], thing: T) -> Tid {
    known.iter().find(|(known, _)| *known == thing).expect("everything is in its table").1
}

/// Finds what a thread stands for.
fn thing_of<T: Copy>(known: &[(T, Tid)], tid: Tid) -> Option<T> {
    known.iter().find(|(_, known)| *known == tid).map(|(thing, _)| *thing)
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
        Event::Mark(mark) => return put_run(out, thread_of(&MARKS, mark), 0, 0),
        Event::Request { tid, mark } => {
            put_run(out, thread_of(&REQUESTS, mark), 0, 0);
            return put_run(out, tid, 0, 0);
        }
        Event::Called { tid, call } => {
            put_run(out, thread_of(&CALLS, call), 0, 0);
            return put_run(out, tid, 0, 0);
        }
        _ => {}
    }
    let numbers = Numbers::from(event);
    out.push(numbers.tag);
    numbers.as_slice().iter().for_each(|number| put(out, *number));
}

/// Takes the next item off the front, `None` when there is no whole and valid one.
pub fn take_item(input: &mut &[u8]) -> Option<Item> {
    let (&tag, rest) = input.split_first()?;
    *input = rest;
    Some(match tag {
        RUN => {
            let (tid, accesses, instructions) = take_run(input)?;
            let is_empty = accesses == 0 && instructions == 0;
            if let Some(mark) = thing_of(&MARKS, tid).filter(|_| is_empty) {
                Item::Event(Event::Mark(mark))
            } else if let Some(mark) = thing_of(&REQUESTS, tid).filter(|_| is_empty) {
                Item::Event(Event::Request { tid: take_thread(input)?, mark })
            } else if let Some(call) = thing_of(&CALLS, tid).filter(|_| is_empty) {
                Item::Event(Event::Called { tid: take_thread(input)?, call })
            } else {
                Item::Run { tid, accesses, instructions }
            }
        }
        tag if AS_RUNS.contains(&tag) => return None,
        tag => Item::Event(Event::from_numbers(tag, || take(input))?),
    })
}

/// The thread of an empty run.
fn take_thread(input: &mut &[u8]) -> Option<Tid> {
    let (&RUN, rest) = input.split_first()? else { return None };
    *input = rest;
    let (tid, 0, 0) = take_run(input)? else { return None };
    Some(tid)
}

/// The numbers of a run.
fn take_run(input: &mut &[u8]) -> Option<(Tid, u32, u64)> {
    Some((Tid(take_u32(input)?), take_u32(input)?, take(input)?))
}

fn take_u32(input: &mut &[u8]) -> Option<u32> {
    take(input)?.try_into().ok()
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

    #[test]
    fn requests_are_two_empty_runs_to_who_does_not_know_them() {
        for (mark, known) in [(Mark::Begin, 4_294_967_293), (Mark::End, 4_294_967_292)] {
            for tid in [0, 7, u32::MAX] {
                let event = Event::Request { tid: Tid(tid), mark };
                let mut bytes = Vec::new();
                put_event(&mut bytes, &event);
                let mut rest = &bytes[..];
                assert_eq!(take_item(&mut rest), Some(Item::Event(event)));
                assert!(rest.is_empty());
                let mut expected = Vec::new();
                put_run(&mut expected, Tid(known), 0, 0);
                put_run(&mut expected, Tid(tid), 0, 0);
                assert_eq!(bytes, expected);
                // What does not name a thread is damage.
                for length in 1..bytes.len() {
                    assert_eq!(take_item(&mut &bytes[..length]), None, "{length}");
                }
                let mut other = bytes.clone();
                *other.last_mut().unwrap() = 1;
                assert_eq!(take_item(&mut &other[..]), None);
            }
        }
    }

    #[test]
    fn system_calls_are_two_empty_runs_to_who_does_not_know_them() {
        let all = [Call::Request, Call::AwaitedRequest, Call::Wait, Call::Wake];
        for (call, known) in all.into_iter().zip((4_294_967_288..=4_294_967_291).rev()) {
            let event = Event::Called { tid: Tid(7), call };
            let mut bytes = Vec::new();
            put_event(&mut bytes, &event);
            let mut rest = &bytes[..];
            assert_eq!(take_item(&mut rest), Some(Item::Event(event)));
            assert!(rest.is_empty());
            let mut expected = Vec::new();
            put_run(&mut expected, Tid(known), 0, 0);
            put_run(&mut expected, Tid(7), 0, 0);
            assert_eq!(bytes, expected);
            for length in 1..bytes.len() {
                assert_eq!(take_item(&mut &bytes[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn tags_of_what_is_written_as_runs_are_none() {
        let (tid, call) = (Tid(0), Call::Wake);
        for event in [
            Event::Mark(Mark::Begin),
            Event::Request { tid, mark: Mark::End },
            Event::Called { tid, call },
        ] {
            let numbers = Numbers::from(&event);
            assert_eq!(take_item(&mut &[numbers.tag, 0, 0, 0][..]), None);
            assert!(AS_RUNS.contains(&numbers.tag));
        }
    }
}
