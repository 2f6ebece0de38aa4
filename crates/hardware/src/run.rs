//! Runs of accesses, with a look ahead.
//!
//! The model's own data (page tables, tags of the last-level cache) is larger than the caches of
//! the computer it runs on. A single access waits for each miss in turn: the guest's entry, then
//! the second stage's, then the tags. Over a run, the same data can be asked for many accesses at
//! a time, so that the misses overlap. The look ahead only reads; it changes nothing.

use crate::cache::{Cache, LINE_SHIFT};
use crate::cpu::{Held, lines};
use crate::host;
use crate::machine::{Asid, CpuId, Fault, Machine, Tables};
use strata_addr::space::Space;
use strata_addr::{Addr, PageSize};
use strata_paging::{ENTRIES, Format, Radix, TableId, X86, index};
use strata_stream::Access;

/// Accesses looked at together: enough misses to fill what a core keeps outstanding.
const WINDOW: usize = 32;

/// Walks in a window that make looking ahead in the next one worth its time.
const WORTHWHILE: u64 = 3;

/// Cache lines of an access of the longest size that lies on one page.
const LINES: usize = 3;

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
        let mut pending = Pending::new();
        for (number, window) in accesses.chunks(WINDOW).enumerate() {
            let (one, llc) = self.cpu_and_llc(cpu);
            if one.looks_ahead {
                look_ahead(window, llc, tables);
            }
            let walks = one.counters.walks;
            for (at, access) in window.iter().enumerate() {
                let result = self.access_later(cpu, asid, *access, tables, &mut pending);
                if let Err(fault) = result {
                    self.read_pending(cpu, &mut pending);
                    return Err(RunFault { completed: number * WINDOW + at, fault });
                }
            }
            self.read_pending(cpu, &mut pending);
            let (one, _) = self.cpu_and_llc(cpu);
            one.looks_ahead = one.counters.walks - walks >= WORTHWHILE;
        }
        Ok(())
    }

    /// Translates an access and leaves its data for later. Translations found in the TLBs do not
    /// touch the data caches, so only a walk must see them as they are in program order.
    #[inline]
    fn access_later<F: Format, U: Space, L: Space>(
        &mut self,
        id: CpuId,
        asid: Asid,
        access: Access,
        tables: &mut Tables<'_, F, U, L>,
        pending: &mut Pending,
    ) -> Result<(), Fault> {
        let (gva, bytes, store) = (access.addr(), access.size(), access.is_store());
        if gva.offset(PageSize::Base) + u64::from(bytes) > PageSize::Base.bytes() {
            self.read_pending(id, pending);
            return self.access(id, asid, gva, bytes, store, tables);
        }
        let (cpu, _) = self.cpu_and_llc(id);
        let translation = match cpu.translate(asid, gva, store) {
            Held::Yes(translation) => translation,
            other => {
                self.read_pending(id, pending);
                self.translate_further(other, id, asid, gva, store, tables)?
            }
        };
        let (cpu, llc) = self.cpu_and_llc(id);
        cpu.count_access(store);
        let (first, last) = lines(translation.resolve(gva), bytes.into());
        llc.prefetch(first);
        pending.push(first);
        for line in first + 1..last + 1 {
            pending.push(line);
        }
        Ok(())
    }

    #[inline]
    fn read_pending(&mut self, cpu: CpuId, pending: &mut Pending) {
        let (cpu, llc) = self.cpu_and_llc(cpu);
        for line in pending.drain() {
            cpu.read(llc, line);
        }
    }
}

/// Lines that a window's accesses have yet to read, in program order.
struct Pending {
    lines: [u64; WINDOW * LINES],
    len: usize,
}

impl Pending {
    fn new() -> Self {
        Self { lines: [0; WINDOW * LINES], len: 0 }
    }

    #[inline]
    fn push(&mut self, line: u64) {
        self.lines[self.len] = line;
        self.len += 1;
    }

    #[inline]
    fn drain(&mut self) -> impl Iterator<Item = u64> + '_ {
        let len = std::mem::take(&mut self.len);
        self.lines[..len].iter().copied()
    }
}

/// Where a table maps an address to, as far as it is known without waiting.
#[derive(Clone, Copy)]
enum Ahead<'t> {
    /// Not mapped.
    Nowhere,
    /// Found on the way: mapped by a large page.
    There(u64),
    /// In this leaf table, which starts at this address. Its entry was asked for.
    Entry(&'t [u64; ENTRIES], u64),
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
        let start = F::frame(bits) << PageSize::BASE_SHIFT;
        if F::is_leaf(bits, level) {
            return Ahead::There(start + addr.offset(PageSize::Huge));
        }
        let entries = radix.entries(radix.child(above, at));
        host::prefetch(entries, index(addr.get(), PageSize::Base.level()));
        Ahead::Entry(entries, start)
    }
}

impl Ahead<'_> {
    /// Address of the entry asked for.
    #[inline]
    fn entry_addr(self, addr: u64) -> Option<u64> {
        match self {
            Self::Entry(_, table) => Some(table + 8 * index(addr, PageSize::Base.level()) as u64),
            Self::Nowhere | Self::There(_) => None,
        }
    }

    #[inline]
    fn resolve<F: Format>(self, addr: u64) -> Option<u64> {
        match self {
            Self::Nowhere => None,
            Self::There(found) => Some(found),
            Self::Entry(entries, _) => {
                let bits = entries[index(addr, PageSize::Base.level())];
                let offset = addr & (PageSize::Base.bytes() - 1);
                F::is_present(bits).then(|| F::frame(bits) << PageSize::BASE_SHIFT | offset)
            }
        }
    }
}

/// Asks for what the walks of a window will read: first the entries of the guest's table, then
/// those of the second stage for the data, and the sets of the last-level cache for all of them.
#[inline(never)]
fn look_ahead<F: Format, U: Space, L: Space>(
    window: &[Access],
    llc: &Cache,
    tables: &Tables<'_, F, U, L>,
) {
    let mut guest = Guide::new(tables.guest);
    let mut leaves = [Ahead::Nowhere; WINDOW];
    for (access, leaf) in window.iter().zip(&mut leaves) {
        *leaf = guest.ask(access.addr());
    }
    let gvas = window.iter().map(|access| access.addr().get());
    let gpas = gvas.clone().zip(leaves).map(|(gva, leaf)| leaf.resolve::<X86>(gva));
    let entries = gvas.zip(leaves).filter_map(|(gva, leaf)| leaf.entry_addr(gva));
    let Some(second) = tables.second.as_deref() else {
        gpas.flatten().chain(entries).for_each(|hpa| llc.prefetch(hpa >> LINE_SHIFT));
        return;
    };
    let mut table_pages = Guide::new(second);
    for gpa in entries {
        // Table pages are few: their own entries in the second stage are at hand.
        if let Some(hpa) = table_pages.ask(Addr::new(gpa)).resolve::<F>(gpa) {
            llc.prefetch(hpa >> LINE_SHIFT);
        }
    }
    let mut data = Guide::new(second);
    let mut backing = [(0, Ahead::Nowhere); WINDOW];
    for (gpa, leaf) in gpas.flatten().zip(&mut backing) {
        *leaf = (gpa, data.ask(Addr::new(gpa)));
        if let Some(hpa) = leaf.1.entry_addr(gpa) {
            llc.prefetch(hpa >> LINE_SHIFT);
        }
    }
    for (gpa, leaf) in backing {
        if let Some(hpa) = leaf.resolve::<F>(gpa) {
            llc.prefetch(hpa >> LINE_SHIFT);
        }
    }
}
