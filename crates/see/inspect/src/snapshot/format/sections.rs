//! What a snapshot's file begins with, and the numbers of its sections.

use strata_files::Format;

/// How a snapshot begins.
pub const FORMAT: Format = Format { magic: *b"STRATAS\n", version: 3 };

/// How one begins in which nobody looked what is hot: programs of before read it.
pub const WITHOUT_HOT: Format = Format { version: 2, ..FORMAT };

/// Most bytes of a section: a damaged length must not ask for all memory.
pub(super) const MAX_SECTION: usize = 16 << 20;

pub(super) const HEAD: u8 = 1;
pub(super) const PROCESS: u8 = 2;
pub(super) const USAGE: u8 = 3;
pub(super) const VM: u8 = 4;
pub(super) const REGIONS: u8 = 5;
pub(super) const TAIL: u8 = 6;
pub(super) const PSEUDO_HUGE: u8 = 7;
pub(super) const HOT: u8 = 8;
