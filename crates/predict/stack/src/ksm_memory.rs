//! What ksmd remembers.

use crate::tree::NodeId;
use rustc_hash::{FxHashMap, FxHashSet};
use strata_addr::{Frame, space::Lower, space::Upper};

strata_params::parameters! {
    /// ksmd's settings. Defaults: Linux 6.12, `mm/ksm.c`.
    pub struct KsmParameters {
        /// The host merges equal pages of VMs.
        run: bool = false, "ksm.run", "";
        /// Pages it looks at per wake-up.
        pages_to_scan: u64 = 100, "ksm.pages_to_scan", "pages";
        /// Pause between two wake-ups.
        sleep: f64 = 0.02, "ksm.sleep", "s";
        /// Share of the pages of programs that hold the same wherever a program has a page at the same
        /// virtual address, in whichever VM; drawn by seed and address. A page stays so until something
        /// stores to it while it is merged. `?`
        duplicates: f64 = 0.1, "ksm.duplicates", "share";
        /// Looking at a page: its checksum or a comparison, as long as copying it. `?`
        cycles: u64 = 1024, "ksm.cycles", "cycles per page";
    }
}

/// A page of the memory of a VM on the host.
pub(crate) type Page = (NodeId, Frame<Upper>);

/// What ksmd remembers.
#[derive(Debug, Default)]
pub(crate) struct Ksm {
    pub(crate) settings: KsmParameters,
    pub(crate) seed: u64,
    /// When it wakes up next, in seconds.
    pub(crate) next: f64,
    /// The page it looks at next; the first one of all at the beginning of a pass.
    pub(crate) cursor: Option<Page>,
    /// Shared frames by what is in them, and the other way round: a frame may be another's by now.
    pub(crate) stable: FxHashMap<u64, Vec<Frame<Lower>>>,
    pub(crate) content: FxHashMap<Frame<Lower>, u64>,
    /// Pages of this pass that did not change since the last one, by what is in them.
    pub(crate) unstable: FxHashMap<u64, Vec<Page>>,
    /// What was in a page when it was last looked at.
    pub(crate) seen: FxHashMap<Page, u64>,
    /// Pages that were stored to while they were merged.
    pub(crate) stored: FxHashSet<Page>,
    /// Whether anything was ever merged: only then may a page be mapped and not writable.
    pub(crate) has_merged: bool,
}

impl Ksm {
    /// When it wakes up next, in seconds of simulated time.
    pub(crate) fn next_wake(&self) -> f64 {
        if self.settings.run { self.next } else { f64::INFINITY }
    }

    /// Whether pages may be mapped read-only because they are merged.
    #[inline]
    pub(crate) fn has_merged(&self) -> bool {
        self.has_merged
    }

    /// A merged page of a VM was stored to.
    pub(crate) fn note_store(&mut self, vm: NodeId, page: Frame<Upper>) {
        self.stored.insert((vm, page));
    }

    /// These kernels are gone.
    pub(crate) fn forget(&mut self, kernels: &[NodeId]) {
        self.seen.retain(|(vm, _), _| !kernels.contains(vm));
        self.stored.retain(|(vm, _)| !kernels.contains(vm));
        self.unstable.clear();
    }
}
