//! Runs of accesses, with a look ahead.
//!
//! The model's own data (page tables, tags of the last-level cache) is larger than the caches of
//! the computer it runs on. A single access waits for each miss in turn: the guest's entry, then
//! the second stage's, then the tags. Over a run, the same data can be asked for many accesses at
//! a time, so that the misses overlap. The look ahead only reads; it changes nothing.

use crate::cache::{Cache, LINE_SHIFT};
use crate::machine::{Asid, CpuId, Fault, Held, Machine, Tables, lines};
use strata_addr::PageSize;
use strata_addr::space::Space;
use strata_paging::{Format, Radix, TableId, X86, index};
use strata_stream::Access;

/// Accesses looked at together: enough misses to fill what a core keeps outstanding.
const WINDOW: usize = 16;

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
        for line in lines(translation.resolve(gva), bytes.into()) {
            llc.prefetch(line);
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

/// Where the last descent ended, to start the next one lower.
#[derive(Clone, Copy)]
struct Descent {
    /// Address >> 30; `NONE` at first.
    region: u64,
    /// The table with entries of level 2 for that region.
    table: TableId,
}

impl Descent {
    const NONE: u64 = u64::MAX;

    fn new() -> Self {
        Self { region: Self::NONE, table: TableId::ROOT }
    }

    /// The leaf entry for an address, if there is one: table, index, level, bits.
    #[inline]
    fn leaf<F: Format, U: Space, L: Space>(
        &mut self,
        radix: &Radix<F, U, L>,
        addr: u64,
    ) -> Option<Leaf> {
        let region = addr >> PageSize::Giant.shift();
        let (mut table, mut level) = (self.table, 2);
        if region != self.region {
            (table, level) = (TableId::ROOT, radix.levels());
        }
        loop {
            if level == 2 {
                *self = Self { region, table };
            }
            let at = index(addr, level);
            let bits = radix.entry(table, at);
            if level == 1 {
                // Not looked at yet: nothing waits for it.
                return Some(Leaf { table, at, level, bits });
            }
            if !F::is_present(bits) {
                return None;
            }
            if F::is_leaf(bits, level) {
                return Some(Leaf { table, at, level, bits });
            }
            table = radix.child(table, at);
            level -= 1;
        }
    }
}

#[derive(Clone, Copy)]
struct Leaf {
    table: TableId,
    at: usize,
    level: u8,
    bits: u64,
}

impl Leaf {
    /// Where the leaf maps an address to.
    #[inline]
    fn resolve<F: Format>(&self, addr: u64) -> Option<u64> {
        let offset = (1 << (12 + 9 * (u32::from(self.level) - 1))) - 1;
        F::is_present(self.bits)
            .then(|| F::frame(self.bits) << PageSize::BASE_SHIFT | addr & offset)
    }
}

fn look_ahead<F: Format, U: Space, L: Space>(
    window: &[Access],
    llc: &Cache,
    tables: &Tables<'_, F, U, L>,
) {
    let mut guest_leaves = [None; WINDOW];
    let mut descent = Descent::new();
    for (access, leaf) in window.iter().zip(&mut guest_leaves) {
        *leaf = descent.leaf(tables.guest, access.addr().get());
    }
    let gpas = window.iter().zip(&guest_leaves);
    let gpas =
        gpas.map(|(access, leaf)| leaf.and_then(|leaf| leaf.resolve::<X86>(access.addr().get())));
    let Some(second) = tables.second.as_deref() else {
        for hpa in gpas.flatten() {
            llc.prefetch(hpa >> LINE_SHIFT);
        }
        return;
    };
    let mut seconds = [None; WINDOW];
    let mut descent = Descent::new();
    for (gpa, found) in gpas.zip(&mut seconds) {
        *found = gpa.and_then(|gpa| Some((gpa, descent.leaf(second, gpa)?)));
    }
    let mut descent = Descent::new();
    for leaf in guest_leaves.iter().flatten() {
        let gpa = tables.guest.entry_addr(leaf.table, leaf.at).get();
        if let Some(hpa) = descent.leaf(second, gpa).and_then(|leaf| leaf.resolve::<F>(gpa)) {
            llc.prefetch(hpa >> LINE_SHIFT);
        }
    }
    for (gpa, leaf) in seconds.iter().flatten() {
        llc.prefetch(second.entry_addr(leaf.table, leaf.at).get() >> LINE_SHIFT);
        if let Some(hpa) = leaf.resolve::<F>(*gpa) {
            llc.prefetch(hpa >> LINE_SHIFT);
        }
    }
}
