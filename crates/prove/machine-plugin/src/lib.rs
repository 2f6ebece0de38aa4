//! QEMU system-mode plugin: records the data accesses of one program inside an emulated machine,
//! each with its true host physical address, and holds the machine still while its page tables
//! are read.
//!
//! Written for plugin interface version 1, that of QEMU 7.2, which shows no registers. The program
//! is told apart by address: it, and nothing else in the machine, accesses the given windows of
//! guest virtual addresses from user code.
//!
//! | file | subject |
//! | --- | --- |
//! | `abi` | the emulator's interface: entry point, callbacks; the room for `unsafe` |
//! | `windows` | which addresses belong to the program |
//! | `recorder` | what happens with an access: marks, limits, the reader at the other end |
//!
//! # Arguments
//! | argument | meaning |
//! | --- | --- |
//! | `socket=PATH` | the reader's socket; see `strata_wire::machine` for what is said there |
//! | `window=START-END` | a window, in hexadecimal; may be repeated, up to 8 |
//! | `limit=N` | record at most N accesses, then freeze; without it until the marker |
//! | `skip=N` | leave out the first N accesses after the start |
//! | `patience=SECONDS` | how long a frozen machine waits for its reader; 600 unless told |
//! | `arm=start` | instrument from the beginning instead of when the program asks for it |
//!
//! # Cost
//! Until the program asks to be watched, by executing an instruction on the page
//! `strata_wire::machine::ARM_AT`, no code is instrumented: the emulator tells of each block it
//! translates, and the plugin compares the block's address. Then all translations are dropped, and
//! user code is translated anew with a call per access.
//!
//! There is no way back: QEMU 7.2 keeps a pointer into what a block was instrumented with beyond
//! the block's end (`plugin_mem_cbs`, cleared at the end since 8.0), so dropping instrumented
//! translations leaves it dangling. For the same reason give the emulator room for all of them
//! (`-accel tcg,tb-size=1024`, which is the default on machines with 8 GiB or more).

mod abi;
mod recorder;
mod windows;
