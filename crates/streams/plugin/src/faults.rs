//! Page faults of the process in gaps, as the kernel tells of them. One of the crate's rooms for `unsafe`.
//!
//! Page tables do not show in which way a page came to be what it is: that it was read before it was stored to, or
//! that it was stored to after a `fork` left it to nobody else. Both are page faults, and the kernel's software events of
//! minor and major ones (perf_event_open(2)) give the address of each. Every thread has rings of its own that the kernel
//! fills with them; the address space holds them, not file descriptors, which the program could close. Those that the
//! kernel takes for the program in a system call are left out, so that the same is seen with few rights as with many.

use perf_event_open_sys::{bindings as perf, perf_event_open};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use strata_addr::{Gva, Range, space::Virtual};
use strata_stream::Faults;

const PAGE: usize = 4096;
/// Bytes of the record of a page fault.
const RECORD: u64 = 16;
/// Pages of a ring of minor page faults, of which the kernel wants a power of two, with the threads from which on it is no
/// larger: all of them are locked in memory. 64 pages have room for 16,382.
const PAGES: [(usize, usize); 3] = [(64, 0), (16, 8), (4, 64)];
/// Pages of a ring of major ones, which wait for a disk.
const MAJOR_PAGES: usize = 1;
/// Threads of a process that are watched at most.
const MOST: usize = 1024;

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
#[derive(Debug)]
pub struct Seen {
    /// With the thread that fills them.
    rings: Vec<(u32, [Ring; 2])>,
    /// Page faults by page.
    pages: BTreeMap<u64, Faults>,
    /// From here on memory is the emulator's.
    end: Gva,
    /// Some of this gap were not seen.
    is_partial: bool,
    /// Why a thread is not watched.
    error: Option<String>,
    /// Whether that was told.
    is_told: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Self { seen: AtomicPtr::new(Seen::below(Gva::new(0))) }
    }
}

impl Watch {
    /// Nobody else looks at page faults, or tells of them, until this is dropped.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        // SAFETY: what is pointed to was leaked and is never freed.
        let seen = unsafe { &*self.seen.load(Acquire) };
        seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the calling thread from now on. What it has done before in a gap was not seen.
    pub fn thread(&self, vcpu: u32, in_gap: bool) {
        if IS_WATCHED.replace(true) {
            return;
        }
        let mut seen = self.seen();
        seen.is_partial |= in_gap;
        seen.watch(vcpu);
    }

    /// The process begins, or the child of a fork with its one thread, which has stored to some addresses already. Its
    /// memory ends at `end`.
    pub fn begin(&self, vcpu: u32, end: Gva, stored: impl Iterator<Item = u64>) {
        self.seen.store(Seen::below(end), Release);
        IS_WATCHED.set(true);
        let mut seen = self.seen();
        seen.watch(vcpu);
        stored.for_each(|address| seen.add(address));
    }

    /// A thread ends.
    pub fn thread_ends(&self, vcpu: u32) {
        let mut seen = self.seen();
        let is_its = |(of, _): &(u32, _)| *of == vcpu;
        if let Some(at) = seen.rings.iter().position(is_its) {
            let (_, mut rings) = seen.rings.swap_remove(at);
            rings.iter_mut().for_each(|ring| seen.drain(ring));
        }
    }
}

impl Seen {
    /// Nothing yet; leaked.
    fn below(end: Gva) -> *mut Mutex<Self> {
        Box::into_raw(Box::new(Mutex::new(Self {
            rings: Vec::new(),
            pages: BTreeMap::new(),
            end,
            is_partial: false,
            error: None,
            is_told: false,
        })))
    }

    fn watch(&mut self, vcpu: u32) {
        if self.rings.len() >= MOST {
            self.error.get_or_insert_with(|| format!("it has more than {MOST} threads"));
            return;
        }
        match Ring::both(self.rings.len()) {
            Ok(rings) => self.rings.push((vcpu, rings)),
            // The program may have them to spare at the next call.
            Err(Refused::Files) => {
                IS_WATCHED.set(false);
                self.is_partial = true;
            }
            Err(Refused::Other(why)) => {
                self.error.get_or_insert(why);
            }
        }
    }

    fn add(&mut self, address: u64) {
        if address < self.end.get() {
            self.pages
                .entry(address / PAGE as u64)
                .and_modify(|faults| *faults = Faults::More)
                .or_insert(Faults::One);
        }
    }

    fn drain(&mut self, ring: &mut Ring) {
        let is_full = ring.drain(|address| self.add(address));
        self.is_partial |= is_full;
    }

    fn drain_all(&mut self) {
        let mut rings = std::mem::take(&mut self.rings);
        rings.iter_mut().flat_map(|(_, rings)| rings).for_each(|ring| self.drain(ring));
        self.rings = rings;
    }

    /// A gap begins: what was before it is of no interest.
    pub fn begin_gap(&mut self) {
        self.drain_all();
        self.pages.clear();
        self.is_partial = false;
    }

    /// Page faults since the gap began or this was last asked, by page; and whether that is all of them.
    pub fn take(&mut self) -> (BTreeMap<u64, Faults>, bool) {
        self.drain_all();
        (std::mem::take(&mut self.pages), !self.is_partial && self.error.is_none())
    }

    /// They could not be told of.
    pub fn put_back(&mut self, taken: BTreeMap<u64, Faults>) {
        self.pages.extend(taken);
    }

    /// Page faults in this range were not the program's.
    pub fn forget(&mut self, range: Range<Virtual>) {
        self.drain_all();
        let pages = range.start.get() / PAGE as u64..range.end.get().div_ceil(PAGE as u64);
        self.pages.retain(|page, _| !pages.contains(page));
    }

    /// What a reader must know, once.
    pub fn note(&mut self) -> Option<String> {
        let missing = "of pages that are read and then stored to there, and of pages that a fork left to a process alone, \
                       page faults may be missing";
        let why = match &self.error {
            Some(why) => format!("page faults between windows could not be watched ({why})"),
            None if self.is_partial => {
                "not all page faults between windows were watched".to_owned()
            }
            None => return None,
        };
        (!std::mem::replace(&mut self.is_told, true)).then(|| format!("{why}: {missing}"))
    }
}

/// Why a thread is not watched.
#[derive(Debug)]
enum Refused {
    /// The process, or the system, has as many files open as it may.
    Files,
    /// As a reader may know it.
    Other(String),
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
    /// For minor and for major page faults of the calling thread, while so many others are watched.
    fn both(others: usize) -> Result<[Self; 2], Refused> {
        let fitting = PAGES.into_iter().rev().find(|(_, from)| others >= *from);
        let most = fitting.map_or(0, |(pages, _)| pages);
        let sizes = PAGES.into_iter().map(|(pages, _)| pages).filter(|pages| *pages <= most);
        Ok([
            Self::open(perf::PERF_COUNT_SW_PAGE_FAULTS_MIN, sizes)?,
            Self::open(perf::PERF_COUNT_SW_PAGE_FAULTS_MAJ, [MAJOR_PAGES].into_iter())?,
        ])
    }

    fn open(counter: u32, mut sizes: impl Iterator<Item = usize>) -> Result<Self, Refused> {
        let mut event = perf::perf_event_attr::default();
        event.type_ = perf::PERF_TYPE_SOFTWARE;
        event.size = size_of::<perf::perf_event_attr>() as u32;
        event.config = u64::from(counter);
        event.sample_type = u64::from(perf::PERF_SAMPLE_ADDR);
        event.__bindgen_anon_1.sample_period = 1;
        event.set_exclude_kernel(1);
        event.set_exclude_hv(1);
        let flags = u64::from(perf::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: the kernel reads `event`, which says how long it is.
        let file = unsafe { perf_event_open(&mut event, 0, -1, -1, flags) };
        if file < 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => Refused::Files,
                Some(libc::EACCES | libc::EPERM) => Refused::Other(format!(
                    "{error}: root may, and with kernel.perf_event_paranoid at 2 or below everyone, unless a \
                     container forbids it"
                )),
                _ => Refused::Other(error.to_string()),
            });
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
        sizes.find_map(map).ok_or_else(|| {
            let error = io::Error::last_os_error();
            Refused::Other(format!(
                "memory for them: {error}; ulimit -l and kernel.perf_event_mlock_kb say how much may be locked"
            ))
        })
    }

    /// Gives the address of each page fault since it was last called, and whether there may have been more.
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
        // One that has no room for another record, which the last byte is not for. The kernel's own word for it
        // (`PERF_RECORD_LOST`) comes with the next page fault, whenever that is.
        let is_full = end - at + 2 * RECORD > words * 8;
        while at < end {
            // Type, flags and length of a record (`struct perf_event_header`).
            let header = word(at);
            if header as u32 == perf::PERF_RECORD_SAMPLE {
                fault(word(at + 8));
            }
            at += (header >> 48).max(8);
        }
        tail.store(end, Release);
        is_full
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

    /// More pages than a ring has room for page faults.
    const MANY: usize = 40_000;

    const FEW: usize = 16;

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

    fn range(memory: *mut u8, page: usize) -> Range<Virtual> {
        Range::sized(Gva::new((memory as usize + page * PAGE) as u64), PAGE as u64)
    }

    /// Watches the thread, unless this machine does not let it.
    fn watch() -> Option<Watch> {
        let watch = Watch::default();
        watch.begin(0, Gva::new(1 << 47), std::iter::empty());
        let note = watch.seen().note();
        match note {
            None => Some(watch),
            Some(note) => {
                eprintln!("skipped: {note}");
                None
            }
        }
    }

    /// Those in the few pages of the memory, by their numbers.
    fn numbers(
        memory: *mut u8,
        (taken, is_all): (BTreeMap<u64, Faults>, bool),
    ) -> Vec<(u64, Faults)> {
        let first = (memory as usize / PAGE) as u64;
        assert!(is_all);
        let its = taken.range(first..first + FEW as u64);
        its.map(|(page, faults)| (page - first, *faults)).collect()
    }

    #[test]
    fn what_is_read_and_then_stored_to_faults_twice() {
        let Some(watch) = watch() else { return };
        let memory = memory(FEW);
        store(memory, 9);
        watch.seen().begin_gap();
        [3, 5].into_iter().for_each(|page| read(memory, page));
        [3, 4, 4, 9, 12].into_iter().for_each(|page| store(memory, page));
        let [one, more] = [Faults::One, Faults::More];
        assert_eq!(
            numbers(memory, watch.seen().take()),
            [(3, more), (4, one), (5, one), (12, one)]
        );
        assert_eq!(numbers(memory, watch.seen().take()), [], "they are given once");
        store(memory, 13);
        watch.seen().begin_gap();
        assert_eq!(numbers(memory, watch.seen().take()), [], "it was before the gap");
        [0, 1, 2].into_iter().for_each(|page| store(memory, page));
        watch.seen().forget(range(memory, 1));
        assert_eq!(numbers(memory, watch.seen().take()), [(0, one), (2, one)]);
    }

    #[test]
    fn what_has_to_be_read_from_a_disk_faults_as_well() {
        let Some(watch) = watch() else { return };
        let path = std::env::current_exe().unwrap().with_extension("major");
        std::fs::write(&path, vec![1; FEW * PAGE]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.sync_all().unwrap();
        let bytes = FEW * PAGE;
        // SAFETY: a descriptor, and a new mapping of its own.
        let memory = unsafe {
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(memory, libc::MAP_FAILED);
        let mut resident = [0; FEW];
        // SAFETY: inside the mapping; a byte for each page.
        unsafe { libc::mincore(memory, bytes, resident.as_mut_ptr()) };
        watch.seen().begin_gap();
        read(memory.cast(), 5);
        let found = numbers(memory.cast(), watch.seen().take());
        println!("in the page cache before: {resident:?}");
        assert_eq!(found, [(5, Faults::One)]);
    }

    #[test]
    fn threads_are_watched_to_their_end() {
        let Some(watch) = watch() else { return };
        let memory = memory(FEW);
        watch.seen().begin_gap();
        let at = memory as usize;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                watch.thread(1, false);
                store(at as *mut u8, 2);
                watch.thread_ends(1);
            });
        });
        store(memory, 3);
        assert_eq!(numbers(memory, watch.seen().take()), [(2, Faults::One), (3, Faults::One)]);
        assert_eq!(watch.seen().rings.len(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| watch.thread(2, true));
        });
        assert!(
            !watch.seen().take().1,
            "a thread that begins in a gap may have done something before"
        );
        watch.seen().begin_gap();
        assert!(watch.seen().take().1);
    }

    #[test]
    fn memory_of_the_emulator_is_no_concern() {
        let Some(watch) = watch() else { return };
        let memory = memory(FEW);
        watch.begin(0, range(memory, 4).start, std::iter::empty());
        [3, 4, 5].into_iter().for_each(|page| store(memory, page));
        assert_eq!(numbers(memory, watch.seen().take()), [(3, Faults::One)]);
    }

    #[test]
    fn more_than_a_ring_holds_is_told_until_the_next_gap() {
        let Some(watch) = watch() else { return };
        let memory = memory(MANY);
        watch.seen().begin_gap();
        (0..MANY).for_each(|page| store(memory, page));
        for _ in 0..2 {
            assert!(!watch.seen().take().1, "there were more");
        }
        let note = watch.seen().note().expect("a reader must know");
        assert!(note.contains("not all page faults between windows were watched"), "{note}");
        assert_eq!(watch.seen().note(), None, "it is told once");
        watch.seen().begin_gap();
        store(memory, 1);
        assert!(watch.seen().take().1, "the next gap is seen whole");
    }
}
