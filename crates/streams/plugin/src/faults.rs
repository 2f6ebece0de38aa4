//! Page faults of the process in gaps, as the kernel tells of them. One of the crate's rooms for `unsafe`.
//!
//! Page tables do not show in which way a page came to be what it is: that it was read before it was stored to, or
//! that it was stored to after a `fork` left it to nobody else. Both are page faults, and the kernel's software event of
//! minor ones (perf_event_open(2)) gives the address of each. Every thread has a ring of its own that the kernel fills
//! with them; the address space holds it, not a file descriptor, which the program could close. Those that the kernel
//! takes for the program in a system call are left out, so that the same is seen with few rights as with many.

use perf_event_open_sys::{bindings as perf, perf_event_open};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use strata_addr::{Range, space::Virtual};
use strata_stream::Faults;

const PAGE: usize = 4096;
/// Pages of a ring, of which the kernel wants a power of two: for 16,384 page faults, or what a process may
/// lock in memory.
const PAGES: [usize; 3] = [64, 16, 4];

/// Bytes of the record of a page fault.
const RECORD: u64 = 16;

thread_local! {
    /// Whether the page faults of this thread are watched, as far as they can be.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// The page faults of a process.
#[derive(Debug)]
pub struct Watch {
    /// Replaced in the child of a fork, of which no thread but one has come along: another may have had the lock.
    seen: AtomicPtr<Mutex<Seen>>,
}

/// What was seen of a gap.
#[derive(Debug, Default)]
struct Seen {
    /// With the thread that fills each.
    rings: Vec<(u32, Ring)>,
    /// Page faults by page.
    pages: BTreeMap<u64, Faults>,
    /// More came than a ring holds.
    is_full: bool,
    /// Why a thread is not watched.
    error: Option<io::Error>,
}

impl Default for Watch {
    fn default() -> Self {
        Self { seen: AtomicPtr::new(Self::empty()) }
    }
}

impl Watch {
    fn empty() -> *mut Mutex<Seen> {
        Box::into_raw(Box::default())
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // SAFETY: what is pointed to was leaked and is never freed.
        let seen = unsafe { &*self.seen.load(Acquire) };
        seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the calling thread from now on.
    pub fn thread(&self, vcpu: u32) {
        if IS_WATCHED.replace(true) {
            return;
        }
        match Ring::open() {
            Ok(ring) => self.seen().rings.push((vcpu, ring)),
            Err(error) => self.seen().error = Some(error),
        }
    }

    /// A thread ends.
    pub fn thread_ends(&self, vcpu: u32) {
        let mut seen = self.seen();
        seen.drain();
        seen.rings.retain(|(of, _)| *of != vcpu);
    }

    /// In the child of a fork, which has none of the rings.
    pub fn fork(&self, vcpu: u32) {
        self.seen.store(Self::empty(), Release);
        IS_WATCHED.set(false);
        self.thread(vcpu);
    }

    /// A gap begins: what was before it is of no interest.
    pub fn begin(&self) {
        let mut seen = self.seen();
        seen.drain();
        seen.pages.clear();
        seen.is_full = false;
    }

    /// Page faults since the gap began or this was last asked, by page.
    ///
    /// # Errors
    /// With what a reader must know, if not all have been seen.
    pub fn take(&self) -> Result<BTreeMap<u64, Faults>, String> {
        let mut seen = self.seen();
        seen.drain();
        let taken = std::mem::take(&mut seen.pages);
        if let Some(error) = &seen.error {
            let remedy = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => {
                    "; root may watch them, and with kernel.perf_event_paranoid at 2 or below everyone"
                }
                _ => "",
            };
            return Err(format!(
                "page faults between windows could not be watched ({error}{remedy}): of pages that are read and \
                 then stored to there, and of pages that a fork left to a process alone, page faults are missing"
            ));
        }
        match seen.is_full {
            false => Ok(taken),
            true => Err("between some windows came more page faults than could be watched: of pages that are \
                         read and then stored to there, and of pages that a fork left to a process alone, page faults \
                         are missing"
                .to_owned()),
        }
    }

    /// Page faults in this range were not the program's.
    pub fn forget(&self, range: Range<Virtual>) {
        let mut seen = self.seen();
        seen.drain();
        let pages = range.start.get() / PAGE as u64..range.end.get().div_ceil(PAGE as u64);
        seen.pages.retain(|page, _| !pages.contains(page));
    }
}

impl Seen {
    fn drain(&mut self) {
        let Self { rings, pages, is_full, .. } = self;
        for (_, ring) in rings {
            *is_full |= ring.drain(|address| {
                pages
                    .entry(address / PAGE as u64)
                    .and_modify(|faults| *faults = Faults::More)
                    .or_insert(Faults::One);
            });
        }
    }
}

/// What the kernel writes about one thread: a page that says how far, and pages for what it writes.
#[derive(Debug)]
struct Ring {
    head: *mut perf::perf_event_mmap_page,
    pages: usize,
}

// SAFETY: the memory is the process's, and the kernel does not ask which thread reads it.
unsafe impl Send for Ring {}

impl Ring {
    /// For the calling thread.
    fn open() -> io::Result<Self> {
        let mut event = perf::perf_event_attr::default();
        event.type_ = perf::PERF_TYPE_SOFTWARE;
        event.size = size_of::<perf::perf_event_attr>() as u32;
        event.config = u64::from(perf::PERF_COUNT_SW_PAGE_FAULTS_MIN);
        event.sample_type = u64::from(perf::PERF_SAMPLE_ADDR);
        event.__bindgen_anon_1.sample_period = 1;
        event.set_exclude_kernel(1);
        event.set_exclude_hv(1);
        let flags = u64::from(perf::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: the kernel reads `event`, which says how long it is.
        let file = unsafe { perf_event_open(&mut event, 0, -1, -1, flags) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is new, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let map = |pages: usize| {
            let (bytes, protection) = ((pages + 1) * PAGE, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: a new mapping, at a place that the kernel chooses.
            let head = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    bytes,
                    protection,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    0,
                )
            };
            (head != libc::MAP_FAILED).then(|| Self { head: head.cast(), pages })
        };
        PAGES.into_iter().find_map(map).ok_or_else(io::Error::last_os_error)
    }

    /// Gives the address of each page fault since it was last called, and whether there were more.
    fn drain(&mut self, mut fault: impl FnMut(u64)) -> bool {
        // SAFETY: the mapping lives as long as `self`; the kernel writes the one and reads the other whole.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*self.head).data_head),
                AtomicU64::from_ptr(&raw mut (*self.head).data_tail),
            )
        };
        let words = (self.pages * PAGE / 8) as u64;
        let word = |at: u64| {
            let offset = PAGE + (at / 8 % words) as usize * 8;
            // SAFETY: inside the mapping. The kernel does not write between `tail` and `head`.
            unsafe { self.head.byte_add(offset).cast::<u64>().read_volatile() }
        };
        let (end, mut at) = (head.load(Acquire), tail.load(Relaxed));
        // One that is full may have lost something, which the kernel tells when it finds room again. It is never
        // filled to the last byte.
        let mut lost = end - at + 2 * RECORD > words * 8;
        while at < end {
            // Type, flags and length of a record (`struct perf_event_header`).
            let header = word(at);
            match header as u32 {
                perf::PERF_RECORD_SAMPLE => fault(word(at + 8)),
                perf::PERF_RECORD_LOST => lost = true,
                _ => {}
            }
            at += (header >> 48).max(8);
        }
        tail.store(end, Release);
        lost
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and used by nobody from now on.
        unsafe { libc::munmap(self.head.cast(), (self.pages + 1) * PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use strata_addr::Gva;

    /// More pages than a ring has room for page faults.
    const MANY: usize = 40_000;

    /// Memory that nobody has touched.
    fn memory(pages: usize) -> *mut u8 {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of its own.
        let memory = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(memory, pages * PAGE, libc::MADV_NOHUGEPAGE) };
        memory.cast()
    }

    fn read(memory: *mut u8, page: usize) {
        // SAFETY: inside the mapping.
        black_box(unsafe { memory.add(page * PAGE).read_volatile() });
    }

    fn store(memory: *mut u8, page: usize) {
        // SAFETY: inside the mapping.
        unsafe { memory.add(page * PAGE).write_volatile(1) };
    }

    /// Watches the thread, unless this machine does not let it.
    fn watch() -> Option<Watch> {
        let watch = Watch::default();
        watch.thread(0);
        match watch.take() {
            Ok(_) => Some(watch),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    /// Those in the memory, by its pages.
    fn numbers(
        memory: *mut u8,
        taken: Result<BTreeMap<u64, Faults>, String>,
    ) -> Vec<(u64, Faults)> {
        let first = (memory as usize / PAGE) as u64;
        let taken = taken.expect("all are seen");
        let its = taken.range(first..first + MANY as u64);
        its.map(|(page, faults)| (page - first, *faults)).collect()
    }

    #[test]
    fn what_is_read_and_then_stored_to_faults_twice() {
        let Some(watch) = watch() else { return };
        let memory = memory(16);
        store(memory, 9);
        watch.begin();
        [3, 5].into_iter().for_each(|page| read(memory, page));
        [3, 4, 4, 9, 12].into_iter().for_each(|page| store(memory, page));
        let [one, more] = [Faults::One, Faults::More];
        assert_eq!(numbers(memory, watch.take()), [(3, more), (4, one), (5, one), (12, one)]);
        assert_eq!(numbers(memory, watch.take()), [], "they are given once");
        store(memory, 13);
        watch.begin();
        assert_eq!(numbers(memory, watch.take()), [], "it was before the gap");
        [0, 1, 2].into_iter().for_each(|page| store(memory, page));
        watch.forget(Range::sized(Gva::new(memory as u64 + PAGE as u64), PAGE as u64));
        assert_eq!(numbers(memory, watch.take()), [(0, one), (2, one)]);
    }

    #[test]
    fn threads_are_watched_to_their_end() {
        let Some(watch) = watch() else { return };
        let memory = memory(16);
        watch.begin();
        let at = memory as usize;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                watch.thread(1);
                store(at as *mut u8, 2);
                watch.thread_ends(1);
            });
        });
        store(memory, 3);
        assert_eq!(numbers(memory, watch.take()), [(2, Faults::One), (3, Faults::One)]);
        assert_eq!(watch.seen().rings.len(), 1);
    }

    #[test]
    fn more_than_a_ring_holds_is_told_until_the_next_gap() {
        let Some(watch) = watch() else { return };
        let memory = memory(MANY);
        watch.begin();
        (0..MANY).for_each(|page| store(memory, page));
        for _ in 0..2 {
            let told = watch.take().map(|_| ()).unwrap_err();
            assert!(told.contains("more page faults than could be watched"), "{told}");
        }
        watch.begin();
        assert_eq!(watch.take(), Ok(BTreeMap::new()));
    }
}
