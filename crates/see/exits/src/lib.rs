//! Exits of live VMs: of each VM on this kernel, by level and reason, with the time they take.
//!
//! A kernel with KVM sees every exit of its VMs, and those of the VMs in them, since hardware knows one
//! level of guests only. [`watch()`] has the kernel trace them for a while and counts them; nothing is
//! installed, and no VM is stopped. Where a kernel traces nothing, [`statistics`] has what KVM counts
//! anyway.
//!
//! | module | subject |
//! | --- | --- |
//! | [`reason`] | names of exits as the manuals have them, and what kind of work they are |
//! | [`tracefs`] | a trace buffer of one's own, and what is in its pages |
//! | [`account`] | exits and entries of a vCPU become counts and times |
//! | [`mod@watch`] | a while of it, of all VMs |
//! | [`statistics`] | KVM's own counts, where nothing can be traced |
//! | [`bill`] | what is found: rows, shares, a verdict in words |
//! | [`prometheus`] | the same for a monitoring system |

pub mod account;
pub mod bill;
#[doc(hidden)]
pub mod fuzz;
pub mod prometheus;
pub mod reason;
pub mod statistics;
pub mod tracefs;
pub mod watch;

pub use account::Level;
pub use bill::{Bill, Row, Source, VmBill};
pub use reason::{Isa, Kind, Reason};
pub use watch::{WatchError, Watching, watch};
