//! What `strata` says when this computer's memory runs out.

use nix::libc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic;

/// The system's allocator, which ends the program with a cause and a remedy where it has nothing
/// left. Rust's own way, a stack trace and SIGABRT, looks like a fault of the program.
struct OrEnd;

#[global_allocator]
static ALLOCATOR: OrEnd = OrEnd;

const MESSAGE: &[u8] =
    b"strata: out of memory: this computer, its container or `ulimit -v` has no \
more to give; no result was written. Run fewer stacks and policies at once (--jobs 1), or with a \
smaller workload or --memory\n";

// SAFETY: every call is passed on as it is, and what the system's allocator gives comes back.
unsafe impl GlobalAlloc for OrEnd {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        or_end(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        or_end(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `alloc`.
        or_end(unsafe { System.realloc(old, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as for `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Sees to it that a thread that cannot be made ends the program in the same way: its stack is memory, too, and
/// the standard library panics where there is none for it.
pub fn watch_threads() {
    let as_ever = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let said = info.payload().downcast_ref::<String>();
        if said.is_some_and(|said| said.starts_with("failed to spawn thread")) {
            end();
        }
        as_ever(info);
    }));
}

#[inline]
fn or_end(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        end();
    }
    memory
}

#[cold]
fn end() -> ! {
    // Neither may allocate, which rules out the standard library's.
    // SAFETY: the bytes are there; `_exit` ends all threads.
    unsafe {
        libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
        libc::_exit(1);
    }
}
