//! The last moment before a signal ends the process. One of the crate's rooms for `unsafe`.
//!
//! A program that a signal ends does not exit: the emulator (QEMU 7.2, `dump_core_and_abort` in
//! `linux-user/signal.c`) puts the signal's own effect back and sends it to itself by the C library's `kill`,
//! which it uses for nothing else. With the process its page tables go, and with them what was touched in a
//! gap. The plugin is preloaded (see `glib`), so that the function here stands before that of the C library.

use std::ffi::c_int;
use std::mem::transmute;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Kill = unsafe extern "C" fn(libc::pid_t, c_int) -> c_int;

/// What is called before.
static CALLED: OnceLock<fn()> = OnceLock::new();

/// Whether it was.
static DIES: AtomicBool = AtomicBool::new(false);

/// Says what is to be called before a signal ends the process.
pub fn call(called: fn()) {
    CALLED.get_or_init(|| called);
}

/// The C library's function of this name.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn kill(process: libc::pid_t, signal: c_int) -> c_int {
    if process == std::process::id() as libc::pid_t
        && let Some(called) = CALLED.get()
        && !DIES.swap(true, Relaxed)
    {
        called();
    }
    // SAFETY: the name is a C string.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"kill".as_ptr()) };
    if next.is_null() {
        // SAFETY: a signal touches no memory of the caller's.
        return unsafe { libc::syscall(libc::SYS_kill, process, signal) as c_int };
    }
    // SAFETY: the function of that name has this type, and the arguments are the caller's.
    unsafe { transmute::<*mut std::ffi::c_void, Kill>(next)(process, signal) }
}
