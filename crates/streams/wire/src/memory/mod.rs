//! The shared memory: a header, then slots. One of the crate's rooms for `unsafe`.
//!
//! | file | subject |
//! | --- | --- |
//! | `producers` | threads of traced programs take slots, fill them and hand them over |
//! | `consumer` | the one reader takes them, gives them back, and says what it wants |
//! | `header` | what the memory begins with |
//! | `free` | the stack of free slots |
//! | `sampling` | one clock for all processes, and the intervals of a sampled stream |
//! | `counting` | instructions by block, where nothing else is wanted |

mod consumer;
mod counting;
mod free;
mod header;
mod producers;
mod sampling;

pub use consumer::Drain;

use crate::ProcessId;
use crate::slot::{Slot, SlotIndex};
use header::{BACKLOG, Header, MAGIC, SLOTS};
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::*;
use strata_stream::{Pid, Tid};

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
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; slots borrow `self`, so none is in use.
        unsafe { libc::munmap(self.base.as_ptr().cast(), BYTES) };
    }
}
