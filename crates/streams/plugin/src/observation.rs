//! Whether anybody still wants to know of the process, and what the emulator has done about it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether nobody wants to know more of the process.
static UNOBSERVED: AtomicBool = AtomicBool::new(false);

/// Whether the emulator is asked to drop what observes.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Nobody wants to know more of the process. Returns whether that is new.
pub fn give_up() -> bool {
    !UNOBSERVED.swap(true, Relaxed)
}

/// Whether somebody wants to know more of the process.
pub fn is_wanted() -> bool {
    !UNOBSERVED.load(Relaxed)
}

/// The emulator is asked to drop what observes.
pub fn ends() {
    ENDS.store(true, Relaxed);
}

/// Whether the emulator is asked to drop what observes, and has not yet.
pub fn is_ending() -> bool {
    ENDS.load(Relaxed)
}

/// The emulator has dropped what observes.
pub fn has_ended() {
    ENDS.store(false, Relaxed);
}
