//! Memory policies: what each layer of a stack does with its pages.
//!
//! One file per system: [`linux`] (stock kernels, and the upper bound), [`gemini`], [`xgemini`],
//! [`strata`], [`coplace`], [`xplace`], [`xgemini_xplace`].
//! What several of them share is in files of its own, one mechanism each. [`registry`] lists
//! them all; adding a policy is a file and a line there.

pub mod allocator;
pub mod booking;
mod budget;
pub mod colour_table;
mod coordination;
pub mod coplace;
pub mod gemini;
mod gemini_settings;
mod leftovers;
pub mod linux;
pub mod offsets;
#[cfg(test)]
mod one_kernel;
pub mod parameters;
pub mod per_vm;
mod recolour;
pub mod registry;
pub mod scanner;
pub mod strata;
pub mod timeout;
#[cfg(test)]
mod two_kernels;
mod worker;
pub mod xgemini;
pub mod xgemini_xplace;
pub mod xplace;

pub use linux::LinuxByLayer;
pub use parameters::{ParameterSet, PolicyParameters};
pub use per_vm::PerVm;
pub use registry::{Behind, Entry, REGISTRY, UnknownPolicy, Words, find};
