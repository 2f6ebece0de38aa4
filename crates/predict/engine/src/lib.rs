//! Runs modelled machines over an access stream and reports what they cost.
//!
//! A [`Run`] is one machine: a translation stack under one policy. [`sweep`](sweep()) drives many
//! runs over the same stream; what each found is a [`RunResult`], and a [`Report`] holds them all.
//!
//! ```text
//!   Source --fill--> window of batches --consume--> Run (native, base)      --finish--> RunResult
//!                    shared, recycled               Run (nested, xgemini)               ...
//! ```

mod assemble;
mod bill;
mod counters;
pub mod gain;
mod hosts;
mod last_level;
mod layers;
pub mod memory;
pub mod options;
mod pass;
mod replay;
pub mod report;
pub mod requests;
mod room;
mod run;
mod sampling;
mod setup;
mod simulation;
mod sweep;
mod warmup;

pub use counters::counters;
pub use hosts::{Hosts, run_hosts};
pub use layers::StackKind;
pub use pass::{Progress, Stop};
pub use replay::replay;
pub use report::{Report, RunResult};
pub use requests::RequestLoad;
pub use run::{Built, Run, SetupError};
pub use setup::{
    Catalogue, ColouredCache, LayerFmfi, LlcSetup, OwnPolicy, PolicyInfo, Setup, default_policies,
    words, works_across_layers,
};
pub use simulation::Simulation;
pub use simulation::host::{HostSetup, VmSetup};
pub use simulation::setup::catalogue;
pub use simulation::together::{GuestOutcome, Host, HostCutShort, HostError, HostOutcome, OpenVm};
pub use strata_colours::Colours;
pub use strata_stack::{Found, FoundRegion, PagePlacement, Paging, ThpMode, UnknownPlacement};
pub use sweep::{Build, CutShort, Open, OpenError, Sweep, SweepError, Swept, sweep};
