//! A mapping at a chosen place. The workloads' room for `unsafe`.

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

/// Bytes of a base page.
pub(super) const PAGE: usize = 4096;

/// Private anonymous memory, kept for the life of the process.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<c_void>,
    length: usize,
}

impl Region {
    /// Maps `length` bytes, at `address` if that is not 0.
    pub(super) fn map(address: usize, length: usize) -> Result<Self, String> {
        let place = NonZeroUsize::new(address);
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        let flags = if place.is_some() { flags | MapFlags::MAP_FIXED_NOREPLACE } else { flags };
        let bytes = NonZeroUsize::new(length.next_multiple_of(PAGE)).ok_or("no memory to map")?;
        // SAFETY: without MAP_FIXED no mapping in use is replaced.
        let start = unsafe {
            mmap_anonymous(place, bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, flags)
        }
        .map_err(|error| format!("cannot map {length} bytes at {address:#x}: {error}"))?;
        Ok(Self { start, length: bytes.get() })
    }

    /// Pages of the region.
    pub(super) fn pages(&self) -> usize {
        self.length / PAGE
    }

    /// The first word of a page.
    pub(super) fn read(&self, page: usize) -> u64 {
        // SAFETY: the word lies in the mapping.
        unsafe { self.word(page).read_volatile() }
    }

    /// Writes the first word of a page.
    pub(super) fn write(&self, page: usize, value: u64) {
        // SAFETY: the word lies in the mapping, which only this thread uses.
        unsafe { self.word(page).write_volatile(value) }
    }

    fn word(&self, page: usize) -> *mut u64 {
        assert!(page < self.pages(), "page {page} of {}", self.pages());
        self.start.as_ptr().wrapping_byte_add(page * PAGE).cast()
    }

    /// Advises the kernel about pages of the region.
    pub(super) fn advise(
        &self,
        page: usize,
        count: usize,
        advice: MmapAdvise,
    ) -> Result<(), nix::Error> {
        assert!(page + count <= self.pages(), "{page}+{count} of {}", self.pages());
        let start = NonNull::new(self.start.as_ptr().wrapping_byte_add(page * PAGE))
            .expect("the mapping is not at 0");
        // SAFETY: the range lies in the mapping, and nothing refers to its contents.
        unsafe { madvise(start, count * PAGE, advice) }
    }

    /// Bytes of one page.
    pub(super) fn bytes(&self, page: usize) -> &[u8] {
        let start = self.word(page).cast_const().cast();
        // SAFETY: the page lies in the mapping, which is not written while it is borrowed.
        unsafe { std::slice::from_raw_parts(start, PAGE) }
    }

    /// Frame numbers of all pages, 0 where none is mapped, from the kernel's page map
    /// (Documentation/admin-guide/mm/pagemap.rst).
    pub(super) fn frames(&self) -> Result<Vec<u64>, String> {
        /// Bits of an entry that hold the frame number.
        const FRAME: u64 = (1 << 55) - 1;
        const PRESENT: u64 = 1 << 63;
        let failed = |error| format!("/proc/self/pagemap: {error}");
        let file = File::open("/proc/self/pagemap").map_err(failed)?;
        let mut bytes = vec![0; self.pages() * 8];
        let first = (self.start.as_ptr() as usize / PAGE * 8) as u64;
        file.read_exact_at(&mut bytes, first).map_err(failed)?;
        Ok(bytes
            .as_chunks()
            .0
            .iter()
            .map(|entry| u64::from_ne_bytes(*entry))
            .map(|entry| if entry & PRESENT != 0 { entry & FRAME } else { 0 })
            .collect())
    }
}
