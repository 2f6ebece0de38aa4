//! The verdict on each huge page of the guest.

use super::cause::{Balloon, Cause, Ground, Whole, behind, kvm_splits, nx_splits, of_region};
use super::compose::{descend, is_aligned_block};
use crate::snapshot::model::HugePage;
use crate::snapshot::pseudo;
use crate::snapshot::region::{Class, Region};
use crate::snapshot::{BackedVm, Snapshot};
use strata_addr::space::HostPhysical;
use strata_addr::{Frame, Gpa, Gva};

/// What became of one huge page of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// One huge mapping down to the lowest layer.
    WellAligned {
        /// First frame in the lowest layer: of real memory, as far as the snapshots show.
        frame: Frame<HostPhysical>,
        /// Some layer has it in base pages, and the one below maps it huge all the same.
        pseudo_huge: bool,
    },
    /// Some layer below has it otherwise.
    Misaligned {
        /// Which: 0 is the layer right below the guest.
        below: usize,
        /// Why.
        cause: Cause,
        /// What would forbid it still if that were mended.
        behind: Option<Cause>,
        /// Nothing is allocated there.
        type1: bool,
    },
    /// It changed while it was read.
    Uncertain,
    /// Something was hidden.
    Unknown,
}

/// A layer below the guest, ready to be asked.
pub(super) struct Below<'a> {
    pub(super) vm: &'a BackedVm,
    ground: Ground<'a>,
    pub(super) whole: Whole,
}

impl<'a> Below<'a> {
    /// `guest` is the layer that runs in the VM, if its snapshot is there.
    pub(super) fn new(snapshot: &'a Snapshot, vm: &'a BackedVm, guest: Option<&Snapshot>) -> Self {
        let huge = vm.regions.iter().filter(|region| region.class == Class::Huge).count() as u64;
        let whole = Whole {
            split: kvm_splits(&vm.vm, huge),
            balloon: Balloon::of(&vm.vm, guest.map(|guest| &guest.head.settings)),
        };
        Self { vm, ground: Ground::new(&snapshot.head.settings), whole }
    }

    pub(super) fn cause(&self, region: &Region) -> Option<Cause> {
        of_region(&self.ground, &self.vm.vm, region, self.whole)
    }

    /// Whether KVM has split a huge mapping of code. It does not say which; that it did is all
    /// that is needed where the guest may run code, for it does so at the first instruction.
    fn splits_code(&self) -> bool {
        nx_splits(&self.vm.vm) > 0
    }
}

/// Frames of huge pages that some process of a guest may run code from, in order.
pub(super) fn executable(guest: &Snapshot) -> Vec<u64> {
    let areas = guest.processes.iter().flat_map(|process| &process.areas);
    let pages = areas.filter(|area| area.executable).flat_map(|area| &area.huge);
    let mut frames: Vec<u64> = pages.map(|page| page.frame).collect();
    frames.sort_unstable();
    frames
}

/// Judges one huge page of the guest; `code` has the frames that code may run from.
pub(super) fn judge(below: &[Below<'_>], page: HugePage, code: &[u64]) -> Verdict {
    if page.uncertain {
        return Verdict::Uncertain;
    }
    if page.frame == 0 {
        return Verdict::Unknown;
    }
    let mut frame = page.frame;
    let mut pseudo_huge = false;
    let mut number = 0;
    while let Some(layer) = below.get(number) {
        let misaligned =
            |cause, behind, type1| Verdict::Misaligned { below: number, cause, behind, type1 };
        let Some(region) = layer.vm.region(frame >> 9) else {
            return match layer.vm.vm.slots.is_empty() || layer.vm.vm.slot(frame << 12).is_some() {
                true => Verdict::Unknown,
                false => misaligned(Cause::OutsideMemory, None, true),
            };
        };
        if region.uncertain {
            return Verdict::Uncertain;
        }
        if let Some(cause) = layer.cause(region) {
            if let Some(lower) = mapped_huge_below(below, number, frame) {
                (frame, pseudo_huge, number) = (lower, true, number + 2);
                continue;
            }
            let behind = behind(&layer.ground, &layer.vm.vm, region);
            return misaligned(cause, behind.filter(|&own| own != cause), cause.is_type1(region));
        }
        if layer.splits_code() && code.binary_search(&page.frame).is_ok() {
            return misaligned(Cause::NxHugePages, None, false);
        }
        if !region.one_aligned_block() {
            return Verdict::Unknown;
        }
        frame = region.runs[0].frame();
        number += 1;
    }
    Verdict::WellAligned { frame: Frame::new(frame), pseudo_huge }
}

/// Where the region that begins in `frame` is two layers below layer `number`'s guest, if the lower
/// of the two says that it maps it huge, whatever the upper one has. Frames in all snapshots have to
/// say the same: another nested guest has other memory at this address, and what has moved meanwhile
/// is no longer what was listed.
fn mapped_huge_below(below: &[Below<'_>], number: usize, frame: u64) -> Option<u64> {
    let lower = below.get(number + 1)?.vm;
    if lower.pseudo_huge.is_empty() {
        return None;
    }
    let runs = descend(&[below[number].vm, lower], frame);
    let block = runs.first().filter(|_| is_aligned_block(&runs))?.frame();
    pseudo::has(&lower.pseudo_huge, frame, block).then_some(block)
}

/// One huge page of the guest, as a process has it mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The process.
    pub pid: u32,
    /// Where the process has it.
    pub gva: Gva,
    /// Where the guest has it; 0 where that was hidden.
    pub gpa: Gpa,
    /// What became of it.
    pub verdict: Verdict,
}
