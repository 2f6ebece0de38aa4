//! Live Linux/KVM layers, seen: one snapshot per layer, and their join.
//!
//! [`scan()`] and [`scan_to_file`] take a snapshot of the layer they run in: as a guest, which of its
//! memory is in huge pages; as a hypervisor, how each VM's memory is backed. [`join()`] composes
//! snapshots from the guest down and says for each huge page of the guest whether it is well
//! aligned, and if not, which layer and cause are responsible and what helps.
//!
//! Reading is passive: no process is stopped or traced. All of `/proc` and `/sys` is read below a
//! [`Tree`], so that a directory laid out like them can stand in.

pub mod error;
pub mod fuzz;
pub mod join;
pub mod scan;
pub mod snapshot;
pub mod text;

pub use error::Error;
pub use join::cause::Cause;
pub use join::report::Join;
pub use join::{Judged, Options, Verdict, chosen, delay, join, verdicts, vm_accounts};
pub use scan::hot::Watch;
pub use scan::tree::Tree;
pub use scan::{scan, scan_into, scan_to, scan_to_file};
pub use snapshot::format::{read, read_from};
pub use snapshot::{BackedVm, Sink, Snapshot};
