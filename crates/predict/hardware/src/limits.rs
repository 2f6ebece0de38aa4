//! How large a cache the model can hold, and how far apart it can tell addresses.

/// log2 of the bytes in a cache line, on every CPU modelled.
pub(crate) const LINE_SHIFT: u32 = 6;

/// Host physical addresses below this are told apart by every cache: 16 TiB, less the last lines,
/// whose tags would be that of an empty way.
pub const PHYSICAL_LIMIT: u64 = (MIN_SETS * u32::MAX as u64) << LINE_SHIFT;

/// With fewer sets the tags would not fit 32 bits.
pub(crate) const MIN_SETS: u64 = 64;

/// With more, the division by multiplication would not be exact.
pub(crate) const MAX_SETS: u64 = 1 << 24;

/// Sets of a cache at the memory: a power of two of them divides by a shift, whatever the method.
pub(crate) const MAX_L4_SETS: u64 = 1 << 28;

/// The largest associativity of a data cache.
pub(crate) const MAX_WAYS: u32 = 64;
