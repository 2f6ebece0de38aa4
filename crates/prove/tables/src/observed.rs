//! Where each access was, as the emulator told: what captured tables are checked against.

use crate::search::Pair;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use strata_addr::{Frame, Hpa, Vpn, space::HostPhysical};
use strata_stream::Access;

/// All accesses, by page and frame.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    pages: FxHashMap<Vpn, Place>,
    accesses: u64,
    not_ram: u64,
}

/// Where a page was.
#[derive(Clone, Debug)]
struct Place {
    frame: Frame<HostPhysical>,
    /// Accesses to it there.
    accesses: u64,
    /// The number of the last one.
    last: u64,
    /// Where it was before, and how many accesses it got there.
    earlier: Vec<(Frame<HostPhysical>, u64)>,
}

/// What became of a check of every access against captured tables. The tables are those of the
/// last moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Accesses recorded.
    pub accesses: u64,
    /// Distinct pages they went to.
    pub pages: u64,
    /// Accesses whose address the tables translate to where the emulator found it.
    pub matched: u64,
    /// Accesses to pages that were seen somewhere else later: their mapping changed during the
    /// recording, so the tables of the last moment cannot have it.
    pub changed: u64,
    /// Accesses to where the tables do not lead, though nothing was seen to change.
    pub mismatched: u64,
    /// Accesses outside RAM, which cannot be checked.
    pub not_ram: u64,
}

impl Observed {
    /// Adds an access whose first byte was at `hpa`; `None` outside RAM.
    #[inline]
    pub fn add(&mut self, access: Access, hpa: Option<Hpa>) {
        self.accesses += 1;
        let Some(frame) = hpa.map(Hpa::page) else {
            self.not_ram += 1;
            return;
        };
        let last = self.accesses;
        let page = access.addr().page();
        let place = self.pages.entry(page).or_insert_with(|| {
            let earlier = Vec::new();
            Place { frame, accesses: 0, last, earlier }
        });
        if place.frame != frame {
            place.earlier.push((place.frame, place.accesses));
            (place.frame, place.accesses) = (frame, 0);
        }
        place.accesses += 1;
        place.last = last;
    }

    /// The `count` pages accessed last, the very last first.
    pub fn latest(&self, count: usize) -> Vec<Pair> {
        let mut places: Vec<_> = self.pages.iter().collect();
        places.sort_unstable_by_key(|(_, place)| std::cmp::Reverse(place.last));
        let pair = |(page, place): (&Vpn, &Place)| Pair { page: *page, frame: place.frame };
        places.into_iter().take(count).map(pair).collect()
    }

    /// Checks every access against `translate`.
    pub fn check(&self, translate: impl Fn(Vpn) -> Option<Frame<HostPhysical>>) -> Check {
        let mut check = Check {
            accesses: self.accesses,
            pages: self.pages.len() as u64,
            not_ram: self.not_ram,
            ..Check::default()
        };
        for (page, place) in &self.pages {
            let now = translate(*page);
            let last =
                if now == Some(place.frame) { &mut check.matched } else { &mut check.mismatched };
            *last += place.accesses;
            for (frame, accesses) in &place.earlier {
                let of = if now == Some(*frame) { &mut check.matched } else { &mut check.changed };
                *of += accesses;
            }
        }
        debug_assert_eq!(
            check.matched + check.changed + check.mismatched + check.not_ram,
            check.accesses
        );
        check
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_addr::Gva;

    #[test]
    fn each_access_is_counted_where_it_belongs() {
        let mut seen = Observed::default();
        let mut add = |gva, hpa: Option<u64>| {
            seen.add(Access::load(Gva::new(gva), 8), hpa.map(Hpa::new));
        };
        add(0x1000, Some(0xa000));
        add(0x1008, Some(0xb008));
        add(0x1010, Some(0xb010));
        add(0x2000, Some(0xc000));
        add(0x3000, None);
        let check = seen.check(|page| match page.get() {
            1 => Some(Frame::new(0xb)),
            _ => None,
        });
        let expected =
            Check { accesses: 5, pages: 2, matched: 2, changed: 1, mismatched: 1, not_ram: 1 };
        assert_eq!(check, expected);
        let latest: Vec<_> = seen.latest(9).iter().map(|p| (p.page.get(), p.frame.get())).collect();
        assert_eq!(latest, [(2, 0xc), (1, 0xb)]);
        assert_eq!(seen.latest(1).len(), 1);
    }
}
