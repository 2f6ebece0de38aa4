//! The memory that is watched, and what a program can do to it. A room for `unsafe`.
//!
//! Words are read and written as atomics, so that threads that meet at a word by mistake of a kernel
//! find wrong words and not a compiler's assumptions.

use super::super::region::{PAGE, child as child_of};
use super::pattern::{Contents, Pattern, WORDS};
use nix::libc;
use nix::sys::mman::{
    MRemapFlags, MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, mremap, munmap,
};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a huge page.
pub(super) const HUGE: usize = 2 << 20;
/// Read and write.
const ALL: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// A word that is not what it should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) address: usize,
    pub(super) expected: u64,
    pub(super) found: u64,
}

/// What came of moving memory aside, looking at it there, and moving it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// The kernel refused: nothing was looked at.
    Refused,
    /// Every word was there.
    Whole,
    /// A word was not.
    Wrong(Mismatch),
}

/// Private anonymous memory at a known place, with room beside it to move parts of it to. Whole
/// huge pages. It stays for the life of the process.
#[derive(Debug)]
pub(super) struct Memory {
    start: usize,
    bytes: usize,
}

impl Memory {
    /// Maps memory at an address on a huge page's border.
    pub(super) fn map(start: usize, bytes: usize) -> Result<Self, String> {
        if !start.is_multiple_of(HUGE) || start == 0 || !bytes.is_multiple_of(HUGE) || bytes == 0 {
            return Err("the memory is to be whole 2 MiB pages, at an address of one".into());
        }
        let memory = Self { start, bytes };
        memory.map_part(start, bytes)?;
        Ok(memory)
    }

    /// Where a part can be moved to: free, as long as only one is moved at a time.
    fn aside(&self) -> usize {
        self.start + self.bytes + HUGE
    }

    fn contains(&self, at: usize, bytes: usize) -> bool {
        at >= self.start && at + bytes <= self.start + self.bytes
    }

    fn part(&self, at: usize, bytes: usize) -> NonNull<c_void> {
        assert!(self.contains(at, bytes) && at.is_multiple_of(PAGE), "{at:#x}+{bytes}");
        pointer(at)
    }

    fn map_part(&self, at: usize, bytes: usize) -> Result<(), String> {
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED_NOREPLACE;
        let length = NonZeroUsize::new(bytes).expect("a part is not empty");
        // SAFETY: no mapping in use is replaced.
        unsafe { mmap_anonymous(NonZeroUsize::new(at), length, ALL, flags) }
            .map(drop)
            .map_err(|error| format!("cannot map {bytes} bytes at {at:#x}: {error}"))
    }

    /// The word at an address. For words that threads share, see [`Self::shared`].
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(self.contains(at, 8) && at.is_multiple_of(8), "{at:#x}");
        // SAFETY: the word lies in the mapping and is aligned. Parts that are unmapped, moved or
        // protected for a moment are their chunk's, whose lock the thread has that does it.
        unsafe { AtomicU64::from_ptr(at as *mut u64) }
    }

    /// Fills a page with what it is to hold.
    pub(super) fn fill(&self, pattern: &Pattern, contents: Contents, page: usize) {
        for word in 0..WORDS {
            let at = page + word * 8;
            self.word(at).store(pattern.word(contents, at), Relaxed);
        }
    }

    /// Verifies every word of a page.
    pub(super) fn verify(
        &self,
        pattern: &Pattern,
        contents: Contents,
        page: usize,
    ) -> Result<(), Mismatch> {
        for word in 0..WORDS {
            let address = page + word * 8;
            let expected = pattern.word(contents, address);
            let found = self.word(address).load(Relaxed);
            if found != expected {
                return Err(Mismatch { address, expected, found });
            }
        }
        Ok(())
    }

    /// Advises the kernel about a part.
    pub(super) fn advise(&self, at: usize, bytes: usize, advice: MmapAdvise) -> nix::Result<()> {
        // SAFETY: it is the caller's part, and nothing but words is read there.
        unsafe { madvise(self.part(at, bytes), bytes, advice) }
    }

    /// Asks for huge pages in a part, now.
    pub(super) fn collapse(&self, at: usize, bytes: usize) -> nix::Result<()> {
        // SAFETY: it is the caller's part, whose contents stay as they are.
        let result =
            unsafe { libc::madvise(self.part(at, bytes).as_ptr(), bytes, libc::MADV_COLLAPSE) };
        nix::errno::Errno::result(result).map(drop)
    }

    /// Gives a part back and takes new memory for it, which is zero.
    pub(super) fn renew(&self, at: usize, bytes: usize) -> Result<(), String> {
        // SAFETY: it is the caller's part, and nothing refers to it.
        unsafe { munmap(self.part(at, bytes), bytes) }
            .map_err(|error| format!("cannot unmap {bytes} bytes at {at:#x}: {error}"))?;
        self.map_part(at, bytes)
    }

    /// Makes a part read-only while `act` looks at it. `None` if the kernel refuses.
    pub(super) fn read_only<T>(
        &self,
        at: usize,
        bytes: usize,
        act: impl FnOnce() -> T,
    ) -> Result<Option<T>, String> {
        let part = self.part(at, bytes);
        // SAFETY: it is the caller's part, and it gets its rights back before anybody writes.
        if unsafe { mprotect(part, bytes, ProtFlags::PROT_READ) }.is_err() {
            return Ok(None);
        }
        let result = act();
        // SAFETY: as above.
        unsafe { mprotect(part, bytes, ALL) }
            .map_err(|error| format!("cannot make memory at {at:#x} writable again: {error}"))?;
        Ok(Some(result))
    }

    /// Moves a part aside, verifies each of its pages there, and moves it back. One thread at a time
    /// may do this. `expected` says what a page holds.
    pub(super) fn aside_and_back(
        &self,
        pattern: &Pattern,
        at: usize,
        bytes: usize,
        expected: impl Fn(usize) -> Contents,
    ) -> Result<Moved, String> {
        let _ = self.part(at, bytes);
        // The same place in a huge page, so that whole huge pages can move as they are.
        let aside = self.aside() + at % HUGE;
        if shift(at, aside, bytes).is_err() {
            return Ok(Moved::Refused);
        }
        let mismatch = (0..bytes).step_by(8).find_map(|word| {
            let address = at + word;
            let expected = pattern.word(expected(address & !(PAGE - 1)), address);
            // SAFETY: the part is mapped there, for this thread alone.
            let found = unsafe { AtomicU64::from_ptr((aside + word) as *mut u64) }.load(Relaxed);
            (found != expected).then_some(Mismatch { address, expected, found })
        });
        shift(aside, at, bytes)
            .map_err(|error| format!("cannot move memory back to {at:#x}: {error}"))?;
        Ok(mismatch.map_or(Moved::Whole, Moved::Wrong))
    }
}

fn pointer(at: usize) -> NonNull<c_void> {
    NonNull::new(at as *mut c_void).expect("nothing of ours is at 0")
}

/// Moves a mapping to an address where nothing is.
fn shift(from: usize, to: usize, bytes: usize) -> nix::Result<()> {
    let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
    // SAFETY: the mapping is the caller's part, and where it goes nothing is mapped: it is the room
    // kept for this, or where the part was before.
    unsafe { mremap(pointer(from), bytes, bytes, flags, Some(pointer(to))) }.map(drop)
}

/// What a child tells its parent: in memory that they share.
#[derive(Debug)]
pub(super) struct Letter {
    /// Address, expected and found; address 0 if there is nothing to tell.
    words: &'static [AtomicU64; 3],
}

impl Letter {
    pub(super) fn new() -> Result<Self, String> {
        let bytes = NonZeroUsize::new(PAGE).expect("a page is not empty");
        // SAFETY: a new mapping wherever there is room.
        let page = unsafe { mmap_anonymous(None, bytes, ALL, MapFlags::MAP_SHARED) }
            .map_err(|error| format!("cannot map a page for children: {error}"))?;
        // SAFETY: the mapping is large enough, zero, aligned, and never unmapped.
        Ok(Self { words: unsafe { page.cast().as_ref() } })
    }

    fn write(&self, mismatch: Mismatch) {
        let Mismatch { address, expected, found } = mismatch;
        for (word, value) in self.words.iter().zip([address as u64, expected, found]) {
            word.store(value, Relaxed);
        }
    }

    pub(super) fn read(&self) -> Option<Mismatch> {
        let [address, expected, found] = self.words.each_ref().map(|word| word.load(Relaxed));
        (address != 0).then_some(Mismatch { address: address as usize, expected, found })
    }
}

/// Forks. The child does `act`, which must neither allocate nor lock, for another thread may have
/// been at it; it writes to `letter` what it finds wrong and ends. Gives its process number.
pub(super) fn child(
    letter: &Letter,
    act: impl FnOnce() -> Result<(), Mismatch>,
) -> nix::Result<nix::unistd::Pid> {
    child_of(|| {
        let result = act();
        if let Err(mismatch) = result {
            letter.write(mismatch);
        }
        i32::from(result.is_err())
    })
}
