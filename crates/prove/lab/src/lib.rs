//! A real three-level machine on any computer: an emulated processor with SVM or VMX runs L0, which
//! runs L1, which runs L2, each a real Linux kernel.

mod boot;
mod build;
mod cache;
mod copy_error;
mod counters;
mod directory;
mod error;
mod events;
mod exits;
mod images;
mod initramfs;
mod intel;
mod journal;
mod kept;
mod kernel;
mod link;
mod machine;
mod make;
mod orders;
mod packages;
mod parts;
mod process;
mod programs;
mod readings;
pub mod recording;
mod report;
mod run;
mod sampling;
mod scenario;
mod session;
mod start;
mod state;
mod steps;
mod stock;
mod stress;
mod tool;
mod trace;

pub use boot::Booted;
pub use build::{build, built};
pub use cache::Cache;
pub use copy_error::CopyError;
pub use counters::Counters;
pub use error::LabError;
pub use events::TraceEvent;
pub use intel::{Bochs, INSTRUCTIONS_PER_SECOND};
pub use kernel::{BuildProgress, KernelVariant, LabKernel};
pub use make::{MachineReport, Make};
pub use parts::Parts;
pub use readings::Readings;
pub use report::{Alignment, LabReport, LayerReport};
pub use run::{Choices, PROGRAM_LIMIT, run, shell};
pub use scenario::{
    Backend, Flaw, Fragmentation, IntelFlaw, Kernel, Layer, LayerFlaw, Memory, Scenario, Step,
    StepFlaw, Stress, StressFlaw, Vmm, names,
};
pub use session::Console;
pub use steps::{Counted, StepReport};
pub use stock::StockKernel;
pub use stress::StressReport;
pub use trace::{Trace, TraceReport};
