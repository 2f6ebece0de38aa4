//! From translations that observe accesses to those that only count instructions, and back. One of the
//! crate's rooms for `unsafe`.
//!
//! The emulator keeps translations apart by flags of theirs (`cflags`). One of these says that blocks do not
//! jump into each other, and follows the emulator's log mask (`-d nochain`, `CPU_LOG_TB_NOCHAIN`; QEMU 7.2,
//! `curr_cflags` in `accel/tcg/cpu-exec.c`). So every block has two translations: one that jumps on and
//! counts, for gaps, and one that does not and observes. To switch is to set or clear that bit while no
//! thread runs translated code; nothing is translated anew. Measured with cc1 on 2 cores: 442 switches
//! take half a second in all, where dropping all translations takes a tenth of a second each time.
//!
//! Functions and variables of the emulator are found by name, as its plugin interface has none for this.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// `CPU_LOG_TB_NOCHAIN` of QEMU 7.2 (`include/qemu/log.h`).
const NO_CHAIN: c_int = 1 << 13;

/// What `async_safe_run_on_cpu` calls, with a vCPU and what it was given.
type Work = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// `async_safe_run_on_cpu`: a vCPU, what to call, and what that is given.
type RunAlone = unsafe extern "C" fn(*mut c_void, Work, *mut c_void);

/// What is used of the emulator.
#[derive(Clone, Copy, Debug)]
struct Emulator {
    log_mask: &'static AtomicI32,
    run_alone: RunAlone,
}

fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn emulator() -> Option<Emulator> {
    static FOUND: OnceLock<Option<Emulator>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        find(c"current_cpu")?;
        // SAFETY: a variable of this type, aligned, which lives as long as the emulator; it is read
        // there without a lock.
        let log_mask = unsafe { &*find(c"qemu_loglevel")?.cast::<AtomicI32>() };
        // SAFETY: the function of this name has this type; its last argument is a union of a word.
        let run_alone =
            unsafe { transmute::<*mut c_void, RunAlone>(find(c"async_safe_run_on_cpu")?) };
        Some(Emulator { log_mask, run_alone })
    })
}

/// Whether the emulator lets itself be switched.
pub fn is_possible() -> bool {
    emulator().is_some()
}

/// From now on blocks are used that observe, or that do not. While no thread runs translated code.
pub fn observe(observes: bool) {
    let Some(Emulator { log_mask, .. }) = emulator() else { return };
    if observes {
        log_mask.fetch_or(NO_CHAIN, Relaxed);
    } else {
        log_mask.fetch_and(!NO_CHAIN, Relaxed);
    }
}

/// Whether blocks are translated that observe.
pub fn observes() -> bool {
    emulator().is_some_and(|emulator| emulator.log_mask.load(Relaxed) & NO_CHAIN != 0)
}

/// What is called while no thread runs translated code.
static CALLED: OnceLock<fn(usize)> = OnceLock::new();

/// Says what [`alone`] calls.
pub fn call(called: fn(usize)) {
    CALLED.get_or_init(|| called);
}

unsafe extern "C" fn on_alone(_: *mut c_void, number: *mut c_void) {
    if let Some(called) = CALLED.get() {
        called(number as usize);
    }
}

/// Has the calling thread, a vCPU's, do what [`call`] said, as soon as no thread runs translated code.
pub fn alone(number: usize) {
    let Some(Emulator { run_alone, .. }) = emulator() else { return };
    let Some(cpu) = find(c"current_cpu") else { return };
    // SAFETY: a thread's own pointer to its vCPU, which is set as the thread is one.
    unsafe {
        let cpu = *cpu.cast::<*mut c_void>();
        if !cpu.is_null() {
            run_alone(cpu, on_alone, ptr::without_provenance_mut(number));
        }
    }
}
