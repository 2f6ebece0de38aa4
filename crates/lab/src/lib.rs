//! A real three-level machine on any computer: an emulated processor with SVM runs L0, which runs
//! L1, which runs L2, each a real Linux kernel.

mod boot;
mod build;
mod cache;
mod counters;
mod error;
mod events;
mod exits;
mod images;
mod initramfs;
mod journal;
mod kernel;
mod link;
mod machine;
mod packages;
mod parts;
mod programs;
mod report;
mod run;
mod scenario;
mod session;
mod steps;
mod stock;
mod stress;
mod tool;
mod trace;

pub use boot::Booted;
pub use build::{build, built};
pub use cache::Cache;
pub use counters::Counters;
pub use error::LabError;
pub use kernel::{BuildProgress, Variant};
pub use parts::{LabKernel, Parts, StockKernel};
pub use report::{LabReport, LayerReport};
pub use run::{Choices, PROGRAM_LIMIT, run, shell};
pub use scenario::{Kernel, Scenario, names};
pub use session::Console;
pub use steps::StepReport;
pub use stress::StressReport;
pub use trace::{Trace, TraceReport};
