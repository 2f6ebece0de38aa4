//! Every 2 MiB region of a guest's programs, followed through all layers: for who draws a picture.

use crate::stack::Stack;
use crate::tree::NodeId;
use strata_addr::{Frame, PageSize, space::Upper};
use strata_paging::Region;

/// What becomes of a region for the TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The guest maps it with base pages.
    Base,
    /// The guest has a huge page, and so has what hardware walks below.
    WellAligned,
    /// The guest has a huge page, and nothing is mapped below.
    Type1,
    /// The guest has a huge page, and what is mapped below is not one.
    Type2,
}

/// A region in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRegion {
    /// Base pages of it that this layer has as part of a huge page.
    pub huge: u16,
    /// Base pages of it that this layer has mapped at all.
    pub mapped: u16,
    /// Number of the region of the layer's own memory that it is, if all of it lies there in a row.
    pub at: Option<u64>,
}

/// A region of a guest's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestRegion {
    /// Which address space of the guest it is in, counted from 0.
    pub space: u32,
    /// Its number: the guest-virtual address over 2 MiB.
    pub number: u64,
    /// What becomes of it.
    pub fate: Fate,
    /// The layer that breaks it up, and why; of misaligned ones only.
    pub blame: Option<(NodeId, &'static str)>,
    /// It in every layer, the guest first, the host last.
    pub layers: Vec<LayerRegion>,
}

impl Stack {
    /// All regions in which a guest's programs have memory, space by space in the order of addresses.
    pub fn regions(&self, guest: NodeId) -> Vec<GuestRegion> {
        let mut all = Vec::new();
        for (index, (_, space)) in self.kernel(guest).spaces().enumerate() {
            space.table.for_each_region(|page, region| {
                let (own, pages) = match region {
                    Region::Absent => return,
                    Region::Huge(mapping) => {
                        let first = mapping.frame + page.index_in(mapping.size);
                        (true, in_a_row(first.cross()))
                    }
                    Region::Base { present: 0, .. } => return,
                    Region::Base { .. } => {
                        let each = (0..PageSize::Huge.base_pages()).map(|offset| page + offset);
                        let mapped = each.filter_map(|page| {
                            Some(space.table.mapping(page.addr())?.frame.cross())
                        });
                        (false, mapped.collect())
                    }
                };
                let fate = if own { self.fate(guest, pages[0]) } else { Fate::Base };
                let misaligned = matches!(fate, Fate::Type1 | Fate::Type2);
                all.push(GuestRegion {
                    space: index as u32,
                    number: page.get() / PageSize::Huge.base_pages(),
                    fate,
                    blame: misaligned.then(|| self.culprit(guest, pages[0])),
                    layers: self.through(guest, own, pages),
                });
            });
        }
        all
    }

    /// What becomes of a huge page of the guest. As [`Stack::alignment`] counts it.
    fn fate(&self, guest: NodeId, guest_physical: Frame<Upper>) -> Fate {
        match self.hardware_second_stage(guest).map(|table| table.region(guest_physical)) {
            None | Some(Region::Huge(_)) => Fate::WellAligned,
            Some(Region::Absent) if self.nothing_below(guest, guest_physical) => Fate::Type1,
            Some(_) => Fate::Type2,
        }
    }

    /// Pages of the guest's memory in all layers; `own` says whether the guest maps them huge.
    fn through(&self, guest: NodeId, own: bool, mut pages: Vec<Frame<Upper>>) -> Vec<LayerRegion> {
        let count = pages.len() as u16;
        let mut layers = vec![LayerRegion {
            huge: if own { count } else { 0 },
            mapped: count,
            at: place(&pages),
        }];
        for vm in self.path_down(guest).map_while(|node| self.nodes[node].vm.as_ref()) {
            let mut huge = 0;
            let mut below = Vec::with_capacity(pages.len());
            for page in pages {
                if let Some(mapping) = vm.second.mapping(page.addr()) {
                    huge += u16::from(mapping.size >= PageSize::Huge);
                    below.push((mapping.frame + page.index_in(mapping.size)).cross());
                }
            }
            layers.push(LayerRegion { huge, mapped: below.len() as u16, at: place(&below) });
            pages = below;
        }
        layers
    }
}

fn in_a_row(first: Frame<Upper>) -> Vec<Frame<Upper>> {
    (0..PageSize::Huge.base_pages()).map(|offset| first + offset).collect()
}

/// Number of the region that pages are, if they are one from its first to its last.
fn place(pages: &[Frame<Upper>]) -> Option<u64> {
    let first = *pages.first()?;
    let whole =
        pages.len() as u64 == PageSize::Huge.base_pages() && first.is_aligned(PageSize::Huge);
    let row = whole && pages.windows(2).all(|pair| pair[1].get() == pair[0].get() + 1);
    row.then(|| first.get() / PageSize::Huge.base_pages())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_a_region_if_they_are_all_of_it_in_a_row() {
        let from = |first| in_a_row(Frame::new(first));
        assert_eq!(place(&from(3 * 512)), Some(3));
        assert_eq!(place(&from(3 * 512 + 1)), None, "of two regions");
        assert_eq!(place(&from(3 * 512)[..511]), None, "not all of it");
        let mut swapped = from(3 * 512);
        swapped.swap(7, 8);
        assert_eq!(place(&swapped), None, "not in a row");
        assert_eq!(place(&[]), None);
    }
}
