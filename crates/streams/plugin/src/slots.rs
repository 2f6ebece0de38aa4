//! What the per-access path fills: statics, since the emulator hands a callback a vCPU's index and nothing
//! else.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64};
use strata_wire::Slot;

/// Most threads of one process at a time; the emulator's vCPU indices stay below it.
pub const MAX_THREADS: usize = 1 << 15;

/// What each thread fills, by vCPU index. On the per-access path, hence a static of its own.
pub static SLOTS: [AtomicPtr<Slot>; MAX_THREADS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_THREADS];

/// Instructions retired while the process had one thread; the emulator adds to it inline.
pub static SERIAL_INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);
