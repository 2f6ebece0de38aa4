//! From traced to modelled addresses, fast.

use strata_addr::{Gva, PageSize};
use strata_stack::{NodeId, SpaceId, Stack};
use strata_stream::Access;

const SLOTS: usize = 256;

/// Remembers what to add to the addresses of HPAS regions used lately.
#[derive(Debug)]
pub(crate) struct Relocation {
    /// Region and space, or `NONE`.
    tags: [u64; SLOTS],
    shifts: [u64; SLOTS],
    /// The run being translated; kept for its memory.
    run: Vec<Access>,
}

const NONE: u64 = u64::MAX;

impl Default for Relocation {
    fn default() -> Self {
        Self { tags: [NONE; SLOTS], shifts: [0; SLOTS], run: Vec::with_capacity(Self::RUN) }
    }
}

impl Relocation {
    /// Forgets everything: an area has come, gone or moved.
    pub(crate) fn forget(&mut self) {
        self.tags.fill(NONE);
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
        let tag = region | u64::from(space.0) << 48;
        let slot = (region as usize ^ space.0 as usize) % SLOTS;
        if self.tags[slot] == tag {
            return Gva::new(traced.get().wrapping_add(self.shifts[slot]));
        }
        match stack.region_shift(guest, space, traced) {
            Some(shift) => {
                (self.tags[slot], self.shifts[slot]) = (tag, shift);
                Gva::new(traced.get().wrapping_add(shift))
            }
            // Several areas share the region: looked up address by address.
            None => stack.relocate(guest, space, traced),
        }
    }
}
