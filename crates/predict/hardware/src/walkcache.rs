//! Caches of the page walker: paging-structure caches and the nested TLB.

use crate::access::{Asid, Fault, VmTag};
use crate::full::Full;
use crate::model::WalkGeometry;
use crate::small::Small;
use strata_addr::{Gva, PageSize};
use strata_paging::TableId;

/// Where a walk can start: a table below the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// The table within its radix.
    pub(crate) table: TableId,
    /// [`strata_paging::Radix::generation`] when the entry was filled, low bits. A table page
    /// that was freed since may have this number again; such an entry is not used. Software that
    /// frees a table page invalidates (SDM volume 3A, section 4.10.4.2), so that a real CPU does
    /// not use it either.
    pub(crate) generation: u32,
    /// Host frame that holds the table: known to the combined caches of Intel CPUs (SDM volume
    /// 3C, section 29.4.1), unused elsewhere.
    pub(crate) frame: u64,
    /// Whether the second stage lets that frame be written, known together with it.
    pub(crate) write: bool,
}

impl Default for Start {
    fn default() -> Self {
        Self { table: TableId::ROOT, generation: 0, frame: 0, write: false }
    }
}

/// The paging-structure caches of one dimension: for each level above the leaves, entries that
/// point to a table (SDM volume 3A, section 4.10.3; APM volume 2, section 5.5.1).
pub(crate) struct WalkCache {
    /// Entries read at level 2.
    lowest: Full<Start>,
    /// Entries read at level 3, 4 and 5.
    upper: [Small<Start>; 3],
}

/// Lowest level whose entries point to tables.
const LOWEST: u8 = 2;

/// Above the prefix of a 57-bit address without its lowest 21 bits.
const ASID_SHIFT: u32 = 36;

#[inline]
fn tag(addr: u64, level: u8, asid: Asid) -> u64 {
    let prefix = addr << 7 >> (7 + 12 + 9 * (u32::from(level) - 1));
    1 << 63 | u64::from(asid.0) << ASID_SHIFT | prefix
}

impl WalkCache {
    /// Caches with the numbers of entries for levels 2 to 5.
    pub(crate) fn new([lowest, upper @ ..]: [u16; 4]) -> Self {
        Self { lowest: Full::new(lowest), upper: upper.map(Small::new) }
    }

    /// The lowest table known on the way to `addr`, with the level of its entries. Caches above
    /// the first that hits are not asked.
    #[inline(always)]
    pub(crate) fn lookup(
        &mut self,
        addr: u64,
        asid: Asid,
        root_level: u8,
        generation: u32,
    ) -> Option<(u8, Start)> {
        let lowest = tag(addr, LOWEST, asid);
        if let Some(start) = self.lowest.lookup(lowest) {
            if start.generation == generation {
                return Some((LOWEST - 1, start));
            }
            self.lowest.remove(lowest);
        }
        for level in LOWEST + 1..=root_level {
            let cache = &mut self.upper[usize::from(level - LOWEST - 1)];
            let tag = tag(addr, level, asid);
            if let Some(start) = cache.lookup(tag) {
                if start.generation == generation {
                    return Some((level - 1, start));
                }
                cache.remove(tag);
            }
        }
        None
    }

    /// Remembers the table that the entry read at `level` points to.
    #[inline]
    pub(crate) fn fill(&mut self, addr: u64, level: u8, asid: Asid, start: Start) {
        let tag = tag(addr, level, asid);
        if level == LOWEST {
            self.lowest.fill(tag, start);
        } else {
            self.upper[usize::from(level - LOWEST - 1)].fill(tag, start);
        }
    }

    /// Drops what is known of the way to `addr`.
    pub(crate) fn remove(&mut self, addr: u64, asid: Asid) {
        self.lowest.remove(tag(addr, LOWEST, asid));
        for (level, cache) in (LOWEST + 1..).zip(&mut self.upper) {
            cache.remove(tag(addr, level, asid));
        }
    }

    /// Drops what is known of some address spaces.
    pub(crate) fn flush_asids(&mut self, is_one: impl Fn(Asid) -> bool) {
        let is_of = |tag: u64| is_one(Asid((tag >> ASID_SHIFT) as u16));
        self.lowest.remove_where(|tag, _| is_of(tag));
        for cache in &mut self.upper {
            cache.remove_where(&is_of);
        }
    }

    pub(crate) fn flush(&mut self) {
        self.lowest.clear();
        for cache in &mut self.upper {
            cache.clear();
        }
    }
}

/// Above the number of a page of 57-bit addresses.
const VM_SHIFT: u32 = 45;

/// What the second stage says of a guest physical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPage {
    /// First base frame of the host page.
    pub(crate) frame: u64,
    pub(crate) size: PageSize,
    pub(crate) write: bool,
    /// Whether a write needs to set no dirty flag.
    pub(crate) dirty: bool,
}

impl HostPage {
    /// The host physical address behind `gpa`, which must lie in the page.
    #[inline]
    pub(crate) fn resolve(&self, gpa: u64) -> u64 {
        (self.frame << PageSize::BASE_SHIFT) + (gpa & (self.size.bytes() - 1))
    }
}

impl Default for HostPage {
    fn default() -> Self {
        Self { frame: 0, size: PageSize::Base, write: false, dirty: false }
    }
}

/// The nested TLB: guest physical page to host page, each entry as large as the host maps it
/// (Bhargava et al., ASPLOS 2008, section 3.3).
pub(crate) struct NestedTlb {
    entries: Full<HostPage>,
    used: [bool; 3],
}

impl NestedTlb {
    pub(crate) fn new(geometry: &WalkGeometry) -> Self {
        Self { entries: Full::new(geometry.ntlb_entries), used: [false; 3] }
    }

    /// ```text
    /// bit  63      62..61   60..45   44..0
    ///      valid   size     VM       number of the page of that size
    /// ```
    #[inline]
    fn tag(vm: VmTag, gpa: u64, size: PageSize) -> u64 {
        1 << 63 | (size as u64) << 61 | u64::from(vm.0) << VM_SHIFT | gpa >> size.shift()
    }

    #[inline]
    pub(crate) fn lookup(&mut self, vm: VmTag, gpa: u64) -> Option<HostPage> {
        PageSize::ALL
            .into_iter()
            .filter(|size| self.used[*size as usize])
            .find_map(|size| self.entries.lookup(Self::tag(vm, gpa, size)))
    }

    #[inline]
    pub(crate) fn fill(&mut self, vm: VmTag, gpa: u64, backing: HostPage) {
        self.used[backing.size as usize] = true;
        self.entries.fill(Self::tag(vm, gpa, backing.size), backing);
    }

    /// Drops what is known of a page.
    pub(crate) fn remove(&mut self, vm: VmTag, gpa: u64) {
        for size in PageSize::ALL {
            self.entries.remove(Self::tag(vm, gpa, size));
        }
    }

    /// Drops what is known of a VM's second stage.
    pub(crate) fn flush_vm(&mut self, vm: VmTag) {
        self.entries.remove_where(|tag, _| (tag >> VM_SHIFT) as u16 == vm.0);
    }

    pub(crate) fn flush(&mut self) {
        self.entries.clear();
        self.used = [false; 3];
    }
}

/// The walk caches of one CPU.
pub(crate) struct WalkCaches {
    pub(crate) pwc: WalkCache,
    pub(crate) nested_pwc: WalkCache,
    pub(crate) ntlb: NestedTlb,
}

impl WalkCaches {
    pub(crate) fn new(walk: &WalkGeometry) -> Self {
        Self {
            pwc: WalkCache::new([
                walk.pd_entries,
                walk.pdpt_entries,
                walk.pml4_entries,
                walk.pml5_entries,
            ]),
            nested_pwc: WalkCache::new([
                walk.nested_pd_entries,
                walk.nested_pdpt_entries,
                walk.nested_pml4_entries,
                walk.nested_pml5_entries,
            ]),
            ntlb: NestedTlb::new(walk),
        }
    }

    pub(crate) fn flush(&mut self) {
        self.pwc.flush();
        self.nested_pwc.flush();
        self.ntlb.flush();
    }

    /// Drops what is known of a VM's second stage, and through it.
    pub(crate) fn flush_vm(&mut self, vm: VmTag, is_of: impl Fn(Asid) -> bool) {
        self.pwc.flush_asids(is_of);
        self.nested_pwc.flush_asids(|tag| tag == Asid(vm.0));
        self.ntlb.flush_vm(vm);
    }

    /// Drops what a fault makes a CPU drop: everything that would be used to translate the
    /// address again (SDM volume 3A, section 4.10.4.1; volume 3C, section 29.4.3.1).
    pub(crate) fn drop_after(&mut self, fault: &Fault, gva: Gva, asid: Asid, vm: VmTag) {
        self.pwc.remove(gva.get(), asid);
        if let Fault::SecondStage { gpa, .. } = fault {
            self.nested_pwc.remove(gpa.get(), Asid(vm.0));
            self.ntlb.remove(vm, gpa.get());
        }
    }
}
