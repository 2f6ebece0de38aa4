//! The program `strata`, from its command line.

mod again;
mod calibrate;
mod cli;
mod common;
mod constants;
mod exits;
mod host_totals;
mod hosts;
mod inspect;
mod json;
mod live;
mod memory;
mod own_policy;
mod paper;
mod phases;
mod prepared;
mod report;
mod requests;
mod same_bytes;
mod sampled;
mod seeds;
mod signals;
mod sweep;
#[path = "../../../predict/policies/tests/integration/utilization/mod.rs"]
mod utilization;
mod view;
mod vm;
