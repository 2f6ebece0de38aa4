//! A mapping at a chosen place, and what is done to other processes. The workloads' room for
//! `unsafe`.

use nix::libc;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use nix::sys::ptrace;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
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

    /// Gives it back to the kernel.
    pub(super) fn unmap(self) -> Result<(), nix::Error> {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        unsafe { munmap(self.start, self.length) }
    }

    /// Pages of the region.
    pub(super) fn pages(&self) -> usize {
        self.length / PAGE
    }

    /// The number of its first page among all pages of the address space.
    pub(super) fn first_page(&self) -> usize {
        self.start.as_ptr().addr() / PAGE
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

    /// Makes all of it executable as well.
    pub(super) fn allow_code(&self) -> Result<(), nix::Error> {
        let all = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC;
        // SAFETY: the mapping is ours, and what it was allowed before it still is.
        unsafe { mprotect(self.start, self.length, all) }
    }

    /// Runs code from a page of a region that [`Region::allow_code`] was called on: a return
    /// instruction, put into its second half.
    pub(super) fn call(&self, page: usize) {
        const RETURN: u8 = 0xc3;
        let code = self.word(page).cast::<u8>().wrapping_add(PAGE / 2);
        // SAFETY: the byte lies in the mapping. A function of that one instruction touches no
        // register that a caller relies on.
        unsafe {
            code.write_volatile(RETURN);
            std::mem::transmute::<*mut u8, extern "C" fn()>(code)();
        }
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

/// Forks. The child does `act`, whose result is its status, and ends without cleaning up. Where there are other
/// threads `act` must neither allocate nor lock, for one of them may have been at it.
pub(super) fn child(act: impl FnOnce() -> i32) -> nix::Result<nix::unistd::Pid> {
    // SAFETY: what the child may do is for `act` to heed; it ends at once after it.
    match unsafe { nix::unistd::fork()? } {
        nix::unistd::ForkResult::Parent { child } => Ok(child),
        // SAFETY: ends the process, without what its parent would do at an end.
        nix::unistd::ForkResult::Child => unsafe { libc::_exit(act()) },
    }
}

/// Lets this process trace the program that `command` starts.
pub(super) fn traced(command: &mut Command) {
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.pre_exec(|| ptrace::traceme().map_err(io::Error::from));
    }
}

/// What another process's memory can be advised: `MADV_PAGEOUT` and `MADV_COLLAPSE`, for example.
pub(super) type Advice = libc::c_int;

/// Advises the kernel about a range of another process's memory (man 2 `process_madvise`).
pub(super) fn advise(pid: u32, start: usize, length: usize, advice: Advice) -> io::Result<()> {
    let checked = |result: libc::c_long| match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    };
    // SAFETY: the call takes no memory of ours, and a descriptor that it returns is new.
    let process = unsafe {
        let fd = checked(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        OwnedFd::from_raw_fd(fd as i32)
    };
    let (mut start, mut left) = (start, length);
    while left > 0 {
        let range = libc::iovec { iov_base: start as *mut c_void, iov_len: left };
        // SAFETY: the kernel reads one iovec, which lives; its range is the other process's.
        let done = checked(unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                process.as_raw_fd(),
                &raw const range,
                1,
                advice,
                0,
            )
        })? as usize;
        if done == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (start, left) = (start + done, left - done.min(left));
    }
    Ok(())
}
