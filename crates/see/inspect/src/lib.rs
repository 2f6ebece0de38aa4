//! Live Linux/KVM layers, seen: one snapshot per layer, and their join.
//!
//! [`scan`] and [`scan_to_file`] take a snapshot of the layer they run in: as a guest, which of its
//! memory is in huge pages; as a hypervisor, how each VM's memory is backed. [`join()`] composes
//! snapshots from the guest down and says for each huge page of the guest whether it is well
//! aligned, and if not, which layer and cause are responsible and what helps.
//!
//! Reading is passive: no process is stopped or traced. All of `/proc` and `/sys` is read below a
//! [`Tree`], so that a directory laid out like them can stand in.

pub mod backing;
pub mod cause;
pub mod compose;
pub mod error;
pub mod format;
pub mod fuzz;
pub mod guest;
pub mod hypervisor;
pub mod infer;
mod join;
pub mod layout;
pub mod matching;
pub mod model;
pub mod pagemap;
pub mod prometheus;
pub mod pseudo;
pub mod qmp;
pub mod region;
pub mod report;
mod scan;
pub mod settings;
pub mod snapshot;
mod sys;
pub mod text;
mod tree;
pub mod usage;
pub mod word;

pub use cause::Cause;
pub use error::Error;

pub use format::{read, read_from};
pub use join::{Options, Verdict, chosen, delay, join, verdicts, vm_account};
pub use report::Join;
pub use scan::{scan, scan_into, scan_to, scan_to_file};
pub use snapshot::{BackedVm, Sink, Snapshot};
pub use tree::Tree;
