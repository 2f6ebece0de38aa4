//! QEMU user-mode plugin of live capture: reports every load, store and address-space system call
//! of the emulated program through the shared memory of `strata-wire`.
//!
//! Written for plugin interface version 1, that of QEMU 7.2.
//!
//! | file | subject |
//! | --- | --- |
//! | `abi` | the emulator's interface: entry point, callbacks, the per-access path |
//! | `process` | the traced process: its identity, threads, slots; fork and exit |
//! | `slots` | what the per-access path fills |
//! | `observation` | whether anybody still wants to know |
//! | `pending` | the system call that a thread is in |
//! | `calls` | system calls that change the address space, as messages |
//! | `code` | pages that instructions were fetched from |
//! | `requests` | what is done to connections: where requests begin and end |
//! | `image` | what is mapped before the first instruction |
//! | `environment` | the program's variables under their true names |
//! | `exec` | `execve` into a new emulator instead of out of it |
//! | `sampling` | how far the process is by the clock of all, and whether it is in a gap |
//! | `switch` | from translations that observe to those that count, and back |
//! | `counting` | instructions by block, where nothing else is wanted |
//! | `faults` | page faults, as the kernel tells of them |
//! | `touched` | pages that the emulator's own page tables show |
//! | `death` | the last moment before a signal ends the process |
//! | `glib` | ways around faults of QEMU 7.2: children of threaded processes, the end of observation |
//! | `clone_lock` | a way around another: children of threaded processes that start threads |
//! | `guest` | reading the program's memory safely |
//!
//! `unsafe` is in `abi`, `clone_lock`, `death`, `faults`, `glib`, `guest` and `switch`, and in `process` where a thread's slot is looked up.
//!
//! # What is seen
//! Loads and stores by instructions, at the sizes the emulator uses: a 16-byte vector access
//! appears as two of 8 bytes. A locked read-modify-write is a load and a store. Pages that instructions
//! are fetched from are seen when the emulator first translates something in them. Memory that the
//! kernel reads and writes for the program (`read`, `write`, ...) is not seen; nor is a thread's
//! partial repetition of an instruction that faulted.

mod abi;
mod calls;
mod clone_lock;
mod code;
mod counting;
mod death;
mod environment;
mod exec;
mod faults;
mod glib;
mod guest;
mod image;
mod observation;
mod pending;
mod process;
mod requests;
mod sampling;
mod slots;
mod switch;
mod touched;
mod waits;
