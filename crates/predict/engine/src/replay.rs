//! A machine whose page tables are real: captured from an emulated machine, and walked by the
//! modelled hardware. No kernel is modelled, so nothing faults, migrates or is promoted.

use crate::bill::{self, Account, Events};
use crate::counters;
use crate::report::{Alignment, CapturedTables, LastLevel, Memory, RunResult};
use crate::simulation::outcome::{cpu_totals, cycles, tlb, walk_positions};
use crate::warmup::Warmup;
use crate::{Built, Run, Setup, SetupError, StackKind};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use strata_addr::Hpa;
use strata_hardware::{
    Asid, CpuId, Fault, LlcOptions, Machine, Owner, PHYSICAL_LIMIT, RunFault, Tables, VmTag,
};
use strata_stream::{Access, Batch, Event, Step, Tid};
use strata_tables::variant::{self, HardwareTables, TableVariant};
use strata_tables::{Capture, truth};

/// The address space of the one program.
const ASID: Asid = Asid(1);

/// A machine with the tables of a capture, in a variant.
///
/// Of `setup` the CPU, the treatment of misaligned pages and the warm-up matter; stack and policy
/// are those of the result.
///
/// # Errors
/// When the tables do not fit the model.
pub fn replay(capture: &Capture, variant: TableVariant, setup: &Setup) -> Built {
    let tables = variant::tables(capture, variant, Hpa::new(PHYSICAL_LIMIT))
        .map_err(|error| SetupError::Refused(error.to_string()))?;
    let Setup { cpu, llc, .. } = setup;
    let options =
        LlcOptions { design: llc.design(cpu), masks: vec![llc.ways], classify: llc.classify };
    let machine = Machine::with_llc(cpu, setup.misaligned, &options);
    Ok(Box::new(Replay {
        machine: machine.map_err(|error| SetupError::Refused(format!("{}: {error}", cpu.name)))?,
        alignment: alignment(capture, variant),
        stack: stack(capture),
        variant,
        tables,
        cpu: cpu.name.clone(),
        frequency: f64::from(cpu.core.frequency_mhz) * 1e6,
        cpus: FxHashMap::default(),
        warmup: Warmup::new(setup),
        unmapped: 0,
        forbidden: 0,
    }))
}

/// The stack that a capture is of.
pub(crate) fn stack(capture: &Capture) -> StackKind {
    StackKind::of_layers(capture.layers.into()).unwrap_or(StackKind::Nested)
}

impl CapturedTables {
    /// What a report says of these tables.
    pub fn new(capture: &Capture) -> Self {
        let words = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self {
            layers: capture.layers,
            real: words(&["accesses", "page tables", "addresses of data and table entries"]),
            modelled: words(&["TLBs", "walk caches", "data caches", "cycles"]),
            check: capture.check,
            composition: capture.composition,
        }
    }

    /// The stack that they are of.
    pub fn stack(capture: &Capture) -> StackKind {
        stack(capture)
    }
}

fn alignment(capture: &Capture, variant: TableVariant) -> Alignment {
    let regions = truth::regions(capture);
    let guest_huge = regions.len() as u64;
    let mut found = Alignment { guest_huge, ..Alignment::default() };
    match variant {
        TableVariant::Base => return Alignment::default(),
        TableVariant::Ideal => {
            found.well_aligned = guest_huge;
            return found;
        }
        TableVariant::Captured => {}
    }
    for region in &regions {
        let second = region.second.unwrap_or_default();
        if region.is_well_aligned() {
            found.well_aligned += 1;
            found.pseudo_huge += u64::from(region.l1.is_some_and(|l1| !l1.huge));
        } else if second.present == 0 {
            found.type1 += 1;
        } else {
            found.type2 += 1;
        }
    }
    found
}

struct Replay {
    machine: Machine,
    tables: HardwareTables,
    variant: TableVariant,
    stack: StackKind,
    alignment: Alignment,
    cpu: String,
    frequency: f64,
    cpus: FxHashMap<Tid, CpuId>,
    warmup: Warmup,
    /// Accesses that the tables do not map.
    unmapped: u64,
    /// Accesses that the tables map, but do not allow.
    forbidden: u64,
}

impl Run for Replay {
    fn consume(&mut self, batch: &Batch) {
        for step in batch.steps() {
            match step {
                Step::Run { tid, instructions, accesses } => {
                    let machine = &mut self.machine;
                    let cpu = *self.cpus.entry(tid).or_insert_with(|| machine.add_cpu());
                    self.run(cpu, instructions, accesses);
                }
                Step::Event(Event::Mark(mark)) if self.warmup.mark(*mark) => self.end_warmup(),
                // What becomes of address spaces is in the tables.
                Step::Event(_) => {}
            }
        }
    }

    fn finish(mut self: Box<Self>) -> RunResult {
        if !self.warmup.is_over() {
            self.end_warmup();
        }
        self.result()
    }

    fn memory_estimate(&self) -> u64 {
        let second = self.tables.second.as_ref().map_or(0, |second| second.table_pages());
        // The entries, and as much again for where they lead.
        (self.tables.guest.table_pages() + second) as u64 * 8192
    }
}

impl Replay {
    /// Accesses by one CPU, cut where the warm-up ends; instructions in proportion.
    fn run(&mut self, cpu: CpuId, instructions: u64, accesses: &[Access]) {
        let (mut warm, mut share) = (0, 0);
        if !self.warmup.is_over() {
            warm = self.warmup.take(accesses.len());
            share = match accesses.len() as u128 {
                0 => instructions,
                all => (u128::from(instructions) * warm as u128 / all) as u64,
            };
            self.machine.retire(cpu, share);
            self.accesses(cpu, &accesses[..warm]);
            if !self.warmup.is_over() {
                return;
            }
            self.end_warmup();
        }
        self.machine.retire(cpu, instructions - share);
        self.accesses(cpu, &accesses[warm..]);
    }

    fn end_warmup(&mut self) {
        self.machine.reset_counters();
        self.machine.reset_llc_counters(Owner::default());
        (self.unmapped, self.forbidden) = (0, 0);
    }

    /// Accesses that fault are left out and counted: there is no kernel that could help.
    fn accesses(&mut self, cpu: CpuId, mut accesses: &[Access]) {
        let HardwareTables { guest, second, .. } = &mut self.tables;
        let mut tables = Tables { vm: VmTag::default(), guest, second: second.as_mut() };
        while let Err(RunFault { completed, fault }) =
            self.machine.access_run(cpu, ASID, accesses, &mut tables)
        {
            match fault {
                Fault::Guest { present: true, .. } => self.forbidden += 1,
                Fault::Guest { .. } | Fault::SecondStage { .. } => self.unmapped += 1,
            }
            accesses = &accesses[completed + 1..];
        }
    }

    fn result(self) -> RunResult {
        let counters = self.machine.totals();
        let hardware = self.machine.total_breakdown();
        let cycles_by_kind = cycles(&hardware);
        let second_stage = bill::second_stage(&counters);
        let events = Events::of(self.machine.model().virtualization);
        let account = Account { hardware, second_stage, events, ..Account::default() };
        let bill = account.bill(&cycles_by_kind);
        let cpus: Vec<_> = (0..self.machine.cpus() as u32)
            .map(|cpu| cpu_totals(CpuId(cpu), self.machine.counters(CpuId(cpu)), &self.machine))
            .collect();
        let elapsed_cycles = cpus.iter().map(|cpu| cpu.cycles).max().unwrap_or(0);
        let whole = Owner::default();
        let alone = |found| LastLevel::of(found, whole, |_| String::new());
        RunResult {
            stack: self.stack,
            policy: self.variant.name().to_owned(),
            accesses: counters.accesses,
            instructions: counters.instructions,
            tlb: tlb(&counters),
            walks: counters.walks,
            walk_refs: counters.walk_refs,
            walk_positions: walk_positions(&counters),
            walk_cycles: counters.walk_cycles,
            cycles: cycles_by_kind.total(),
            elapsed_cycles,
            elapsed_seconds: elapsed_cycles as f64 / self.frequency,
            cycles_by_kind,
            llc: self.machine.llc_use(whole).map(alone),
            l4: self.machine.l4_use(whole).map(alone),
            bill,
            alignment: self.alignment,
            memory: Memory::default(),
            counters: counters::of_hardware(&counters),
            notes: self.notes(),
            parameters: BTreeMap::new(),
            cpus,
            cpu: self.cpu,
            ..RunResult::default()
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.tables.notes.clone();
        let count = |count: u64, why: &str| {
            (count > 0).then(|| format!("{count} accesses {why} and were left out"))
        };
        notes.extend(count(self.unmapped, "went where the captured tables map nothing"));
        notes.extend(count(self.forbidden, "were stores to pages captured as read-only"));
        if !self.warmup.is_over() {
            notes.push("the stream ended before the warm-up was over: nothing counts".to_owned());
        }
        notes
    }
}
