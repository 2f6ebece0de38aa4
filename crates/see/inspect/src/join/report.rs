//! What a join says: the structure behind the table, the JSON (version [`VERSION`], `docs/inspect.md`)
//! and the Prometheus text.

use crate::join::cause::Cause;
use crate::join::colours::{ColourUse, Colouring};
use crate::snapshot::hot::By;
use crate::snapshot::model::{Blind, SlotSource};
use serde::Serialize;
use std::collections::BTreeMap;

/// Version of the JSON: goes up when a field changes its meaning or goes.
pub const VERSION: u32 = 2;

/// The join of the snapshots of a stack.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Join {
    /// [`VERSION`].
    pub strata_join: u32,
    /// The layers, the guest first.
    pub layers: Vec<JoinedLayer>,
    /// What to know before trusting the numbers.
    pub notes: Vec<String>,
    /// Huge pages of the guest.
    pub totals: Totals,
    /// Fraction of guest huge memory by the size of the mapping the hardware can use for it.
    pub composite: Composite,
    /// What the lowest layer maps huge is known: no guest hypervisor is between it and the guest,
    /// or its kernel lists its pseudo huge pages.
    pub mappings_visible: bool,
    /// Each layer against the one below.
    pub pairs: Vec<Pair>,
    /// Misaligned pages by the layer and cause responsible, the most first.
    pub causes: Vec<CauseCount>,
    /// Processes of the guest with huge pages, the most first.
    pub processes: Vec<ProcessCount>,
    /// Whether the guest's cache colours survive, by cache of the lowest layer; empty where its caches
    /// are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub colouring: Vec<Colouring>,
}

/// A layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JoinedLayer {
    /// `L0` is the lowest that was scanned.
    pub name: String,
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// When the scan began, in milliseconds since 1970 by the layer's clock.
    pub scanned_ms: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// Milliseconds that it began after the scan of the layer above; absent where clocks do not
    /// allow to tell.
    pub after_upper_ms: Option<i64>,
    /// `after_upper_ms` is by the clocks of both layers, which need not agree; otherwise by one
    /// clock.
    pub by_own_clocks: bool,
    /// The VM that the layer above runs in.
    pub vm: Option<VmReport>,
    /// FMFI for order 9: Linux's unusable free space index, 0 to 1.
    pub fmfi: f64,
    /// Free huge pages.
    pub free_huge_pages: u64,
    /// Regions that changed on every reading.
    pub uncertain_regions: u64,
    /// What the scan could not see.
    pub blind: Vec<Blind>,
}

/// How a VM's memory is backed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VmReport {
    /// Name and process id of the VMM.
    pub vm: String,
    /// How it was found.
    pub matched: String,
    /// Where its slots were learned from.
    pub slots_from: SlotSource,
    /// The same in words.
    pub slots_evidence: String,
    /// Bytes of its memory slots.
    pub memory_bytes: u64,
    /// 2 MiB regions by how they are backed.
    pub backing: BTreeMap<&'static str, u64>,
    /// Regions that are huge in the VMM's page table but cannot be for KVM: slots misaligned.
    pub regions_in_misaligned_slots: u64,
    /// Regions that are not usable as huge, by cause, whoever uses them.
    pub causes: BTreeMap<&'static str, u64>,
    /// Mappings that KVM has: pages_4k, pages_2m, pages_1g, nx_lpage_splits, where known.
    pub kvm: BTreeMap<String, u64>,
    /// Regions of the VM's own guests that KVM maps huge although the VM has base pages there;
    /// `None` where the kernel does not tell.
    pub pseudo_huge: Option<u64>,
    /// What it used while it was watched; `None` if nobody watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot: Option<HotMemory>,
    /// How it lies over the colours of the layer's caches; empty where these are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub colours: Vec<ColourUse>,
}

/// What a VM used while it was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HotMemory {
    /// How that was noticed.
    pub by: By,
    /// Milliseconds between marking its frames and looking at them; 0 where nothing was marked.
    pub milliseconds: u64,
    /// Base pages whose use could be noticed.
    pub watched: u64,
    /// Those of them that were used.
    pub pages: u64,
}

/// Huge pages of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// All, each counted once however many processes map it.
    pub huge: u64,
    /// Mapped huge down to HPA, aligned.
    pub well_aligned: u64,
    /// Of the well aligned, those that a layer has in base pages and the one below it maps huge all
    /// the same.
    pub pseudo_huge: u64,
    /// Not so.
    pub misaligned: u64,
    /// Misaligned, and the layer responsible has nothing allocated there.
    pub type1: u64,
    /// Misaligned, and it has something there.
    pub type2: u64,
    /// Misaligned as far as is known, and yet one aligned block of HPA. Whether the lowest layer maps
    /// it huge all the same, [`Join::mappings_visible`] says if that is known.
    pub one_block: u64,
    /// Read while they changed: counted in neither.
    pub uncertain: u64,
    /// A layer below could not be seen: counted in neither.
    pub unknown: u64,
}

/// Fractions of guest huge memory that was judged (neither uncertain nor unknown), for the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Composite {
    /// Mapped huge down to HPA.
    pub huge: f64,
    /// Part of `huge` that a layer has in base pages.
    pub pseudo: f64,
    /// Mapped in base pages, or not known to be mapped otherwise.
    pub base: f64,
    /// Part of `base` that is one aligned block of HPA all the same.
    pub one_block: f64,
}

/// What a layer's huge pages find in the layer below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// The upper layer.
    pub upper: String,
    /// The lower layer.
    pub lower: String,
    /// Huge pages of the upper layer's processes, each once.
    pub upper_huge: u64,
    /// Those that the lower layer backs with one usable huge mapping.
    pub lower_huge: u64,
    /// Huge mappings of the lower layer for the upper one's memory.
    pub lower_all: u64,
    /// Those that the upper layer does not use as huge pages.
    pub lower_unused: u64,
    /// Those of them that the upper layer has wholly free.
    pub lower_unused_free: u64,
}

/// Misaligned pages of one cause in one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CauseCount {
    /// The layer responsible.
    pub layer: String,
    /// The cause.
    pub cause: Cause,
    /// Huge pages of the guest.
    pub pages: u64,
    /// What helps.
    pub remedy: &'static str,
    /// What would forbid huge pages there still if the cause were mended.
    pub behind: Option<Cause>,
    /// What helps against that.
    pub behind_remedy: Option<&'static str>,
    /// Guest-physical ranges `[start, end)` in bytes.
    pub ranges: Vec<[u64; 2]>,
}

/// Huge pages of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessCount {
    /// Process id in the guest.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
    /// Huge pages.
    pub huge: u64,
    /// Well-aligned ones.
    pub well_aligned: u64,
    /// Misaligned ones.
    pub misaligned: u64,
    /// Uncertain and unknown ones.
    pub unjudged: u64,
    /// The cause of most misaligned ones, as `layer cause`.
    pub main_cause: Option<String>,
}

impl Composite {
    /// The fractions of these totals; all 0 when nothing was judged.
    pub fn of(totals: &Totals) -> Self {
        let judged = totals.well_aligned + totals.misaligned;
        let share = |part: u64| if judged == 0 { 0.0 } else { part as f64 / judged as f64 };
        Self {
            huge: share(totals.well_aligned),
            pseudo: share(totals.pseudo_huge),
            base: share(totals.misaligned),
            one_block: share(totals.one_block),
        }
    }
}
