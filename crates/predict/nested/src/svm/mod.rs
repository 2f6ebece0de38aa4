//! AMD's SVM as a hypervisor sees it: VMCBs in plain memory, and the instructions that work on them.
//!
//! References are to the APM, volume 2, chapter 15. As with VMX, a [`Processor`] is one logical
//! processor as one hypervisor has it.

pub mod exits;
mod processor;
pub mod vmcb;

pub use processor::{Exception, Invalid, Processor, Run};
pub use vmcb::Vmcb;
