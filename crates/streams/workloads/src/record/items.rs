//! What lies between accesses: run lengths and events, as tagged numbers.

use strata_files::varint::{put, take};
use strata_stream::{Event, Item, Mark, Numbers, Tid};

/// The tag of a run; those of events follow.
const RUN: u8 = 0;

/// Threads whose empty runs are marks: a reader that does not know of marks passes over an empty run.
const MARKS: [(Mark, Tid); 2] = [(Mark::Begin, Tid(u32::MAX)), (Mark::End, Tid(u32::MAX - 1))];

/// Appends a run.
pub fn put_run(out: &mut Vec<u8>, tid: Tid, accesses: u32, instructions: u64) {
    out.push(RUN);
    put(out, tid.0.into());
    put(out, accesses.into());
    put(out, instructions);
}

/// Appends an event.
pub fn put_event(out: &mut Vec<u8>, event: &Event) {
    if let Event::Mark(mark) = event {
        let known = MARKS.iter().find(|(known, _)| known == mark);
        let (_, tid) = known.expect("every mark is in its table");
        return put_run(out, *tid, 0, 0);
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
            let tid = Tid(take_u32(input)?);
            let (accesses, instructions) = (take_u32(input)?, take(input)?);
            let mark = MARKS.iter().find(|(_, known)| *known == tid);
            match mark.filter(|_| accesses == 0 && instructions == 0) {
                Some((mark, _)) => Item::Event(Event::Mark(*mark)),
                None => Item::Run { tid, accesses, instructions },
            }
        }
        // Marks are runs.
        Numbers::LAST_TAG.. => return None,
        tag => Item::Event(Event::from_numbers(tag, || take(input))?),
    })
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
}
