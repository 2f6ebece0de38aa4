//! Live capture: runs an unmodified x86-64 Linux program under QEMU user mode with the plugin of
//! `strata-plugin`, and gives what it does to its memory as a [`strata_stream::Source`].
//!
//! ```text
//!  program ─ qemu-x86_64 ─ plugin ──┐
//!  its children, each the same ─────┤ shared-memory ring ──> Capture::fill ──> Batch
//!                                   ┘ (strata-ring)
//! ```
//!
//! The program keeps its standard streams, environment, terminal, process group, exit status and
//! signals. The stream ends when the program and everything it started have ended, daemons
//! included. Programs started for a capture end with it: they are killed when the [`Capture`] is
//! dropped before.
//!
//! What differs from a run without emulator: `vfork` is a `fork` (so `posix_spawn` of a missing
//! program yields a child that exits with 127), `clone3` and `execveat` are refused as on an old
//! kernel, mappings lie where the emulator puts them.

mod error;
mod launch;
mod processes;
mod stream;
mod vmas;

pub use error::CaptureError;
pub use launch::Options;
pub use stream::Capture;
