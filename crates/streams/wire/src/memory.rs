//! The shared memory: a header, then slots. One of the crate's rooms for `unsafe`.

use crate::slot::{COMMITTED, Cut, FILLING, FREE, Owner, Slot, SlotIndex};
use crate::{ProcessId, futex};
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use std::time::{Duration, Instant};
use strata_phases::BUCKETS;
use strata_stream::{Pid, Placed, Sampling, Tid};

/// Slots in the wire; memory is used only for those ever taken. Bounds the live threads of all
/// traced processes together, with a good margin.
const SLOTS: u32 = 8192;
/// Slots in circulation beyond one for each thread: 2 MiB of backlog, which stays in a cache.
const BACKLOG: u32 = 64;
/// Committed slots at which a sleeping consumer is woken; fewer wait for its next look.
const WAKE_AT: u32 = 8;
/// What the consumer wants of the producers (`Header::wanted`): the stream; nothing, so that they run
/// on unobserved; their end.
const STREAM: u32 = 0;
const NOTHING: u32 = 1;
const END: u32 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"strata\0\x03");

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    consumer_started: AtomicU64,
    consumer: AtomicU32,
    wanted: AtomicU32,
    next_pid: AtomicU32,
    next_tid: AtomicU32,
    producers: Line<Producers>,
    free: Line<FreeList>,
    sampled: Line<Sampled>,
    counted: Line<Counted>,
}

/// Keeps what different sides write on different cache lines.
#[repr(C, align(64))]
struct Line<T>(T);

#[repr(C)]
struct Producers {
    /// Head of the committed stack: number of slots in it in the upper half, index + 1 of the
    /// newest in the lower.
    committed: AtomicU64,
    /// Slots never used yet begin here.
    fresh: AtomicU32,
    /// Not 0 while the consumer sleeps on this word.
    consumer_sleeps: AtomicU32,
    /// Numbers the takings of slots.
    takings: AtomicU64,
    /// Accesses that found no slot.
    lost: AtomicU64,
}

/// One clock for all processes, and how far they are by it.
#[repr(C)]
struct Sampled {
    /// Instructions of all threads, as far as they were told.
    clock: AtomicU64,
    /// Edges of the schedule that were passed.
    passed: AtomicU64,
    /// Live processes.
    processes: AtomicU32,
    /// Of [`Sampling`]: interval, window, warm, whole, adaptive, seed. An interval of 0: not sampled.
    lengths: [AtomicU64; 6],
    /// Intervals as the consumer has placed them, by number, each of number + 1, start, length, gap and warm: of
    /// no more than three at a time anybody asks.
    placed: [[AtomicU64; 5]; PLACED],
}

/// Intervals that are remembered as they were placed.
const PLACED: usize = 8;

/// What is counted of all processes when nothing else is seen of them.
#[repr(C)]
struct Counted {
    /// Instructions of an interval; 0: nothing is counted.
    interval: AtomicU64,
    /// Intervals that are over.
    over: AtomicU64,
    /// Instructions since, by bucket of their blocks, as far as they were told.
    blocks: [AtomicU64; BUCKETS],
}

#[repr(C)]
struct FreeList {
    /// Head of the free stack: a count of changes in the upper half, which defeats ABA, index + 1
    /// in the lower.
    head: AtomicU64,
    /// Slots in the free stack, roughly: a slot is counted a little after it is pushed.
    length: AtomicU32,
    /// Not 0 while a producer may sleep on `event`.
    producers_sleep: AtomicU32,
    /// Changes when slots come free.
    event: AtomicU32,
}

/// The shared memory of one capture, as mapped by one process.
#[derive(Debug)]
pub struct Wire {
    base: NonNull<u8>,
}

// SAFETY: everything reached through `base` is atomic or guarded as `Slot` says.
unsafe impl Send for Wire {}
// SAFETY: as above.
unsafe impl Sync for Wire {}

const SLOTS_AT: usize = 4 * 4096;
const BYTES: usize = SLOTS_AT + SLOTS as usize * size_of::<Slot>();
const _: () = assert!(size_of::<Header>() <= SLOTS_AT);

impl Wire {
    /// A new wire, consumed by the calling process. Producers open the file by way of this
    /// process's `/proc/PID/fd`; it has no name of its own, so nothing stays behind, and the size
    /// of `/dev/shm` does not matter.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn create() -> io::Result<(Self, File)> {
        // SAFETY: a new descriptor, owned by no one else.
        let file = unsafe {
            let descriptor = libc::memfd_create(c"strata-wire".as_ptr(), libc::MFD_CLOEXEC);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(descriptor)
        };
        file.set_len(BYTES as u64)?;
        let wire = Self::map(&file)?;
        let header = wire.header();
        let own = ProcessId::own();
        header.consumer.store(own.number, Relaxed);
        header.consumer_started.store(own.started, Relaxed);
        header.producers.0.fresh.store(BACKLOG, Relaxed);
        (0..BACKLOG).rev().for_each(|index| wire.push_free(index));
        header.magic.store(MAGIC, Release);
        Ok((wire, file))
    }

    /// Maps the wire in `file`. The mapping stays when the file is closed.
    ///
    /// # Errors
    /// When the file cannot be mapped or is not a wire of this version.
    pub fn open(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() != BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a wire of this version"));
        }
        let wire = Self::map(file)?;
        if wire.header().magic.load(Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a wire of this version"));
        }
        Ok(wire)
    }

    fn map(file: &File) -> io::Result<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address the kernel picks disturbs nothing.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), BYTES, prot, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).map(|base| Self { base }).ok_or_else(io::Error::last_os_error)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header and lives as long as `self`.
        unsafe { self.base.cast().as_ref() }
    }

    /// The slot at this position.
    ///
    /// # Panics
    /// When there is none.
    pub fn slot(&self, index: SlotIndex) -> &Slot {
        assert!(index < SLOTS);
        // SAFETY: in the mapping, as `index` is in range.
        unsafe { self.base.add(SLOTS_AT).cast::<Slot>().add(index as usize).as_ref() }
    }

    /// The position of a slot of this wire; `None` for a detached one.
    pub fn index(&self, slot: &Slot) -> Option<SlotIndex> {
        let offset = (std::ptr::from_ref(slot) as usize)
            .checked_sub(self.base.as_ptr() as usize + SLOTS_AT)?;
        (offset < BYTES - SLOTS_AT).then_some((offset / size_of::<Slot>()) as SlotIndex)
    }

    /// A number for a new process.
    pub fn new_pid(&self) -> Pid {
        Pid(self.header().next_pid.fetch_add(1, Relaxed))
    }

    /// A number for a new thread.
    pub fn new_tid(&self) -> Tid {
        Tid(self.header().next_tid.fetch_add(1, Relaxed))
    }

    // ---- producers ----

    /// A slot for a thread that has none yet. Adds to the slots in circulation, so that threads
    /// which hold partly filled slots never starve the others.
    pub fn take_first(&self, owner: Owner) -> Option<&Slot> {
        let free = &self.header().free.0;
        let fresh = &self.header().producers.0.fresh;
        if free.length.load(Relaxed) <= BACKLOG
            && let Ok(index) =
                fresh.fetch_update(Relaxed, Relaxed, |next| (next < SLOTS).then_some(next + 1))
        {
            return Some(self.label(index, owner));
        }
        self.take(owner)
    }

    /// A free slot, waiting for one as long as the consumer lives. `None` when the consumer has
    /// gone, detached or closed the wire, or when live threads hold every slot there is.
    pub fn take(&self, owner: Owner) -> Option<&Slot> {
        let free = &self.header().free.0;
        let mut waited = Duration::ZERO;
        loop {
            let seen = free.event.load(Acquire);
            if let Some(index) = self.pop_free() {
                return Some(self.label(index, owner));
            }
            free.producers_sleep.store(1, SeqCst);
            fence(SeqCst);
            if let Some(index) = self.pop_free() {
                return Some(self.label(index, owner));
            }
            if self.wanted() != STREAM {
                return None;
            }
            let start = Instant::now();
            self.wake_consumer();
            futex::wait(&free.event, seen, Duration::from_millis(50));
            let slept = start.elapsed();
            waited += slept;
            if slept >= Duration::from_millis(50) {
                let stuck = self.header().producers.0.fresh.load(Relaxed) >= SLOTS
                    && self.header().producers.0.committed.load(Relaxed) as u32 == 0
                    && waited > Duration::from_secs(5);
                if stuck || !self.consumer_runs() {
                    return None;
                }
            }
        }
    }

    /// A free slot, if there is one at once.
    pub fn try_take(&self, owner: Owner) -> Option<&Slot> {
        self.pop_free().map(|index| self.label(index, owner))
    }

    fn label(&self, index: SlotIndex, owner: Owner) -> &Slot {
        let slot = self.slot(index);
        slot.pid.store(owner.pid.0, Relaxed);
        slot.tid.store(owner.tid.0, Relaxed);
        slot.image.store(owner.image, Relaxed);
        slot.in_gap.store(owner.in_gap.into(), Relaxed);
        slot.accesses.store(0, Relaxed);
        slot.message_words.store(0, Relaxed);
        slot.instructions.store(0, Relaxed);
        slot.taking.store(self.header().producers.0.takings.fetch_add(1, Relaxed) + 1, Relaxed);
        slot.state.store(FILLING, Release);
        slot
    }

    /// Hands a slot over. `false` when another thread did so before (at the end of a process).
    pub fn commit(&self, slot: &Slot) -> bool {
        if slot.state.compare_exchange(FILLING, COMMITTED, AcqRel, Relaxed).is_err() {
            return false;
        }
        let Some(index) = self.index(slot) else { return false };
        let committed = &self.header().producers.0.committed;
        let mut head = committed.load(Relaxed);
        loop {
            slot.link.store(head as u32, Relaxed);
            let next = ((head >> 32) + 1) << 32 | u64::from(index + 1);
            match committed.compare_exchange_weak(head, next, SeqCst, Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if (head >> 32) as u32 + 1 >= WAKE_AT {
            self.wake_consumer();
        }
        true
    }

    /// Makes a sleeping consumer look now instead of at its next timeout.
    pub fn wake_consumer(&self) {
        let sleeps = &self.header().producers.0.consumer_sleeps;
        if sleeps.load(SeqCst) != 0 && sleeps.swap(0, SeqCst) != 0 {
            futex::wake(sleeps);
        }
    }

    /// Counts accesses that had to be dropped.
    pub fn count_lost(&self, accesses: u64) {
        self.header().producers.0.lost.fetch_add(accesses, Relaxed);
    }

    fn wanted(&self) -> u32 {
        self.header().wanted.load(Acquire)
    }

    /// Whether the consumer closed the wire: no one will read on, end.
    pub fn is_closed(&self) -> bool {
        self.wanted() == END
    }

    /// Whether the consumer detached: no one will read on, but the programs are to go on.
    #[inline]
    pub fn is_detached(&self) -> bool {
        self.wanted() == NOTHING
    }

    /// Whether the consumer's process still runs.
    pub fn consumer_runs(&self) -> bool {
        let header = self.header();
        let id = ProcessId {
            number: header.consumer.load(Relaxed),
            started: header.consumer_started.load(Relaxed),
        };
        id.is_running()
    }

    // ---- sampling ----

    /// The producers are to sample. Before any of them starts.
    pub fn sample(&self, sampling: &Sampling) {
        let Sampling { interval, window, warm, whole, adaptive, seed } = *sampling;
        let lengths = [interval, window, warm, whole, adaptive.into(), seed];
        let known = &self.header().sampled.0.lengths;
        known.iter().zip(lengths).for_each(|(known, length)| known.store(length, Relaxed));
    }

    /// How the producers are to sample, if they are.
    pub fn sampling(&self) -> Option<Sampling> {
        let lengths = &self.header().sampled.0.lengths;
        let [interval, window, warm, whole, adaptive, seed] =
            [0, 1, 2, 3, 4, 5].map(|at| lengths[at].load(Relaxed));
        let adaptive = adaptive != 0;
        (interval > 0).then_some(Sampling { interval, window, warm, whole, adaptive, seed })
    }

    /// An interval is placed.
    pub fn place(&self, placed: Placed) {
        let [tag, start, length, gap, warm] =
            &self.header().sampled.0.placed[placed.number as usize % PLACED];
        start.store(placed.start, Relaxed);
        length.store(placed.length, Relaxed);
        gap.store(placed.gap, Relaxed);
        warm.store(placed.warm, Relaxed);
        tag.store(placed.number + 1, Release);
    }

    /// The interval of this number as it was placed, if it was, and not long ago.
    pub fn placed(&self, number: u64) -> Option<Placed> {
        let [tag, start, length, gap, warm] =
            &self.header().sampled.0.placed[number as usize % PLACED];
        (tag.load(Acquire) == number + 1).then(|| Placed {
            number,
            start: start.load(Relaxed),
            length: length.load(Relaxed),
            gap: gap.load(Relaxed),
            warm: warm.load(Relaxed),
        })
    }

    /// The same, waiting for it as long as somebody is there who places intervals.
    pub fn await_placed(&self, number: u64) -> Option<Placed> {
        let begun = Instant::now();
        loop {
            if let Some(placed) = self.placed(number) {
                return Some(placed);
            }
            if self.wanted() != STREAM
                || begun.elapsed() > Duration::from_millis(50) && !self.consumer_runs()
            {
                return None;
            }
            self.wake_consumer();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Adds instructions to the clock of all processes, and reads it.
    pub fn advance(&self, instructions: u64) -> u64 {
        self.header().sampled.0.clock.fetch_add(instructions, Relaxed) + instructions
    }

    /// How many edges of the schedule were passed.
    #[inline]
    pub fn edges_passed(&self) -> u64 {
        self.header().sampled.0.passed.load(Acquire)
    }

    /// Passes the edge after `passed`; `false` when another thread did so before.
    pub fn pass_edge(&self, passed: u64) -> bool {
        let edges = &self.header().sampled.0.passed;
        edges.compare_exchange(passed, passed + 1, AcqRel, Relaxed).is_ok()
    }

    /// A process begins.
    pub fn begin_process(&self) {
        self.header().sampled.0.processes.fetch_add(1, Relaxed);
    }

    /// Whether there was never a second process, so that the clock is that of one.
    pub fn is_lone(&self) -> bool {
        self.header().sampled.0.processes.load(Relaxed) <= 1
    }

    // ---- counting ----

    /// The producers are to count blocks in intervals of so many instructions, and to tell of nothing else that
    /// happens in them. Before any of them starts.
    pub fn count(&self, interval: u64) {
        self.header().counted.0.interval.store(interval, Relaxed);
    }

    /// Instructions of the intervals in which blocks are counted, if they are.
    pub fn counting(&self) -> Option<u64> {
        let interval = self.header().counted.0.interval.load(Relaxed);
        (interval > 0).then_some(interval)
    }

    /// Adds instructions to a bucket of blocks.
    pub fn add_block(&self, bucket: usize, instructions: u64) {
        self.header().counted.0.blocks[bucket % BUCKETS].fetch_add(instructions, Relaxed);
    }

    /// Instructions after which the present interval is over.
    pub fn interval_end(&self) -> u64 {
        let Counted { interval, over, .. } = &self.header().counted.0;
        (over.load(Acquire) + 1).saturating_mul(interval.load(Relaxed))
    }

    /// Ends the intervals that are over where the clock shows `clock`, and gives how many; 0 when another
    /// thread did so before.
    pub fn end_intervals(&self, clock: u64) -> u64 {
        let Counted { interval, over, .. } = &self.header().counted.0;
        let now = clock / interval.load(Relaxed).max(1);
        now.saturating_sub(over.fetch_max(now, AcqRel))
    }

    /// Takes what was counted: buckets that are not empty, each with its instructions.
    pub fn take_blocks(&self) -> Vec<(usize, u64)> {
        let blocks = self.header().counted.0.blocks.iter().enumerate();
        blocks
            .filter(|(_, count)| count.load(Relaxed) > 0)
            .map(|(bucket, count)| (bucket, count.swap(0, Relaxed)))
            .collect()
    }

    // ---- the consumer ----

    /// Everything committed since the last call, oldest first, appended to `out`.
    pub fn drain(&self, out: &mut Drain) {
        let head = self.header().producers.0.committed.swap(0, SeqCst);
        let first = out.0.len();
        let mut link = head as u32;
        while link != 0 {
            out.0.push_back(link - 1);
            link = self.slot(link - 1).link.load(Relaxed);
        }
        out.0.make_contiguous()[first..].reverse();
    }

    /// Sleeps until several slots are committed, a producer waits, or `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let producers = &self.header().producers.0;
        producers.consumer_sleeps.store(1, SeqCst);
        fence(SeqCst);
        let depth = (producers.committed.load(SeqCst) >> 32) as u32;
        let wanted = self.header().free.0.producers_sleep.load(SeqCst) != 0;
        if depth >= WAKE_AT || depth > 0 && wanted {
            producers.consumer_sleeps.store(0, SeqCst);
            return;
        }
        futex::wait(&producers.consumer_sleeps, 1, timeout);
        producers.consumer_sleeps.store(0, SeqCst);
    }

    /// Gives a slot back to the producers.
    pub fn release(&self, index: SlotIndex) {
        self.slot(index).state.store(FREE, Release);
        self.push_free(index);
        let free = &self.header().free.0;
        fence(SeqCst);
        if free.producers_sleep.load(Relaxed) != 0 && free.producers_sleep.swap(0, SeqCst) != 0 {
            free.event.fetch_add(1, SeqCst);
            futex::wake(&free.event);
        }
    }

    /// Slots that are owned by threads `ended` holds for. When their process has ended and
    /// everything committed was released, these hold what it had not handed over yet.
    pub fn orphans(&self, ended: impl Fn(Owner) -> bool) -> Vec<SlotIndex> {
        let used = self.header().producers.0.fresh.load(Acquire).min(SLOTS);
        let mut found: Vec<_> = (0..used)
            .filter(|&index| {
                let slot = self.slot(index);
                slot.state.load(Acquire) != FREE && ended(slot.owner())
            })
            .collect();
        found.sort_by_key(|&index| self.slot(index).taking());
        found
    }

    /// Whether a cut still tells of the present use of its slot.
    pub fn is_current(&self, cut: &Cut) -> bool {
        cut.slot < SLOTS && {
            let slot = self.slot(cut.slot);
            slot.state.load(Acquire) != FREE && slot.taking() == cut.taking
        }
    }

    /// Accesses that producers had to drop.
    pub fn lost(&self) -> u64 {
        self.header().producers.0.lost.load(Relaxed)
    }

    /// Tells all producers to end.
    pub fn close(&self) {
        self.want(END);
    }

    /// Tells all producers to go on unobserved.
    pub fn detach(&self) {
        self.want(NOTHING);
    }

    fn want(&self, what: u32) {
        let free = &self.header().free.0;
        self.header().wanted.store(what, SeqCst);
        free.event.fetch_add(1, SeqCst);
        futex::wake(&free.event);
    }

    // ---- the free stack ----

    fn push_free(&self, index: SlotIndex) {
        let free = &self.header().free.0;
        let mut head = free.head.load(Relaxed);
        loop {
            self.slot(index).link.store(head as u32, Relaxed);
            let next = ((head >> 32) + 1) << 32 | u64::from(index + 1);
            match free.head.compare_exchange_weak(head, next, SeqCst, Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        free.length.fetch_add(1, Relaxed);
    }

    fn pop_free(&self) -> Option<SlotIndex> {
        let free = &self.header().free.0;
        let mut head = free.head.load(Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            // May be stale when another producer pops first; then the exchange fails.
            let link = self.slot(index).link.load(Relaxed);
            let next = ((head >> 32) + 1) << 32 | u64::from(link);
            match free.head.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => {
                    free.length.fetch_sub(1, Relaxed);
                    return Some(index);
                }
                Err(now) => head = now,
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; slots borrow `self`, so none is in use.
        unsafe { libc::munmap(self.base.as_ptr().cast(), BYTES) };
    }
}

/// Committed slots in the order of their hand-over.
#[derive(Debug, Default)]
pub struct Drain(std::collections::VecDeque<SlotIndex>);

impl Drain {
    /// The next slot.
    pub fn pop(&mut self) -> Option<SlotIndex> {
        self.0.pop_front()
    }

    /// Those that are in line, the next one first.
    pub fn slots(&self) -> impl Iterator<Item = SlotIndex> {
        self.0.iter().copied()
    }

    /// Whether this slot is still in line.
    pub fn contains(&self, index: SlotIndex) -> bool {
        self.0.contains(&index)
    }

    /// Whether all slots drained were taken out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
