//! Byte streams packed one by one, each only if that makes it shorter.

use std::io;
use zstd::bulk::{Compressor, Decompressor};

/// A stream's length before and after packing; equal lengths mean it is stored as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes, unpacked.
    pub raw: u32,
    /// Bytes in the file.
    pub stored: u32,
}

/// Packs streams; its memory is used again for each.
pub struct Packer {
    compressor: Compressor<'static>,
}

impl Packer {
    /// Packs with this level of zstd.
    ///
    /// # Errors
    /// When zstd cannot have its memory.
    pub fn new(level: i32) -> io::Result<Self> {
        Ok(Self { compressor: Compressor::new(level)? })
    }

    /// Appends a stream of less than 4 GiB to `out`, packed if that makes it shorter.
    ///
    /// # Errors
    /// When zstd fails.
    pub fn append(&mut self, stream: &[u8], out: &mut Vec<u8>) -> io::Result<Lengths> {
        let start = out.len();
        out.resize(start + zstd::zstd_safe::compress_bound(stream.len()), 0);
        let mut stored = 0;
        if !stream.is_empty() {
            stored = self.compressor.compress_to_buffer(stream, &mut out[start..])?;
        }
        out.truncate(start + stored);
        if stored >= stream.len() {
            out.truncate(start);
            out.extend_from_slice(stream);
            stored = stream.len();
        }
        Ok(Lengths { raw: stream.len() as u32, stored: stored as u32 })
    }
}

/// Unpacks what a [`Packer`] packed.
pub struct Unpacker {
    decompressor: Decompressor<'static>,
}

impl Unpacker {
    /// # Errors
    /// When zstd cannot have its memory.
    pub fn new() -> io::Result<Self> {
        Ok(Self { decompressor: Decompressor::new()? })
    }

    /// Takes a stream off the front of `stored` and puts it into `out`, in place of what is there.
    /// `None` when it is cut or does not unpack to its length.
    pub fn take(&mut self, lengths: Lengths, stored: &mut &[u8], out: &mut Vec<u8>) -> Option<()> {
        let (stream, rest) = stored.split_at_checked(lengths.stored as usize)?;
        *stored = rest;
        out.clear();
        if lengths.raw == lengths.stored {
            out.extend_from_slice(stream);
            return Some(());
        }
        out.reserve(lengths.raw as usize + 8);
        // zstd fills at most the room there is, which may be more than asked for.
        let length = self.decompressor.decompress_to_buffer(stream, out).ok()?;
        (length == lengths.raw as usize).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn streams_come_back_one_after_the_other(
            streams in prop::collection::vec((0u8..3, prop::collection::vec(any::<u8>(), 0..300)), 1..6),
        ) {
            let mut packer = Packer::new(1).unwrap();
            let (mut stored, mut lengths) = (Vec::new(), Vec::new());
            // Some repeat one value, which packs well.
            let content = |(kind, bytes): &(u8, Vec<u8>)| match kind {
                0 => bytes.clone(),
                _ => vec![*kind; bytes.len()],
            };
            for stream in &streams {
                let length = packer.append(&content(stream), &mut stored).unwrap();
                prop_assert!(length.stored <= length.raw);
                lengths.push(length);
            }
            let (mut unpacker, mut rest, mut out) =
                (Unpacker::new().unwrap(), stored.as_slice(), Vec::new());
            for (stream, length) in streams.iter().zip(lengths) {
                prop_assert_eq!(unpacker.take(length, &mut rest, &mut out), Some(()));
                prop_assert_eq!(&out, &content(stream));
            }
            prop_assert!(rest.is_empty());
        }
    }

    #[test]
    fn a_wrong_length_is_noticed() {
        let (mut packer, mut unpacker) = (Packer::new(1).unwrap(), Unpacker::new().unwrap());
        let (mut stored, mut out) = (Vec::new(), Vec::new());
        let lengths = packer.append(&[7; 1000], &mut stored).unwrap();
        for raw in [999, 1001] {
            let wrong = Lengths { raw, ..lengths };
            assert_eq!(unpacker.take(wrong, &mut &stored[..], &mut out), None);
        }
        assert_eq!(unpacker.take(lengths, &mut &stored[1..], &mut out), None);
    }
}
