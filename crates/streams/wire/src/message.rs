//! What travels in a slot besides accesses, as words.
//!
//! ```text
//! word 0            words 1..length
//! tag | length<<8   fields, one a word
//! ```

use crate::{Cut, ProcessId};
use strata_addr::{Gva, Range, space::Virtual};
use strata_stream::{Advice, Backing, Event, Mark, Pid, Protection, Tid};

/// What a traced process tells the consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// An event of the stream, as it is. `Exec` travels as [`Message::Exec`].
    Event(Event),
    /// The process runs as this one of the kernel's.
    Runs {
        /// The process.
        pid: Pid,
        /// Its identity on this machine.
        process: ProcessId,
    },
    /// `execve` succeeded: the address space is empty; what earlier images of the process left in
    /// slots is all they will ever write.
    Exec {
        /// The process.
        pid: Pid,
        /// How many `execve` it has behind it.
        image: u32,
    },
    /// Sibling threads had come this far when the next message was sent.
    Cut(Cut),
    /// `mremap` lengthened a mapping in place.
    Grow {
        /// The process.
        pid: Pid,
        /// The new part; what precedes it says what it is made of.
        range: Range<Virtual>,
    },
    /// Something a reader of the result must know.
    Note(String),
    /// Something whoever waits for the program must know now.
    Warning(String),
}

const PROCESS_START: u64 = 1;
const FORK: u64 = 2;
const EXEC: u64 = 3;
const PROCESS_EXIT: u64 = 4;
const THREAD_START: u64 = 5;
const THREAD_EXIT: u64 = 6;
const MAP: u64 = 7;
const UNMAP: u64 = 8;
const REMAP: u64 = 9;
const PROTECT: u64 = 10;
const ADVISE: u64 = 11;
const RUNS: u64 = 12;
const CUT: u64 = 13;
const GROW: u64 = 14;
const NOTE: u64 = 15;
const MARK: u64 = 16;
const WARNING: u64 = 17;

/// Longest text, in bytes; a longer one is cut.
const TEXT_BYTES: usize = 1024;

/// Appends the words of a message.
pub fn encode(message: &Message, out: &mut Vec<u64>) {
    let start = out.len();
    out.push(0);
    let tag = match message {
        Message::Event(event) => encode_event(event, out),
        Message::Runs { pid, process } => {
            out.extend([pid.0.into(), process.number.into(), process.started]);
            RUNS
        }
        Message::Exec { pid, image } => {
            out.extend([pid.0.into(), u64::from(*image)]);
            EXEC
        }
        Message::Cut(cut) => {
            out.extend([cut.slot.into(), cut.taking, cut.accesses.into()]);
            CUT
        }
        Message::Grow { pid, range } => {
            out.extend([pid.0.into(), range.start.get(), range.end.get()]);
            GROW
        }
        Message::Note(text) => {
            encode_text(text, out);
            NOTE
        }
        Message::Warning(text) => {
            encode_text(text, out);
            WARNING
        }
    };
    out[start] = tag | ((out.len() - start) as u64) << 8;
}

fn encode_text(text: &str, out: &mut Vec<u64>) {
    let text = &text.as_bytes()[..text.len().min(TEXT_BYTES)];
    out.push(text.len() as u64);
    out.extend(text.chunks(8).map(|bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }));
}

fn decode_text(fields: &[u64]) -> Option<String> {
    let (length, words) = fields.split_first()?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Some(String::from_utf8_lossy(bytes.get(..*length as usize)?).into_owned())
}

fn encode_event(event: &Event, out: &mut Vec<u64>) -> u64 {
    let mut ranged = |pid: Pid, range: Range<Virtual>, rest: &[u64]| {
        out.extend([pid.0.into(), range.start.get(), range.end.get()]);
        out.extend(rest);
    };
    match *event {
        Event::Map { pid, range, backing, protection, fixed } => {
            let bits = u64::from(protection.bits());
            ranged(pid, range, &[backing_code(backing), bits, fixed.into()]);
            MAP
        }
        Event::Unmap { pid, range } => {
            ranged(pid, range, &[]);
            UNMAP
        }
        Event::Remap { pid, from, to } => {
            ranged(pid, from, &[to.start.get(), to.end.get()]);
            REMAP
        }
        Event::Protect { pid, range, protection } => {
            ranged(pid, range, &[protection.bits().into()]);
            PROTECT
        }
        Event::Advise { pid, range, advice } => {
            ranged(pid, range, &[advice_code(advice)]);
            ADVISE
        }
        Event::ProcessStart { pid } => {
            out.push(pid.0.into());
            PROCESS_START
        }
        Event::Fork { parent, child } => {
            out.extend([u64::from(parent.0), child.0.into()]);
            FORK
        }
        Event::Exec { pid } => {
            out.extend([pid.0.into(), 0]);
            EXEC
        }
        Event::ProcessExit { pid } => {
            out.push(pid.0.into());
            PROCESS_EXIT
        }
        Event::ThreadStart { pid, tid } => {
            out.extend([u64::from(pid.0), tid.0.into()]);
            THREAD_START
        }
        Event::ThreadExit { tid } => {
            out.push(tid.0.into());
            THREAD_EXIT
        }
        Event::Mark(mark) => {
            out.push((mark == Mark::End).into());
            MARK
        }
    }
}

/// The first message in `words` and the rest; `None` at the end or when the words make no sense.
pub fn decode(words: &[u64]) -> Option<(Message, &[u64])> {
    let head = *words.first()?;
    let length = (head >> 8) as usize;
    if length == 0 || length > words.len() {
        return None;
    }
    let (fields, rest) = words.split_at(length);
    let fields = &fields[1..];
    let pid = || fields.first().map(|&word| Pid(word as u32));
    let range =
        |at: usize| Some(Range::new(Gva::new(*fields.get(at)?), Gva::new(*fields.get(at + 1)?)));
    let word = |at: usize| fields.get(at).copied();
    let event = match head & 0xff {
        PROCESS_START => Event::ProcessStart { pid: pid()? },
        FORK => Event::Fork { parent: pid()?, child: Pid(word(1)? as u32) },
        PROCESS_EXIT => Event::ProcessExit { pid: pid()? },
        THREAD_START => Event::ThreadStart { pid: pid()?, tid: Tid(word(1)? as u32) },
        THREAD_EXIT => Event::ThreadExit { tid: Tid(word(0)? as u32) },
        MAP => Event::Map {
            pid: pid()?,
            range: range(1)?,
            backing: BACKINGS.get(word(3)? as usize).copied()?,
            protection: Protection::from_bits(word(4)? as u32),
            fixed: word(5)? != 0,
        },
        UNMAP => Event::Unmap { pid: pid()?, range: range(1)? },
        REMAP => Event::Remap { pid: pid()?, from: range(1)?, to: range(3)? },
        PROTECT => Event::Protect {
            pid: pid()?,
            range: range(1)?,
            protection: Protection::from_bits(word(3)? as u32),
        },
        ADVISE => Event::Advise {
            pid: pid()?,
            range: range(1)?,
            advice: ADVICE.get(word(3)? as usize).copied()?,
        },
        RUNS => {
            let process = ProcessId { number: word(1)? as u32, started: word(2)? };
            return Some((Message::Runs { pid: pid()?, process }, rest));
        }
        EXEC => return Some((Message::Exec { pid: pid()?, image: word(1)? as u32 }, rest)),
        CUT => {
            let (slot, taking) = (word(0)? as u32, word(1)?);
            return Some((Message::Cut(Cut { slot, taking, accesses: word(2)? as u32 }), rest));
        }
        GROW => return Some((Message::Grow { pid: pid()?, range: range(1)? }, rest)),
        MARK => Event::Mark(if word(0)? == 0 { Mark::Begin } else { Mark::End }),
        NOTE => return Some((Message::Note(decode_text(fields)?), rest)),
        WARNING => return Some((Message::Warning(decode_text(fields)?), rest)),
        _ => return None,
    };
    Some((Message::Event(event), rest))
}

const BACKINGS: [Backing; 5] =
    [Backing::Anonymous, Backing::Heap, Backing::Stack, Backing::SharedAnonymous, Backing::File];
const ADVICE: [Advice; 6] = [
    Advice::HugePage,
    Advice::NoHugePage,
    Advice::DontNeed,
    Advice::Free,
    Advice::Populate,
    Advice::Collapse,
];

fn backing_code(backing: Backing) -> u64 {
    BACKINGS.iter().position(|&known| known == backing).unwrap_or(0) as u64
}

fn advice_code(advice: Advice) -> u64 {
    ADVICE.iter().position(|&known| known == advice).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Message> {
        let pid = || any::<u32>().prop_map(Pid);
        let tid = || any::<u32>().prop_map(Tid);
        let range = || {
            (0..1u64 << 56, 1..1u64 << 40)
                .prop_map(|(start, bytes)| Range::sized(Gva::new(start), bytes))
        };
        let protection = || (0..8u32).prop_map(Protection::from_bits);
        prop_oneof![
            pid().prop_map(|pid| Message::Event(Event::ProcessStart { pid })),
            (pid(), pid())
                .prop_map(|(parent, child)| Message::Event(Event::Fork { parent, child })),
            pid().prop_map(|pid| Message::Event(Event::ProcessExit { pid })),
            (pid(), tid()).prop_map(|(pid, tid)| Message::Event(Event::ThreadStart { pid, tid })),
            tid().prop_map(|tid| Message::Event(Event::ThreadExit { tid })),
            (pid(), range(), prop::sample::select(&BACKINGS[..]), protection(), any::<bool>())
                .prop_map(|(pid, range, backing, protection, fixed)| Message::Event(Event::Map {
                    pid,
                    range,
                    backing,
                    protection,
                    fixed
                })),
            (pid(), range()).prop_map(|(pid, range)| Message::Event(Event::Unmap { pid, range })),
            (pid(), range(), range()).prop_map(|(pid, from, to)| Message::Event(Event::Remap {
                pid,
                from,
                to
            })),
            (pid(), range(), protection()).prop_map(|(pid, range, protection)| Message::Event(
                Event::Protect { pid, range, protection }
            )),
            (pid(), range(), prop::sample::select(&ADVICE[..])).prop_map(|(pid, range, advice)| {
                Message::Event(Event::Advise { pid, range, advice })
            }),
            (pid(), any::<u32>(), any::<u64>()).prop_map(|(pid, number, started)| {
                Message::Runs { pid, process: ProcessId { number, started } }
            }),
            (pid(), any::<u32>()).prop_map(|(pid, image)| Message::Exec { pid, image }),
            (any::<u32>(), any::<u64>(), any::<u32>()).prop_map(|(slot, taking, accesses)| {
                Message::Cut(Cut { slot, taking, accesses })
            }),
            (pid(), range()).prop_map(|(pid, range)| Message::Grow { pid, range }),
            "\\PC{0,40}".prop_map(Message::Note),
            "\\PC{0,40}".prop_map(Message::Warning),
            any::<bool>().prop_map(|end| {
                Message::Event(Event::Mark(if end { Mark::End } else { Mark::Begin }))
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(sent in prop::collection::vec(messages(), 0..20)) {
            let mut words = Vec::new();
            sent.iter().for_each(|message| encode(message, &mut words));
            let (mut rest, mut received) = (&words[..], Vec::new());
            while let Some((message, after)) = decode(rest) {
                received.push(message);
                rest = after;
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(received, sent);
        }

        #[test]
        fn no_words_make_the_decoder_fail(words in prop::collection::vec(any::<u64>(), 0..9)) {
            let _ = decode(&words);
            let mut framed = words.clone();
            framed.insert(0, words.first().map_or(0, |tag| tag % 20) | (words.len() as u64 + 1) << 8);
            let _ = decode(&framed);
        }
    }

    #[test]
    fn a_long_note_is_cut() {
        let mut words = Vec::new();
        encode(&Message::Note("é".repeat(TEXT_BYTES)), &mut words);
        let Some((Message::Note(text), [])) = decode(&words) else { panic!("no note") };
        assert_eq!(text.len(), TEXT_BYTES);
    }
}
