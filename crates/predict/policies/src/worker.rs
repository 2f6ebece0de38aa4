//! The worker of the kernel in `linux/`: its settings, and what it remembers of its VMs.

use crate::coordination::GuestRegion;
use rustc_hash::FxHashMap;
use strata_stack::{NodeId, SpaceId};

strata_params::parameters! {
    /// The worker of the kernel in `linux/`, with the defaults of its module parameters.
    pub struct StrataParameters {
        /// Pause between two scans (`nested_align_period_ms`).
        period: f64 = 1.0, "strata.period", "s";
        /// Share of one CPU for scanning, finding frames and moving pages (`nested_align_cpu_percent`).
        share: f64 = 0.05, "strata.share", "share";
        /// Pages of 512 that the guest hypervisor must map before any are moved
        /// (`nested_align_min_present`).
        min_present: u64 = 448, "strata.min_present", "pages";
        /// FMFI of the host beyond which only whole regions are moved
        /// (`nested_align_max_fragmentation`).
        max_fmfi: f64 = 0.9, "strata.max_fragmentation", "share";
        /// The worker compacts for a free region.
        compact: bool = true, "strata.compact", "";
        /// The worker takes a huge page of the VM apart for a free region.
        take_apart: bool = true, "strata.take_apart", "";
        /// The page of a fault that was handed on is filled when the guest is entered next.
        fill_ahead: bool = true, "strata.fill_ahead", "";
        /// A leaf table of the guest hypervisor's stays writable while it is filled, but for its last two pages; on AMD's
        /// instructions.
        keep_unsync: bool = true, "strata.keep_unsync", "";
        /// Pages of a booked region go there one by one as they are mapped.
        one_by_one: bool = true, "strata.one_by_one", "";
        /// A base page that the host maps for a fault of a guest hypervisor brings those around it that it has: 16 from a
        /// multiple of 16 on, as where a huge page was split.
        map_around: bool = true, "strata.map_around", "";
        /// Transparent huge pages of the unmodified guest hypervisor: stock kernels have `always`.
        l1_thp: bool = true, "strata.l1_thp", "";
    }
}

/// Pages that are mapped at once, as many as Linux maps of a file (`AROUND` in `nested_align_around.h`).
pub(crate) const AROUND: u64 = 16;

/// What the kernel keeps for its VMs.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) settings: StrataParameters,
    /// Pages that were present in a region at the last visit: what still fills up is left alone.
    pub(crate) present: FxHashMap<GuestRegion, u64>,
    /// Where the next huge page to be taken apart is looked for.
    pub(crate) next_apart: FxHashMap<SpaceId, u64>,
    pub(crate) next_round: f64,
    pub(crate) resume_at: GuestRegion,
}

impl Worker {
    pub(crate) fn new(settings: StrataParameters) -> Self {
        Self {
            next_round: settings.period,
            settings,
            present: FxHashMap::default(),
            next_apart: FxHashMap::default(),
            resume_at: (NodeId::HOST, 0),
        }
    }

    /// VMs have ended.
    pub(crate) fn ended(&mut self, kernels: &[NodeId]) {
        self.present.retain(|(guest, _), _| !kernels.contains(guest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VM that comes later in the place of one that ended starts anew: what was present in the other's region does
    /// not say that its own is full.
    #[test]
    fn what_was_present_in_a_vm_is_forgotten_when_it_ends() {
        let mut worker = Worker::new(StrataParameters::default());
        let [gone, stays] = [1, 2].map(|at| NodeId::all().nth(at).expect("there are more"));
        for guest in [gone, stays] {
            worker.present.insert((guest, 512), 500);
        }
        worker.ended(&[gone]);
        assert_eq!(worker.present.into_iter().collect::<Vec<_>>(), [((stays, 512), 500)]);
    }
}
