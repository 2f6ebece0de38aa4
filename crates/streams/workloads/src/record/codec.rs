//! Accesses as small differences from recent addresses.
//!
//! A program works on a few places at a time: the stack, a structure, one or two arrays. For each
//! thread the codec keeps [`SLOTS`] recent addresses, one for each such place. An access is
//! written as the slot nearest to it, the difference from that slot's address, and its kind and
//! size; the slot then takes the new address. When no slot is near, the writer names the slot
//! unused for longest. The choice is the writer's alone: the reader adds and stores, without a
//! branch that depends on the data.
//!
//! Three byte streams result, which compress better apart than mixed:
//!
//! ```text
//! control  one byte an access: bits 0-2 slot, 3-4 width of the difference, 5-7 kind and size
//! shapes   kind and size of the accesses whose bits 5-7 are 7
//! deltas   the differences, zigzag, little-endian, of 1, 2, 4 or 8 bytes
//! ```

use rustc_hash::FxHashMap;
use strata_stream::{Access, Tid};

/// Recent addresses kept for each thread.
const SLOTS: usize = 8;

/// A difference beyond this opens a new place rather than moving an old one. Two base pages:
/// measured best on sqlite3 among 127 to 32767, as frames of one stack stay together and small
/// structures stay apart.
const NEAR: u64 = 8191;

/// Bits of the packed access that are the address; see [`Access`].
const ADDRESS_MASK: u64 = (1 << 57) - 1;

/// Bytes of a difference, by width code.
const WIDTHS: [usize; 4] = [1, 2, 4, 8];

/// What is left of eight bytes read, by width code.
const WIDTH_MASKS: [u64; 4] = [0xff, 0xffff, 0xffff_ffff, u64::MAX];

/// The shape code that sends the reader to the stream of shapes.
const OTHER: u8 = 7;

/// Shapes (store bit 3, log2 of the size below) with a code of their own: loads of 1, 2, 4 and 8
/// bytes, stores of 1, 4 and 8.
const SHAPES: [u8; 7] = [0, 1, 2, 3, 8, 10, 11];

/// The shape of an access: store in bit 3, log2 of the size in bits 0 to 2.
#[inline]
fn shape(access: Access) -> u8 {
    ((access.bits() >> 57 & 7) | (access.bits() >> 63) << 3) as u8
}

/// The packed access without address.
const fn shape_bits(shape: u8) -> u64 {
    (shape as u64 & 7) << 57 | (shape as u64 >> 3) << 63
}

/// Code of each shape, in place.
const CODES: [u8; 16] = {
    let mut codes = [OTHER << 5; 16];
    let mut code = 0;
    while code < SHAPES.len() {
        codes[SHAPES[code] as usize] = (code as u8) << 5;
        code += 1;
    }
    codes
};

/// Packed shape of each code; the one of [`OTHER`] is not used.
const CODE_BITS: [u64; 8] = {
    let mut bits = [0; 8];
    let mut code = 0;
    while code < SHAPES.len() {
        bits[code] = shape_bits(SHAPES[code]);
        code += 1;
    }
    bits
};

/// The streams of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// One byte an access.
    pub control: Vec<u8>,
    /// Shapes without a code.
    pub shapes: Vec<u8>,
    /// Differences.
    pub deltas: Vec<u8>,
}

impl Streams {
    /// Streams with this control stream, whose other streams repeat `bytes` as often as needed.
    /// For tests that want streams no writer makes.
    pub fn fitting(control: &[u8], bytes: &[u8]) -> Self {
        let width = |control: &u8| WIDTHS[(control >> 3 & 3) as usize];
        let others = control.iter().filter(|control| **control >> 5 == OTHER).count();
        let source = || bytes.iter().chain(&[0]).copied().cycle();
        Self {
            control: control.to_vec(),
            shapes: source().take(others).collect(),
            deltas: source().take(control.iter().map(width).sum()).collect(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    addresses: [u64; SLOTS],
    /// When each slot was used last, to find the oldest.
    used: [u64; SLOTS],
    clock: u64,
}

/// Writes the accesses of one block.
#[derive(Debug, Default)]
pub struct Encoder {
    streams: Streams,
    threads: FxHashMap<Tid, Slots>,
}

impl Encoder {
    /// Adds accesses by one thread.
    pub fn push(&mut self, tid: Tid, accesses: &[Access]) {
        let slots = self.threads.entry(tid).or_default();
        let Streams { control, shapes, deltas } = &mut self.streams;
        let mut at = deltas.len();
        // Room for the widest differences and for the tail of the last eight-byte write.
        deltas.resize(at + 8 * accesses.len() + 8, 0);
        control.reserve(accesses.len());
        for &access in accesses {
            let addr = access.addr().get();
            let nearest = slots.nearest(addr);
            let slot = if nearest >> 3 <= NEAR { nearest as usize & 7 } else { slots.oldest() };
            let delta = slots.replace(slot, addr) as i64;
            let zigzag = (delta << 1 ^ delta >> 63) as u64;
            let width =
                (zigzag > 0xff) as u8 + (zigzag > 0xffff) as u8 + (zigzag > 0xffff_ffff) as u8;
            deltas[at..at + 8].copy_from_slice(&zigzag.to_le_bytes());
            at += WIDTHS[width as usize];
            let shape = shape(access);
            let code = CODES[shape as usize];
            if code == OTHER << 5 {
                shapes.push(shape);
            }
            control.push(slot as u8 | width << 3 | code);
        }
        deltas.truncate(at);
    }

    /// What has been written so far.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Begins the next block, which knows nothing of the one before.
    pub fn clear(&mut self) {
        self.streams.control.clear();
        self.streams.shapes.clear();
        self.streams.deltas.clear();
        self.threads.clear();
    }
}

impl Slots {
    /// Distance to the nearest slot times eight, plus its number.
    #[inline]
    fn nearest(&self, addr: u64) -> u64 {
        let mut best = u64::MAX;
        for (slot, &address) in self.addresses.iter().enumerate() {
            let distance = (addr.wrapping_sub(address) as i64).unsigned_abs();
            // Distances have at most 58 bits, so nothing is lost.
            best = best.min(distance << 3 | slot as u64);
        }
        best
    }

    #[inline]
    fn oldest(&self) -> usize {
        let mut best = u64::MAX;
        for (slot, &used) in self.used.iter().enumerate() {
            best = best.min(used << 3 | slot as u64);
        }
        best as usize & 7
    }

    /// Stores `addr` and returns the difference from what was there.
    #[inline]
    fn replace(&mut self, slot: usize, addr: u64) -> u64 {
        self.clock += 1;
        self.used[slot] = self.clock;
        let delta = addr.wrapping_sub(self.addresses[slot]);
        self.addresses[slot] = addr;
        delta
    }
}

/// Reads the accesses of one block.
#[derive(Debug, Default)]
pub struct Decoder {
    streams: Streams,
    accesses_read: usize,
    shapes_read: usize,
    deltas_read: usize,
    threads: FxHashMap<Tid, [u64; SLOTS]>,
}

/// The streams of a block do not fit together.
#[derive(Debug, PartialEq, Eq)]
pub struct Inconsistent;

impl Decoder {
    /// The streams to fill with those of the next block, empty. [`Decoder::start`] follows.
    pub fn streams(&mut self) -> &mut Streams {
        self.streams.control.clear();
        self.streams.shapes.clear();
        self.streams.deltas.clear();
        &mut self.streams
    }

    /// Begins the block whose streams have been filled in.
    ///
    /// # Errors
    /// When the streams do not fit together.
    pub fn start(&mut self) -> Result<(), Inconsistent> {
        self.accesses_read = 0;
        self.shapes_read = 0;
        self.deltas_read = 0;
        self.threads.clear();
        let Streams { control, shapes, deltas } = &mut self.streams;
        let bytes: usize = control.iter().map(|control| WIDTHS[(control >> 3 & 3) as usize]).sum();
        let others = control.iter().filter(|control| **control >> 5 == OTHER).count();
        if bytes != deltas.len() || others != shapes.len() {
            control.clear();
            return Err(Inconsistent);
        }
        // So that every difference can be read as eight bytes.
        deltas.extend_from_slice(&[0; 8]);
        Ok(())
    }

    /// Accesses of the block that have not been read.
    pub fn remaining(&self) -> usize {
        self.streams.control.len() - self.accesses_read
    }

    /// Appends the next `count` accesses, which are by `tid`.
    ///
    /// # Panics
    /// When fewer remain.
    pub fn read(&mut self, tid: Tid, count: usize, out: &mut Vec<Access>) {
        let control = &self.streams.control[self.accesses_read..][..count];
        let (shapes, deltas) = (&self.streams.shapes[..], &self.streams.deltas[..]);
        // Kept in registers and on the stack: the loop is bound by how soon a slot that was
        // stored can be loaded again.
        let mut slots = self.threads.get(&tid).copied().unwrap_or_default();
        let mut shapes_at = self.shapes_read;
        let mut at = self.deltas_read;
        out.extend(control.iter().map(|&control| {
            let width = (control >> 3 & 3) as usize;
            let bytes: [u8; 8] = deltas[at..at + 8].try_into().expect("eight bytes");
            at += WIDTHS[width];
            let zigzag = u64::from_le_bytes(bytes) & WIDTH_MASKS[width];
            let delta = zigzag >> 1 ^ (zigzag & 1).wrapping_neg();
            let address = &mut slots[(control & 7) as usize];
            *address = address.wrapping_add(delta);
            let code = control >> 5;
            let shape = if code == OTHER {
                shapes_at += 1;
                shape_bits(shapes[shapes_at - 1] & 15)
            } else {
                CODE_BITS[code as usize]
            };
            Access::from_bits(*address & ADDRESS_MASK | shape)
        }));
        self.threads.insert(tid, slots);
        self.accesses_read += count;
        self.shapes_read = shapes_at;
        self.deltas_read = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(runs: &[(Tid, Vec<Access>)]) {
        let mut encoder = Encoder::default();
        for (tid, accesses) in runs {
            encoder.push(*tid, accesses);
        }
        let mut decoder = Decoder::default();
        decoder.streams().clone_from(encoder.streams());
        decoder.start().unwrap();
        for (tid, accesses) in runs {
            assert!(decoder.remaining() >= accesses.len());
            let mut out = Vec::new();
            decoder.read(*tid, accesses.len(), &mut out);
            assert_eq!(&out, accesses);
        }
        assert_eq!(decoder.remaining(), 0);
    }

    proptest! {
        #[test]
        fn any_accesses_of_any_threads_come_back(
            runs in prop::collection::vec(
                (0u32..4, prop::collection::vec((any::<u64>(), 0u32..64), 0..50)), 0..20),
        ) {
            let runs: Vec<_> = runs
                .into_iter()
                .map(|(tid, bits)| {
                    // The shift makes near addresses as frequent as far ones.
                    let access = |(bits, shift): (u64, u32)| {
                        Access::from_bits(bits & 0xf << 60 | bits >> shift)
                    };
                    (Tid(tid), bits.into_iter().map(access).collect())
                })
                .collect();
            round_trip(&runs);
        }

        #[test]
        fn random_streams_do_no_harm(
            control in prop::collection::vec(any::<u8>(), 0..40),
            shapes in prop::collection::vec(any::<u8>(), 0..10),
            deltas in prop::collection::vec(any::<u8>(), 0..100),
            counts in prop::collection::vec(0usize..30, 0..5),
        ) {
            let mut decoder = Decoder::default();
            let consistent = deltas.len()
                == control.iter().map(|c| WIDTHS[(c >> 3 & 3) as usize]).sum::<usize>()
                && shapes.len() == control.iter().filter(|c| **c >= 0xe0).count();
            *decoder.streams() = Streams { control, shapes, deltas };
            prop_assert_eq!(decoder.start().is_ok(), consistent);
            for count in counts {
                let count = count.min(decoder.remaining());
                let mut out = Vec::new();
                decoder.read(Tid(0), count, &mut out);
                prop_assert_eq!(out.len(), count);
            }
        }

        #[test]
        fn streams_that_fit_decode_whatever_they_hold(
            control in prop::collection::vec(any::<u8>(), 0..40),
            bytes in prop::collection::vec(any::<u8>(), 40 * 9),
        ) {
            let deltas = control.iter().map(|c| WIDTHS[(c >> 3 & 3) as usize]).sum();
            let shapes = control.iter().filter(|c| **c >= 0xe0).count();
            let mut decoder = Decoder::default();
            *decoder.streams() = Streams {
                shapes: bytes[..shapes].to_vec(),
                deltas: bytes[40..][..deltas].to_vec(),
                control,
            };
            prop_assert_eq!(decoder.start(), Ok(()));
            let (count, mut out) = (decoder.remaining(), Vec::new());
            decoder.read(Tid(0), count, &mut out);
            prop_assert_eq!((out.len(), decoder.remaining()), (count, 0));
        }
    }

    #[test]
    fn near_accesses_cost_two_bytes() {
        let mut encoder = Encoder::default();
        let places = [0x7fff_0000_0000u64, 0x5555_0000_0000, 0x7f00_0000_0000];
        let accesses: Vec<_> = (0..3000)
            .map(|i| Access::load(strata_addr::Gva::new(places[i % 3] + 8 * i as u64), 8))
            .collect();
        encoder.push(Tid(0), &accesses);
        let streams = encoder.streams();
        assert_eq!(streams.control.len(), 3000);
        assert!(streams.shapes.is_empty());
        // Three far accesses of eight bytes, then one byte each.
        assert_eq!(streams.deltas.len(), 3 * 8 + 2997);
    }
}
