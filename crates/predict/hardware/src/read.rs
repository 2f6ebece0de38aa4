//! One read of the data caches, and what it is for.

/// Bits of a read that say what it is for, below the number of the line.
const CLASS_BITS: u32 = 4;

/// Number of classes, the unused ones included.
pub(crate) const CLASSES: usize = 1 << CLASS_BITS;

/// What a read is for: 0 is an entry of the guest's table, for a load that completes.
pub(crate) mod class {
    /// An entry of the second stage.
    pub(crate) const NESTED: u64 = 1;
    /// The walk is for a store.
    pub(crate) const STORE: u64 = 2;
    /// The walk ended in a fault.
    pub(crate) const FAULTED: u64 = 4;
    /// Data; no other bit is set.
    pub(crate) const DATA: u64 = 8;
}

/// Reads noted at most.
pub(crate) const CAPACITY: usize = 512;

/// A line to be read, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read(u64);

impl Read {
    /// No read at all.
    pub(crate) const NONE: Self = Self(0);

    #[inline(always)]
    pub(crate) fn new(line: u64, class: u64) -> Self {
        Self(line << CLASS_BITS | class)
    }

    /// The same of a walk that ended in a fault.
    #[inline]
    pub(crate) fn faulted(self) -> Self {
        Self(self.0 | class::FAULTED)
    }

    #[inline(always)]
    pub(crate) fn line(self) -> u64 {
        self.0 >> CLASS_BITS
    }

    #[inline(always)]
    pub(crate) fn class(self) -> usize {
        self.0 as usize % CLASSES
    }

    #[inline(always)]
    pub(crate) fn is_data(self) -> bool {
        self.0 & class::DATA != 0
    }
}

/// How many reads of each class a level had.
pub(crate) type Hits = [u32; CLASSES];
