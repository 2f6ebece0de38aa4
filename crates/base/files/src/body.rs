//! Files with one body, packed and checked as a whole.
//!
//! | offset | size | content |
//! | --- | --- | --- |
//! | 0 | 8 | magic |
//! | 8 | 4 | version |
//! | 12 | 4 | CRC-32C of the packed body |
//! | 16 | 8 | bytes of the packed body |
//! | 24 | 8 | bytes of the body, unpacked |
//! | 32 | 4 | CRC-32C of bytes 0 to 31 |
//! | 36 | | the body, one zstd frame |

use crate::stream::unpacked;
use crate::{Fault, Fields, Format, checksum, seal, unseal};
use std::io::{self, Read};

/// Length of the header.
const HEADER: usize = 36;

/// zstd's level.
const LEVEL: i32 = 3;

/// The bytes of a file with this body.
///
/// # Errors
/// When there is no memory for packing.
pub fn pack(format: &Format, raw: &[u8]) -> io::Result<Vec<u8>> {
    let body = zstd::bulk::compress(raw, LEVEL)?;
    let mut file = format.begin().to_vec();
    file.extend(checksum(&body).to_le_bytes());
    file.extend((body.len() as u64).to_le_bytes());
    file.extend((raw.len() as u64).to_le_bytes());
    seal(&mut file);
    debug_assert_eq!(file.len(), HEADER);
    file.extend(body);
    Ok(file)
}

/// The body of a file of exactly this version, if it has at most `largest` bytes: a damaged length
/// must not ask for all memory.
///
/// # Errors
/// What is wrong with it.
///
/// ```
/// use strata_files::{Fault, Format, body};
///
/// const NOTES: Format = Format { magic: *b"\x89NOTES\n\0", version: 2 };
/// let mut file = body::pack(&NOTES, &[7; 1000]).unwrap();
/// assert!(file.len() < 100);
/// assert_eq!(body::unpack(&NOTES, &file, 1000), Ok(vec![7; 1000]));
/// assert_eq!(body::unpack(&NOTES, &file, 999), Err(Fault::Altered));
/// file.pop();
/// assert_eq!(body::unpack(&NOTES, &file, 1000), Err(Fault::Short));
/// ```
pub fn unpack(format: &Format, bytes: &[u8], largest: u64) -> Result<Vec<u8>, Fault> {
    format.version_of(bytes)?;
    let (header, body) = bytes.split_at_checked(HEADER).ok_or(Fault::Short)?;
    let header = unseal(header).ok_or(Fault::Altered)?;
    let (version, fields) = format.version_of(header)?;
    if version != format.version {
        return Err(Fault::Version(version));
    }
    let mut fields = Fields(fields);
    let sum = fields.u32().ok_or(Fault::Short)?;
    let (packed, raw) = (fields.u64().ok_or(Fault::Short)?, fields.u64().ok_or(Fault::Short)?);
    if body.len() as u64 != packed {
        return Err(Fault::Short);
    }
    if checksum(body) != sum || raw > largest {
        return Err(Fault::Altered);
    }
    let mut content = Vec::new();
    let read = unpacked(body, raw + 1).and_then(|mut body| body.read_to_end(&mut content));
    if read.is_ok_and(|read| read as u64 == raw) { Ok(content) } else { Err(Fault::Altered) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format { magic: *b"\x89TESTS\n\0", version: 3 };

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let content: Vec<u8> = (0..600u32).map(|n| (n * n) as u8).collect();
        let file = pack(&FORMAT, &content).unwrap();
        assert_eq!(unpack(&FORMAT, &file, 1 << 20).as_deref(), Ok(&content[..]));
        for bit in 0..file.len() * 8 {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(unpack(&FORMAT, &damaged, 1 << 20).is_err(), "bit {bit}");
        }
        for cut in 8..file.len() {
            assert_eq!(unpack(&FORMAT, &file[..cut], 1 << 20), Err(Fault::Short), "{cut}");
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        let body = zstd::bulk::compress(b"content", LEVEL).unwrap();
        let mut bytes = b"\x89TESTS\n\0\x03\0\0\0".to_vec();
        bytes.extend(crc32c::crc32c(&body).to_le_bytes());
        bytes.extend([body.len() as u8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes.extend(body);
        assert_eq!(pack(&FORMAT, b"content").unwrap(), bytes);
    }

    #[test]
    fn only_the_version_that_is_written_is_read() {
        let file = pack(&Format { version: 2, ..FORMAT }, b"x").unwrap();
        assert_eq!(unpack(&FORMAT, &file, 9), Err(Fault::Version(2)));
    }
}
