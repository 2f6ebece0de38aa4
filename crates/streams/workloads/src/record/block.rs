//! Blocks: a header, then four byte streams, each compressed for itself, all checked.
//!
//! A block can be read without any other. The stream of items stands first and has a checksum of
//! its own, so that a reader that skips accesses reads the events only.

use super::codec::Streams;
use std::io;
use strata_files::{Fields, Lengths, checksum, unseal};

/// First bytes of a block.
pub const BLOCK_MAGIC: [u8; 4] = *b"BLK\n";

/// Length of a block's header.
pub const BLOCK_HEADER_LEN: usize = 64;

/// Accesses at which a block is closed. More compress better (a sqlite3 recording shrinks with each
/// doubling from 16 Ki to 256 Ki), fewer stay in cache: these are some 300 KB of streams, which fit
/// the L2 cache of most machines.
pub const BLOCK_ACCESSES: usize = 128 * 1024;

/// Bytes of items at which a block is closed.
pub const BLOCK_ITEM_BYTES: usize = 1 << 20;

/// Bytes a stream may have in a valid block, so that a damaged length cannot ask for all memory.
const MAX_STREAM: u32 = 16 << 20;

/// zstd's level. The first makes the streams of sqlite3 ten times smaller; level 3 gains another
/// 5 % and takes 20 % longer.
const LEVEL: i32 = 1;

/// A block's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Accesses in the block.
    pub accesses: u32,
    /// Events in the block.
    pub events: u32,
    /// Accesses in all blocks before.
    pub first_access: u64,
    /// Items, control, shapes, deltas.
    lengths: [Lengths; 4],
    items_crc: u32,
    data_crc: u32,
}

impl Header {
    fn to_bytes(&self) -> [u8; BLOCK_HEADER_LEN] {
        let mut bytes = [0; BLOCK_HEADER_LEN];
        bytes[..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[4..8].copy_from_slice(&self.accesses.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first_access.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.events.to_le_bytes());
        for (lengths, out) in self.lengths.iter().zip(bytes[20..52].chunks_exact_mut(8)) {
            out[..4].copy_from_slice(&lengths.raw.to_le_bytes());
            out[4..].copy_from_slice(&lengths.stored.to_le_bytes());
        }
        bytes[52..56].copy_from_slice(&self.items_crc.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.data_crc.to_le_bytes());
        let crc = checksum(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The header in these bytes, `None` when they are none or damaged.
    pub fn parse(bytes: &[u8; BLOCK_HEADER_LEN]) -> Option<Self> {
        let mut fields = Fields(unseal(bytes)?.strip_prefix(&BLOCK_MAGIC)?);
        let (accesses, first_access, events) = (fields.u32()?, fields.u64()?, fields.u32()?);
        let mut lengths = [Lengths::default(); 4];
        for lengths in &mut lengths {
            *lengths = Lengths { raw: fields.u32()?, stored: fields.u32()? };
        }
        let (items_crc, data_crc) = (fields.u32()?, fields.u32()?);
        let header = Self { accesses, events, first_access, lengths, items_crc, data_crc };
        let sound = lengths.iter().all(|l| l.raw <= MAX_STREAM && l.stored <= l.raw)
            && lengths[1].raw == header.accesses
            && header.first_access.checked_add(header.accesses.into()).is_some();
        sound.then_some(header)
    }

    /// Bytes of the items as stored.
    pub fn items_len(&self) -> usize {
        self.lengths[0].stored as usize
    }

    /// Bytes of the streams of accesses as stored.
    pub fn data_len(&self) -> usize {
        self.lengths[1..].iter().map(|l| l.stored as usize).sum()
    }

    /// Bytes of the whole block.
    pub fn block_len(&self) -> u64 {
        (BLOCK_HEADER_LEN + self.items_len() + self.data_len()) as u64
    }
}

/// Puts blocks together.
pub struct Packer {
    streams: strata_files::Packer,
    /// The block; the header is written last.
    block: Vec<u8>,
}

impl Packer {
    /// # Errors
    /// When zstd cannot have its memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self { streams: strata_files::Packer::new(LEVEL)?, block: Vec::new() })
    }

    /// The bytes of a block.
    ///
    /// # Errors
    /// When zstd fails.
    pub fn pack(
        &mut self,
        first_access: u64,
        events: u32,
        items: &[u8],
        streams: &Streams,
    ) -> io::Result<&[u8]> {
        let Streams { control, shapes, deltas } = streams;
        self.block.clear();
        self.block.resize(BLOCK_HEADER_LEN, 0);
        let mut header =
            Header { accesses: control.len() as u32, events, first_access, ..Header::default() };
        for (stream, lengths) in
            [items, control, shapes, deltas].into_iter().zip(&mut header.lengths)
        {
            debug_assert!(stream.len() <= MAX_STREAM as usize);
            *lengths = self.streams.append(stream, &mut self.block)?;
        }
        let (items, data) = self.block[BLOCK_HEADER_LEN..].split_at(header.items_len());
        header.items_crc = checksum(items);
        header.data_crc = checksum(data);
        self.block[..BLOCK_HEADER_LEN].copy_from_slice(&header.to_bytes());
        Ok(&self.block)
    }
}

/// Takes blocks apart.
pub struct Unpacker {
    streams: strata_files::Unpacker,
}

/// A stream does not match its checksum or does not decompress to its length.
#[derive(Debug)]
pub struct Damaged;

impl Unpacker {
    /// # Errors
    /// When zstd cannot have its memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self { streams: strata_files::Unpacker::new()? })
    }

    /// Puts the items of a block, given as stored, into `out`.
    ///
    /// # Errors
    /// When they are damaged.
    pub fn items(
        &mut self,
        header: &Header,
        stored: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Damaged> {
        if checksum(stored) != header.items_crc {
            return Err(Damaged);
        }
        self.streams.take(header.lengths[0], &mut &stored[..], out).ok_or(Damaged)
    }

    /// Puts the streams of accesses of a block, given as stored, into `out`.
    ///
    /// # Errors
    /// When they are damaged.
    pub fn streams(
        &mut self,
        header: &Header,
        mut stored: &[u8],
        out: &mut Streams,
    ) -> Result<(), Damaged> {
        if checksum(stored) != header.data_crc {
            return Err(Damaged);
        }
        let out = [&mut out.control, &mut out.shapes, &mut out.deltas];
        for (lengths, out) in header.lengths[1..].iter().zip(out) {
            self.streams.take(*lengths, &mut stored, out).ok_or(Damaged)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_and_every_flipped_bit_is_noticed() {
        let items = vec![7; 300];
        let streams =
            Streams { control: vec![1; 500], shapes: vec![2, 3], deltas: (0..=255).collect() };
        let mut packer = Packer::new().unwrap();
        let block = packer.pack(40, 3, &items, &streams).unwrap().to_vec();
        assert!(block.len() < 500, "compressed");
        let unpack = |block: &[u8]| {
            let header = Header::parse(block[..BLOCK_HEADER_LEN].try_into().unwrap())?;
            if header.block_len() != block.len() as u64 {
                return None;
            }
            let (stored_items, data) = block[BLOCK_HEADER_LEN..].split_at(header.items_len());
            let mut unpacker = Unpacker::new().unwrap();
            let (mut items, mut streams) = (Vec::new(), Streams::default());
            unpacker.items(&header, stored_items, &mut items).ok()?;
            unpacker.streams(&header, data, &mut streams).ok()?;
            Some((header.first_access, header.accesses, header.events, items, streams))
        };
        assert_eq!(unpack(&block), Some((40, 500, 3, items, streams)));
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unpack(&damaged), None, "bit {bit}");
        }
    }
}
