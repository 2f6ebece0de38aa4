//! Recordings: Strata's own trace format.
//!
//! A recording holds a stream exactly: accesses, threads, instruction counts and address-space
//! events, in order. `docs/trace-format.md` describes the bytes. Each subject has its file:
//! `codec` predicts addresses, `items` writes what is between accesses, `block` frames,
//! compresses and checks a piece of both, `footer` holds totals and the index.

mod block;
mod codec;
mod footer;
mod items;
mod reader;
mod writer;

pub use footer::Summary;
pub use reader::Reader;
pub use strata_stream::Outcome;
pub(crate) use writer::share;
pub use writer::{Encoder, Writer};

/// First bytes of a recording. The first is no text and the last a line feed, so a transfer that
/// mistakes the file for text is noticed at once.
pub const MAGIC: [u8; 8] = *b"\x89STRATA\n";

/// Version of the format that is written, and the newest that is read.
pub const VERSION: u16 = 1;

/// Length of the file header: magic, version, two reserved bytes, CRC-32C of these.
const HEADER_LEN: u64 = 16;

/// The file header.
fn file_header() -> [u8; HEADER_LEN as usize] {
    let mut header = [0; HEADER_LEN as usize];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32c::crc32c(&header[..12]);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Whether this is the header of a recording that can be read.
///
/// # Errors
/// Why not, to be put after the file's name.
fn check_file_header(header: &[u8]) -> Result<(), String> {
    if header.len() < HEADER_LEN as usize {
        return Err("too short to be a recording".into());
    }
    if header[..8] != MAGIC {
        return Err("not a recording made by `strata record`".into());
    }
    let crc = u32::from_le_bytes(header[12..16].try_into().expect("four bytes"));
    if crc32c::crc32c(&header[..12]) != crc {
        return Err("recording damaged at byte 8 (access 0): its header does not match its \
                    checksum; record it again"
            .into());
    }
    let version = u16::from_le_bytes([header[8], header[9]]);
    if version == 0 || version > VERSION {
        return Err(format!(
            "recording has format version {version}, this program reads up to {VERSION}; use a \
             newer Strata"
        ));
    }
    Ok(())
}

/// A recording whose one block has these bytes as its streams, with right checksums: half of
/// them items, the rest what is said of accesses. For tests of what is behind the checksums.
pub(crate) fn with_content(bytes: &[u8]) -> Vec<u8> {
    let (items, rest) = bytes.split_at(bytes.len() / 2);
    let (control, deltas) = rest.split_at(rest.len() / 3);
    // The rest would be refused at once if the lengths did not fit.
    let streams = codec::Streams::fitting(control, deltas);
    let mut packer = block::Packer::new().expect("memory for zstd");
    let mut file = file_header().to_vec();
    let block = packer.pack(0, 1, items, &streams).expect("memory for zstd");
    file.extend_from_slice(block);
    file
}
