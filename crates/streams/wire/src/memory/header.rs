//! What the shared memory begins with.

use std::sync::atomic::{AtomicU32, AtomicU64};
use strata_phases::BUCKETS;

/// Slots in the wire; memory is used only for those ever taken. Bounds the live threads of all
/// traced processes together, with a good margin.
pub(super) const SLOTS: u32 = 8192;
/// Slots in circulation beyond one for each thread: 2 MiB of backlog, which stays in a cache.
pub(super) const BACKLOG: u32 = 64;
/// What the consumer wants of the producers (`Header::wanted`): the stream; nothing, so that they run
/// on unobserved; their end.
pub(super) const STREAM: u32 = 0;
pub(super) const NOTHING: u32 = 1;
pub(super) const END: u32 = 2;
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"strata\0\x03");

#[repr(C, align(64))]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) consumer_started: AtomicU64,
    pub(super) consumer: AtomicU32,
    pub(super) wanted: AtomicU32,
    pub(super) next_pid: AtomicU32,
    pub(super) next_tid: AtomicU32,
    pub(super) producers: Line<Producers>,
    pub(super) free: Line<FreeList>,
    pub(super) sampled: Line<Sampled>,
    pub(super) counted: Line<Counted>,
}

/// Keeps what different sides write on different cache lines.
#[repr(C, align(64))]
pub(super) struct Line<T>(pub(super) T);

#[repr(C)]
pub(super) struct Producers {
    /// Head of the committed stack: number of slots in it in the upper half, index + 1 of the
    /// newest in the lower.
    pub(super) committed: AtomicU64,
    /// Slots never used yet begin here.
    pub(super) fresh: AtomicU32,
    /// Not 0 while the consumer sleeps on this word.
    pub(super) consumer_sleeps: AtomicU32,
    /// Numbers the takings of slots.
    pub(super) takings: AtomicU64,
    /// Accesses that found no slot.
    pub(super) lost: AtomicU64,
}

/// One clock for all processes, and how far they are by it.
#[repr(C)]
pub(super) struct Sampled {
    /// Instructions of all threads, as far as they were told.
    pub(super) clock: AtomicU64,
    /// Edges of the schedule that were passed.
    pub(super) passed: AtomicU64,
    /// Live processes.
    pub(super) processes: AtomicU32,
    /// Of a `strata_stream::Sampling`: interval, window, warm, whole, adaptive, seed. An interval of 0: not sampled.
    pub(super) lengths: [AtomicU64; 6],
    /// Intervals as the consumer has placed them, by number, each of number + 1, start, length, gap and warm: of
    /// no more than three at a time anybody asks.
    pub(super) placed: [[AtomicU64; 5]; PLACED],
}

/// Intervals that are remembered as they were placed.
pub(super) const PLACED: usize = 8;

/// What is counted of all processes when nothing else is seen of them.
#[repr(C)]
pub(super) struct Counted {
    /// Instructions of an interval; 0: nothing is counted.
    pub(super) interval: AtomicU64,
    /// Intervals that are over.
    pub(super) over: AtomicU64,
    /// Instructions since, by bucket of their blocks, as far as they were told.
    pub(super) blocks: [AtomicU64; BUCKETS],
}

#[repr(C)]
pub(super) struct FreeList {
    /// Head of the free stack: a count of changes in the upper half, which defeats ABA, index + 1
    /// in the lower.
    pub(super) head: AtomicU64,
    /// Slots in the free stack, roughly: a slot is counted a little after it is pushed.
    pub(super) length: AtomicU32,
    /// Not 0 while a producer may sleep on `event`.
    pub(super) producers_sleep: AtomicU32,
    /// Changes when slots come free.
    pub(super) event: AtomicU32,
}
