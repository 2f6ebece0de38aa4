//! The program's memory and process, by system calls. One of the crate's rooms for `unsafe`.
//!
//! Guest and host addresses are equal (the emulator's guest base is 0 for x86-64 on x86-64, which
//! `abi` verifies through the program's own image). A system call reads, so that a bad pointer is
//! an error and not a fault inside the emulator.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use strata_addr::{Range, space::Virtual};

const PAGE: u64 = 4096;
/// Longest string read: the kernel's limit for one argument (`MAX_ARG_STRLEN`).
const LONGEST: usize = 32 * PAGE as usize;
/// Most strings in a list; the kernel's limit is by bytes and below this.
const MOST: usize = 1 << 20;

/// Fills `out` from the program's memory at `address`; `None` when not all of it is readable.
pub fn read(address: u64, out: &mut [u8]) -> Option<()> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: the kernel writes to `out` within its length and checks the remote side itself.
    let count = unsafe {
        libc::process_vm_readv(std::process::id() as libc::pid_t, &local, 1, &remote, 1, 0)
    };
    (count == out.len() as isize).then_some(())
}

/// The word at `address`.
pub fn word(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    read(address, &mut bytes)?;
    Some(u64::from_le_bytes(bytes))
}

/// The zero-terminated string at `address`.
pub fn string(address: u64) -> Option<OsString> {
    let (mut text, mut at) = (Vec::new(), address);
    while text.len() < LONGEST {
        // Up to the next page: what follows may be unreadable.
        let mut piece = [0; 256];
        let length = (PAGE - at % PAGE).min(piece.len() as u64) as usize;
        let piece = &mut piece[..length];
        read(at, piece)?;
        if let Some(end) = piece.iter().position(|&byte| byte == 0) {
            text.extend(&piece[..end]);
            return Some(OsString::from_vec(text));
        }
        text.extend(&*piece);
        at += length as u64;
    }
    None
}

/// The strings of the zero-terminated list of pointers at `address`; a null list is empty, as for
/// `execve`.
pub fn strings(address: u64) -> Option<Vec<OsString>> {
    let mut list = Vec::new();
    while address != 0 && list.len() < MOST {
        match word(address + 8 * list.len() as u64)? {
            0 => break,
            pointer => list.push(string(pointer)?),
        }
    }
    Some(list)
}

/// Writes a word to the program's memory; `None` when it cannot be written.
pub fn write_word(address: u64, word: u64) -> Option<()> {
    let bytes = word.to_le_bytes();
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel reads `bytes` and checks the remote side, which is memory of the program.
    let count = unsafe {
        libc::process_vm_writev(std::process::id() as libc::pid_t, &local, 1, &remote, 1, 0)
    };
    (count == bytes.len() as isize).then_some(())
}

/// The length of a System V shared memory segment.
pub fn segment_bytes(id: u64) -> Option<u64> {
    // SAFETY: every field of the structure is an integer or made of such; zero is a value of each.
    let mut segment: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to the structure alone.
    let result = unsafe { libc::shmctl(id as i32, libc::IPC_STAT, &mut segment) };
    (result == 0).then_some(segment.shm_segsz as u64)
}

/// Whether the process, with its present rights and root, may write to this file.
pub fn may_write(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    let rights = libc::R_OK | libc::W_OK;
    // SAFETY: `path` is a C string and the call reads nothing else.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), rights, libc::AT_EACCESS) == 0 }
}

/// Gives the calling thread the name that the kernel would have given it; a long one is cut.
pub fn set_name(name: &OsStr) {
    let Ok(name) = CString::new(name.as_bytes()) else { return };
    // SAFETY: the kernel reads up to the end of the string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Has the kernel of this machine give the process no huge pages, nor what it starts.
pub fn forbid_huge_pages() {
    // SAFETY: touches no memory.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Takes memory out of the page tables again that is all zeroes and that no thread has used yet.
pub fn forget_zeroes(range: Range<Virtual>) {
    let start = range.start.get() as *mut libc::c_void;
    // SAFETY: memory of the program that it has not been told of; its contents stay.
    unsafe { libc::madvise(start, range.bytes() as usize, libc::MADV_DONTNEED) };
}

/// Gives memory back at once of which a program says that the kernel may have it when it likes (`MADV_FREE`), and
/// which page tables would show until then. The kernel is asked first, as it refuses that for some memory.
pub fn give_back(range: Range<Virtual>) {
    let start = range.start.get() as *mut libc::c_void;
    let bytes = range.bytes() as usize;
    // SAFETY: the program is about to say that it needs the contents of this memory no more.
    unsafe {
        if libc::madvise(start, bytes, libc::MADV_FREE) == 0 {
            libc::madvise(start, bytes, libc::MADV_DONTNEED);
        }
    }
}

/// Does something while the process's own files in `/proc` are its own, as they are for one that has never
/// changed its rights.
pub fn while_dumpable<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: touches no memory.
    let before = unsafe { libc::prctl(libc::PR_GET_DUMPABLE) };
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    let result = act();
    // What an administrator may read and the process may not (2) cannot be asked for: nobody may then.
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, i32::from(before == 1)) };
    result
}

/// Ends the process at once.
pub fn end_process() -> ! {
    // SAFETY: a signal to oneself touches no memory. Not by the function `kill`, which tells of a death.
    unsafe { libc::syscall(libc::SYS_kill, std::process::id(), libc::SIGKILL) };
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_reads_back_and_bad_pointers_do_not() {
        let long = "x".repeat(10_000) + "\0";
        let list = [long.as_ptr() as u64, c"two".as_ptr() as u64, 0];
        let read = strings(list.as_ptr() as u64).unwrap();
        assert_eq!(read, [long.trim_end_matches('\0'), "two"]);
        assert_eq!(strings(0), Some(vec![]));
        assert_eq!(string(8), None);
        assert_eq!(strings([8u64, 0].as_ptr() as u64), None);
        assert_eq!(word(u64::MAX), None);
    }
}
