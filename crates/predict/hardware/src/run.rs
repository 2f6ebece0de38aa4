//! Runs of accesses, with a look ahead.
//!
//! The model's own data (page tables, tags of the last-level cache) is larger than the caches of
//! the computer it runs on. A single access waits for each miss in turn: the guest's entry, then
//! the second stage's, then the tags. Over a run, the same data can be asked for many accesses at
//! a time, so that the misses overlap. The look ahead only reads; it changes nothing.

use crate::access::{Asid, CpuId, Fault, Request, Tables};
use crate::host;
use crate::machine::Machine;
use strata_addr::space::Space;
use strata_addr::{Addr, PageSize};
use strata_paging::{ENTRIES, Format, Radix, TableId, X86, index};
use strata_stream::Access;

/// Accesses looked at together: enough misses to fill what a core keeps outstanding.
const WINDOW: usize = 64;

/// Walks in a window that make looking ahead in the next one worth its time.
const WORTHWHILE: u64 = 3;

/// A fault in a run of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunFault {
    /// Accesses before the one that faulted; all of them completed.
    pub completed: usize,
    /// The fault.
    pub fault: Fault,
}

impl Machine {
    /// Makes a run of accesses by one CPU: the same as [`Machine::access`] for each, and faster.
    ///
    /// # Errors
    /// [`RunFault`] at the first access that faults. The run goes on from there once the fault is
    /// handled.
    ///
    /// # Panics
    /// When there is no such CPU.
    pub fn access_run<F: Format, U: Space, L: Space>(
        &mut self,
        cpu: CpuId,
        asid: Asid,
        accesses: &[Access],
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<(), RunFault> {
        for (number, window) in accesses.chunks(WINDOW).enumerate() {
            let one = self.cpu(cpu);
            if one.looks_ahead {
                look_ahead(window, tables);
            }
            let walks = one.counters.walks;
            for (at, access) in window.iter().enumerate() {
                if !self.has_room() {
                    self.make_reads(cpu);
                }
                let (gva, bytes, store) = (access.addr(), access.size(), access.is_store());
                let request = Request { asid, gva, bytes, store };
                if let Err(fault) = self.access_later(cpu, request, tables) {
                    self.make_reads(cpu);
                    return Err(RunFault { completed: number * WINDOW + at, fault });
                }
            }
            let one = self.cpu(cpu);
            one.looks_ahead = one.counters.walks - walks >= WORTHWHILE;
        }
        self.make_reads(cpu);
        Ok(())
    }
}

/// Where a table maps an address to, as far as it is known without waiting.
#[derive(Clone, Copy)]
enum Ahead<'t> {
    /// Not mapped.
    Nowhere,
    /// Found on the way: mapped by a large page.
    There(u64),
    /// In this leaf table. Its entry was asked for.
    Entry(&'t [u64; ENTRIES]),
}

/// Ways that a [`Guide`] remembers.
const WAYS: usize = 8;

/// The way to the leaf tables of one table; remembers the last ones.
struct Guide<'t, F, U, L> {
    radix: &'t Radix<F, U, L>,
    /// Address >> 30, and the table with entries of level 2 there; by the lowest bits of the
    /// former.
    ways: [(u64, TableId); WAYS],
}

impl<'t, F: Format, U: Space, L: Space> Guide<'t, F, U, L> {
    fn new(radix: &'t Radix<F, U, L>) -> Self {
        Self { radix, ways: [(u64::MAX, TableId::ROOT); WAYS] }
    }

    /// The table with entries of level 2 on the way to `addr`, if there is one.
    #[inline(always)]
    fn above_leaves(&mut self, addr: Addr<U>) -> Option<TableId> {
        let region = addr.get() >> PageSize::Giant.shift();
        let (of, table) = self.ways[region as usize % WAYS];
        if of == region { Some(table) } else { self.descend(addr) }
    }

    #[inline(never)]
    fn descend(&mut self, addr: Addr<U>) -> Option<TableId> {
        let region = addr.get() >> PageSize::Giant.shift();
        let mut table = TableId::ROOT;
        for level in (PageSize::Giant.level()..=self.radix.levels()).rev() {
            let at = index(addr.get(), level);
            let bits = self.radix.entry(table, at);
            if !F::is_present(bits) || F::is_leaf(bits, level) {
                return None;
            }
            table = self.radix.child(table, at);
        }
        self.ways[region as usize % WAYS] = (region, table);
        Some(table)
    }

    /// Asks for the leaf entry of an address.
    #[inline(always)]
    fn ask(&mut self, addr: Addr<U>) -> Ahead<'t> {
        let radix = self.radix;
        let Some(above) = self.above_leaves(addr) else {
            return radix.translate(addr).map_or(Ahead::Nowhere, |found| Ahead::There(found.get()));
        };
        let level = PageSize::Huge.level();
        let at = index(addr.get(), level);
        let bits = radix.entry(above, at);
        if !F::is_present(bits) {
            return Ahead::Nowhere;
        }
        if F::is_leaf(bits, level) {
            let start = F::frame(bits) << PageSize::BASE_SHIFT;
            return Ahead::There(start + addr.offset(PageSize::Huge));
        }
        let entries = radix.entries(radix.child(above, at));
        host::prefetch(entries, index(addr.get(), PageSize::Base.level()));
        Ahead::Entry(entries)
    }
}

impl Ahead<'_> {
    #[inline]
    fn resolve<F: Format>(self, addr: u64) -> Option<u64> {
        match self {
            Self::Nowhere => None,
            Self::There(found) => Some(found),
            Self::Entry(entries) => {
                let bits = entries[index(addr, PageSize::Base.level())];
                let offset = addr & (PageSize::Base.bytes() - 1);
                F::is_present(bits).then(|| F::frame(bits) << PageSize::BASE_SHIFT | offset)
            }
        }
    }
}

/// Asks for what the walks of a window will read: first the entries of the guest's table, then
/// those of the second stage for the data.
#[inline(never)]
fn look_ahead<F: Format, U: Space, L: Space>(window: &[Access], tables: &Tables<'_, F, U, L>) {
    let mut guest = Guide::new(tables.guest);
    let mut leaves = [Ahead::Nowhere; WINDOW];
    for (access, leaf) in window.iter().zip(&mut leaves) {
        *leaf = guest.ask(access.addr());
    }
    let Some(second) = tables.second.as_deref() else { return };
    let mut data = Guide::new(second);
    for (access, leaf) in window.iter().zip(leaves) {
        if let Some(gpa) = leaf.resolve::<X86>(access.addr().get()) {
            data.ask(Addr::new(gpa));
        }
    }
}
