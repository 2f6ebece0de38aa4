//! The memory management of a host and of everything that runs on it, as Linux and KVM have it.
//!
//! A [`Stack`] is a tree of kernels: the host's and, in VMs, others that run programs or VMs of their
//! own. Faults go down, changes go up; see [`stack`]. What a kernel does with a fault is Linux's doing
//! unless a [`Policy`] says otherwise.

mod alignment;
mod background;
mod balloon;
mod balloon_pages;
mod build;
mod contents;
mod costs;
mod end;
mod events;
mod exits;
mod fault;
mod fault_around;
mod flow;
mod found;
mod frames;
mod guest;
mod happening;
mod kernel;
mod khugepaged;
mod ksm;
mod ksm_memory;
mod merge;
mod owner;
mod place;
mod policy;
mod ppm;
mod promote;
mod regions;
mod settings;
mod shadow;
mod shadow_on_shadow;
mod shadow_paging;
mod shadowed;
pub mod stack;
mod thp;
mod tree;
mod unmap;
mod unsync;
mod vm_advice;
mod vma;
mod whole;

pub use alignment::{AlignmentCounts, Blame};
pub use balloon_pages::BalloonParameters;
pub use build::{BuildError, KernelConfig, MemoryParameters, StackConfig};
pub use costs::{Costs, KernelWork, Spending, Spent};
pub use exits::ExitCounts;
pub use fault::{Faulted, PageFault, Placement};
pub use found::{Found, FoundRegion};
pub use frames::{Change, KernelCounters};
pub use kernel::{Kernel, OutOfMemory, PageTable, Space};
pub use khugepaged::RegionPages;
pub use ksm_memory::KsmParameters;
pub use owner::{Owner, SpaceId};
pub use place::AlignerParameters;
pub use policy::{Feedback, Move, PlacementCounts, Policy, TradeCounts};
pub use ppm::{PagePlacement, UnknownPlacement};
pub use promote::{Collapsed, PromoteError, Promotion};
pub use regions::{Fate, GuestRegion, LayerRegion};
pub use settings::{AlignAreas, KernelSettings};
pub use shadow::ComposedPage;
pub use shadowed::Paging;
pub use stack::{Flush, HardwareTables, HostWork, KernelOutOfMemory, Stack};
pub use strata_frames::{ColouredParameters, ColouringError};
pub use strata_nested::{
    ExitCosts, ExitReason, Happening, Part, SecondStageWrites, Virtualization,
};
pub use thp::{Fallback, ThpMode, ThpParameters};
pub use tree::{NodeId, Position, SecondStageTable};
pub use vm_advice::VmAdvice;
pub use vma::{HugeAdvice, Vma, VmaMap};
