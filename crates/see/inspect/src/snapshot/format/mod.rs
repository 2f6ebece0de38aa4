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
//!                            8 hot pages, packed: from version 3 on
//! checksum     u32, CRC-32C of everything before it
//! ```
//!
//! What has no hot pages is written as version 2. Sections are small, so writing and reading use little memory besides what is kept.

mod codec;
mod reader;
mod sections;
mod writer;

pub use reader::{read, read_from};
pub use sections::FORMAT;
pub use writer::{FileWriter, Writer};

use std::io::Write;
use strata_files::stream;

/// The bytes of a file around this zstd content, with magic, version and checksum as they must be:
/// for tests and fuzzing that look behind the checksum.
pub fn with_content(sections: &[u8]) -> Vec<u8> {
    let mut writer = stream::Writer::new(Vec::new(), &FORMAT, 1).expect("memory for zstd");
    writer.write_all(sections).expect("memory for zstd");
    writer.finish().expect("memory for zstd")
}
