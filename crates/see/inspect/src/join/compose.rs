//! Composing the mappings of layers: where the pages of a guest are, all the way down.

use crate::snapshot::BackedVm;
use crate::snapshot::region::{PAGES, Run};

/// Sends runs of pages through a VM's backing: frames of the guest become frames of the layer
/// below. Pages that are not backed are left out; neighbours are joined.
pub fn through(vm: &BackedVm, runs: &[Run]) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    for run in runs {
        let end = run.frame() + u64::from(run.pages());
        let mut frame = run.frame();
        while frame < end {
            let index = frame >> 9;
            let stop = end.min((index + 1) << 9);
            if let Some(region) = vm.region(index) {
                let (low, high) = ((frame & 511) as u16, ((stop - 1) & 511) as u16 + 1);
                let from =
                    region.runs.partition_point(|below| below.first() + below.pages() <= low);
                for below in region.runs[from..].iter().take_while(|below| below.first() < high) {
                    let first = below.first().max(low);
                    let last = (below.first() + below.pages()).min(high);
                    let page = run.first() + (u64::from(first - low) + frame - run.frame()) as u16;
                    let lower = below.frame() + u64::from(first - below.first());
                    push(&mut out, page, last - first, lower);
                }
            }
            frame = stop;
        }
    }
    out
}

fn push(out: &mut Vec<Run>, page: u16, pages: u16, frame: u64) {
    if let Some(last) = out.last_mut()
        && last.first() + last.pages() == page
        && last.frame() + u64::from(last.pages()) == frame
    {
        *last = Run::new(last.first(), last.pages() + pages, last.frame());
    } else {
        out.push(Run::new(page, pages, frame));
    }
}

/// Sends a guest's 2 MiB page that begins in `frame` through all layers below, the nearest first.
pub fn descend(layers: &[&BackedVm], frame: u64) -> Vec<Run> {
    let whole = vec![Run::new(0, PAGES as u16, frame)];
    layers.iter().fold(whole, |runs, vm| through(vm, &runs))
}

/// Whether runs are one block of 512 frames from a multiple of 512.
pub fn is_aligned_block(runs: &[Run]) -> bool {
    matches!(runs, [run] if usize::from(run.pages()) == PAGES && run.frame().is_multiple_of(512))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::entry::PagemapEntry;
    use crate::snapshot::region::{Region, Special, pack};
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// The obvious way: one entry for each base page.
    type Plain = HashMap<u64, u64>;

    fn packed(plain: &Plain, regions: u64) -> BackedVm {
        let region = |index: u64| -> Region {
            let words: Vec<_> = (index * 512..(index + 1) * 512)
                .map(|frame| {
                    Some(
                        plain
                            .get(&frame)
                            .map_or(PagemapEntry::default(), |&f| PagemapEntry::present_at(f)),
                    )
                })
                .collect();
            pack(index, &words, false, |_| Special::None)
        };
        BackedVm { regions: (0..regions).map(region).collect(), ..BackedVm::default() }
    }

    /// Mappings of a layer of eight regions: blocks, stretches, single pages and holes.
    fn layer() -> impl Strategy<Value = Plain> {
        let block = (0..8u64, 0..8u64, 0..512u64, 1..600u64, 0..512u64);
        prop::collection::vec(block, 0..24).prop_map(|blocks| {
            let mut plain = Plain::new();
            for (from, to, first, pages, shift) in blocks {
                for page in first..first + pages {
                    let lower = (to * 512 + page + shift) % (8 * 512);
                    plain.insert((from * 512 + page) % (8 * 512), lower.max(1));
                }
            }
            plain
        })
    }

    proptest! {
        #[test]
        fn packed_composition_equals_the_plain_one(
            upper in layer(), lower in layer(), third in layer(), start in 0..7 * 512u64,
        ) {
            let layers = [packed(&upper, 8), packed(&lower, 8), packed(&third, 8)];
            let runs = descend(&layers.each_ref(), start);
            let mut frames = vec![None; PAGES];
            for run in &runs {
                for page in 0..run.pages() {
                    let at = usize::from(run.first() + page);
                    prop_assert!(frames[at].is_none(), "page {} twice", at);
                    frames[at] = Some(run.frame() + u64::from(page));
                }
            }
            for (page, frame) in (0u64..).zip(&frames) {
                let plain = upper.get(&(start + page));
                let plain = plain.and_then(|f| lower.get(f)).and_then(|f| third.get(f));
                prop_assert_eq!(plain, frame.as_ref());
            }
            let joined = runs.windows(2).all(|two| {
                let end = two[0].first() + two[0].pages();
                end < two[1].first()
                    || two[0].frame() + u64::from(two[0].pages()) != two[1].frame()
            });
            prop_assert!(joined, "neighbours are always joined");
            let aligned = (0u64..).zip(&frames).all(|(page, frame)| {
                *frame == frames[0].map(|first| first + page)
                    && frame.is_some()
            }) && frames[0].is_some_and(|frame| frame % 512 == 0);
            prop_assert_eq!(is_aligned_block(&runs), aligned);
        }
    }
}
