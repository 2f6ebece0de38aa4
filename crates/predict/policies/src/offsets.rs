//! Where the pages of an area go: offset descriptors (Gemini 4.2 and 5, xGemini IV.C).
//!
//! A descriptor says that a range of HPAS regions of the upper space lies, region by region, at a
//! constant distance in the layer's memory. A whole area gets one descriptor when a free run is
//! long enough; else the largest run is taken and the rest of the area, a sub-VMA, gets another
//! when it is touched.
//!
//! ```text
//! upper   | region | region | region | region |       one area
//!             \        \        \        |
//! lower    | region | region | region | (taken)        -> sub-VMA for the rest
//! ```
//!
//! Gemini keeps descriptors in a self-organising list; here they are in a tree by address, which
//! finds the same descriptor at a cost that does not grow with fragmentation.

use std::collections::BTreeMap;
use strata_addr::{Frame, PageSize, Range, space::Lower, space::Upper};
use strata_frames::{Memory, REGION_FRAMES, Run};
use strata_stack::SpaceId;

/// One descriptor: `regions` HPAS regions from the key's page lie at `lower`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    regions: u64,
    lower: Frame<Lower>,
}

/// The descriptors of one layer.
#[derive(Clone, Debug, Default)]
pub struct Offsets {
    by_start: BTreeMap<(SpaceId, u64), Descriptor>,
    cursor: Option<Frame<Lower>>,
}

impl Offsets {
    /// The region of the layer's memory where an upper region goes, if that is decided.
    pub fn target(&self, space: SpaceId, region: Frame<Upper>) -> Option<Frame<Lower>> {
        let key = (space, region.get());
        let (&(_, start), descriptor) = self.by_start.range((space, 0)..=key).next_back()?;
        let distance = (region.get() - start) / REGION_FRAMES;
        (distance < descriptor.regions).then(|| descriptor.lower + distance * REGION_FRAMES)
    }

    /// Decides where `region` and what follows it in `area` goes: a free run that fits the rest of
    /// the area, next-fit, or the largest. Returns the run; `region` lies at its start.
    pub fn choose(
        &mut self,
        memory: &Memory,
        space: SpaceId,
        region: Frame<Upper>,
        area: Range<Upper>,
    ) -> Option<Run> {
        let end = area.end.floor(PageSize::Huge).page();
        let wanted = (end.get().saturating_sub(region.get()) / REGION_FRAMES).max(1);
        let from = self.cursor.unwrap_or(Frame::new(0));
        let run = memory.next_fit(from, wanted).or_else(|| memory.largest_run())?;
        let regions = wanted.min(run.regions);
        self.cursor = Some(run.start + regions * REGION_FRAMES);
        self.assign(space, region, regions, run.start);
        Some(Run { start: run.start, regions })
    }

    /// Decides that `regions` regions from `region` lie at `lower`, overriding what was decided for
    /// the first of them.
    pub fn assign(
        &mut self,
        space: SpaceId,
        region: Frame<Upper>,
        regions: u64,
        lower: Frame<Lower>,
    ) {
        self.cut(space, region);
        // What is decided for regions further on stays.
        let next = self
            .by_start
            .range((space, region.get() + 1)..)
            .next()
            .filter(|((of, _), _)| *of == space)
            .map(|((_, start), _)| (start - region.get()) / REGION_FRAMES);
        let regions = next.map_or(regions, |room| regions.min(room));
        self.by_start.insert((space, region.get()), Descriptor { regions, lower });
    }

    /// Takes one region out of whatever descriptor covers it.
    pub fn cut(&mut self, space: SpaceId, region: Frame<Upper>) {
        let key = (space, region.get());
        let covering = self.by_start.range((space, 0)..=key).next_back();
        let Some((&(of, start), &descriptor)) = covering else { return };
        let distance = (region.get() - start) / REGION_FRAMES;
        if distance >= descriptor.regions {
            return;
        }
        self.by_start.remove(&(of, start));
        if distance > 0 {
            self.by_start.insert((of, start), Descriptor { regions: distance, ..descriptor });
        }
        let rest = descriptor.regions - distance - 1;
        if rest > 0 {
            let lower = descriptor.lower + (distance + 1) * REGION_FRAMES;
            let start = region.get() + REGION_FRAMES;
            self.by_start.insert((of, start), Descriptor { regions: rest, lower });
        }
    }

    /// Forgets what was decided for spaces and areas that are gone; `alive` tells whether an area
    /// has anything of a range.
    pub fn retain(&mut self, alive: impl Fn(SpaceId, Range<Upper>) -> bool) {
        self.by_start.retain(|(space, start), descriptor| {
            let bytes = descriptor.regions * PageSize::Huge.bytes();
            alive(*space, Range::sized(Frame::new(*start).addr(), bytes))
        });
    }

    /// Number of descriptors.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Whether nothing is decided.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_addr::Addr;

    const SPACE: SpaceId = SpaceId(3);

    fn upper(region: u64) -> Frame<Upper> {
        Frame::new(region * REGION_FRAMES)
    }

    fn lower(region: u64) -> Frame<Lower> {
        Frame::new(region * REGION_FRAMES)
    }

    #[test]
    fn a_whole_area_gets_one_run_when_there_is_one() {
        let mut memory = Memory::new(16 * REGION_FRAMES);
        assert!(memory.alloc_at(lower(2), 0));
        let area = Range::new(Addr::new(0x40_0000), Addr::new(0x120_0000));
        let mut offsets = Offsets::default();
        let run = offsets.choose(&memory, SPACE, upper(2), area);
        assert_eq!(run, Some(Run { start: lower(3), regions: 7 }));
        assert_eq!(offsets.target(SPACE, upper(8)), Some(lower(9)));
        assert_eq!(offsets.target(SPACE, upper(9)), None, "past the area");
        assert_eq!(offsets.target(SpaceId(4), upper(2)), None);
    }

    #[test]
    fn the_largest_run_takes_a_part_and_the_rest_is_a_sub_vma() {
        let mut memory = Memory::new(8 * REGION_FRAMES);
        assert!(memory.alloc_at(lower(5), 0));
        let area = Range::new(upper(0).addr(), upper(8).addr());
        let mut offsets = Offsets::default();
        let run = offsets.choose(&memory, SPACE, upper(0), area);
        assert_eq!(run, Some(Run { start: lower(0), regions: 5 }));
        assert_eq!(offsets.target(SPACE, upper(4)), Some(lower(4)));
        assert_eq!(offsets.target(SPACE, upper(5)), None);
    }

    #[test]
    fn descriptors_of_areas_that_are_gone_are_forgotten() {
        let mut offsets = Offsets::default();
        offsets.assign(SPACE, upper(2), 3, lower(7));
        offsets.assign(SPACE, upper(9), 1, lower(1));
        offsets.assign(SpaceId(4), upper(2), 1, lower(2));
        let area = Range::new(upper(4).addr(), upper(9).addr());
        offsets.retain(|space, range| space == SPACE && !area.intersection(&range).is_empty());
        assert_eq!(offsets.len(), 1);
        assert_eq!(offsets.target(SPACE, upper(4)), Some(lower(9)));
    }

    proptest! {
        #[test]
        fn descriptors_equal_a_region_by_region_twin(
            ops in prop::collection::vec((0u64..20, 1u64..8, 0u64..100, any::<bool>()), 1..40)
        ) {
            let mut offsets = Offsets::default();
            let mut twin: BTreeMap<u64, u64> = BTreeMap::new();
            for (region, regions, to, cut) in ops {
                if cut {
                    offsets.cut(SPACE, upper(region));
                    twin.remove(&region);
                    continue;
                }
                // Longer runs are only ever chosen for regions that nothing is decided for.
                let regions = if twin.contains_key(&region) { 1 } else { regions };
                offsets.assign(SPACE, upper(region), regions, lower(to));
                let room = twin.range(region + 1..).next().map_or(regions, |(next, _)| next - region);
                for i in 0..regions.min(room) {
                    twin.insert(region + i, to + i);
                }
            }
            for region in 0..30 {
                let got = offsets.target(SPACE, upper(region)).map(|f| f.get() / REGION_FRAMES);
                prop_assert_eq!(got, twin.get(&region).copied(), "region {}", region);
            }
        }
    }
}
