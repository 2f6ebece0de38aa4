//! Telling whoever watches the machine from outside when to record. A room for `unsafe`.
//!
//! The watcher sees code and data by address alone, so it is told by using addresses that no program
//! has (`strata_wire::machine`).

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::mem::transmute;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use strata_wire::machine::{ARM_AT, MARK_AT, MARK_BYTES, START, STOP};

/// The instruction `ret`.
const RET: u8 = 0xc3;

/// Asks for a recording from here on. Makes system calls only, so it may run between fork and exec.
pub(crate) fn start() -> nix::Result<()> {
    let page = map(ARM_AT, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE | ProtFlags::PROT_EXEC)?;
    // SAFETY: the page is ours and executable, and holds a function that returns at once.
    unsafe {
        page.cast::<u8>().write_volatile(RET);
        transmute::<NonNull<c_void>, extern "C" fn()>(page)();
        munmap(page, MARK_BYTES as usize)?;
    }
    mark(START)
}

/// Asks for the end of the recording.
pub(crate) fn stop() -> nix::Result<()> {
    mark(STOP)
}

fn mark(code: u64) -> nix::Result<()> {
    let page = map(MARK_AT, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
    // SAFETY: the word lies in the page, which is ours and is unmapped after its only use.
    unsafe {
        page.cast::<u64>().add(code as usize).write_volatile(1);
        munmap(page, MARK_BYTES as usize)
    }
}

fn map(address: u64, protection: ProtFlags) -> nix::Result<NonNull<c_void>> {
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
    let length = NonZeroUsize::new(MARK_BYTES as usize).expect("a page is not empty");
    // SAFETY: MAP_FIXED_NOREPLACE takes no page that is in use.
    unsafe { mmap_anonymous(NonZeroUsize::new(address as usize), length, protection, flags) }
}
