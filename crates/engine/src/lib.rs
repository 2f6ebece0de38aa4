//! Runs modelled machines over an access stream and reports what they cost.
//!
//! A [`Run`] is one machine: a translation stack under one policy. [`sweep`](sweep()) drives many
//! runs over the same stream; what each found is a [`RunResult`], and a [`Report`] holds them all.
//!
//! ```text
//!   Source --fill--> window of batches --consume--> Run (native, base)      --finish--> RunResult
//!                    shared, recycled               Run (nested, xgemini)               ...
//! ```

pub mod memory;
pub mod options;
mod pass;
mod replay;
pub mod report;
mod room;
mod run;
mod setup;
mod simulation;
mod sweep;
mod warmup;

pub use pass::{Progress, Stop};
pub use replay::replay;
pub use report::{Report, RunResult};
pub use run::{Built, Run, SetupError, StackKind};
pub use setup::{Catalogue, PolicyInfo, Setup};
pub use simulation::{Simulation, catalogue};
pub use sweep::{Build, CutShort, Open, OpenError, Sweep, SweepError, Swept, sweep};
