//! Sleeping until a word in shared memory changes. One of the crate's rooms for `unsafe`.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// Sleeps while `word` holds `expected`, until a [`wake`] or `timeout`. May return early.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let time = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    // SAFETY: the word outlives the call, and the kernel only reads it and `time`.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const time);
    }
}

/// Wakes everyone who sleeps on `word`, in any process.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call; waking touches no memory.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, libc::c_int::MAX);
    }
}

/// A mutual exclusion whose two ends may be in different functions, and which the child of a
/// `fork` can set free.
#[derive(Debug, Default)]
pub struct Lock(AtomicU32);

const OPEN: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

impl Lock {
    /// An open lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(OPEN))
    }

    /// Waits until the lock is open, and holds it.
    pub fn acquire(&self) {
        if self.0.compare_exchange(OPEN, HELD, Acquire, Relaxed).is_ok() {
            return;
        }
        while self.0.swap(CONTENDED, Acquire) != OPEN {
            wait(&self.0, CONTENDED, Duration::from_secs(1));
        }
    }

    /// Opens the lock, whoever held it.
    pub fn release(&self) {
        if self.0.swap(OPEN, Release) == CONTENDED {
            wake(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_lock_admits_one_at_a_time() {
        let (lock, count) = (Lock::new(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        lock.acquire();
                        // Not atomic on purpose: two inside would lose counts.
                        count.store(count.load(Relaxed) + 1, Relaxed);
                        lock.release();
                    }
                });
            }
        });
        assert_eq!(count.load(Relaxed), 80_000);
    }
}
