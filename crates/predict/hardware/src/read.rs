//! One read of the data caches, and what it is for.

/// Bits of a read that say what it is for, below the number of the line.
const CLASS_BITS: u32 = 8;

/// Number of classes, the unused ones included.
pub(crate) const CLASSES: usize = 1 << CLASS_BITS;

/// What a read is for: two bits of the walk, and above them the position in it, which for data is that
/// of no table's entry, 0.
pub(crate) mod class {
    use crate::WalkPosition;

    /// Data; no bit is set.
    pub(crate) const DATA: u64 = 0;
    /// The walk is for a store.
    pub(crate) const STORE: u64 = 1;
    /// The walk ended in a fault.
    pub(crate) const FAULTED: u64 = 2;
    /// Classes of one position.
    pub(crate) const OF_POSITION: usize = 4;

    /// A walk's read of an entry.
    #[inline]
    pub(crate) const fn walk(position: WalkPosition) -> u64 {
        (position.index() * OF_POSITION) as u64
    }
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
        self.class() as u64 == class::DATA
    }
}

/// How many reads of each class a level had.
pub(crate) type Hits = [u32; CLASSES];

/// None of any class.
pub(crate) const NO_HITS: Hits = [0; CLASSES];
