//! The machine: CPUs with private TLBs and caches, one shared last-level cache.

use crate::access::{Asid, CpuId, Fault, Request, Tables, VmTag};
use crate::cache::Cache;
use crate::counters::{Charge, HardwareCounters};
use crate::cpu::{Cpu, Held, Last};
use crate::cycles::{Account, Cycles};
use crate::error::ModelError;
use crate::limits::LINE_SHIFT;
use crate::llc::{Llc, LlcOptions, LlcUse, Owner};
use crate::model::CpuModel;
use crate::read::{Hits, Read, class};
use crate::reads::{AtMemory, ReadRules, Reads};
use crate::tlb::Translation;
use crate::walker::{Observer, WalkRules, Walked, Walker};
use strata_addr::space::{Space, Virtual};
use strata_addr::{Hpa, PageSize, Range, Vpn};
use strata_paging::Format;

/// What the TLB does with a translation whose guest and second-stage mappings differ in size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Misaligned {
    /// Holds the piece of the smaller size.
    #[default]
    Splinter,
    /// Does not hold it (Gemini, EuroSys 2023, section 2.2).
    NoFill,
}

/// The last-level cache: with nothing asked for but its size, or in detail.
enum LastLevel {
    Plain(Cache),
    Detailed(Box<Llc>),
}

/// Reads of an access at most: two walks of (5+1)(5+1)-1 references, and the lines of two parts of
/// pages with together as many bytes as a page.
const READS_OF_AN_ACCESS: usize = 2 * 35 + (PageSize::Base.bytes() as usize >> LINE_SHIFT) + 2;

/// The modelled hardware.
///
/// Accessed and dirty flags of the tables are set as the CPU would. A change of a table must be
/// followed by the invalidation that the manuals demand; a missing one leaves a stale translation
/// in use, as it would on a real machine. Every address space is of one VM.
///
/// Host physical addresses must be below [`crate::PHYSICAL_LIMIT`].
pub struct Machine {
    model: CpuModel,
    misaligned: Misaligned,
    walk_rules: WalkRules,
    read_rules: ReadRules,
    account: Account,
    cpus: Vec<Cpu>,
    /// The VM of each address space that has been in a TLB.
    vms: Vec<VmTag>,
    /// There has been more than one VM.
    several_vms: bool,
    llc: LastLevel,
    /// The cache at the memory, if there is one.
    l4: Option<Box<Llc>>,
    /// Reads of the CPU whose accesses are being made; none between accesses and runs.
    reads: Reads,
}

impl Machine {
    /// A machine without CPUs.
    pub fn new(model: &CpuModel, misaligned: Misaligned) -> Self {
        let llc = LastLevel::Plain(Cache::new(&model.cache.llc));
        Self::build(model, misaligned, llc, false)
    }

    /// The same with a last-level cache as asked for. Asked for nothing it is that of [`Machine::new`].
    ///
    /// # Errors
    /// [`ModelError`] when that of the model cannot be so.
    pub fn with_llc(
        model: &CpuModel,
        misaligned: Misaligned,
        options: &LlcOptions,
    ) -> Result<Self, ModelError> {
        let geometry = &model.cache.llc;
        options.check(&model.cache.l2, geometry, &model.cache.l4)?;
        Ok(match options.is_plain() {
            true => Self::new(model, misaligned),
            false => {
                let llc = LastLevel::Detailed(Box::new(Llc::new(geometry, options)));
                Self::build(model, misaligned, llc, options.classify)
            }
        })
    }

    fn build(model: &CpuModel, misaligned: Misaligned, llc: LastLevel, classify: bool) -> Self {
        let geometry = &model.cache.l4;
        let l4 = || Box::new(Llc::new(geometry, &LlcOptions { classify, ..LlcOptions::default() }));
        Self {
            l4: (geometry.bytes > 0).then(l4),
            model: model.clone(),
            misaligned,
            walk_rules: WalkRules::new(&model.walk),
            read_rules: ReadRules::new(model),
            account: Account::new(model),
            cpus: Vec::new(),
            vms: Vec::new(),
            several_vms: false,
            llc,
            reads: Reads::new(),
        }
    }

    /// The model it was built from.
    pub fn model(&self) -> &CpuModel {
        &self.model
    }

    /// Adds a CPU with empty TLBs and caches.
    pub fn add_cpu(&mut self) -> CpuId {
        self.cpus.push(Cpu::new(&self.model));
        CpuId(self.cpus.len() as u32 - 1)
    }

    /// One CPU.
    #[inline]
    pub(crate) fn cpu(&mut self, cpu: CpuId) -> &mut Cpu {
        &mut self.cpus[cpu.0 as usize]
    }

    /// Makes the reads noted, all of this CPU.
    #[inline]
    pub(crate) fn make_reads(&mut self, cpu: CpuId) {
        let Self { reads, read_rules: rules, cpus, llc, l4, .. } = self;
        let Cpu { l1d, l2, counters, owner, .. } = &mut cpus[cpu.0 as usize];
        let at_memory = AtMemory { cache: l4.as_deref_mut(), owner: *owner };
        match llc {
            LastLevel::Plain(llc) => {
                let last = |reads: &mut [Read], hits: &mut Hits| llc.read(reads, false, hits);
                reads.make([l1d, l2], last, at_memory, rules, counters);
            }
            LastLevel::Detailed(llc) if llc.is_inclusive() => {
                reads.make_inclusive(cpus, cpu, llc, at_memory, rules);
            }
            LastLevel::Detailed(llc) if llc.is_filled_by_victims() => {
                reads.make_with_victims(&mut cpus[cpu.0 as usize], llc, at_memory, rules);
            }
            LastLevel::Detailed(llc) => {
                let owner = *owner;
                let last = |reads: &mut [Read], hits: &mut Hits| llc.read(owner, reads, hits);
                reads.make([l1d, l2], last, at_memory, rules, counters);
            }
        }
    }

    /// From now on a CPU fills the last-level cache for this owner, and into its ways; at first for
    /// owner 0.
    ///
    /// # Panics
    /// When there is no such CPU.
    pub fn assign(&mut self, cpu: CpuId, owner: Owner) {
        self.cpus[cpu.0 as usize].owner = owner;
        if let LastLevel::Detailed(llc) = &mut self.llc {
            llc.admit(owner);
        }
        if let Some(l4) = &mut self.l4 {
            l4.admit(owner);
        }
    }

    /// What an owner did in the last-level cache since the last reset, and what it has there; `None` unless it
    /// is modelled in detail.
    ///
    /// # Panics
    /// When no CPU was ever assigned to the owner.
    pub fn llc_use(&self, owner: Owner) -> Option<LlcUse<'_>> {
        match &self.llc {
            LastLevel::Plain(_) => None,
            LastLevel::Detailed(llc) => Some(llc.use_of(owner)),
        }
    }

    /// The same of the cache at the memory; `None` where there is none.
    ///
    /// # Panics
    /// As [`Machine::llc_use`].
    pub fn l4_use(&self, owner: Owner) -> Option<LlcUse<'_>> {
        Some(self.l4.as_ref()?.use_of(owner))
    }

    /// Counts anew what an owner does in the last-level cache and in one at the memory, which keep their
    /// lines.
    ///
    /// # Panics
    /// As [`Machine::llc_use`].
    pub fn reset_llc_counters(&mut self, owner: Owner) {
        if let LastLevel::Detailed(llc) = &mut self.llc {
            llc.reset_counters(owner);
        }
        if let Some(l4) = &mut self.l4 {
            l4.reset_counters(owner);
        }
    }

    /// Notes the read of a line of data.
    #[cfg(test)]
    pub(crate) fn note_read(&mut self, line: u64) {
        self.reads.note(line, class::DATA);
    }

    /// Whether the reads of one more access can be noted.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.reads.has_room(READS_OF_AN_ACCESS)
    }

    /// Number of CPUs.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// One load or store.
    ///
    /// # Errors
    /// A [`Fault`], to be handled before the access is repeated. Only the repetition that
    /// completes counts as an access.
    ///
    /// # Panics
    /// When there is no such CPU.
    #[inline]
    pub fn access<F: Format, U: Space, L: Space>(
        &mut self,
        cpu: CpuId,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<(), Fault> {
        self.access_to(cpu, request, tables).map(|_| ())
    }

    /// The same as [`Machine::access`], for whoever wants to know where the first byte was found.
    ///
    /// # Errors
    /// As [`Machine::access`].
    ///
    /// # Panics
    /// As [`Machine::access`].
    #[inline]
    pub fn access_to<F: Format, U: Space, L: Space>(
        &mut self,
        cpu: CpuId,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<Hpa, Fault> {
        let done = self.access_later(cpu, request, tables);
        self.make_reads(cpu);
        done.map(Hpa::new)
    }

    /// The same, with the reads noted for later. There must be room for them.
    #[inline(always)]
    pub(crate) fn access_later<F: Format, U: Space, L: Space>(
        &mut self,
        cpu: CpuId,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<u64, Fault> {
        let bytes = u64::from(request.bytes.max(1));
        if request.gva.offset(PageSize::Base) + bytes > PageSize::Base.bytes() {
            return self.access_two_pages(cpu, request, tables);
        }
        let hpa = self.translate(cpu, request, tables)?.resolve(request.gva);
        self.cpus[cpu.0 as usize].count_access(request.store);
        self.note_lines(hpa, bytes);
        Ok(hpa)
    }

    /// Notes the reads of the cache lines that hold `bytes` bytes from `hpa`, mostly one.
    #[inline(always)]
    fn note_lines(&mut self, hpa: u64, bytes: u64) {
        let (first, last) = (hpa >> LINE_SHIFT, (hpa + bytes - 1) >> LINE_SHIFT);
        self.reads.note(first, class::DATA);
        for line in first + 1..last + 1 {
            self.reads.note(line, class::DATA);
        }
    }

    /// An access with bytes on two pages. Both are translated before anything is counted, so that
    /// a fault on the second leaves nothing half done.
    #[cold]
    fn access_two_pages<F: Format, U: Space, L: Space>(
        &mut self,
        cpu: CpuId,
        request: Request,
        tables: &mut Tables<'_, F, U, L>,
    ) -> Result<u64, Fault> {
        let Request { gva, bytes, .. } = request;
        let bytes = u64::from(bytes);
        debug_assert!(bytes <= PageSize::Base.bytes());
        let second = gva.floor(PageSize::Base) + PageSize::Base.bytes();
        let on_first = second - gva;
        let first_hpa = self.translate(cpu, request, tables)?.resolve(gva);
        let second_hpa =
            self.translate(cpu, Request { gva: second, ..request }, tables)?.resolve(second);
        let cpu = &mut self.cpus[cpu.0 as usize];
        cpu.count_access(request.store);
        cpu.counters.page_crossings += 1;
        self.note_lines(first_hpa, on_first);
        self.note_lines(second_hpa, bytes - on_first);
        Ok(first_hpa)
    }

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
        Ok(self.fill(id, request, &walked))
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
                self.cpus[id.0 as usize].drop_entries(gva.page(), asid);
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

    /// Drops one page of one address space on every CPU, and, as INVLPG does, everything that the
    /// walk caches know of that address space (SDM volume 3A, section 4.10.4.1).
    pub fn invalidate_page(&mut self, asid: Asid, page: Vpn) {
        for cpu in &mut self.cpus {
            cpu.invalidate_page(page, asid);
            cpu.walk_caches.pwc.flush_asids(|other| other == asid);
        }
    }

    /// Drops every page of one address space that has a byte in `range`, on every CPU; the walk
    /// caches as [`Machine::invalidate_page`].
    pub fn invalidate_range(&mut self, asid: Asid, range: Range<Virtual>) {
        for cpu in &mut self.cpus {
            cpu.last.key = Last::NONE;
            cpu.tlb_l1.invalidate_range(range, asid);
            cpu.tlb_l2.invalidate_range(range, asid);
            cpu.walk_caches.pwc.flush_asids(|other| other == asid);
        }
    }

    /// Drops everything of one address space on every CPU: a write of CR3, or INVPCID.
    pub fn flush_asid(&mut self, asid: Asid) {
        for cpu in &mut self.cpus {
            cpu.last.key = Last::NONE;
            cpu.tlb_l1.flush_asids(|other| other == asid);
            cpu.tlb_l2.flush_asids(|other| other == asid);
            cpu.walk_caches.pwc.flush_asids(|other| other == asid);
        }
    }

    /// Drops everything derived from the second stage of a VM on every CPU, as INVEPT of that context
    /// or a flush of the VM's ASID does: TLB entries, which combine both stages, all walk caches, the
    /// nested TLB (SDM volume 3C, section 29.4.3.1; APM volume 2, section 15.16.1).
    pub fn flush_second_stage(&mut self, vm: VmTag) {
        let vms = &self.vms;
        // The only one there was; of one that comes as the second, the first's must stay.
        if !self.several_vms && vms.contains(&vm) {
            return self.flush_all();
        }
        let is_of = |asid: Asid| vms.get(usize::from(asid.0)) == Some(&vm);
        for cpu in &mut self.cpus {
            cpu.last.key = Last::NONE;
            cpu.tlb_l1.flush_asids(is_of);
            cpu.tlb_l2.flush_asids(is_of);
            cpu.walk_caches.flush_vm(vm, is_of);
        }
    }

    /// Drops every translation on every CPU. Data caches keep their contents: they are tagged by
    /// host physical address.
    pub fn flush_all(&mut self) {
        for cpu in &mut self.cpus {
            cpu.last.key = Last::NONE;
            cpu.tlb_l1.flush();
            cpu.tlb_l2.flush();
            cpu.walk_caches.flush();
        }
    }

    /// Books cycles that software costs this CPU.
    pub fn charge(&mut self, cpu: CpuId, kind: Charge, cycles: u64) {
        self.cpus[cpu.0 as usize].counters.charged[kind as usize] += cycles;
    }

    /// Books retired instructions.
    #[inline]
    pub fn retire(&mut self, cpu: CpuId, instructions: u64) {
        self.cpus[cpu.0 as usize].counters.instructions += instructions;
    }

    /// What was counted on a CPU since the last reset.
    pub fn counters(&self, cpu: CpuId) -> &HardwareCounters {
        &self.cpus[cpu.0 as usize].counters
    }

    /// What was counted on all CPUs since the last reset.
    pub fn totals(&self) -> HardwareCounters {
        let mut totals = HardwareCounters::default();
        for cpu in &self.cpus {
            totals += &cpu.counters;
        }
        totals
    }

    /// What was counted on a CPU since the last reset, which this is: TLBs, caches and the clock stay.
    pub fn take_counters(&mut self, cpu: CpuId) -> HardwareCounters {
        let cpu = &mut self.cpus[cpu.0 as usize];
        cpu.earlier += self.account.cycles(&cpu.counters).total();
        std::mem::take(&mut cpu.counters)
    }

    /// Sets every counter to 0 and keeps the state of TLBs and caches: the end of a warm-up.
    pub fn reset_counters(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.take_counters(CpuId(cpu as u32));
        }
    }

    /// Cycles that explain these counters, by what they went to.
    pub fn explain(&self, counters: &HardwareCounters) -> Cycles {
        self.account.cycles(counters)
    }

    /// Cycles of a CPU since the last reset, by what they went to.
    pub fn breakdown(&self, cpu: CpuId) -> Cycles {
        self.account.cycles(self.counters(cpu))
    }

    /// Cycles of all CPUs since the last reset, by what they went to.
    pub fn total_breakdown(&self) -> Cycles {
        self.account.cycles(&self.totals())
    }

    /// Cycles of a CPU since the last reset.
    pub fn cycles(&self, cpu: CpuId) -> u64 {
        self.breakdown(cpu).total() as u64
    }

    /// Cycles of a CPU since it was added: its clock, which a reset does not turn back.
    pub fn clock(&self, cpu: CpuId) -> u64 {
        (self.cpus[cpu.0 as usize].earlier + self.breakdown(cpu).total()) as u64
    }
}
