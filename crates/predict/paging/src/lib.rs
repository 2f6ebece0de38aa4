//! Bit-exact radix page tables in simulated frames.
//!
//! One [`Radix`] serves every table of a stack: a process's page table, a hypervisor's second
//! stage, the shadow table. What differs is the [`Format`] of the entries and the two address
//! spaces. A table's pages live in frames of the space it maps *to*, as in hardware, so every
//! walk reference has a physical address.

mod format;
mod load;
mod radix;
mod region;
mod spans;

pub use format::{Entry, Ept, Format, Leaf, Rights, X86};
pub use load::{Left, LoadError};
pub use radix::{FrameSource, Mapping, NoFrame, Radix, TableId};
pub use region::Region;
pub use spans::{Span, Spans};

/// Entries in a table page.
pub const ENTRIES: usize = 512;

/// Index into the table at `level` (1 is the leaf level) for an address.
#[inline]
pub const fn index(addr: u64, level: u8) -> usize {
    (addr >> (12 + 9 * (level as u32 - 1))) as usize & (ENTRIES - 1)
}
