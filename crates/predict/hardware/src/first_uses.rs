//! Which translations a CPU has used at all, as long as its second-level TLB would hold them all.
//!
//! A translation that was loaded once stays until something else needs its place. So whoever sees only parts of what a
//! CPU does, and sees it load a translation for the first time, does not know whether it has just been loaded first, or was
//! loaded before and is there. When a CPU has used more translations than there is room for, those that it loads may be
//! loaded again and again, and nothing is known of them here any more.

use crate::access::Asid;
use rustc_hash::FxHashSet;
use strata_addr::{PageSize, Vpn};

/// The translations that a CPU has used.
pub(crate) struct FirstUses {
    /// Translations that the TLB has room for.
    room: usize,
    /// None when there were more.
    used: Option<FxHashSet<(Asid, PageSize, u64)>>,
    /// The page of the last fault.
    faulted: Option<(Asid, Vpn)>,
}

impl FirstUses {
    pub(crate) fn new(room: usize) -> Self {
        Self { room, used: Some(FxHashSet::default()), faulted: None }
    }

    /// A walk for a page ended in a fault: when it is repeated, nobody has used the page before.
    #[inline]
    pub(crate) fn fault(&mut self, vpn: Vpn, asid: Asid) {
        self.faulted = Some((asid, vpn));
    }

    /// A translation of this size is loaded. Gives whether the CPU has not used it before, though it may have been there for
    /// others to use, and has used no more than there is room for.
    #[inline]
    pub(crate) fn load(&mut self, vpn: Vpn, asid: Asid, size: PageSize) -> bool {
        let Some(used) = &mut self.used else { return false };
        let is_first = used.insert((asid, size, vpn.get() >> size.order()));
        let has_faulted = self.faulted == Some((asid, vpn));
        if used.len() > self.room {
            self.used = None;
            return false;
        }
        is_first && !has_faulted
    }

    /// How many translations others have used, of address spaces that it has used, and it has not; of all if it has used none.
    /// None where somebody has used more than there is room for.
    pub(crate) fn unused<'a>(&'a self, all: impl Iterator<Item = &'a Self>) -> u64 {
        let all: Option<Vec<_>> = all.map(|uses| uses.used.as_ref()).collect();
        let (Some(all), Some(own)) = (all, &self.used) else { return 0 };
        let spaces: FxHashSet<Asid> = own.iter().map(|(asid, ..)| *asid).collect();
        let is_of_own = |asid: &Asid| spaces.is_empty() || spaces.contains(asid);
        let others: FxHashSet<_> = all.into_iter().flatten().collect();
        let unused = others.into_iter().filter(|used| is_of_own(&used.0) && !own.contains(*used));
        unused.count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASID: Asid = Asid(3);

    #[test]
    fn a_translation_is_used_first_once_by_size_and_address_space() {
        let mut uses = FirstUses::new(8);
        let mut load = |vpn, asid, size| uses.load(Vpn::new(vpn), asid, size);
        assert!(load(512, ASID, PageSize::Base));
        assert!(!load(512, ASID, PageSize::Base));
        assert!(load(513, ASID, PageSize::Base));
        assert!(load(513, ASID, PageSize::Huge), "another size is another translation");
        assert!(!load(900, ASID, PageSize::Huge), "the same page of 2 MiB");
        assert!(load(512, Asid(4), PageSize::Base));
    }

    #[test]
    fn what_has_faulted_was_there_for_nobody() {
        let mut uses = FirstUses::new(8);
        uses.fault(Vpn::new(1), ASID);
        assert!(!uses.load(Vpn::new(1), ASID, PageSize::Base));
        assert!(uses.load(Vpn::new(2), ASID, PageSize::Base));
    }

    #[test]
    fn what_others_have_used_may_have_been_used() {
        let uses = |pages: &[u64], asid| {
            let mut uses = FirstUses::new(8);
            pages.iter().for_each(|page| {
                uses.load(Vpn::new(*page), asid, PageSize::Base);
            });
            uses
        };
        let all =
            [uses(&[1, 2], ASID), uses(&[2, 3, 4], ASID), uses(&[9], Asid(4)), uses(&[], ASID)];
        let unused = |at: usize| all[at].unused(all.iter());
        assert_eq!([0, 1, 2, 3].map(unused), [2, 1, 0, 5]);
        let many = uses(&[1, 2, 3, 4, 5, 6, 7, 8, 9], ASID);
        assert_eq!(all[0].unused(all.iter().chain([&many])), 0, "it may be that nothing is kept");
        assert_eq!(many.unused(all.iter()), 0);
    }

    #[test]
    fn nothing_is_known_when_more_was_used_than_there_is_room_for() {
        let mut uses = FirstUses::new(2);
        let mut load = |vpn| uses.load(Vpn::new(vpn), ASID, PageSize::Base);
        assert_eq!([1, 2, 1, 3, 4].map(&mut load), [true, true, false, false, false]);
    }
}
