//! What a line carries: frames, found again after whatever noise.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | 1 | `MARK`, where a frame may begin |
//! | 1 | kind: 1 bytes, 2 bytes on the disk, 3 heard |
//! | 4 | number of the frame; of [`Frame::Heard`] the one that is expected next |
//! | 2 | bytes of the payload |
//! | n | payload |
//! | 4 | CRC-32C of all since the mark |
//!
//! Numbers are little endian.

/// What every frame begins with. It may also be within one.
const MARK: u8 = 0xc5;
/// Mark, kind, number and length.
const HEAD: usize = 8;
/// The checksum.
const TAIL: usize = 4;
/// Bytes that a frame carries at most.
pub const PAYLOAD: usize = 1024;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes of the stream.
    Bytes {
        /// Frames before this one.
        number: u32,
        /// At most [`PAYLOAD`].
        bytes: Vec<u8>,
    },
    /// Bytes of the stream, in the disk's slot of that number.
    Stored {
        /// Frames before this one.
        number: u32,
        /// How many bytes.
        length: u32,
        /// Their CRC-32C.
        sum: u32,
    },
    /// All frames before this number have arrived.
    Heard {
        /// The number that is expected next.
        next: u32,
    },
}

impl Frame {
    /// The bytes on the line.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, number, payload) = match self {
            Self::Bytes { number, bytes } => (1, *number, bytes.clone()),
            Self::Stored { number, length, sum } => {
                (2, *number, [length.to_le_bytes(), sum.to_le_bytes()].concat())
            }
            Self::Heard { next } => (3, *next, Vec::new()),
        };
        debug_assert!(payload.len() <= PAYLOAD);
        let mut out = vec![MARK, kind];
        out.extend(number.to_le_bytes());
        out.extend((payload.len() as u16).to_le_bytes());
        out.extend(payload);
        let sum = crc32c::crc32c(&out[1..]);
        out.extend(sum.to_le_bytes());
        out
    }
}

/// What the beginning of received bytes is.
enum Start {
    /// A frame of so many bytes.
    Frame(Frame, usize),
    /// No frame begins here.
    Noise,
    /// More bytes are needed to tell.
    Short,
}

/// Finds frames in what comes over a line.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Takes what came and returns the frames that are whole by now. What is none is passed over.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.pending.extend_from_slice(bytes);
        let (mut at, mut frames) = (0, Vec::new());
        loop {
            match start(&self.pending[at..]) {
                Start::Frame(frame, length) => {
                    frames.push(frame);
                    at += length;
                }
                Start::Noise => at += 1,
                Start::Short => break,
            }
        }
        self.pending.drain(..at);
        frames
    }
}

fn start(bytes: &[u8]) -> Start {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    match bytes.first() {
        None => return Start::Short,
        Some(&MARK) => {}
        Some(_) => return Start::Noise,
    }
    // As soon as it cannot be one: what follows is not to wait for bytes that never come.
    if bytes.get(1).is_some_and(|kind| !(1..=3).contains(kind)) {
        return Start::Noise;
    }
    if bytes.len() < HEAD {
        return Start::Short;
    }
    let length = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
    let right = match bytes[1] {
        1 => (1..=PAYLOAD).contains(&length),
        2 => length == 8,
        _ => length == 0,
    };
    if !right {
        return Start::Noise;
    }
    let end = HEAD + length;
    if bytes.len() < end + TAIL {
        return Start::Short;
    }
    if word(end) != crc32c::crc32c(&bytes[1..end]) {
        return Start::Noise;
    }
    let number = word(2);
    let frame = match bytes[1] {
        1 => Frame::Bytes { number, bytes: bytes[HEAD..end].to_vec() },
        2 => Frame::Stored { number, length: word(HEAD), sum: word(HEAD + 4) },
        _ => Frame::Heard { next: number },
    };
    Start::Frame(frame, end + TAIL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        prop_oneof![
            (any::<u32>(), vec(any::<u8>(), 1..=PAYLOAD))
                .prop_map(|(number, bytes)| Frame::Bytes { number, bytes }),
            (any::<u32>(), any::<u32>(), any::<u32>())
                .prop_map(|(number, length, sum)| Frame::Stored { number, length, sum }),
            any::<u32>().prop_map(|next| Frame::Heard { next }),
        ]
    }

    proptest! {
        #[test]
        fn frames_are_found_however_they_are_cut(frames in vec(frame(), 1..6), cut in 1usize..300) {
            let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
            let mut decoder = Decoder::default();
            let found: Vec<Frame> =
                bytes.chunks(cut).flat_map(|piece| decoder.take(piece)).collect();
            prop_assert_eq!(found, frames);
        }

        /// A wrong byte costs the frame that it is in, not those behind.
        #[test]
        fn a_wrong_byte_never_makes_a_frame(
            frames in vec(frame(), 2..5),
            at: prop::sample::Index,
            other in 1u8..=255,
        ) {
            let whole: Vec<Vec<u8>> = frames.iter().map(Frame::encode).collect();
            let mut bytes = whole.concat();
            let at = at.index(bytes.len());
            bytes[at] ^= other;
            let mut decoder = Decoder::default();
            let mut found = decoder.take(&bytes);
            // What looked like a long frame ends at last.
            found.extend(decoder.take(&vec![0; PAYLOAD + HEAD + TAIL]));
            let mut before = 0;
            let hit = whole.iter().position(|frame| {
                before += frame.len();
                at < before
            });
            let mut expected = frames;
            expected.remove(hit.unwrap());
            prop_assert_eq!(found, expected);
        }
    }
}
