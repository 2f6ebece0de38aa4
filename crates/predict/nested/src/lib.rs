//! What a hypervisor costs that runs in a VM itself.
//!
//! Hardware knows one level of virtualisation: every exit goes to L0. An exit of L2 that L1 has to
//! handle is *handed on*: L0 makes it look like an exit to L1, whose hypervisor runs a [`script`] of
//! instructions for it. Those instructions belong to a hypervisor, so in a VM they exit in turn, to L0
//! again. With one level more it happens at each of those exits once more: this is why a level costs
//! what it costs, and [`unfold`] counts it.

mod access;
pub mod costs;
pub mod happening;
pub mod memory;
pub mod modes;
pub mod reason;
pub mod script;
mod second_stage_writes;
pub mod svm;
pub mod tower;
pub mod unfold;
mod virtualization;
pub mod vmx;

pub use access::Access;
pub use costs::{ExitCosts, replacement};
pub use happening::Happening;
pub use reason::ExitReason;
pub use script::{Hypervisor, Work};
pub use second_stage_writes::SecondStageWrites;
pub use unfold::{Handled, Nesting, Part};
pub use virtualization::{Instructions, Virtualization};
