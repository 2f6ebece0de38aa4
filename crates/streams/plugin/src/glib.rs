//! Ways around two faults of QEMU 7.2. One of the crate's rooms for `unsafe`. The plugin is also
//! preloaded, so that the functions here stand before those of GLib.
//!
//! **A process forks while it has several threads, and the child starts threads of its own.** QEMU enters every vCPU into a hash table and aborts unless the entry is new
//! (`qemu_plugin_vcpu_init_hook` in its `plugins/core.c`). In the child of such a fork, the
//! vCPUs of the threads that the child does not have are still in the table, and their numbers are
//! given out again. For that one insertion an entry replaced counts as new.
//!
//! **Observation ends, or a gap of a sampled stream begins.** An instruction that leaves its block, as a system call
//! does, leaves behind in its vCPU where its callbacks are (`plugin_mem_cbs`). Code without observation sets nothing else
//! there, so accesses by helpers go on calling them, when QEMU has freed them with the translations
//! (`qemu_plugin_flush_cb`): as it does when a process gets its second thread, which may be running by then. Arrays
//! freed until observation has ended are kept, and of a sampled stream all: translations are seldom freed.

use crate::{observation, pending, sampling};
use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

type Insert = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> c_int;
type ArrayFree = unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void;

/// GLib's own functions, once they were called.
static INSERT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static ARRAY_FREE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Whether the functions here are the emulator's, which the first vCPU shows.
pub fn is_preloaded() -> bool {
    !INSERT.load(Relaxed).is_null()
}

/// GLib's function of this name.
fn next(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let mut next = known.load(Relaxed);
    if next.is_null() {
        // SAFETY: the name is a C string. Only who links GLib calls this, so there is a next one.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        known.store(next, Relaxed);
    }
    next
}

/// GLib's function of this name.
///
/// # Safety
/// GLib's.
#[unsafe(no_mangle)]
unsafe extern "C" fn g_hash_table_insert(
    table: *mut c_void,
    key: *mut c_void,
    value: *mut c_void,
) -> c_int {
    let next = next(c"g_hash_table_insert", &INSERT);
    // SAFETY: the function of that name has this type, and the arguments are the caller's.
    let is_new = unsafe { transmute::<*mut c_void, Insert>(next)(table, key, value) };
    // A vCPU is entered with its number as key and value, while its creator is in `clone`.
    if is_new == 0 && key == value && pending::is_starting_thread() { 1 } else { is_new }
}

/// GLib's function of this name.
///
/// # Safety
/// GLib's.
#[unsafe(no_mangle)]
unsafe extern "C" fn g_array_free(array: *mut c_void, with_content: c_int) -> *mut c_void {
    if with_content != 0 && (observation::is_ending() || sampling::is_sampled()) {
        return ptr::null_mut();
    }
    let next = next(c"g_array_free", &ARRAY_FREE);
    // SAFETY: the function of that name has this type, and the arguments are the caller's.
    unsafe { transmute::<*mut c_void, ArrayFree>(next)(array, with_content) }
}
