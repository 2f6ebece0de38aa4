//! What travels in a slot besides accesses, as words.
//!
//! ```text
//! word 0            words 1..length
//! tag | length<<8   fields, one a word
//! ```

use crate::{Cut, ProcessId};
use strata_addr::{Gva, Range, space::Virtual};
use strata_phases::BUCKETS;
use strata_stream::{Event, Numbers, Pid, Shown};

/// What a traced process tells the consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// An event of the stream, as it is. For `Exec` there is [`Message::Exec`].
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
    /// Pages that are there at a look, of which the same is shown.
    Shown {
        /// The process.
        pid: Pid,
        /// The pages.
        range: Range<Virtual>,
        /// What is shown of each.
        shown: Shown,
    },
    /// Intervals are over in which blocks were counted.
    Blocks {
        /// How many: more than one where nobody looked for long.
        intervals: u64,
        /// Buckets of blocks, each with the instructions in it.
        counts: Vec<(usize, u64)>,
    },
    /// A signal is about to end the process, which has told everything that it knows.
    LastWord {
        /// The process.
        pid: Pid,
    },
    /// The process is about to execute another program, and with that gives up its memory.
    Leaves {
        /// The process.
        pid: Pid,
    },
    /// Something a reader of the result must know.
    Note(String),
    /// Something whoever waits for the program must know now.
    Warning(String),
}

/// Tags of what is no event of the stream.
const RUNS: u8 = Numbers::LAST_TAG + 1;
const EXEC: u8 = RUNS + 1;
const CUT: u8 = RUNS + 2;
const GROW: u8 = RUNS + 3;
const NOTE: u8 = RUNS + 4;
const WARNING: u8 = RUNS + 5;
const LAST_WORD: u8 = RUNS + 6;
const BLOCKS: u8 = RUNS + 7;
const LEAVES: u8 = RUNS + 8;
const SHOWN: u8 = RUNS + 9;

/// Bits of a word that say which bucket, below those that say how many instructions.
const BUCKET_BITS: u32 = BUCKETS.ilog2();

/// Longest text, in bytes; a longer one is cut.
const TEXT_BYTES: usize = 1024;

/// Appends the words of a message.
pub fn encode(message: &Message, out: &mut Vec<u64>) {
    let start = out.len();
    out.push(0);
    let tag = match message {
        Message::Event(event) => {
            let numbers = Numbers::from(event);
            out.extend(numbers.as_slice());
            numbers.tag
        }
        Message::Runs { pid, process } => {
            out.extend([pid.0.into(), process.number.into(), process.started]);
            RUNS
        }
        Message::Exec { pid, image } => {
            out.extend([pid.0.into(), u64::from(*image)]);
            EXEC
        }
        Message::Cut(cut) => {
            out.extend([cut.slot.into(), cut.taking, cut.accesses.into(), cut.instructions]);
            CUT
        }
        Message::Grow { pid, range } => {
            out.extend([pid.0.into(), range.start.get(), range.end.get()]);
            GROW
        }
        Message::Shown { pid, range, shown } => {
            out.extend([pid.0.into(), range.start.get(), range.end.get(), shown.code()]);
            SHOWN
        }
        Message::Blocks { intervals, counts } => {
            out.push(*intervals);
            out.extend(counts.iter().map(|(bucket, count)| count << BUCKET_BITS | *bucket as u64));
            BLOCKS
        }
        Message::LastWord { pid } => {
            out.push(pid.0.into());
            LAST_WORD
        }
        Message::Leaves { pid } => {
            out.push(pid.0.into());
            LEAVES
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
    out[start] = u64::from(tag) | ((out.len() - start) as u64) << 8;
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
    let message = match head as u8 {
        RUNS => {
            let process = ProcessId { number: word(1)? as u32, started: word(2)? };
            Message::Runs { pid: pid()?, process }
        }
        EXEC => Message::Exec { pid: pid()?, image: word(1)? as u32 },
        CUT => {
            let (slot, taking) = (word(0)? as u32, word(1)?);
            let (accesses, instructions) = (word(2)? as u32, word(3)?);
            Message::Cut(Cut { slot, taking, accesses, instructions })
        }
        GROW => Message::Grow { pid: pid()?, range: range(1)? },
        SHOWN => {
            let shown = Shown::from_code(word(3)?)?;
            Message::Shown { pid: pid()?, range: range(1)?, shown }
        }
        BLOCKS => {
            let (intervals, counts) = fields.split_first()?;
            let count = |word: &u64| ((word % BUCKETS as u64) as usize, word >> BUCKET_BITS);
            Message::Blocks { intervals: *intervals, counts: counts.iter().map(count).collect() }
        }
        LAST_WORD => Message::LastWord { pid: pid()? },
        LEAVES => Message::Leaves { pid: pid()? },
        NOTE => Message::Note(decode_text(fields)?),
        WARNING => Message::Warning(decode_text(fields)?),
        tag => {
            let mut numbers = fields.iter().copied();
            Message::Event(Event::from_numbers(tag, || numbers.next())?)
        }
    };
    Some((message, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_stream::Mark;

    fn messages() -> impl Strategy<Value = Message> {
        let pid = || any::<u32>().prop_map(Pid);
        let range = || {
            (0..1u64 << 56, 1..1u64 << 40)
                .prop_map(|(start, bytes)| Range::sized(Gva::new(start), bytes))
        };
        prop_oneof![
            // What events are as numbers is tested where it is defined.
            (pid(), range()).prop_map(|(pid, range)| Message::Event(Event::Unmap { pid, range })),
            pid().prop_map(|pid| Message::Event(Event::Exec { pid })),
            any::<bool>().prop_map(|end| {
                Message::Event(Event::Mark(if end { Mark::End } else { Mark::Begin }))
            }),
            (pid(), any::<u32>(), any::<u64>()).prop_map(|(pid, number, started)| {
                Message::Runs { pid, process: ProcessId { number, started } }
            }),
            (pid(), any::<u32>()).prop_map(|(pid, image)| Message::Exec { pid, image }),
            (any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>()).prop_map(
                |(slot, taking, accesses, instructions)| {
                    Message::Cut(Cut { slot, taking, accesses, instructions })
                }
            ),
            (pid(), range()).prop_map(|(pid, range)| Message::Grow { pid, range }),
            (pid(), range(), 0..8_u64).prop_map(|(pid, range, code)| {
                let shown = Shown::from_code(code).expect("below 8");
                Message::Shown { pid, range, shown }
            }),
            pid().prop_map(|pid| Message::LastWord { pid }),
            pid().prop_map(|pid| Message::Leaves { pid }),
            (any::<u64>(), prop::collection::vec((0..BUCKETS, 0..1_u64 << 54), 0..9))
                .prop_map(|(intervals, counts)| Message::Blocks { intervals, counts }),
            "\\PC{0,40}".prop_map(Message::Note),
            "\\PC{0,40}".prop_map(Message::Warning),
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
            framed.insert(0, words.first().map_or(0, |tag| tag % 32) | (words.len() as u64 + 1) << 8);
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
