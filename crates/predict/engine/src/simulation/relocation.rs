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
