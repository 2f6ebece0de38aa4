//! A translation: from the TLB, or by a walk that fills it.

use super::{Machine, Misaligned};
use crate::access::{Asid, CpuId, Fault, Request, Tables, VmTag};
use crate::cpu::{Cpu, Held, Last};
use crate::read::class;
use crate::tlb::Translation;
use crate::walker::{Observer, Walked, Walker};
use strata_addr::PageSize;
use strata_addr::space::Space;
use strata_paging::Format;

impl Machine {
    #[inline]
    pub(crate) fn translate<F: Format, U: Space, L: Space>(
        &mut self,
        cpu: CpuId,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<Translation, Fault> {
        match self.cpus[cpu.0 as usize].translate(request) {
            Held::Yes(translation) => Ok(translation),
            other => self.translate_further(other, cpu, request, tables),
        }
    }

    /// Goes on with what [`Cpu::translate`] said.
    #[inline]
    pub(crate) fn translate_further<F: Format, U: Space, L: Space>(
        &mut self,
        held: Held,
        cpu: CpuId,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<Translation, Fault> {
        match held {
            Held::Yes(translation) => Ok(translation),
            Held::No => self.walk_and_fill(cpu, request, tables, &mut ()),
            Held::NotForStores { held, in_l1 } => {
                self.walk_for_store(cpu, request, held, in_l1, tables)
            }
        }
    }

    /// Neither TLB level has the page.
    #[inline(never)]
    pub(crate) fn walk_and_fill<F: Format, U: Space, L: Space>(
        &mut self,
        id: CpuId,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
        observer: &mut impl Observer,
    ) -> Result<Translation, Fault> {
        // Before the walk, whose caches keep what it reads even if it faults.
        self.note_vm(request.asid, tables.vm);
        let walked = self.walk(id, request, tables, observer)?;
        let counters = &mut self.cpus[id.0 as usize].counters;
        counters.l1_misses += 1;
        counters.l2_misses += 1;
        let translation = self.fill(id, request, &walked);
        if self.is_held(&walked) {
            let Cpu { first_uses, counters, .. } = &mut self.cpus[id.0 as usize];
            let is_first = first_uses.load(request.gva.page(), request.asid, translation.size());
            counters.first_loads += u64::from(is_first);
        }
        Ok(translation)
    }

    /// A store met an entry that does not take stores: read-only, or not dirty yet.
    #[cold]
    fn walk_for_store<F: Format, U: Space, L: Space>(
        &mut self,
        id: CpuId,
        request: Request,
        held: Translation,
        in_l1: bool,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<Translation, Fault> {
        let Request { asid, gva, .. } = request;
        if !held.is_writable() {
            // The CPU does not trust an entry that forbids: it walks, and faults only if the
            // tables forbid too (SDM volume 3A, section 4.10.2.3).
            self.cpus[id.0 as usize].drop_entries(gva.page(), asid);
            return self.walk_and_fill(id, request, tables, &mut ());
        }
        let walked = self.walk(id, request, tables, &mut ())?;
        let cpu = &mut self.cpus[id.0 as usize];
        cpu.counters.dirty_walks += 1;
        if !in_l1 {
            cpu.counters.l1_misses += 1;
            cpu.counters.l2_hits += 1;
        }
        let now = walked.translation(held.size());
        if now.is_same_page(held) {
            cpu.tlb_l1.update(gva.page(), asid, now);
            cpu.tlb_l2.update(gva.page(), asid, now);
            cpu.last = Last { key: Last::key(gva, asid), translation: now };
            return Ok(now);
        }
        cpu.drop_entries(gva.page(), asid);
        Ok(self.fill(id, request, &walked))
    }

    fn walk<F: Format, U: Space, L: Space>(
        &mut self,
        id: CpuId,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
        observer: &mut impl Observer,
    ) -> Result<Walked, Fault> {
        let Request { asid, gva, store, .. } = request;
        let Cpu { walk_caches, counters, .. } = &mut self.cpus[id.0 as usize];
        let first_read = self.reads.len();
        let mut walker = Walker {
            caches: walk_caches,
            reads: &mut self.reads,
            class: if store { class::STORE } else { 0 },
            counters,
            rules: &self.walk_rules,
            observer,
            refs: 0,
            cycles: 0,
            nested_cycles: 0,
        };
        let result = walker.walk(request, tables);
        let (refs, cycles, nested_cycles) = (walker.refs, walker.cycles, walker.nested_cycles);
        counters.ept_walk_cycles += nested_cycles;
        if store {
            counters.dtlb_store_misses_walk_duration += cycles;
        } else {
            counters.dtlb_load_misses_walk_duration += cycles;
        }
        match &result {
            Ok(_) => {
                counters.walks += 1;
                counters.walk_refs += refs;
                counters.walk_cycles += cycles;
            }
            Err(fault) => {
                counters.faulted_walks += 1;
                counters.faulted_walk_refs += refs;
                counters.faulted_walk_cycles += cycles;
                self.reads.faulted(first_read);
                walk_caches.drop_after(fault, gva, asid, tables.vm);
                let cpu = &mut self.cpus[id.0 as usize];
                cpu.drop_entries(gva.page(), asid);
                cpu.first_uses.fault(gva.page(), asid);
            }
        }
        result
    }

    /// Remembers whose address space this is.
    #[inline]
    fn note_vm(&mut self, asid: Asid, vm: VmTag) {
        let index = usize::from(asid.0);
        if self.vms.get(index) != Some(&vm) {
            self.several_vms |= !self.vms.is_empty() && !self.vms.contains(&vm);
            let new = self.vms.len().max(index + 1);
            self.vms.resize(new, vm);
            self.vms[index] = vm;
        }
    }

    /// Whether TLBs take what a walk found.
    #[inline]
    fn is_held(&self, walked: &Walked) -> bool {
        let differs = walked.second_size.is_some_and(|second| second != walked.guest_size);
        !(differs && self.misaligned == Misaligned::NoFill)
    }

    /// Puts what a walk found into both TLB levels, where they take it.
    #[inline]
    fn fill(&mut self, id: CpuId, request: Request, walked: &Walked) -> Translation {
        let Request { asid, gva, .. } = request;
        let cpu = &mut self.cpus[id.0 as usize];
        let mut size = walked.guest_size;
        if let Some(second) = walked.second_size.filter(|second| *second != size) {
            if self.misaligned == Misaligned::NoFill {
                cpu.counters.unfilled_walks += 1;
                cpu.last.key = Last::NONE;
                return walked.translation(PageSize::Base);
            }
            if second < size {
                cpu.counters.splintered_fills += 1;
                size = second;
            }
        }
        while !cpu.tlb_l1.holds(size) {
            size = if size == PageSize::Giant { PageSize::Huge } else { PageSize::Base };
        }
        let translation = walked.translation(size);
        cpu.counters.fills[size as usize] += 1;
        cpu.tlb_l1.fill(gva.page(), asid, translation);
        cpu.tlb_l2.fill(gva.page(), asid, translation);
        cpu.last = Last { key: Last::key(gva, asid), translation };
        translation
    }
}
