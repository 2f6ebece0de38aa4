//! The system call that a thread is in, and which vCPU the thread is.

use crate::calls::Call;
use std::cell::Cell;
use strata_stream::{Pid, Tid};

thread_local! {
    /// The system call this thread is in. Thread-local, not a table with a lock: a lock might be
    /// held by another thread when this one forks.
    pub static PENDING: Cell<Option<Pending>> = const { Cell::new(None) };
}

thread_local! {
    /// The vCPU of this thread, once it has made a system call.
    pub static VCPU: Cell<Option<u32>> = const { Cell::new(None) };
}

/// A system call between its two callbacks.
#[derive(Clone, Copy, Debug)]
pub enum Pending {
    /// May change the address space; the lock is held.
    Space(Call),
    /// Will make this process; the lock is held. The emulator stores the thread's number in the child, at these
    /// addresses.
    Fork { child: Pid, tid: Tid, stored: [Option<u64>; 2] },
    /// Will make a process that nobody wants to know of; the lock is held.
    Untold,
    /// Will start a thread.
    Thread,
    /// May be the beginning of a request, or make a connection.
    Connection(Call),
}

/// Whether the calling thread is about to start another.
pub fn is_starting_thread() -> bool {
    matches!(PENDING.get(), Some(Pending::Thread))
}
