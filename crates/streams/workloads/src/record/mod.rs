//! Recordings: Strata's own trace format.
//!
//! A recording holds a stream exactly: accesses, threads, instruction counts and address-space
//! events, in order. `docs/trace-format.md` describes the bytes. Each subject has its file:
//! `codec` predicts addresses, `items` writes what is between accesses, `block` frames,
//! compresses and checks a piece of both, `header` begins the file, `footer` holds totals and the index.

mod block;
mod codec;
mod footer;
mod header;
mod items;
mod reader;
mod writer;

pub use footer::Summary;
pub use header::FORMAT;
pub use reader::Reader;
pub use strata_stream::Outcome;
pub(crate) use writer::share;
pub use writer::{Encoder, Writer};

/// A recording whose one block has these bytes as its streams, with right checksums: half of
/// them items, the rest what is said of accesses. For tests of what is behind the checksums.
pub(crate) fn with_content(bytes: &[u8]) -> Vec<u8> {
    let (items, rest) = bytes.split_at(bytes.len() / 2);
    let (control, deltas) = rest.split_at(rest.len() / 3);
    // The rest would be refused at once if the lengths did not fit.
    let streams = codec::Streams::fitting(control, deltas);
    let mut packer = block::Packer::new().expect("memory for zstd");
    let mut file = header::file_header();
    let block = packer.pack(0, 1, items, &streams).expect("memory for zstd");
    file.extend_from_slice(block);
    file
}
