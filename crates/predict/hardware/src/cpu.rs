//! One CPU: its TLBs, walk caches and private data caches.

use crate::access::{Asid, Request};
use crate::cache::Cache;
use crate::counters::HardwareCounters;
use crate::first_uses::FirstUses;
use crate::llc::Owner;
use crate::model::CpuModel;
use crate::tlb::{Tlb, Translation};
use crate::walkcache::WalkCaches;
use strata_addr::{Gva, PageSize, Vpn};

/// The translation used last, in front of the first-level TLB. It is the most recently used entry
/// of its set, so using it again changes nothing in the TLB, and no lookup is needed.
pub(crate) struct Last {
    /// Page number and address space; `NONE` when there is none.
    pub(crate) key: u64,
    pub(crate) translation: Translation,
}

impl Last {
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) fn none() -> Self {
        let base = PageSize::Base;
        Self { key: Self::NONE, translation: Translation::new(0, base, base, false, false) }
    }

    /// 45 bits of page number above 16 of address space.
    #[inline]
    pub(crate) fn key(gva: Gva, asid: Asid) -> u64 {
        (gva.get() << 7 >> (7 + PageSize::BASE_SHIFT)) << 16 | u64::from(asid.0)
    }
}

/// What the TLBs say of a page.
pub(crate) enum Held {
    /// They hold it.
    Yes(Translation),
    /// They do not.
    No,
    /// They hold it, but it does not take a store: read-only, or not dirty yet.
    NotForStores { held: Translation, in_l1: bool },
}

pub(crate) struct Cpu {
    pub(crate) last: Last,
    pub(crate) tlb_l1: Tlb,
    pub(crate) tlb_l2: Tlb,
    /// What it has used of what its second-level TLB holds.
    pub(crate) first_uses: FirstUses,
    pub(crate) walk_caches: WalkCaches,
    pub(crate) l1d: Cache,
    pub(crate) l2: Cache,
    pub(crate) counters: HardwareCounters,
    /// Whether runs of accesses look ahead.
    pub(crate) looks_ahead: bool,
    /// Whom what it reads is filled into the last-level cache for.
    pub(crate) owner: Owner,
    /// Cycles counted before the counters were reset.
    pub(crate) earlier: f64,
}

impl Cpu {
    pub(crate) fn new(model: &CpuModel) -> Self {
        Self {
            last: Last::none(),
            tlb_l1: Tlb::new(&model.tlb.l1, false),
            tlb_l2: Tlb::new(&model.tlb.l2, model.tlb.smash_giant),
            first_uses: FirstUses::new(model.tlb.l2.entries()),
            walk_caches: WalkCaches::new(&model.walk),
            l1d: Cache::new(&model.cache.l1d),
            l2: Cache::new(&model.cache.l2),
            counters: HardwareCounters::default(),
            looks_ahead: false,
            owner: Owner::default(),
            earlier: 0.0,
        }
    }

    /// Translates from the TLBs.
    #[inline(always)]
    pub(crate) fn translate(&mut self, request: Request) -> Held {
        let Request { asid, gva, store, .. } = request;
        let key = Last::key(gva, asid);
        if self.last.key == key && (!store || self.last.translation.takes_stores()) {
            return Held::Yes(self.last.translation);
        }
        let vpn = gva.page();
        let (held, in_l1) = match self.tlb_l1.lookup(vpn, asid) {
            Some(held) => (held, true),
            None => match self.tlb_l2.lookup(vpn, asid) {
                Some(held) => {
                    self.tlb_l1.fill(vpn, asid, held);
                    (held, false)
                }
                None => return Held::No,
            },
        };
        if store && !held.takes_stores() {
            return Held::NotForStores { held, in_l1 };
        }
        self.counters.l1_misses += u64::from(!in_l1);
        self.counters.l2_hits += u64::from(!in_l1);
        self.last = Last { key, translation: held };
        Held::Yes(held)
    }

    /// Counts a completed access.
    #[inline]
    pub(crate) fn count_access(&mut self, store: bool) {
        self.counters.accesses += 1;
        self.counters.loads += u64::from(!store);
        self.counters.stores += u64::from(store);
    }

    /// Drops the TLB entries for one base page.
    pub(crate) fn drop_entries(&mut self, vpn: Vpn, asid: Asid) {
        self.last.key = Last::NONE;
        self.tlb_l1.drop_entries(vpn, asid);
        self.tlb_l2.drop_entries(vpn, asid);
    }

    /// Drops a page, and all of a larger one that is held in pieces.
    pub(crate) fn invalidate_page(&mut self, vpn: Vpn, asid: Asid) {
        self.last.key = Last::NONE;
        self.tlb_l1.invalidate_page(vpn, asid);
        self.tlb_l2.invalidate_page(vpn, asid);
    }
}
