//! The file of a snapshot.
//!
//! ```text
//! "STRATAS\n"  8 bytes
//! version      u32, little-endian
//! zstd stream of sections: kind u8, length u32, that many bytes
//!     1 head     JSON        4 VM       JSON
//!     2 process  JSON + packed   5 regions  packed
//!     3 usage    packed      6 tail     JSON, the last
//!                            7 pseudo huge pages, packed: from version 2 on
//! checksum     u32, CRC-32C of everything before it
//! ```
//!
//! Sections are small, so writing and reading use little memory besides what is kept.

mod codec;
mod reader;
mod writer;

pub use reader::{read, read_from};
pub use writer::{FileWriter, Writer};

/// First bytes of a snapshot.
pub const MAGIC: [u8; 8] = *b"STRATAS\n";
/// The format that is written, and the last that can be read.
pub const VERSION: u32 = 2;

/// Most bytes of a section: a damaged length must not ask for all memory.
const MAX_SECTION: usize = 16 << 20;

const HEAD: u8 = 1;
const PROCESS: u8 = 2;
const USAGE: u8 = 3;
const VM: u8 = 4;
const REGIONS: u8 = 5;
const TAIL: u8 = 6;
const PSEUDO_HUGE: u8 = 7;

/// The bytes of a file around this zstd content, with magic, version and checksum as they must be:
/// for tests and fuzzing that look behind the checksum.
pub fn with_content(sections: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(zstd::encode_all(sections, 1).unwrap_or_default());
    let sum = crc32c::crc32c(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}
