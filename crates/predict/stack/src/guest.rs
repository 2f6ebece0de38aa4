//! What a guest kernel knows of the programs it runs.

use crate::owner::SpaceId;
use crate::place::{AlignerParameters, Placements};
use crate::settings::AlignAreas;
use rustc_hash::FxHashMap;
use strata_colours::VirtualCache;
use strata_stream::{Pid, Tid};

/// The processes and threads of the guest.
#[derive(Debug, Default)]
pub(crate) struct Guest {
    pub(crate) processes: FxHashMap<Pid, SpaceId>,
    pub(crate) threads: FxHashMap<Tid, Pid>,
    /// By space number.
    pub(crate) placements: Vec<Placements>,
    pub(crate) align_areas: AlignAreas,
    /// The last-level cache that it is told of; `None` for one like the host's.
    pub(crate) cache: Option<VirtualCache>,
    pub(crate) aligner: AlignerParameters,
    pub(crate) killed: Vec<Pid>,
    pub(crate) inferred_pages: u64,
    /// Mappings of files that were made.
    pub(crate) mappings: u32,
}
