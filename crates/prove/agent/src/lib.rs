//! What runs in every layer of the lab.
//!
//! The agent is a layer's first process. It does what the lab tells it ([`strata_protocol`]): changes
//! settings, starts the layer above as a virtual machine, starts programs, reads counters. Its
//! binary also holds the lab's own workloads ([`work`]), so that an initial file system needs no
//! other program.

mod execute;
mod files;
pub mod init;
mod port;
mod program;
mod serial;
mod terminal;
mod vm;
mod watch;
pub mod work;
