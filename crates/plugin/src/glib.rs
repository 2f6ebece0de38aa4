//! Keeps QEMU 7.2 alive where a process forks while it has several threads and the child then
//! starts threads of its own. One of the crate's rooms for `unsafe`.
//!
//! QEMU enters every vCPU into a hash table and aborts unless the entry is new
//! (`qemu_plugin_vcpu_init_hook` in its `plugins/core.c`). In the child of such a fork, the
//! vCPUs of the threads that the child does not have are still in the table, and their numbers are
//! given out again. The plugin is therefore also preloaded, so that this function stands before
//! the one of GLib: for that one insertion an entry replaced counts as new.

use crate::process;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicPtr, Ordering::*};

type Insert = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void) -> c_int;

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
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut next = NEXT.load(Relaxed);
    if next.is_null() {
        // SAFETY: the name is a C string. Only who links GLib calls this, so there is a next one.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"g_hash_table_insert".as_ptr()) };
        NEXT.store(next, Relaxed);
    }
    // SAFETY: the function of that name has this type, and the arguments are the caller's.
    let is_new = unsafe { transmute::<*mut c_void, Insert>(next)(table, key, value) };
    // A vCPU is entered with its number as key and value, while its creator is in `clone`.
    if is_new == 0 && key == value && process::is_starting_thread() { 1 } else { is_new }
}
