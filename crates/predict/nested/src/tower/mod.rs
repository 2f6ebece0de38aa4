//! Hypervisors in each other's VMs at work.
//!
//! Each hypervisor is the same program and sees a processor of its own: L0 hardware's, the others one
//! that the level below emulates. There is no end to it. Instructions of hypervisors in VMs exit; whoever
//! handles the exit executes instructions itself ([`crate::script`]). Nothing is multiplied here: what
//! [`crate::unfold`] counts, happens.

mod account;
mod cause;
pub mod svm;
pub mod vmx;

pub use cause::{Cause, MemoryMode, Route};
