//! Files that are packed and unpacked as they come: magic, version, a zstd stream, and the CRC-32C
//! of everything before it.

use crate::checksum::Summed;
use crate::{Fault, Format, unseal};
use std::io::{self, Read, Write};
use zstd::stream::{Decoder, Encoder};

/// Writes such a file to anything.
pub struct Writer<W: Write> {
    encoder: Encoder<'static, Summed<W>>,
}

impl<W: Write> Writer<W> {
    /// Begins a file, packed with this level of zstd.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(inner: W, format: &Format, level: i32) -> io::Result<Self> {
        let mut summed = Summed { inner, sum: 0 };
        summed.write_all(&format.begin())?;
        Ok(Self { encoder: Encoder::new(summed, level)? })
    }

    /// Ends the file and gives back what it was written to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(self) -> io::Result<W> {
        let Summed { mut inner, sum } = self.encoder.finish()?;
        inner.write_all(&sum.to_le_bytes())?;
        inner.flush()?;
        Ok(inner)
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.flush()
    }
}

/// The content of a file, unpacked while it is read. A byte of file becomes at most `ratio` bytes
/// of content, besides 1 MiB: a few bytes of damage must not become all memory.
///
/// # Errors
/// What is wrong with the file.
///
/// ```
/// use std::io::{Read, Write};
/// use strata_files::{Format, stream};
///
/// const NOTES: Format = Format { magic: *b"\x89NOTES\n\0", version: 2 };
/// let mut writer = stream::Writer::new(Vec::new(), &NOTES, 3)?;
/// writer.write_all(b"content")?;
/// let file = writer.finish()?;
/// let mut content = String::new();
/// stream::open(&NOTES, &file, 10).unwrap().read_to_string(&mut content)?;
/// assert_eq!(content, "content");
/// # std::io::Result::Ok(())
/// ```
pub fn open<'a>(
    format: &Format,
    bytes: &'a [u8],
    ratio: u64,
) -> Result<impl Read + use<'a>, Fault> {
    let (version, rest) = format.version_of(bytes)?;
    if version > format.version {
        return Err(Fault::Version(version));
    }
    if rest.len() < 4 {
        return Err(Fault::Short);
    }
    let packed = unseal(bytes).ok_or(Fault::Altered)?;
    format.check(version).map_err(|_| Fault::Altered)?;
    let packed = &packed[Format::BEGIN..];
    let limit = (packed.len() as u64).saturating_mul(ratio).saturating_add(1 << 20);
    unpacked(packed, limit).map_err(|_| Fault::Packing)
}

/// What a zstd stream holds, up to `limit` bytes.
pub(crate) fn unpacked(packed: &[u8], limit: u64) -> io::Result<impl Read> {
    Ok(Decoder::with_buffer(packed)?.take(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format { magic: *b"\x89TESTS\n\0", version: 3 };

    #[test]
    fn the_bytes_are_magic_version_stream_checksum() {
        let mut bytes = b"\x89TESTS\n\0\x03\0\0\0".to_vec();
        bytes.extend(zstd::encode_all(&b"content"[..], 3).unwrap());
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        let mut writer = Writer::new(Vec::new(), &FORMAT, 3).unwrap();
        writer.write_all(b"content").unwrap();
        assert_eq!(writer.finish().unwrap(), bytes);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let mut writer = Writer::new(Vec::new(), &FORMAT, 3).unwrap();
        writer.write_all(b"some content").unwrap();
        let file = writer.finish().unwrap();
        for bit in 0..file.len() * 8 {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&FORMAT, &damaged, 10).is_err(), "bit {bit}");
        }
        for cut in 0..file.len() {
            assert!(open(&FORMAT, &file[..cut], 10).is_err(), "{cut}");
        }
    }

    #[test]
    fn older_versions_are_read_newer_ones_named() {
        let of = |version| {
            let writer = Writer::new(Vec::new(), &Format { version, ..FORMAT }, 3).unwrap();
            open(&FORMAT, &writer.finish().unwrap(), 10).err()
        };
        assert_eq!(
            [0, 1, 3, 4].map(of),
            [Some(Fault::Altered), None, None, Some(Fault::Version(4))]
        );
    }

    #[test]
    fn little_does_not_become_much() {
        let mut writer = Writer::new(Vec::new(), &FORMAT, 3).unwrap();
        writer.write_all(&vec![0; 4 << 20]).unwrap();
        let file = writer.finish().unwrap();
        let mut content = Vec::new();
        open(&FORMAT, &file, 2).unwrap().read_to_end(&mut content).unwrap();
        assert!(((1 << 20)..(1 << 20) + 2 * file.len()).contains(&content.len()));
    }
}
