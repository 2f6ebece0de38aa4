//! From traced to modelled addresses, fast.

use strata_addr::{Gva, PageSize};
use strata_stack::{NodeId, SpaceId, Stack};
use strata_stream::Access;

const SLOTS: usize = 256;

/// Remembers what to add to the addresses of regions and pages used lately.
#[derive(Debug)]
pub(crate) struct Relocation {
    /// HPAS regions; [`MIXED`] for one whose parts differ.
    regions: Recent,
    /// Base pages of regions whose parts differ: areas begin and end where pages do.
    pages: Recent,
    /// The run being translated; kept for its memory.
    run: Vec<Access>,
}

/// Numbers of blocks used lately, and a shift of each.
#[derive(Debug)]
struct Recent {
    /// Block and space, or `NONE`.
    tags: [u64; SLOTS],
    shifts: [u64; SLOTS],
}

const NONE: u64 = u64::MAX;

/// Stands for a shift where parts of a region have several. Shifts are whole regions.
const MIXED: u64 = 1;

impl Recent {
    /// The shift of a block: `find` says what it is if that is not known.
    #[inline]
    fn shift(&mut self, block: u64, space: SpaceId, find: impl FnOnce() -> u64) -> u64 {
        let tag = block | u64::from(space.0) << 48;
        let slot = (block as usize ^ space.0 as usize) % SLOTS;
        if self.tags[slot] != tag {
            (self.tags[slot], self.shifts[slot]) = (tag, find());
        }
        self.shifts[slot]
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self { tags: [NONE; SLOTS], shifts: [0; SLOTS] }
    }
}

impl Default for Relocation {
    fn default() -> Self {
        Self {
            regions: Recent::default(),
            pages: Recent::default(),
            run: Vec::with_capacity(Self::RUN),
        }
    }
}

impl Relocation {
    /// Forgets everything: an area has come, gone or moved.
    pub(crate) fn forget(&mut self) {
        self.regions.tags.fill(NONE);
        self.pages.tags.fill(NONE);
    }

    /// Accesses translated at once: few enough to stay in the first-level cache.
    pub(crate) const RUN: usize = 512;

    /// The modelled form of up to [`Relocation::RUN`] traced accesses.
    pub(crate) fn modelled_run(
        &mut self,
        stack: &Stack,
        guest: NodeId,
        space: SpaceId,
        traced: &[Access],
    ) -> &[Access] {
        let mut run = std::mem::take(&mut self.run);
        run.clear();
        run.extend(traced.iter().map(|access| {
            let addr = self.modelled(stack, guest, space, access.addr());
            Access::new(access.kind(), addr, access.size())
        }));
        self.run = run;
        &self.run
    }

    /// The modelled address of a traced one.
    #[inline]
    fn modelled(&mut self, stack: &Stack, guest: NodeId, space: SpaceId, traced: Gva) -> Gva {
        let region = traced.get() >> PageSize::Huge.shift();
        let of_region = || stack.region_shift(guest, space, traced).unwrap_or(MIXED);
        let mut shift = self.regions.shift(region, space, of_region);
        if shift == MIXED {
            let page = traced.get() >> PageSize::BASE_SHIFT;
            let of_page = || stack.relocate(guest, space, traced).get().wrapping_sub(traced.get());
            shift = self.pages.shift(page, space, of_page);
            debug_assert_eq!(shift, of_page());
        }
        Gva::new(traced.get().wrapping_add(shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_addr::Range;
    use strata_stack::{
        AlignAreas, AlignerParameters, BalloonParameters, ColouredParameters, Costs, ExitCosts,
        KernelSettings, KsmParameters, MemoryParameters, Paging, Policy, Position, StackConfig,
        ThpMode, ThpParameters, Virtualization,
    };
    use strata_stream::{Backing, Event, Pid, Protection};

    /// Linux with Huge Aligner.
    struct Padding;

    impl Policy for Padding {
        fn settings(&mut self, _: Position) -> KernelSettings {
            let (thp, align_areas) = (ThpMode::Never, AlignAreas::Always);
            KernelSettings { thp, align_areas, fragmented: false, coloured: false }
        }
    }

    const PID: Pid = Pid(1);

    fn at(page: u64) -> Gva {
        Gva::new((1 << 30) + (page << PageSize::BASE_SHIFT))
    }

    /// One process that has these areas, in pages.
    fn stack(areas: &[(u64, u64)]) -> Stack {
        let config = StackConfig {
            kernels: StackConfig::chain(&[(64 << 20, 0.0)], 1),
            levels: 4,
            reused: false,
            paging: Paging::Nested,
            costs: Costs::default(),
            exits: ExitCosts::default(),
            virtualization: Virtualization::default(),
            thp: ThpParameters::default(),
            start: MemoryParameters::default(),
            aligner: AlignerParameters::default(),
            colours: None,
            coloured: ColouredParameters::default(),
            balloon: BalloonParameters::default(),
            ksm: KsmParameters::default(),
        };
        let mut stack = Stack::build(&config, &mut Padding, &|| false).unwrap();
        stack.event(&mut Padding, NodeId::HOST, &Event::ProcessStart { pid: PID }).unwrap();
        for (first, pages) in areas {
            let range = Range::sized(at(*first), pages << PageSize::BASE_SHIFT);
            let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
            let map = Event::Map { pid: PID, range, backing, protection, fixed: false };
            stack.event(&mut Padding, NodeId::HOST, &map).unwrap();
        }
        stack
    }

    proptest! {
        /// Areas of a region that others share, of one by themselves, and nobody's addresses between them.
        #[test]
        fn what_is_remembered_is_what_would_be_looked_up(
            pages in prop::collection::vec(0_u64..2048, 1..600),
        ) {
            let stack = stack(&[(0, 5), (8, 100), (300, 900), (1300, 10), (1400, 500)]);
            let space = stack.process_space(NodeId::HOST, PID).unwrap();
            prop_assert!(stack.moves_areas(NodeId::HOST, space));
            prop_assert_eq!(stack.region_shift(NodeId::HOST, space, at(8)), None);
            let traced: Vec<Access> = pages.iter().map(|page| Access::load(at(*page) + 24, 8)).collect();
            let expected: Vec<Gva> = traced
                .iter()
                .map(|access| stack.relocate(NodeId::HOST, space, access.addr()))
                .collect();
            let mut relocation = Relocation::default();
            let modelled = relocation.modelled_run(&stack, NodeId::HOST, space, &traced);
            let modelled: Vec<Gva> = modelled.iter().map(|access| access.addr()).collect();
            prop_assert_eq!(modelled, expected);
        }
    }
}
