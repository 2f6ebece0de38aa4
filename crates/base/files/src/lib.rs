//! What Strata's files have in common.
//!
//! - [`OutFile`]: a file is written whole or not at all;
//! - [`varint`]: numbers of variable length, [`Fields`]: those of fixed length;
//! - [`Format`]: how a file begins, with magic and version;
//! - [`seal`], [`unseal`], [`checksum`]: CRC-32C, by which damage is noticed;
//! - [`body`], [`stream`], [`Packer`]: what is packed by zstd, whole, as it comes, or in pieces.
//!
//! Recordings, snapshots and captured tables are made of these; each crate that has a format says
//! what its bytes mean.

pub mod body;
mod checksum;
mod fields;
mod format;
mod outfile;
mod pieces;
pub mod stream;
pub mod varint;

pub use checksum::{checksum, seal, unseal};
pub use fields::Fields;
pub use format::{Fault, Format};
pub use outfile::{OutFile, PRIVATE, PUBLIC, directory, is_special};
pub use pieces::{Lengths, Packer, Unpacker};
