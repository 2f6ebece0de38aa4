//! Which huge pages of a guest are well aligned, and which kernel is to blame for the others.

use crate::stack::Stack;
use crate::thp::Fallback;
use crate::tree::NodeId;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use strata_addr::{Frame, PageSize, Range, space::Upper};
use strata_frames::HUGE_ORDER;
use strata_paging::Region;

/// Guest huge pages by alignment. Sources: Gemini 2.2 and 3, xGemini III.A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlignmentCounts {
    /// Huge pages in the guest's tables.
    pub guest_huge: u64,
    /// Of these, backed by one huge mapping down to real memory.
    pub well_aligned: u64,
    /// Of these, with nothing mapped below.
    pub type1: u64,
    /// Of these, with something mapped below that is not one huge page.
    pub type2: u64,
    /// Well-aligned ones whose guest hypervisor uses base pages: pseudo huge pages.
    pub pseudo_huge: u64,
    /// Huge pages of the second stage that hardware walks.
    pub host_huge: u64,
    /// Of these, under guest huge pages.
    pub host_well_aligned: u64,
}

/// Misaligned guest huge pages with one cause in one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The highest kernel that breaks the page up.
    pub node: NodeId,
    /// Why, in a sentence.
    pub cause: &'static str,
    /// How many guest huge pages.
    pub huge_pages: u64,
    /// Where in the guest's virtual memory, merged; at most [`Stack::BLAME_RANGES`].
    pub ranges: Vec<Range<Upper>>,
}

impl Stack {
    /// Ranges named per cause.
    pub const BLAME_RANGES: usize = 16;

    /// Counts the huge pages of a guest by alignment. Walks all its tables.
    pub fn alignment(&self, guest: NodeId) -> AlignmentCounts {
        let mut found = AlignmentCounts::default();
        let hardware = self.hardware_second_stage(guest);
        if let Some(table) = hardware {
            table.for_each_huge(|_, _| found.host_huge += 1);
        }
        self.for_each_guest_huge(guest, |_, guest_physical| {
            found.guest_huge += 1;
            let Some(table) = hardware else {
                found.well_aligned += 1;
                return;
            };
            match table.region(guest_physical) {
                Region::Huge(_) => {
                    found.well_aligned += 1;
                    found.host_well_aligned += 1;
                    let top = self.second_stage(guest).region(guest_physical);
                    found.pseudo_huge += u64::from(matches!(top, Region::Base { .. }));
                }
                Region::Absent if self.nothing_below(guest, guest_physical) => found.type1 += 1,
                _ => found.type2 += 1,
            }
        });
        found
    }

    /// Which kernel below a guest breaks up its misaligned huge pages, and why; most pages first.
    pub fn blame(&self, guest: NodeId) -> Vec<Blame> {
        // The kernel nearest to the guest first.
        let mut blames: BTreeMap<(Reverse<NodeId>, &'static str), Blame> = BTreeMap::new();
        let Some(hardware) = self.hardware_second_stage(guest) else { return Vec::new() };
        self.for_each_guest_huge(guest, |page, guest_physical| {
            if matches!(hardware.region(guest_physical), Region::Huge(_)) {
                return;
            }
            let (node, cause) = self.culprit(guest, guest_physical);
            let blame = blames.entry((Reverse(node), cause)).or_insert_with(|| Blame {
                node,
                cause,
                huge_pages: 0,
                ranges: Vec::new(),
            });
            blame.huge_pages += 1;
            let range = Range::sized(page.addr(), PageSize::Huge.bytes());
            if let Some(last) = blame.ranges.last_mut().filter(|last| last.end == range.start) {
                last.end = range.end;
            } else if blame.ranges.len() < Self::BLAME_RANGES {
                blame.ranges.push(range);
            }
        });
        let mut blames: Vec<_> = blames.into_values().collect();
        blames.sort_by_key(|blame| Reverse(blame.huge_pages));
        blames
    }

    /// FMFI of a kernel's free memory for order 9.
    pub fn fmfi(&self, node: NodeId) -> f64 {
        self.kernel(node).memory().fmfi(HUGE_ORDER)
    }

    /// Shadow entries made huge though a kernel between has base pages, and such entries broken up.
    pub fn shadow_promotions(&self) -> (u64, u64) {
        (self.shadow_promotions, self.shadow_demotions)
    }

    fn for_each_guest_huge(
        &self,
        guest: NodeId,
        mut visit: impl FnMut(Frame<Upper>, Frame<Upper>),
    ) {
        for (_, space) in self.kernel(guest).spaces() {
            space.table.for_each_huge(|page, mapping| visit(page, mapping.frame.cross()));
        }
    }

    pub(crate) fn nothing_below(&self, guest: NodeId, guest_physical: Frame<Upper>) -> bool {
        let hva = self.hva(guest, guest_physical);
        let range = Range::sized(hva.addr(), PageSize::Huge.bytes());
        self.vm_table(guest).first_mapped(range).is_none()
    }

    /// The highest hypervisor that does not map the region huge, and why.
    pub(crate) fn culprit(
        &self,
        guest: NodeId,
        guest_physical: Frame<Upper>,
    ) -> (NodeId, &'static str) {
        let mut at = guest_physical;
        for vm in self.path_down(guest).map_while(|node| self.nodes[node].vm.as_ref()) {
            match vm.second.region(at) {
                Region::Huge(mapping) => at = (mapping.frame + at.index_in(mapping.size)).cross(),
                Region::Absent => return (vm.below, "nothing is mapped yet"),
                Region::Base { .. } => {
                    if !vm.slot.is_multiple_of(PageSize::Huge.base_pages()) {
                        return (vm.below, "the memory slot is not aligned to 2 MiB");
                    }
                    let why = self.kernel(vm.below).fallback(vm.process, at + vm.slot);
                    return (vm.below, why.map_or("not collapsed yet", Fallback::explain));
                }
            }
        }
        (NodeId::HOST, "the shadow table has not been refilled yet")
    }
}
