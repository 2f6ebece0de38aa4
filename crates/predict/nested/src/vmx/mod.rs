//! Intel's VMX as a hypervisor sees it: VMCS regions in memory, and the instructions that work on them.
//!
//! References are to the SDM, volume 3C and 3D, in the numbering in which VMCSs are chapter 25. A
//! [`Processor`] is one logical processor as one hypervisor has it: hardware's for L0, and for a
//! hypervisor in a VM the one that the level below emulates. It is the same machine, on another
//! memory.

mod capabilities;
mod checks;
pub mod control;
pub mod exits;
pub mod field;
mod processor;
pub(crate) mod region;

pub use capabilities::Capabilities;
pub use checks::{EntryFailure, Invalid};
pub use exits::Event;
pub use field::Field;
pub use processor::{Answer, Entry, Exception, InstructionError, Invalidate, Processor};
