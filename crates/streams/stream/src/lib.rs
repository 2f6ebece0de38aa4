//! What a program does to its memory, as one ordered stream: loads and stores, and the events
//! that change an address space.
//!
//! Every workload (live capture, recording, foreign trace, generator) is a [`Source`]; every
//! modelled machine consumes [`Batch`]es. Within a batch, [`Item`]s give the order: a run of
//! accesses by one thread, or an event between them.

mod access;
mod batch;
mod event;
mod interval;
mod numbers;
mod outcome;
mod schedule;
mod shown;
mod source;
mod stratified;

pub use access::{Access, AccessKind};
pub use batch::{Batch, Item, Step, Steps};
pub use event::{Advice, Array, Backing, Call, Edge, Event, Mark, Pid, Protection, Tid};
pub use interval::{FEWEST_WINDOWS, half_width};
pub use numbers::Numbers;
pub use outcome::{Outcome, command_line};
pub use schedule::{Placed, Sampling, Schedule, mixed};
pub use shown::{Faults, Shown};
pub use source::{Fill, Source, SourceError, WorkloadInfo};
pub use stratified::{Stratum, stratified_half_width};
