//! Layers of memory management, as Linux and KVM have them.
//!
//! A [`Stack`] is a list of layers: the guest kernel and, below it, any number of hypervisors.
//! Faults go down, changes go up; see [`stack`]. What a layer does with a fault is Linux's doing
//! unless a [`Policy`] says otherwise.

mod alignment;
mod background;
mod build;
mod contents;
mod costs;
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
mod unmap;
mod vma;

pub use alignment::{Alignment, Blame};
pub use build::{BuildError, MemoryParameters, StackConfig};
pub use costs::{Costs, Exits, Spending, Spent};
pub use fault::{Faulted, PageFault, Placement};
pub use frames::{Change, KernelCounters};
pub use kernel::{Kernel, OutOfMemory, PageTable, Space};
pub use owner::{Owner, SpaceId};
pub use place::AlignerParameters;
pub use policy::{AlignAreas, Feedback, Layer, LayerSettings, Policy};
pub use promote::{PromoteError, Promotion};
pub use shadow::Composition;
pub use stack::{Exhausted, Flush, HardwareTables, SecondStageTable, Stack, VM};
pub use thp::{Fallback, RegionPages, ThpMode, ThpParameters};
pub use vma::{HugeAdvice, Vma, VmaMap};
