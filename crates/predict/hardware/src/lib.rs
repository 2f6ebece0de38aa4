//! The hardware of a modelled machine: TLBs, the two-dimensional page walker with its walk
//! caches, data caches, and the account of cycles.
//!
//! A [`Machine`] is built from a [`CpuModel`], a preset or a file of the user. It knows nothing of
//! policies, layers or programs: it sees at most two tables ([`Tables`]), whose accessed and dirty
//! flags it sets, and reports a [`Fault`] where a translation is missing. Whoever changes a table
//! calls the invalidations that the manuals demand, as an operating system would.
//!
//! ```text
//!           +------------- CPU -------------+
//!  access ->| L1 DTLB -> STLB -> walker     |
//!           |   |                 |  PWC,   |
//!           |   v                 v  nPWC,  |
//!           | L1D -------------> L2  NTLB   |--> LLC (shared) --> memory
//!           +-------------------------------+
//! ```
//!
//! Left out: instruction fetches and their TLBs, prefetchers, write-backs, coherence between
//! private caches, out-of-order execution beyond the overlap constants, bandwidth.

mod access;
mod by_level;
mod cache;
mod counters;
mod cpu;
mod cycles;
mod error;
mod first_uses;
mod full;
mod geometry;
mod host;
mod limits;
mod llc;
mod machine;
mod model;
#[cfg(test)]
mod naive;
mod parameters;
mod positions;
mod preset;
mod read;
mod reads;
mod run;
mod sets;
mod small;
mod tlb;
mod trace;
mod walkcache;
mod walker;

pub use access::{Asid, CpuId, Fault, Request, Tables, VmTag};
pub use by_level::ByLevel;
pub use counters::{Charge, HardwareCounters, HitMiss};
pub use cycles::Cycles;
pub use error::ModelError;
pub use geometry::CacheGeometry;
pub use limits::PHYSICAL_LIMIT;
pub use llc::{
    LlcCounters, LlcDesign, LlcFill, LlcOptions, LlcUse, MaskError, MissCauses, Owner, Qlru,
    QlruMiss, QlruPlace, QlruUpdate, Replacement, UnknownReplacement, WayMask,
};
pub use machine::{Machine, Misaligned};
pub use model::{
    Caches, Core, CpuModel, TlbArray, TlbGeometry, TlbLevel, WalkCaches, WalkGeometry,
};
pub use positions::{PositionUse, WalkPosition};
pub use preset::Preset;
pub use run::RunFault;
pub use strata_colours::SliceHash;
pub use trace::{Reference, WalkTrace, draw, native_walk_diagram, walk_diagram};
