//! Changes to address spaces, processes and threads.

use serde::{Deserialize, Serialize};
use strata_addr::{Range, space::Virtual};

/// A process: one address space. Small numbers, unique in a stream, never reused; not the
/// numbers the kernel gave.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Pid(pub u32);

/// A thread. Small numbers, unique in a stream over all processes, never reused.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Tid(pub u32);

/// What a mapping holds; decides whether it may be made of huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Private anonymous memory by `mmap`.
    Anonymous,
    /// The heap that `brk` moves.
    Heap,
    /// A thread's or the process's stack, grown by the kernel.
    Stack,
    /// Anonymous memory shared between processes (shmem).
    SharedAnonymous,
    /// A file, private or shared.
    File,
}

impl Backing {
    /// Whether Linux counts it as anonymous memory for transparent huge pages.
    pub const fn is_private_anonymous(self) -> bool {
        matches!(self, Self::Anonymous | Self::Heap | Self::Stack)
    }
}

/// Access rights of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protection {
    /// Loads allowed.
    pub read: bool,
    /// Stores allowed.
    pub write: bool,
    /// Instruction fetches allowed.
    pub execute: bool,
}

impl Protection {
    /// Loads and stores.
    pub const READ_WRITE: Self = Self { read: true, write: true, execute: false };
    /// Nothing: a reserved range.
    pub const NONE: Self = Self { read: false, write: false, execute: false };

    /// From the `PROT_*` bits of `mmap(2)`.
    pub const fn from_bits(bits: u32) -> Self {
        Self { read: bits & 1 != 0, write: bits & 2 != 0, execute: bits & 4 != 0 }
    }

    /// The `PROT_*` bits of `mmap(2)`.
    pub const fn bits(self) -> u32 {
        self.read as u32 | (self.write as u32) << 1 | (self.execute as u32) << 2
    }
}

/// The advice of `madvise(2)` that matters to memory placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// `MADV_HUGEPAGE`.
    HugePage,
    /// `MADV_NOHUGEPAGE`.
    NoHugePage,
    /// `MADV_DONTNEED` (and `MADV_REMOVE`): contents dropped now.
    DontNeed,
    /// `MADV_FREE`: contents may be dropped.
    Free,
    /// `MADV_POPULATE_READ`, `MADV_POPULATE_WRITE`, `MAP_POPULATE`: fault the range in.
    Populate,
    /// `MADV_COLLAPSE`: collapse into huge pages now.
    Collapse,
}

/// One end of something: of the part of a program that matters, so that it can be counted alone, or of
/// a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// It begins.
    Begin,
    /// It has ended.
    End,
}

/// What a system call had to do with devices or other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// A device was asked for something, and the thread went on.
    Request,
    /// A device was asked for something, and the thread waited until that was done.
    AwaitedRequest,
    /// The thread waited for something else: time, another thread, another process, a connection.
    Wait,
    /// Threads that waited were woken.
    Wake,
}

/// Where a sampled stream goes from one part to the next. A stream without any is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edge {
    /// An interval begins, and a gap: no access of what follows is in the stream. What was counted in
    /// the interval before stands for all of that one.
    Interval,
    /// The gap is over: accesses follow that only warm up what they meet.
    Warm,
    /// Accesses follow that count, and stand for those of the whole interval.
    Window,
    /// The window is over, and a gap begins.
    Gap,
}

/// An array of the CPU that a window of a sampled stream finds as it was before a gap, and that warms up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Array {
    /// The first-level data TLB.
    L1Tlb,
    /// The second-level TLB.
    L2Tlb,
    /// The second-level cache, and the first-level data cache with it.
    L2Cache,
    /// The last-level cache.
    LastLevelCache,
}

impl Array {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::L1Tlb, Self::L2Tlb, Self::L2Cache, Self::LastLevelCache];

    /// What it is called in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Self::L1Tlb => "L1 TLB",
            Self::L2Tlb => "L2 TLB",
            Self::L2Cache => "L2 cache",
            Self::LastLevelCache => "last-level cache",
        }
    }
}

/// One change. Ranges are page-aligned and non-empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process with an empty address space begins; its first thread follows as `ThreadStart`.
    ProcessStart {
        /// The new process.
        pid: Pid,
    },
    /// `fork`: `child` begins as a copy-on-write copy of `parent`; its thread follows.
    Fork {
        /// The process copied.
        parent: Pid,
        /// The new process.
        child: Pid,
    },
    /// `execve`: the address space becomes empty, threads other than the caller are gone. The
    /// new image's mappings follow.
    Exec {
        /// The process.
        pid: Pid,
    },
    /// The process is gone, with its threads and its memory.
    ProcessExit {
        /// The process.
        pid: Pid,
    },
    /// A thread begins.
    ThreadStart {
        /// Its process.
        pid: Pid,
        /// The new thread.
        tid: Tid,
    },
    /// A thread ends.
    ThreadExit {
        /// The thread.
        tid: Tid,
    },
    /// The range is mapped, replacing whatever was there (as `MAP_FIXED` does). A heap that
    /// grows by `brk` is a `Map` of the new part.
    Map {
        /// The process.
        pid: Pid,
        /// Where.
        range: Range<Virtual>,
        /// What.
        backing: Backing,
        /// Rights.
        protection: Protection,
        /// The program asked for this very address, so the kernel had no choice.
        fixed: bool,
    },
    /// The range is unmapped; parts that were not mapped are ignored.
    Unmap {
        /// The process.
        pid: Pid,
        /// Where.
        range: Range<Virtual>,
    },
    /// `mremap` with a move: pages of `from` are now at `to`. When `to` is longer the rest is
    /// new, when shorter the rest is unmapped. Growth in place is a `Map` of the new part.
    Remap {
        /// The process.
        pid: Pid,
        /// The old place.
        from: Range<Virtual>,
        /// The new place.
        to: Range<Virtual>,
    },
    /// `mprotect`.
    Protect {
        /// The process.
        pid: Pid,
        /// Where.
        range: Range<Virtual>,
        /// The new rights.
        protection: Protection,
    },
    /// `madvise`.
    Advise {
        /// The process.
        pid: Pid,
        /// Where.
        range: Range<Virtual>,
        /// The advice.
        advice: Advice,
    },
    /// The program gave a mark. Changes nothing.
    Mark(Mark),
    /// A sampled stream goes from one part to the next.
    Sampling(Edge),
    /// In a stream that is sampled by phases: what is known of a phase from an earlier run. The next window is
    /// of the phase that was told of last. All phases are told of before the first window.
    Phase {
        /// The phase.
        phase: u32,
        /// Its intervals, of which windows were drawn.
        intervals: u64,
        /// Its instructions.
        instructions: u64,
    },
    /// What trials show so far of an array in windows of a sampled stream: how many instructions after a gap it
    /// is warm enough for its misses to count, and by how much they are off even so.
    Warmed {
        /// The array.
        array: Array,
        /// Instructions from the end of a gap.
        after: u64,
        /// Misses that may be too many, in millionths of them.
        over: u64,
        /// Misses that may be too few, in millionths of them.
        under: u64,
        /// Misses in all that may have been taken for hits, as a page has all its lines in caches after a gap in which
        /// it was touched first, or begun before.
        guessed: u64,
    },
    /// In a gap of a sampled stream a thread retired instructions whose accesses are not in the stream.
    Skipped {
        /// The thread.
        tid: Tid,
        /// Instructions retired.
        instructions: u64,
    },
    /// In a gap of a sampled stream a process touched these pages first; or stored first to what it had only
    /// read before, or to what a `fork` had left to it, so that it was copied where others had it still. What was read
    /// and then stored to is told as both. Told in the order of addresses, which need not be that of the touches,
    /// where the gap ends or, before that, where something happens to the pages. Pages that a `fork` left to two
    /// processes have been touched, by both.
    Touched {
        /// The process.
        pid: Pid,
        /// The pages.
        range: Range<Virtual>,
        /// Whether each was stored to.
        store: bool,
    },
    /// A gap of a sampled stream begins, and a process touched these pages first before it, after the last one. What
    /// it does with them in the gap is not seen: mostly it goes on to use all of each.
    Begun {
        /// The process.
        pid: Pid,
        /// The pages.
        range: Range<Virtual>,
    },
    /// Instructions in these pages are about to be executed, of which none was since the pages were mapped.
    Fetched {
        /// The process.
        pid: Pid,
        /// The pages.
        range: Range<Virtual>,
    },
    /// A system call of a thread has returned that had to do with devices or other threads. Changes nothing.
    Called {
        /// The thread.
        tid: Tid,
        /// What it was about.
        call: Call,
    },
    /// A thread begins to serve a request, or has served it. Changes nothing. A thread serves one at a
    /// time: a beginning within a request drops that one, an end outside of any means nothing.
    Request {
        /// The thread.
        tid: Tid,
        /// Which end of the request.
        mark: Mark,
    },
}
