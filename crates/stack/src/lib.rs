//! The memory management of a host and of everything that runs on it, as Linux and KVM have it.
//!
//! A [`Stack`] is a tree of kernels: the host's and, in VMs, others that run programs or VMs of their
//! own. Faults go down, changes go up; see [`stack`]. What a kernel does with a fault is Linux's doing
//! unless a [`Policy`] says otherwise.

mod alignment;
mod background;
mod build;
mod contents;
mod costs;
mod end;
mod exits;
mod fault;
mod frames;
mod guest;
mod kernel;
mod owner;
mod place;
mod policy;
mod promote;
mod shadow;
pub mod stack;
mod thp;
mod tree;
mod unmap;
mod vma;

pub use alignment::{Alignment, Blame};
pub use build::{BuildError, KernelConfig, MemoryParameters, StackConfig};
pub use costs::{Costs, Spending, Spent};
pub use exits::{ExitCounts, ExitReason};
pub use fault::{Faulted, PageFault, Placement};
pub use frames::{Change, KernelCounters};
pub use kernel::{Kernel, OutOfMemory, PageTable, Space};
pub use owner::{Owner, SpaceId};
pub use place::AlignerParameters;
pub use policy::{AlignAreas, Feedback, KernelSettings, Policy};
pub use promote::{PromoteError, Promotion};
pub use shadow::Composition;
pub use stack::{Exhausted, Flush, HardwareTables, SecondStageTable, Stack};
pub use thp::{Fallback, RegionPages, ThpMode, ThpParameters};
pub use tree::{NodeId, Position};
pub use vma::{HugeAdvice, Vma, VmaMap};
