//! A way around a fault of QEMU 7.2: a fork leaves out a lock. One of the crate's rooms for `unsafe`. The plugin is also
//! preloaded, so that the function here stands before that of the C library.
//!
//! The emulator starts and ends threads under a lock of its own (`clone_lock` in its `linux-user/syscall.c`), and forks
//! without it. A child that is forked meanwhile has the lock held by a thread that the child does not have, and waits for
//! ever as soon as it starts a thread itself. So here whoever forks holds it, and parent and child let go of theirs.
//! Nobody but the emulator knows where it is: it is the first lock that is taken by who is about to start a thread.
//! Before the first thread is started, nobody can hold it.

use crate::pending;
use std::cell::Cell;
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

type Take = unsafe extern "C" fn(*mut libc::pthread_mutex_t) -> libc::c_int;

/// The emulator's lock, once it is known.
static LOCK: AtomicPtr<libc::pthread_mutex_t> = AtomicPtr::new(ptr::null_mut());

/// The C library's own function, once it was called.
static TAKE: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// Whether this thread holds it.
    static IS_HELD: Cell<bool> = const { Cell::new(false) };
}

/// Waits until no other thread is started or ends, and keeps it so.
pub fn acquire() {
    let lock = LOCK.load(Acquire);
    if !lock.is_null() {
        // SAFETY: a lock of the emulator's, which is never gone.
        unsafe { pthread_mutex_lock(lock) };
        IS_HELD.set(true);
    }
}

/// Lets go of it, if this thread holds it; so does the child of a fork.
pub fn release() {
    if IS_HELD.replace(false) {
        // SAFETY: this thread holds it, or has it from the one that has become this one by a fork.
        unsafe { libc::pthread_mutex_unlock(LOCK.load(Acquire)) };
    }
}

/// The C library's function of this name.
///
/// # Safety
/// The C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_lock(mutex: *mut libc::pthread_mutex_t) -> libc::c_int {
    if LOCK.load(Relaxed).is_null() && pending::is_starting_thread() {
        LOCK.store(mutex, Release);
    }
    let mut take = TAKE.load(Relaxed);
    if take.is_null() {
        // SAFETY: the name is a C string, and the C library has the function.
        take = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_mutex_lock".as_ptr()) };
        TAKE.store(take, Relaxed);
    }
    // SAFETY: the function of that name has this type, and the argument is the caller's.
    unsafe { transmute::<*mut libc::c_void, Take>(take)(mutex) }
}
