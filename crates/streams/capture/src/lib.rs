//! Live capture: runs an unmodified x86-64 Linux program under QEMU user mode with the plugin of
//! `strata-plugin`, and gives what it does to its memory as a [`strata_stream::Source`].
//!
//! ```text
//!  program ─ qemu-x86_64 ─ plugin ──┐
//!  its children, each the same ─────┤ shared memory ───────> Capture::fill ──> Batch
//!                                   ┘ (strata-wire)
//! ```
//!
//! The program keeps its standard streams, environment, terminal, process group, exit status and
//! signals. The stream ends when the program and everything it started have ended, daemons
//! included. Programs started for a capture end with it: they are killed when the [`Capture`] is
//! dropped before.
//!
//! # What differs from a run without emulator
//! - Mappings lie where the emulator puts them: executables and `mmap` from 0x4000000000 upward,
//!   the stack as one mapping of the stack limit's size, the heap never given back to the kernel
//!   (the stream tells the program's own `brk`).
//! - `vfork` is a `fork`, so `posix_spawn` of a missing program yields a child that exits with
//!   127. `clone3` and `execveat` are refused as by an old kernel; C libraries know how to do
//!   without. A user namespace cannot be unshared, as the emulator has a thread of its own.
//! - The processor has no fast string operations and no AVX-512.
//! - Programs the emulator cannot run (32-bit ones, those with a set-ID bit) and processes that
//!   gave up the user or the root directory they started with run natively from their next
//!   `execve` on, unseen; a note says so.

mod edges;
mod error;
mod launch;
mod pages;
mod processes;
mod stream;
mod vmas;

pub use error::CaptureError;
pub use launch::Options;
pub use stream::Capture;
