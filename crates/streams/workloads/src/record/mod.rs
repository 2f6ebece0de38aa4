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
use strata_files::{Format, seal, unseal};
pub use strata_stream::Outcome;
pub(crate) use writer::share;
pub use writer::{Encoder, Writer};

/// How a recording begins. The first byte is no text and the last a line feed, so a transfer that
/// mistakes the file for text is noticed at once.
pub const FORMAT: Format = Format { magic: *b"\x89STRATA\n", version: 1 };

/// Length of the file header: magic, version, CRC-32C of these.
const HEADER_LEN: u64 = 16;

/// The file header.
fn file_header() -> Vec<u8> {
    let mut header = FORMAT.begin().to_vec();
    seal(&mut header);
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
    let Ok((version, _)) = FORMAT.version_of(header) else {
        return Err("not a recording made by `strata record`".into());
    };
    if unseal(header).is_none() {
        return Err("recording damaged at byte 8 (access 0): its header does not match its \
                    checksum; record it again"
            .into());
    }
    FORMAT.check(version).map_err(|_| {
        format!(
            "recording has format version {version}, this program reads up to {}; use a newer \
             Strata",
            FORMAT.version
        )
    })
}

/// A recording whose one block has these bytes as its streams, with right checksums: half of
/// them items, the rest what is said of accesses. For tests of what is behind the checksums.
pub(crate) fn with_content(bytes: &[u8]) -> Vec<u8> {
    let (items, rest) = bytes.split_at(bytes.len() / 2);
    let (control, deltas) = rest.split_at(rest.len() / 3);
    // The rest would be refused at once if the lengths did not fit.
    let streams = codec::Streams::fitting(control, deltas);
    let mut packer = block::Packer::new().expect("memory for zstd");
    let mut file = file_header();
    let block = packer.pack(0, 1, items, &streams).expect("memory for zstd");
    file.extend_from_slice(block);
    file
}
