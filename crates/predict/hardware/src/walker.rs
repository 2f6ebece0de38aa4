//! The page walker: native and two-dimensional walks, reference by reference.

use crate::access::{Asid, Fault, Request, Tables, VmTag};
use crate::limits::LINE_SHIFT;
use crate::model::WalkGeometry;
use crate::read::class;
use crate::reads::Reads;
use crate::tlb::Translation;
use crate::walkcache::{HostPage, Start, WalkCaches};
use crate::{HardwareCounters, WalkPosition};
use strata_addr::space::{GuestPhysical, Space, Virtual};
use strata_addr::{Gpa, PageSize};
use strata_paging::{Format, Radix, TableId, X86, index};

/// Sees every reference of a walk.
pub(crate) trait Observer {
    fn reference(&mut self, position: WalkPosition, hpa: u64);
}

/// Nobody looks.
impl Observer for () {
    #[inline(always)]
    fn reference(&mut self, _: WalkPosition, _: u64) {}
}

/// What a walker needs to know of the CPU model.
pub(crate) struct WalkRules {
    combined: bool,
    second_stage_flags: bool,
    pwc_cycles: u64,
    ntlb_cycles: u64,
}

impl WalkRules {
    pub(crate) fn new(walk: &WalkGeometry) -> Self {
        Self {
            combined: walk.combined,
            second_stage_flags: walk.second_stage_flags,
            pwc_cycles: walk.pwc_cycles.into(),
            ntlb_cycles: walk.ntlb_cycles.into(),
        }
    }
}

/// One walk under way.
pub(crate) struct Walker<'m, O> {
    pub(crate) caches: &'m mut WalkCaches,
    /// Takes the reads of table entries.
    pub(crate) reads: &'m mut Reads,
    /// What all its reads are for.
    pub(crate) class: u64,
    pub(crate) counters: &'m mut HardwareCounters,
    pub(crate) rules: &'m WalkRules,
    pub(crate) observer: &'m mut O,
    /// References so far.
    pub(crate) refs: u64,
    /// Cycles so far, those of the references not counted.
    pub(crate) cycles: u64,
    /// Those of the second stage.
    pub(crate) nested_cycles: u64,
}

/// What a walk found, before it becomes a TLB entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked {
    /// Base frame of the page accessed.
    pub(crate) frame: u64,
    pub(crate) guest_size: PageSize,
    /// `None` without a second stage.
    pub(crate) second_size: Option<PageSize>,
    pub(crate) write: bool,
    /// Whether a store needs to set no dirty flag.
    pub(crate) dirty: bool,
}

impl Walked {
    /// The TLB entry of this size.
    pub(crate) fn translation(&self, size: PageSize) -> Translation {
        Translation::new(self.frame, size, self.guest_size, self.write, self.dirty)
    }
}

/// The guest's table page that a walk reads, as the second stage sees it.
struct TablePage {
    /// Host frame.
    frame: u64,
    /// Whether the second stage lets it be written.
    write: bool,
}

impl<O: Observer> Walker<'_, O> {
    /// Walks for the first byte asked for, from the lowest table that the walk caches know.
    pub(crate) fn walk<F: Format, U: Space, L: Space>(
        &mut self,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<Walked, Fault> {
        let Request { asid, gva, store, .. } = request;
        let generation = tables.guest.generation() as u32;
        let levels = tables.guest.levels();
        let second_levels = tables.second.as_deref().map_or(0, Radix::levels);
        let mut level = levels;
        let mut table = TableId::ROOT;
        let mut page = None;
        if let Some((from, start)) = self.caches.pwc.lookup(gva.get(), asid, level, generation) {
            self.counters.pwc.hits += 1;
            self.cycles += self.rules.pwc_cycles;
            self.counters.skipped.by_pwc(levels, second_levels, from, self.rules.combined);
            level = from;
            table = start.table;
            if self.rules.combined {
                page = Some(TablePage { frame: start.frame, write: start.write });
            }
        } else {
            self.counters.pwc.misses += 1;
        }
        // The walk cache learns of a table when its host frame is known: at its first reference.
        let mut fill = false;
        loop {
            let at = index(gva.get(), level);
            let gpa = tables.guest.entry_addr(table, at);
            let page = match page.take() {
                Some(page) => page,
                None => self.table_page(gpa, level, tables)?,
            };
            if fill {
                let start = Start { table, generation, frame: page.frame, write: page.write };
                self.caches.pwc.fill(gva.get(), level + 1, asid, start);
            }
            let hpa = (page.frame << PageSize::BASE_SHIFT) + gpa.offset(PageSize::Base);
            self.reference(WalkPosition { guest: level, nested: 0 }, hpa);
            let bits = tables.guest.entry(table, at);
            if !X86::is_present(bits) {
                return Err(Fault::Guest { gva, store, present: false });
            }
            let slot = Slot { table, at, level, gpa, bits, page };
            if X86::is_leaf(bits, level) {
                return self.finish(request, &slot, tables);
            }
            self.mark_guest(&slot, X86::ACCESSED, tables.guest)?;
            table = tables.guest.child(table, at);
            level -= 1;
            fill = true;
        }
    }

    /// The leaf is found: rights, flags, and the translation of the data's guest physical
    /// address.
    fn finish<F: Format, U: Space, L: Space>(
        &mut self,
        request: Request,
        slot: &Slot,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<Walked, Fault> {
        let Request { gva, store, .. } = request;
        let write = slot.bits & X86::WRITE != 0;
        if store && !write {
            return Err(Fault::Guest { gva, store, present: true });
        }
        self.mark_guest(slot, X86::ACCESSED, tables.guest)?;
        let guest_size = PageSize::at_level(slot.level).expect("leaves are at levels 1 to 3");
        let gpa = (X86::frame(slot.bits) << PageSize::BASE_SHIFT) + gva.offset(guest_size);
        let (backing, second_size) = match tables.second.as_deref_mut() {
            None => {
                let frame = gpa >> PageSize::BASE_SHIFT;
                (HostPage { frame, size: PageSize::Base, write: true, dirty: true }, None)
            }
            Some(second) => {
                let backing = self.nested(tables.vm, gpa, store, 0, second)?;
                (backing, Some(backing.size))
            }
        };
        // The dirty flag says that a store happened: it is set only once nothing can fault.
        if store {
            self.mark_guest(slot, X86::ACCESSED | X86::DIRTY, tables.guest)?;
        }
        Ok(Walked {
            frame: backing.resolve(gpa) >> PageSize::BASE_SHIFT,
            guest_size,
            second_size,
            write: write && backing.write,
            dirty: (store || slot.bits & X86::DIRTY != 0) && backing.dirty,
        })
    }

    /// The table page behind the guest physical address of an entry.
    fn table_page<F: Format, U: Space, L: Space>(
        &mut self,
        gpa: Gpa,
        level: u8,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<TablePage, Fault> {
        match tables.second.as_deref_mut() {
            None => Ok(TablePage { frame: gpa.page().get(), write: true }),
            Some(second) => {
                // With accessed and dirty flags in the second stage, reads of guest tables count
                // as writes (SDM volume 3C, section 29.3.3.2; APM volume 2, section 15.25.6).
                let write = self.rules.second_stage_flags;
                let backing = self.nested(tables.vm, gpa.get(), write, level, second)?;
                let frame = backing.resolve(gpa.get()) >> PageSize::BASE_SHIFT;
                Ok(TablePage { frame, write: backing.write })
            }
        }
    }

    /// Translates a guest physical address for the row `guest` of the walk: a hit of the nested
    /// TLB, or a nested walk.
    fn nested<F: Format, U: Space, L: Space>(
        &mut self,
        vm: VmTag,
        gpa: u64,
        write: bool,
        guest: u8,
        second: &mut Radix<F, U, L>,
    ) -> Result<HostPage, Fault> {
        if let Some(backing) = self.caches.ntlb.lookup(vm, gpa) {
            if !write || backing.write && backing.dirty {
                self.counters.ntlb.hits += 1;
                self.cycles += self.rules.ntlb_cycles;
                self.nested_cycles += self.rules.ntlb_cycles;
                self.counters.skipped.by_ntlb(guest, second.levels(), backing.size);
                return Ok(backing);
            }
            self.caches.ntlb.remove(vm, gpa);
        }
        self.counters.ntlb.misses += 1;
        let backing = self.nested_walk(vm, gpa, write, guest, second)?;
        self.caches.ntlb.fill(vm, gpa, backing);
        Ok(backing)
    }

    fn nested_walk<F: Format, U: Space, L: Space>(
        &mut self,
        vm: VmTag,
        gpa: u64,
        write: bool,
        guest: u8,
        second: &mut Radix<F, U, L>,
    ) -> Result<HostPage, Fault> {
        let fault =
            Fault::SecondStage { gpa: Gpa::new(gpa), store: write, during_walk: guest != 0 };
        let generation = second.generation() as u32;
        let levels = second.levels();
        let mut level = levels;
        let mut table = TableId::ROOT;
        // The cache of this dimension has second stages for address spaces.
        let tag = Asid(vm.0);
        if let Some((from, start)) = self.caches.nested_pwc.lookup(gpa, tag, level, generation) {
            self.counters.npwc.hits += 1;
            self.cycles += self.rules.pwc_cycles;
            self.nested_cycles += self.rules.pwc_cycles;
            self.counters.skipped.by_nested_pwc(guest, levels, from);
            level = from;
            table = start.table;
        } else {
            self.counters.npwc.misses += 1;
        }
        loop {
            let at = index(gpa, level);
            let hpa = second.entry_addr(table, at);
            self.reference(WalkPosition { guest, nested: level }, hpa.get());
            let bits = second.entry(table, at);
            if !F::is_present(bits) {
                return Err(fault);
            }
            if F::is_leaf(bits, level) {
                let writable = bits & F::WRITE != 0;
                if write && !writable {
                    return Err(fault);
                }
                let wanted = F::ACCESSED | if write { F::DIRTY } else { 0 };
                self.mark_second((table, at), bits, wanted, second);
                let flags = self.rules.second_stage_flags;
                return Ok(HostPage {
                    frame: F::frame(bits),
                    size: PageSize::at_level(level).expect("leaves are at levels 1 to 3"),
                    write: writable,
                    dirty: !flags || write || bits & F::DIRTY != 0,
                });
            }
            self.mark_second((table, at), bits, F::ACCESSED, second);
            table = second.child(table, at);
            let start = Start { table, generation, ..Start::default() };
            self.caches.nested_pwc.fill(gpa, level, tag, start);
            level -= 1;
        }
    }

    /// Sets flags in an entry of the second stage that was read as `bits`, if it has such flags.
    #[inline]
    fn mark_second<F: Format, U: Space, L: Space>(
        &mut self,
        (table, at): (TableId, usize),
        bits: u64,
        wanted: u64,
        second: &mut Radix<F, U, L>,
    ) {
        if self.rules.second_stage_flags && bits & wanted != wanted {
            second.mark(table, at, wanted & F::DIRTY != 0);
            self.counters.second_stage_flag_writes += 1;
        }
    }

    /// Sets flags in a guest entry, which is a write to guest memory: the second stage must allow
    /// it.
    #[inline]
    fn mark_guest(
        &mut self,
        slot: &Slot,
        wanted: u64,
        guest: &mut Radix<X86, Virtual, GuestPhysical>,
    ) -> Result<(), Fault> {
        if slot.bits & wanted == wanted {
            return Ok(());
        }
        if !slot.page.write {
            return Err(Fault::SecondStage { gpa: slot.gpa, store: true, during_walk: true });
        }
        let changed = guest.mark(slot.table, slot.at, wanted & X86::DIRTY != 0);
        self.counters.guest_flag_writes += u64::from(changed);
        Ok(())
    }

    #[inline(always)]
    fn reference(&mut self, position: WalkPosition, hpa: u64) {
        self.observer.reference(position, hpa);
        self.refs += 1;
        self.reads.note(hpa >> LINE_SHIFT, self.class | class::walk(position));
    }
}

/// An entry of the guest's table, as it was read.
struct Slot {
    table: TableId,
    at: usize,
    level: u8,
    gpa: Gpa,
    bits: u64,
    page: TablePage,
}
