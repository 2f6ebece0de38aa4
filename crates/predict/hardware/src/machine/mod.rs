//! The machine: CPUs with private TLBs and caches, one shared last-level cache.

mod counted;
mod invalidate;
mod translate;

use crate::access::{CpuId, Fault, Request, Tables, VmTag};
use crate::cache::Cache;
use crate::cpu::Cpu;
use crate::cycles::Account;
use crate::error::ModelError;
use crate::limits::LINE_SHIFT;
use crate::llc::{Llc, LlcOptions, Owner};
use crate::model::CpuModel;
use crate::read::{CAPACITY, Hits, Read, class};
use crate::reads::{AtMemory, ReadRules, Reads};
use crate::walker::WalkRules;
use strata_addr::space::Space;
use strata_addr::{Hpa, PageSize};
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

/// A single access notes its reads without asking for room.
const _: () = assert!(READS_OF_AN_ACCESS <= CAPACITY);

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
}
