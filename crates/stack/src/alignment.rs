//! Which guest huge pages are well aligned, and which layer is to blame for the others.

use crate::policy::Layer;
use crate::stack::{Stack, VM};
use crate::thp::Fallback;
use std::collections::BTreeMap;
use strata_addr::{Frame, PageSize, Range, space::Upper};
use strata_frames::HUGE_ORDER;
use strata_paging::Region;

/// Guest huge pages by alignment. Sources: Gemini 2.2 and 3, xGemini III.A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alignment {
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

/// Misaligned guest huge pages with one cause in one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The highest layer that breaks the page up.
    pub layer: Layer,
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

    /// Counts guest huge pages by alignment. Walks all tables.
    pub fn alignment(&self) -> Alignment {
        let mut found = Alignment::default();
        let hardware = self.hardware_second_stage();
        if let Some(table) = hardware {
            table.for_each_huge(|_, _| found.host_huge += 1);
        }
        self.for_each_guest_huge(|_, guest_physical| {
            found.guest_huge += 1;
            let Some(table) = hardware else {
                found.well_aligned += 1;
                return;
            };
            match table.region(guest_physical) {
                Region::Huge(_) => {
                    found.well_aligned += 1;
                    found.host_well_aligned += 1;
                    let top = &self.layers[1].second().table;
                    if matches!(top.region(guest_physical), Region::Base { .. }) {
                        found.pseudo_huge += 1;
                    }
                }
                Region::Absent if self.nothing_below(guest_physical) => found.type1 += 1,
                _ => found.type2 += 1,
            }
        });
        found
    }

    /// Which layer breaks up misaligned guest huge pages, and why; most pages first.
    pub fn blame(&self) -> Vec<Blame> {
        let mut blames: BTreeMap<(Layer, &'static str), Blame> = BTreeMap::new();
        let Some(hardware) = self.hardware_second_stage() else { return Vec::new() };
        self.for_each_guest_huge(|page, guest_physical| {
            if matches!(hardware.region(guest_physical), Region::Huge(_)) {
                return;
            }
            let (layer, cause) = self.culprit(guest_physical);
            let blame = blames.entry((layer, cause)).or_insert_with(|| Blame {
                layer,
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
        blames.sort_by_key(|blame| std::cmp::Reverse(blame.huge_pages));
        blames
    }

    /// FMFI of a layer's free memory for order 9.
    pub fn fmfi(&self, layer: Layer) -> f64 {
        self.layers[layer].kernel.frames.memory.fmfi(HUGE_ORDER)
    }

    /// Shadow entries made huge though a layer between has base pages, and such entries broken up.
    pub fn shadow_promotions(&self) -> (u64, u64) {
        (self.shadow_promotions, self.shadow_demotions)
    }

    fn for_each_guest_huge(&self, mut visit: impl FnMut(Frame<Upper>, Frame<Upper>)) {
        for (_, space) in self.layers[0].kernel.spaces() {
            space.table.for_each_huge(|page, mapping| visit(page, mapping.frame.cross()));
        }
    }

    fn nothing_below(&self, guest_physical: Frame<Upper>) -> bool {
        let vm = self.layers[1].kernel.space(VM).expect("lives as long as the VM");
        let hva = self.hva(1, guest_physical);
        let range = Range::sized(hva.addr(), PageSize::Huge.bytes());
        let mut anything = false;
        vm.table.for_each(range, |_, _| anything = true);
        !anything
    }

    /// The highest hypervisor that does not map the region huge, and why.
    fn culprit(&self, guest_physical: Frame<Upper>) -> (Layer, &'static str) {
        let mut at = guest_physical;
        for (layer, stack_layer) in self.layers.iter().enumerate().skip(1) {
            let second = stack_layer.second();
            match second.table.region(at) {
                Region::Huge(mapping) => at = (mapping.frame + at.index_in(mapping.size)).cross(),
                Region::Absent => return (layer, "nothing is mapped yet"),
                Region::Base { .. } => {
                    if !second.slot.is_multiple_of(PageSize::Huge.base_pages()) {
                        return (layer, "the memory slot is not aligned to 2 MiB");
                    }
                    let hva = self.hva(layer, at);
                    let why = stack_layer.kernel.fallback(VM, hva);
                    return (layer, why.map_or("not collapsed yet", Fallback::explain));
                }
            }
        }
        (self.bottom(), "the shadow table has not been refilled yet")
    }
}
