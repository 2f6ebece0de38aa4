//! What runs in every layer of the lab.
//!
//! The agent is a layer's first process. It does what the lab tells it ([`message`]): changes
//! settings, starts the layer above as a virtual machine, starts programs, reads counters. Its
//! binary also holds the lab's own workloads ([`work`]), so that an initial file system needs no
//! other program.

mod execute;
mod files;
pub mod free;
pub mod init;
pub mod message;
mod port;
mod program;
mod qmp;
mod terminal;
mod vm;
mod watch;
pub mod work;
